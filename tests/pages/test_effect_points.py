import pytest
import torch

from tests.release.test_population import SCHEMA, release
from torchdpcate.errors import InputError
from torchdpcate.pages.effect_points import MID_RANGE, POPULATION, PROFILE, FigurePoints

FULL = {"age": 30, "sex": "m", "site": "b"}


def test_a_number_varies_between_its_bounds() -> None:
    where = FigurePoints(SCHEMA)
    x = where.points(None)
    assert (where.name, where.levels, where.place(None)) == ("age", (), MID_RANGE)
    assert x[:, 0].tolist() == pytest.approx(torch.linspace(20, 60, 101).tolist())


@pytest.mark.parametrize("name", ["site", "site=b"])
def test_categories_are_points_of_one_indicator(name: str) -> None:
    where = FigurePoints(SCHEMA, name)
    assert (where.name, where.levels, where.grid.tolist()) == ("site", ("a", "b", "c"), [0.0, 1.0, 2.0])
    assert torch.equal(where.points(None)[:, 2:], torch.eye(3, dtype=torch.float64))


def test_others_are_the_released_population() -> None:
    found = release()
    where = FigurePoints(SCHEMA, "sex")
    x, rows = where.points(found), found.reference
    assert where.place(found) == POPULATION
    assert where.levels == ("f", "m")
    for level, part in zip((0.0, 1.0), x.split(len(rows)), strict=True):
        assert set(part[:, 1].tolist()) == {level}
        assert torch.equal(part[:, [0, 2, 3, 4]], rows[:, [0, 2, 3, 4]])


def test_a_whole_profile_is_one_row() -> None:
    where = FigurePoints(SCHEMA, "age", FULL)
    assert where.place(release()) == PROFILE
    assert where.points(release()).unique(dim=0)[:, 1:].unique(dim=0).tolist() == [[1.0, 0.0, 1.0, 0.0]]


def test_a_part_of_a_profile_leaves_the_population_for_the_others() -> None:
    where = FigurePoints(SCHEMA, "age", {"site=c": 1})
    x = where.points(release())
    assert where.place(release()) == f"{PROFILE}, or {POPULATION}"
    assert x[:, 2:].unique(dim=0).tolist() == [[0.0, 0.0, 1.0]]
    assert set(x[:, 1].tolist()) == {0.0, 1.0}


def test_few_records_lie_beyond_two_spreads() -> None:
    assert FigurePoints(SCHEMA, "age").common(release()) == pytest.approx((20, 20 + (-0.5 + 0.6 + 1) / 2 * 40), abs=0.1)
    assert FigurePoints(SCHEMA, "sex").common(release()) is None
    assert FigurePoints(SCHEMA, "age").common(release([0.4], columns=(1,))) == (20, 60)
    assert FigurePoints(SCHEMA, "age").common(None) is None


@pytest.mark.parametrize(
    ("covariate", "profile", "message"),
    [
        ("height", None, "covariate = height: not a covariate; choose among age, sex, site"),
        ("age", {"height": 1}, "profile.height = height: not a covariate"),
        ("age", {"site": "d"}, "profile.site = d: give one of a, b, c"),
        ("sex", {"age": 80}, r"profile.age = 80: give a value within \[20, 60\]"),
    ],
)
def test_what_is_not_there_is_refused(covariate: str, profile: dict | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FigurePoints(SCHEMA, covariate, profile)
