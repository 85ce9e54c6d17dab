"""The study of the defaults on hospital-like laws: its cells, what they find, and the page."""

import math
from importlib.util import find_spec

import pytest

from experiments.defaults.hospital_laws import FAMILIES, REPORTED
from experiments.frame.study import OTHER, Found, Place, Settings
from experiments.frame.table import summarise
from experiments.hospital import study
from experiments.hospital.groups import AVERAGES, DECISIONS, EFFECTS, GROUPS
from experiments.hospital.study import EPSILONS, SEEDS, SIZES, STUDY

N = 300


def found(group: str, family: str = "interaction", epsilon: str = "4") -> dict[tuple[str, str], float]:
    cell = {"group": group, "family": family, "n": N, "epsilon": epsilon, "seed": REPORTED[0]}
    return {(one.method, one.place.metric): one.values[0] for one in STUDY.compute(cell, Settings())}


def test_cells_are_of_reported_seeds_and_each_is_there_once(monkeypatch):
    monkeypatch.setattr(study, "lacks", lambda group: False)
    cells = [tuple(cell.items()) for cell in STUDY.cells(Settings())]
    assert len(set(cells)) == len(cells) == len(FAMILIES) * len(SIZES) * SEEDS * (4 * len(EPSILONS) + 5)
    assert {cell["seed"] for cell in STUDY.cells(Settings())} == set(REPORTED[:SEEDS])
    quick = [tuple(cell.items()) for cell in STUDY.cells(Settings(quick=True, seeds=3))]
    assert set(quick) < set(cells)
    assert len({cell["seed"] for cell in STUDY.cells(Settings(seeds=9))}) == 9


def test_a_group_whose_library_is_missing_has_no_cells_and_says_so(monkeypatch):
    monkeypatch.setattr(study, "lacks", lambda group: group.library == "econml")
    assert "effects, econml" not in {cell["group"] for cell in STUDY.cells(Settings(quick=True))}
    assert STUDY.missing(Settings()) == ["econml is not installed: pip install 'torchdpcate[peers-econml]'."]
    assert "| LinearDML | econml is not installed | - |" in STUDY.page(summarise([]), [])


@pytest.mark.parametrize("name", [name for name, group in GROUPS.items() if not group.library])
def test_a_group_finds_its_methods(name):
    group = GROUPS[name]
    values = found(name, epsilon="4" if group.private else "inf")
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


def test_the_page_has_a_line_for_each_method_and_widths_over_that_without_privacy(tmp_path):
    def one(part: str, method: str, metric: str, values: list[float], epsilon: str = "1") -> Found:
        return Found(Place(part, "trial", "4000", epsilon, method, metric), OTHER, method, "certified", values)

    means = summarise(
        [
            one(EFFECTS, "RLearner", "error", [0.5, 1.5]),
            one(AVERAGES, "AverageEffect", "width", [0.3]),
            one(AVERAGES, "AverageEffect", "error", [0.03]),
            one(AVERAGES, "AverageEffect, no budget", "width", [0.1], "inf"),
            one(AVERAGES, "AverageEffect", "coverage", [1.0, 0.0]),
            one(DECISIONS, "EffectRule", "error", [0.25]),
        ]
    )
    text = STUDY.page(means, ["A note."])
    assert "| RLearner | certified | 4,000 | 1 | 2 | 1 ± 0.5 |" in text
    assert "| AverageEffect | certified | 4,000 | 1 | 1 | 3 |" in text
    assert "| AverageEffect | certified | 4,000 | 1 | 2 | 50% |" in text
    assert "| EffectRule | certified | 4,000 | 1 | 1 | 0.25 |" in text
    assert "A note." in text
    STUDY.draw([], means, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"effects.png", "averages.png"}
