"""The study of the defaults on hospital-like laws: its cells, what they find, and the page."""

import math
from importlib.util import find_spec

import pytest

from experiments.defaults.hospital_laws import REPORTED
from experiments.frame.study import Settings
from experiments.frame.table import summarise
from experiments.hospital import study
from experiments.hospital.groups import GROUPS
from experiments.hospital.study import STUDY

N = 300


def found(group: str, family: str = "interaction", epsilon: str = "4") -> dict[tuple[str, str], float]:
    cell = {"group": group, "family": family, "n": N, "epsilon": epsilon, "seed": REPORTED[0]}
    return {(one.method, one.place.metric): one.values[0] for one in STUDY.compute(cell, Settings())}


def test_a_group_whose_library_is_missing_has_no_cells_and_says_so(monkeypatch):
    monkeypatch.setattr(study, "lacks", lambda group: group.library == "econml")
    assert "effects, econml" not in {cell["group"] for cell in STUDY.cells(Settings(quick=True))}
    assert STUDY.missing(Settings()) == ["econml is not installed: pip install 'torchdpcate[peers-econml]'."]
    assert "| LinearDML | econml is not installed | - |" in STUDY.page(summarise([]), [])


@pytest.mark.parametrize("name", [name for name, group in GROUPS.items() if not group.library])
def test_a_group_finds_its_methods(name):
    group = GROUPS[name]
    family = "trial" if name == "averages" else "interaction"  # a cohort as small has no average
    values = found(name, family, epsilon="4" if group.private else "inf")
    requested = {"RLearner, intervals=true"}  # which its gate refuses at so few records
    assert {method for method, _ in values} == set(group.methods) - requested
    assert all(math.isfinite(value) for value in values.values())


@pytest.mark.parametrize("name", [name for name, group in GROUPS.items() if group.library])
def test_a_group_of_another_library_finds_its_methods(name):
    group = GROUPS[name]
    if find_spec(group.library) is None:
        pytest.skip(f"extra peers-{group.library} is not installed")
    values = found(name, epsilon="inf")
    assert {method for method, _ in values} == set(group.methods)
    assert all(math.isfinite(value) for value in values.values())
