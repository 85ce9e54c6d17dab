"""One column of a table to numbers, counting what cannot be read."""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate.data._arrays import MEND_MISSING, plural
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_BOOLEANS = {"true": 1.0, "false": 0.0}
MISSING = ("", "na", "n/a", "nan", "null", "none", "<na>")
"""How a missing value may be written, in small letters."""
DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""How a number may be written; inf, 0x1, 1_0 and other digits are none."""
_REMEDY = "mend these rows: a number has a decimal point, and a code of a missing value is none"
_TRUTH = "holds true and false; write 0 and 1, or declare it with categories: [0, 1]"
_EXACT = 2**53  # the largest number up to which float64 distinguishes all integers


def numeric_column(column: "pd.Series", name: str, *, truth: bool = False, remedy: str = _REMEDY) -> np.ndarray:
    """Return a column as float64 [n]; numbers written as text count as numbers.

    Args:
        column: The column.
        name: Its name, for messages.
        truth: Whether true and false stand for 1 and 0: of arms and of the categories 0 and 1.
        remedy: What to do about words, for messages.

    Raises:
        InputError: Missing, infinite or non-numeric values, true or false where they are no numbers, or integers
            beyond 2^53; says which column and how many.
    """
    import pandas as pd

    kinds = pd.api.types
    if kinds.is_bool_dtype(column) and not truth:
        raise InputError(f"column {name!r} {_TRUTH}")
    if kinds.is_complex_dtype(column) or not kinds.is_numeric_dtype(column):
        column = _parse(column, name, truth, remedy)
    elif kinds.is_integer_dtype(column):
        beyond = int(((column > _EXACT) | (column < -_EXACT)).sum())
        if beyond:
            raise InputError(
                f"column {name!r} has {plural(beyond, 'integer')} beyond 2^53, which float64 cannot distinguish; "
                "is it an identifier? drop or rescale it"
            )
    _refuse_missing(int(column.isna().sum()), name)
    values = column.to_numpy(dtype=np.float64, copy=True)
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise InputError(f"column {name!r} has {plural(infinite, 'infinite value')}; drop these rows")
    return values


def category_codes(
    column: "pd.Series",
    name: str,
    categories: Sequence[Any],
    remedy: str = "mend these rows, or declare categories known from outside the records",
) -> np.ndarray:
    """Return the position of each value in ``categories``, int64 [n].

    Args:
        column: The column.
        name: Its name, for messages.
        categories: What it may hold.
        remedy: What to do about other values, for messages.

    Raises:
        InputError: Missing or unknown values; says which column and how many.
    """
    import pandas as pd

    text = isinstance(categories[0], str)
    if text:
        _refuse_missing(int(column.isna().sum()), name)
        values: Any = column.astype(str).to_numpy(dtype=object)
    else:
        values = numeric_column(column, name, truth=set(categories) == {0, 1})
    index = pd.Index(list(categories), dtype=object if text else np.float64)
    codes = index.get_indexer(values)
    unknown = int((codes < 0).sum())
    if unknown:
        raise InputError(
            f"column {name!r} has {plural(unknown, 'value')} outside its declared categories "
            f"{list(categories)}; {remedy}"
        )
    return codes


def readable_rows(column: "pd.Series", categories: Sequence[Any] = ()) -> np.ndarray:
    """Return which values a column of numbers, or of these categories, may have, bool [n]; bounds are not looked at.

    A column of true and false where these are no numbers is a mistake of all its rows, and ``numeric_column``'s to
    refuse.
    """
    import pandas as pd

    if categories and isinstance(categories[0], str):
        return (column.notna() & column.astype(str).isin(list(categories))).to_numpy(dtype=bool)
    kinds, truth = pd.api.types, set(categories) == {0, 1}
    if kinds.is_bool_dtype(column):
        return np.ones(len(column), dtype=bool)
    if not kinds.is_numeric_dtype(column) or kinds.is_complex_dtype(column):
        read = [_number(value, truth) for value in column.astype(object)]
        values = np.array([np.nan if value is None else value for value in read], dtype=np.float64)
    else:
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    known = np.isfinite(values) & (np.abs(values) <= _EXACT)
    return known & np.isin(values, np.asarray(categories, dtype=np.float64)) if categories else known


def _parse(column: "pd.Series", name: str, truth: bool, remedy: str) -> "pd.Series":
    """Read text as numbers, and as true/false where these are numbers; refuse anything else."""
    import pandas as pd

    read = [_number(value, truth) for value in column.astype(object)]
    wrong = sum(value is None for value in read)
    if wrong:
        if wrong == len(read) and all(_number(value, True) is not None for value in column.astype(object)):
            raise InputError(f"column {name!r} {_TRUTH}")
        raise InputError(f"column {name!r} has {plural(wrong, 'non-numeric value')}; {remedy}")
    return pd.Series(read, dtype=np.float64)


def _number(value: Any, truth: bool) -> float | None:
    """Return a value as a number, NaN where it is missing, None where it is neither."""
    import pandas as pd

    if isinstance(value, str):
        word = value.strip(" \t").lower()
        if DECIMAL.fullmatch(word):
            return float(word)
        return float("nan") if word in MISSING else _BOOLEANS.get(word) if truth else None
    if isinstance(value, bool | np.bool_):
        return float(value) if truth else None
    if isinstance(value, int | float | Decimal | np.integer | np.floating):
        return _as_float(value)
    return float("nan") if value is None or value is pd.NA or value is pd.NaT else None


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return float("inf")


def _refuse_missing(count: int, name: str) -> None:
    if count:
        raise InputError(f"column {name!r} has {plural(count, 'missing value')}; {MEND_MISSING}")
