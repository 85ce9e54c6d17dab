import numpy as np
import pandas as pd
import pytest
import torch

from tests.data.conftest import SHARED
from tests.papers.layouts import extract_tables, raw_tables, write_extract, write_raw
from torchdpcate.errors import InputError
from torchdpcate.papers import MimicExtract
from torchdpcate.papers.mimic import read_extract
from torchdpcate.papers.mimic_hours import Window, time_points
from torchdpcate.papers.mimic_tables import read_tables

DEMO = SHARED / "mimic_extract_layout"
demo = pytest.mark.skipif(not DEMO.exists(), reason="the demonstration of MIMIC-Extract's layout is not here")


def test_one_record_a_person_within_public_bounds(tmp_path) -> None:
    study = MimicExtract(write_extract(tmp_path / "e", *extract_tables())).load()
    assert study.n == 12
    assert study.unit.to_dict() == {"column": "subject_id", "records": 1}
    assert study.name == "mimic"
    study.domain.check_covariates(study.records.x)
    assert study.records.x[0, study.domain.names.index("age")] == 90  # 300 years, for those older than 89
    assert study.records.a.tolist() == [0.0, 1.0] * 6
    assert study.queries.shape == (300, 8)


def test_the_seed_draws_time_points_and_each_person_has_k(tmp_path) -> None:
    folder = write_extract(tmp_path / "e", *extract_tables())
    x = [MimicExtract(folder, seed=seed).load().records.x for seed in (0, 0, 1)]
    assert torch.equal(x[0], x[1])
    assert not torch.equal(x[0], x[2])
    four = MimicExtract(folder, per_person=4).load()
    assert (four.n, four.unit.records) == (48, 4)
    assert (four.records.x[:, -1].reshape(12, 4).std(1) == 0).all()  # a person's gender


def test_replacing_a_person_leaves_the_others_as_they_are(tmp_path) -> None:
    tables = extract_tables()
    first = MimicExtract(write_extract(tmp_path / "a", *tables), per_person=3).load().records
    gone = [table.drop(index=10_004, level=0) for table in tables]
    others = [table[table.index.get_level_values(0) == 10_004] for table in extract_tables(hours=33, seed=9)]
    new = [other.rename(index={10_004: 9_000}, level=0) for other in others]  # the first of all, and a shorter stay
    changed = [pd.concat([one, two]) for one, two in zip(new, gone, strict=True)]
    second = MimicExtract(write_extract(tmp_path / "b", *changed), per_person=3).load().records
    kept = torch.cat([torch.arange(12), torch.arange(15, 36)])
    assert torch.equal(first.x[kept], second.x[3:])
    assert torch.equal(first.y[kept], second.y[3:])


def test_rows_may_stand_in_any_order(tmp_path) -> None:
    tables = extract_tables()
    shuffled = [table.sample(frac=1, random_state=3) for table in tables]
    one, two = (
        MimicExtract(write_extract(tmp_path / name, *t)).load().records for name, t in (("a", tables), ("b", shuffled))
    )
    assert torch.equal(one.x, two.x)


FAULTS = {  # of vitals, interventions and patients
    "table patients: 2 stays there twice": lambda v, i, p: (v, i, pd.concat([p, p[:2]])),
    "table vitals_labs: 3 hours there twice": lambda v, i, p: (pd.concat([v, v[:3]]), i, p),
    "does not count 0, 1, 2, ... in 1 stay": lambda v, i, p: (v.drop(index=v.index[5]), i.drop(index=v.index[5]), p),
    "4 hours in one of vitals_labs and interventions alone": lambda v, i, p: (v, i[:-4], p),
    "values of 'heart rate' outside .* beats.min, too many for errors": lambda v, i, p: (v / 18.016, i, p),
    "vent has 240 values other than 0 and 1": lambda v, i, p: (v, 2 * i, p),
    "1 stay not in table patients": lambda v, i, p: (v, i, p[:-1]),
    "table patients: column 'age' has 12 non-numeric values": lambda v, i, p: (v, i, p.assign(age="old")),
    "column \"\\('sodium', 'mean'\\)\" is missing": lambda v, i, p: (v.drop(columns="sodium", level=0), i, p),
}


@pytest.mark.parametrize("message", FAULTS)
def test_what_is_not_of_the_layout_is_refused(tmp_path, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_extract(write_extract(tmp_path / "e", *FAULTS[message](*extract_tables())))


def test_other_layouts_are_named_with_their_choice(tmp_path) -> None:
    with pytest.raises(InputError, match="holds MIMIC's own tables, not MIMIC-Extract's: data=mimic_iii"):
        read_extract(write_raw(tmp_path / "iii", raw_tables("iii")))
    folder = write_extract(tmp_path / "e", *extract_tables())
    with pytest.raises(InputError, match="is MIMIC-Extract's, not MIMIC-IV's tables: data=mimic"):
        read_tables(folder, "iv")
    (folder / "interventions.parquet").unlink()
    with pytest.raises(InputError, match="no parquet file of table interventions"):
        read_extract(folder)


def test_nobody_with_a_record_is_said(tmp_path) -> None:
    with pytest.raises(InputError, match="nobody has a time point"):
        MimicExtract(write_extract(tmp_path / "e", *extract_tables(hours=8))).load()


@demo
def test_the_demonstration_is_read() -> None:
    found = read_extract(DEMO)
    assert (found.n, len(found.age)) == (5175, 84)
    assert len(np.unique(found.person[time_points(found, Window())])) == 65
    assert MimicExtract(DEMO).load().n == 65
