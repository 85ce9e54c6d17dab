import pandas as pd
import pytest
import torch

from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import MOST_CELLS, Subgroups
from torchdpcate.errors import InputError

SCHEMA = TableSchema.from_dict(
    {
        "treatment": "a",
        "outcome": {"name": "y", "low": 0, "high": 1},
        "covariates": {
            "sex": {"categories": ["f", "m"]},
            "site": {"categories": ["a", "b", "c"]},
            "age": {"low": 18, "high": 90},
            "dose": {"low": 2, "high": 4, "two_levels": True},
        },
    }
)
X = torch.tensor(
    [[0, 1, 0, 0, 18, 2], [1, 0, 1, 0, 40, 4], [1, 0, 0, 1, 59.5, 2], [0, 0, 0, 1, 60, 4], [0, 0, 1, 0, 90, 2]],
    dtype=torch.float64,
)  # sex, site, age, dose


@pytest.mark.parametrize(
    ("given", "labels", "positions"),
    [
        ([{"sex": True}], ["sex = f", "sex = m"], [0, 1, 1, 0, 0]),
        ([{"site": True}], ["site = a", "site = b", "site = c"], [0, 1, 2, 2, 1]),
        ([{"dose": True}], ["dose = 2", "dose = 4"], [0, 1, 0, 1, 0]),
        ([{"age": [40, 60]}], ["age < 40", "40 <= age < 60", "age >= 60"], [0, 1, 1, 2, 2]),
        (
            [{"sex": True, "age": [40]}],
            ["sex = f, age < 40", "sex = f, age >= 40", "sex = m, age < 40", "sex = m, age >= 40"],
            [0, 3, 3, 1, 1],
        ),
    ],
)
def test_each_record_is_in_its_cell(given, labels, positions):
    cells = Subgroups.of(given, SCHEMA)
    assert cells.labels == labels
    assert cells.positions(X)[:, 0].tolist() == positions
    (partition,) = cells.partitions
    assert partition.positions(partition.points(6)).tolist() == list(range(partition.size))
    assert Subgroups.of(cells.config(), SCHEMA) == cells


def test_crossed_cells_make_up_all_others():
    cells = Subgroups.of([{"sex": True}, {"age": [40, 60]}, {"age": [50]}, {"sex": True, "age": [40]}], SCHEMA)
    finest = Subgroups((cells.crossed(),), 6)
    assert finest.size == 2 * 4
    members = cells.members(finest)
    at = finest.positions(X)[:, 0]
    own = torch.zeros(len(X), cells.size, dtype=torch.float64).scatter_(1, cells.positions(X), 1.0)
    assert torch.equal(members[:, at].T, own)
    assert members.sum(0).tolist() == [4.0] * finest.size  # in one cell of each partition
    assert torch.equal(cells.members(cells), torch.eye(cells.size, dtype=torch.float64))


REFUSED = {
    "nothing": ([], "give a list of partitions"),
    "no file": ("gone.yaml", "no such file"),
    "an empty one": ([{}], "write each partition as"),
    "no covariate": ([{"height": True}], "'height' is no covariate"),
    "a cut below the bounds": ([{"age": [10]}], r"leaves a cell empty; its bounds are \[18, 90\]"),
    "cuts that fall": ([{"age": [60, 40]}], "increasing order"),
    "a cut that is none": ([{"age": ["old"]}], "give a number"),
    "a number without cuts": ([{"age": True}], "give public cuts"),
    "cuts of categories": ([{"sex": [0.5]}], "write {sex: true}"),
    "the same twice": ([{"sex": True}, {"sex": True}], "is there twice"),
    "too many": ([{"age": [18 + k / 100 for k in range(1, MOST_CELLS + 1)]}], "give at most 1,000"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_mistakes_are_one_line(mistake):
    given, message = REFUSED[mistake]
    with pytest.raises(InputError, match=message) as problem:
        Subgroups.of(given, SCHEMA)
    assert "\n" not in str(problem.value)


def test_missing_values_are_a_cell_beside_the_cuts() -> None:
    schema = TableSchema.from_dict({
        "treatment": "a", "outcome": {"name": "y", "low": 0, "high": 1},
        "covariates": {
            "age": {"low": 18, "high": 90, "missing": "indicator"},
            "site": {"categories": ["n", "s"], "missing": "indicator"},
            "seen": {"kind": "date", "low": "2015-01-01", "high": "2016-01-01"},
        },
    })  # fmt: skip
    cells = Subgroups.of([{"age": [40]}, {"age": [60], "site": True}, {"seen": ["2015-07-01"]}], schema)
    assert cells.labels[:3] == ["age < 40", "age >= 40", "age missing"]
    assert cells.labels[9:12] == ["age missing, site = n", "age missing, site = s", "age missing, site = missing"]
    assert cells.labels[12:] == ["seen < 2015-07-01", "seen >= 2015-07-01"]
    rows = {"age": [30, None, 60], "site": [None, "n", "s"], "seen": ["2015-06-30", "2015-07-01", "2016-01-01"]}
    x = schema.encode(pd.DataFrame(rows))
    assert cells.positions(x).tolist() == [[0, 5, 12], [2, 9, 13], [1, 7, 13]]
    assert Subgroups.of(cells.config(), schema) == cells
    finest = Subgroups((cells.crossed(),), schema.domain.dimension)
    assert finest.size == 4 * 3 * 2
    assert cells.members(finest).sum(0).tolist() == [3.0] * finest.size
    with pytest.raises(InputError, match="the cut 2016-01-01 of 'seen' leaves a cell empty"):
        Subgroups.of([{"seen": ["2016-01-01"]}], schema)
