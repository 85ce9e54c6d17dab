"""One column of a table to numbers, counting what cannot be read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate.data._arrays import plural
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_BOOLEANS = {"true": 1.0, "false": 0.0}
_MISSING = ("", "na", "n/a", "nan", "null", "none", "<na>")


def numeric_column(column: "pd.Series", name: str) -> np.ndarray:
    """Return a column as float64 [n]; bools and numbers written as text count as numbers.

    Raises:
        InputError: missing, infinite or non-numeric values; says which column and how many.
    """
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(column):
        column = _parse(column, name)
    _refuse_missing(int(column.isna().sum()), name)
    values = column.to_numpy(dtype=np.float64, copy=True)
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise InputError(f"column {name!r} has {plural(infinite, 'infinite value')}; drop these rows")
    return values


def category_codes(column: "pd.Series", name: str, categories: Sequence[Any]) -> np.ndarray:
    """Return the position of each value in `categories`, int64 [n].

    Raises:
        InputError: missing or unknown values; says which column and how many.
    """
    import pandas as pd

    text = isinstance(categories[0], str)
    if text:
        _refuse_missing(int(column.isna().sum()), name)
        values: Any = column.astype(str).to_numpy(dtype=object)
    else:
        values = numeric_column(column, name)
    index = pd.Index(list(categories), dtype=object if text else np.float64)
    codes = index.get_indexer(values)
    unknown = int((codes < 0).sum())
    if unknown:
        raise InputError(
            f"column {name!r} has {plural(unknown, 'value')} outside its declared categories "
            f"{list(categories)}; mend these rows or add to the categories"
        )
    return codes


def _parse(column: "pd.Series", name: str) -> "pd.Series":
    """Read text as numbers or true/false; refuse anything else."""
    import pandas as pd

    values = column.astype(object)
    text = values.map(lambda value: value.strip().lower() if isinstance(value, str) else value)
    missing = values.isna() | text.isin(_MISSING)
    numbers = pd.to_numeric(text.replace(_BOOLEANS), errors="coerce")
    wrong = int((numbers.isna() & ~missing).sum())
    if wrong:
        raise InputError(f"column {name!r} has {plural(wrong, 'non-numeric value')}; mend these rows")
    return numbers


def _refuse_missing(count: int, name: str) -> None:
    if count:
        raise InputError(f"column {name!r} has {plural(count, 'missing value')}; drop or impute these rows")
