"""Runs of every mechanism and head on marked records; the leak scan finds nothing of the curator's in them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from torchdpcate.audit.leak.scan import FALSE_ALARM, scan
from torchdpcate.cli.main import main

DOMAIN = {
    "treatment": "treat",
    "outcome": {"name": "pay", "low": 0, "high": 10, "better": "higher"},
    "covariates": {"age": {"low": 0, "high": 100}, "dose": {"low": 0, "high": 1}},
}
QUICK = ["data=table", "data.path=people.csv", "data.domain=domain.yaml", "nuisance.batch_size=50", "nuisance.epochs=2"]
TABLE = ["data.path=people.csv", "data.domain=domain.yaml"]
LINEAR = ["second_stage=linear", "second_stage.ridge=0.05"]
WIDE = "privacy.epsilon=35"  # else so few records are answered by bounds alone


def marked(n: int = 300) -> pd.DataFrame:
    """Records whose every number has digits that nothing else would have."""
    rng = np.random.default_rng(0)
    treat = rng.integers(0, 2, n)
    age, dose = rng.uniform(1, 99, n), rng.uniform(0.1, 0.9, n)
    return pd.DataFrame({"treat": treat, "age": age, "dose": dose, "pay": 2 + treat + 3 * dose + rng.uniform(0, 2, n)})


def test_one_composition_leaves_nothing_of_the_curators_in_the_release_folder(finished, tmp_path, monkeypatch):
    files = {"people.csv": marked(2000).to_csv(index=False), "domain.yaml": yaml.safe_dump(DOMAIN)}
    words = ["data=table", "data.path=people.csv", "data.domain=domain.yaml", "trainer.progress=false"]
    run = finished(*words, files=files)
    monkeypatch.chdir(run.parent)
    found = scan(Path(shutil.copytree(run, tmp_path / "r")))
    assert found.leaks == ()
    assert not (run / "curator" / "effect.png").exists()  # it would be the reader's once more


@pytest.fixture
def trained(finished, tmp_path, monkeypatch):
    """A copy of a run by its words, where the path of its records leads to them."""
    files = {"people.csv": marked().to_csv(index=False), "domain.yaml": yaml.safe_dump(DOMAIN)}

    def folder(*words: str) -> Path:
        run = finished(*QUICK, *words, "trainer.progress=false", files=files)
        monkeypatch.chdir(run.parent)
        return Path(shutil.copytree(run, tmp_path / "r"))

    return folder


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["learner=dr", "features=fourier", "features.pairs=20"],
        ["mechanism=output", "features=representation"],
        ["mechanism=output", "release=queries", "queries.count=40"],
        ["release=queries", "mechanism=smooth_sensitivity", "queries.count=7", WIDE],
        ["release=queries", "mechanism=influence", "queries.count=7", "release.include_nuisances=true", WIDE],
        ["second_stage=neural", "second_stage.width=4", "release=queries", "mechanism=influence", WIDE],
    ],
    ids=lambda words: " ".join(words[:2]) or "default",
)
def test_the_release_folder_holds_nothing_of_the_curators(words, trained):
    ridge = [] if "second_stage=neural" in words else LINEAR
    run = trained(*words, *ridge)
    summary = json.loads((run / "curator" / "summary.json").read_text())
    weaker = "heuristic" if "second_stage=neural" in words else "conditional"
    assert summary["level"] == (weaker if "mechanism=influence" in words else "certified")
    assert (summary["epsilon"] is None) is ("mechanism=influence" in words)
    if "mechanism=influence" not in words:  # a page and a file more to search
        assert main(["inspect", str(run / "release" / "release.safetensors"), "--card"]) == 0
    report = scan(run)
    assert report.leaks == ()
    assert report.notes == ()
    searches = {row.against: row for row in report.comparisons}
    # of numbers with all their digits; a finding has two, a leak only where a whole number of the curator equals them
    assert searches.pop("these by their names").expected[0] < FALSE_ALARM
    assert searches["the records"].pairs > 5e3
    assert searches["the curator's single numbers"].pairs > 20
    assert searches["the curator's vectors"].pairs > 20
    # to the last bits, hardly anything is expected even by chance, and nothing is there
    assert sum(row.expected[0] for row in searches.values()) < 1e-4
    assert sum(row.matches[0] for row in searches.values()) == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [["task=average_effect"], ["task=rule"]], ids=lambda words: words[0])
def test_a_run_with_its_pages_holds_nothing_of_the_curators_and_what_is_planted_is_found(words, finished, tmp_path):
    """The curator's page and the reader's share pictures, settings and the level 95; neither is the other's leak."""
    files = {"people.csv": marked(2000).to_csv(index=False), "domain.yaml": yaml.safe_dump(DOMAIN)}
    run = Path(shutil.copytree(finished(*words, "data=table", *TABLE, files=files), tmp_path / "r"))
    summary = run / "curator" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"seconds": 26.9531874251}))
    assert main(["report", str(run)]) == 0
    assert main(["inspect", str(run), "--card"]) == 0
    report = scan(run)
    assert report.leaks == ()
    assert report.suspects == ()
    assert report.comparisons[0].expected[0] < FALSE_ALARM
    assert pd.read_csv(run / "curator" / "report.csv")["seconds"].tolist() == [26.9531874251]
    (run / "release" / "note.md").write_text("it took 26.95318743")  # as a page might round it
    assert [leak.file for leak in scan(run).leaks] == ["note.md"]


@pytest.mark.slow
def test_the_scan_finds_one_planted_record(trained):
    run = trained(*LINEAR)
    (run / "release" / "note.md").write_text(f"outcome {marked()['pay'][3]}")
    leaks = scan(run).leaks
    assert [(leak.file, leak.what) for leak in leaks] == [("note.md", "equal: record's pay")]


@pytest.mark.slow
def test_the_curators_numbers_are_written_and_complete(trained):
    run = trained(*LINEAR)
    from safetensors.torch import load_file

    numbers, table = load_file(run / "curator" / "numbers.safetensors"), marked()
    assert {name: float(numbers[name]) for name in ("arm.treated", "arm.control")} == {
        "arm.treated": table["treat"].sum(),
        "arm.control": 300 - table["treat"].sum(),
    }
    assert float(numbers["mean.outcome"]) == pytest.approx(table["pay"].mean())
    assert float(numbers["mean.outcome.treated"]) == pytest.approx(table["pay"][table["treat"] == 1].mean())
    assert float(numbers["mean.covariate.dose"]) == pytest.approx(table["dose"].mean())
    fit = json.loads((run / "curator" / "fit.json").read_text())
    assert numbers["theta_without_noise"].shape == (fit["head_parameters"],)
    assert numbers["effect_at_queries_without_noise"].shape == (300,)
    assert numbers["effect_in_figure_without_noise"].shape == numbers["public.effect_in_figure"].shape == (101,)
