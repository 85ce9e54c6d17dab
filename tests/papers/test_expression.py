import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from torchdpcate.cli.main import main
from torchdpcate.errors import InputError
from torchdpcate.papers.expression import Expression, read_matrix

SHARED = Path(__file__).parents[3] / "shared" / "data" / "tcga"
PEOPLE = [f"TCGA-{place:02d}-{number:04d}-01" for place in range(10) for number in range(20)]
GENES = [f"G{number}" for number in range(30)]


@pytest.fixture
def matrix() -> pd.DataFrame:
    values = np.random.default_rng(0).uniform(-9, 15, (len(GENES), len(PEOPLE))).round(4)
    return pd.DataFrame(values, index=GENES, columns=PEOPLE)


@pytest.fixture
def here(tmp_path, matrix, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    matrix.to_csv("m.tsv.gz", sep="\t", index_label="sample")
    Path("genes.txt").write_text("\n".join(GENES[:12]))
    return tmp_path


@pytest.mark.first(4)
@pytest.mark.parametrize("name", ["m.tsv", "m.tsv.gz", "m.csv", "m.parquet"])
@pytest.mark.parametrize("samples", ["columns", "rows"])
@pytest.mark.parametrize("genes", [None, ["G7", "G3"]])
def test_every_layout_reads_the_same(tmp_path, matrix, name, samples, genes):
    frame = (matrix if samples == "columns" else matrix.T).rename_axis("sample")
    if name.endswith("parquet"):
        frame.reset_index().to_parquet(tmp_path / name)
    else:
        frame.to_csv(tmp_path / name, sep="," if "csv" in name else "\t")
    people, found, values = read_matrix(tmp_path / name, samples, genes)
    assert people == PEOPLE
    assert found == (genes or GENES)
    assert np.array_equal(values, matrix.loc[found].T.to_numpy())


def test_a_patient_is_one_record(tmp_path, matrix):
    matrix.columns = ["TCGA-AA-0001-11", "TCGA-AA-0001-01", *PEOPLE[2:]]
    matrix.to_csv(tmp_path / "m.tsv", sep="\t")
    people, _, values = read_matrix(tmp_path / "m.tsv")
    assert people == ["TCGA-AA-0001-01", *PEOPLE[2:]]
    assert np.array_equal(values[0], matrix.iloc[:, 1])


def test_the_treatment_goes_by_the_sum_and_the_effect_is_constant(here):
    study = Expression("m.tsv.gz", genes="genes.txt", confounding=20.0, noise=0.0).load()
    u = study.domain.scale(study.records.x)[:, :10].sum(1)
    assert (study.records.a[u.abs() > 0.5] == (u > 0)[u.abs() > 0.5]).double().mean() > 0.8
    assert torch.equal(study.effect, torch.ones_like(study.effect))
    base = Expression("m.tsv.gz", genes="genes.txt", confounding=0.0, noise=0.0).load()
    assert torch.allclose(study.records.y - study.records.a, base.records.y - base.records.a)
    low, high = study.domain.outcome_low, study.domain.outcome_high
    assert bool(((study.records.y >= low) & (study.records.y <= high)).all())


def test_a_plan_reads_no_matrix(here):
    Path("m.tsv.gz").unlink()
    public = Expression("m.tsv.gz", genes="genes.txt").public()
    assert public.domain.names == tuple(GENES[:12])
    with pytest.raises(InputError, match=r"data\.genes: name a list"):
        Expression("m.tsv.gz").public()


def edited(matrix: pd.DataFrame, change) -> None:
    text = matrix.to_csv(sep="\t", index_label="sample")
    Path("bad.tsv").write_text(change(text))


def tsv(matrix: pd.DataFrame) -> None:
    matrix.to_csv("bad.tsv", sep="\t")


ROWS = {"samples": "rows"}
BY_LIST = "name the genes by data.genes"
BAD = {
    "transposed": (lambda m: tsv(m.T), {}, "its samples are in rows; give data.samples=rows"),
    "words": (
        lambda m: tsv(m.astype(object).mask(m == m.iloc[2, 2], "high")),
        {},
        "no numbers, first in column 4;",
    ),
    "clinical words": (lambda m: tsv(m.T.assign(stage="II")), ROWS, BY_LIST),
    "a gene twice": (
        lambda m: tsv(m.rename(index={"G3": "G4"})),
        {"genes": ["G4", "G5", "G6"]},
        "0 genes have no name and 1 are there more than once",
    ),
    "a sample twice": (
        lambda m: edited(m, lambda text: text.replace(PEOPLE[3], PEOPLE[4], 1)),
        {},
        "0 samples have no name and 1 are there more than once",
    ),
    "a gene that is not there": (tsv, {"genes": ["G1", "NONE"]}, "1 gene of the list not in the file (number 2 first)"),
    "out of bounds": (tsv, {"low": 0, "out_of_bounds": "refuse"}, "outside"),
    "half a gzip": (
        lambda m: Path("cut.tsv.gz").write_bytes(gzip.compress(b"a\tb\n" * 9)[:20]),
        {"path": "cut.tsv.gz"},
        "cannot be read",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_matrix_is_one_line(here, matrix, case):
    write, given, message = BAD[case]
    write(matrix)
    with pytest.raises(InputError) as caught:
        Expression(**{"path": "bad.tsv", **given}).load()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data/tcga")
def test_real_files_train(tmp_path):
    xena = [
        "data=tcga",
        f"data.path={SHARED / 'pancan_100genes' / 'xena_layout.tsv.gz'}",
        "data.low=0",
        "data.high=24",
    ]
    assert main(["train", *xena, f"run_dir={tmp_path / 'a'}"]) == 0
    tpm = ["data=tcga", f"data.path={SHARED / 'xena_log2tpm' / 'blca.csv.gz'}", "data.samples=rows"]
    genes = "data.genes=[FMO2,APIP,PLCE1,SPCS2,HAO1,PSMB6,PRKG2,UPP1,SLC2A1,MASP2,TNNT1,LDHA]"
    assert main(["train", *tpm, genes, "privacy.epsilon=4", f"run_dir={tmp_path / 'b'}"]) == 0
