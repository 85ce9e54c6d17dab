from pathlib import Path

import pandas as pd
import pytest

from torchdpcate.data.checked import column_faults
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError

UNIT = {"low": 0, "high": 10}
SCHEMA = TableSchema.from_dict({
    "treatment": "arm", "outcome": {"name": "y", **UNIT},
    "covariates": {"age": UNIT, "bmi": UNIT, "site": {"categories": ["n", "s"]}, "crp": UNIT},
})  # fmt: skip
ROWS = {
    "arm": [0, 1, 0, 1], "y": [1, 2, 3, -99], "age": [1, None, 3, 4], "bmi": ["1", "x", "3", "4"],
    "site": ["n", "s", "n", "west"], "crp": [1, 2, 3, 40],
}  # fmt: skip
FAULTS = [
    "outcome 'y' has 1 value outside its declared bounds [0, 10]; name codes of missing values in the domain file",
    "column 'age' has 1 missing value; say in the domain file how they are taken: missing: indicator",
    "column 'bmi' has 1 non-numeric value; a number has a decimal point; correct these cells, say what such cells",
    "column 'site' has 1 value outside its declared categories ['n', 's']; correct these cells, declare categories",
    "covariate 'crp' has 1 value outside its declared bounds [0, 10]; name codes of missing values",
]


def test_each_column_is_told_with_its_remedy() -> None:
    found = list(column_faults(pd.DataFrame(ROWS), SCHEMA))
    assert len(found) == len(FAULTS)
    assert all(line.startswith(fault) for line, fault in zip(found, FAULTS, strict=True))
    assert not list(column_faults(pd.DataFrame(ROWS).iloc[[0, 2]].assign(arm=[0, 1]), SCHEMA))
    arms = pd.DataFrame(ROWS).iloc[[0, 2]].assign(arm=[0, 2])
    assert next(column_faults(arms, SCHEMA)).startswith("treatment column 'arm' has 1 value other than 0 and 1")


def test_tables_and_streams_tell_all_of_them(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    pd.DataFrame(ROWS).to_csv(file, index=False)
    for read in (lambda: Table(file, SCHEMA).load(), lambda: TableStream(file, SCHEMA)):
        with pytest.raises(InputError) as caught:
            read()
        first, *lines = str(caught.value).splitlines()
        assert first.endswith("5 columns are not as the domain file says:")
        assert first.startswith(str(file))
        assert all(line.startswith(f"- {fault}") for line, fault in zip(lines, FAULTS, strict=True))
