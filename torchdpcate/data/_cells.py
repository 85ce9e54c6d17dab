"""What cells of a table mean beside numbers and words: codes of missing values, and dates."""

import datetime
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate.data._arrays import DECIMAL, MISSING, plural, refuse_missing
from torchdpcate.data.facts import check_name, to_number
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Code = str | int | float
"""What may stand for a missing value in a cell."""
MISSING_LEVEL = "missing"
"""Level of a covariate whose value is missing, and what the name of its indicator ends in."""
INDICATOR = "indicator"
"""What ``missing`` of a covariate may be in a domain file."""
_EPOCH = datetime.date(1970, 1, 1)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WITH_TIME = re.compile(rf"({_DAY.pattern})(?:[ T][0-9:.+Z-]*)?")


def check_codes(what: str, codes: Any) -> tuple[Code, ...]:
    """Return what else means that a value is missing.

    Args:
        what: Names the column in messages.
        codes: Words and numbers; one by itself may be given without a list.

    Raises:
        InputError: True or false, or another thing that no cell holds.

    Example:
        >>> check_codes("'age'", [-99, "NA"])
        (-99, 'NA')
    """
    given = [codes] if isinstance(codes, str | int | float) else codes
    if not isinstance(given, Sequence):
        raise InputError(f"codes of {what} are {codes!r}; give a list of words and numbers, as [-99, NA]")
    for code in given:
        if isinstance(code, str):
            check_name(f"a code of a missing value in {what}", code)
        elif isinstance(code, bool) or not isinstance(code, int | float):
            raise InputError(f"codes of {what} hold {code!r}; give words and numbers, as [-99, NA]")
        else:
            to_number(f"a code of a missing value in {what}", code)
    return tuple(given)


def without_codes(column: "pd.Series", codes: Sequence[Code], *, text: bool = False) -> "pd.Series":
    """Return a column in which what the codes say is missing.

    A code that is a number is every way to write it, -99 as -99.0; of a column of words it is the word.

    Args:
        column: The column.
        codes: Of ``check_codes``.
        text: Whether the column holds words.

    Example:
        >>> import pandas as pd
        >>> without_codes(pd.Series(["4", "-99.0", "."]), (-99, ".")).isna().tolist()
        [False, True, True]
    """
    import pandas as pd

    if not codes:
        return column
    words = {str(code).strip() for code in codes}
    numbers = {float(code) for code in codes if not isinstance(code, str) or DECIMAL.fullmatch(code.strip())}
    kinds = pd.api.types
    if kinds.is_numeric_dtype(column) and not kinds.is_bool_dtype(column) and not kinds.is_complex_dtype(column):
        coded = column.isin(list(numbers)).to_numpy(dtype=bool)
        # integers stay integers: those that float64 cannot distinguish are refused later
        column = column.astype("Int64") if kinds.is_integer_dtype(column) and coded.any() else column
    else:
        coded = np.array([_is_code(value, words, set() if text else numbers) for value in column.astype(object)], bool)
    return column.mask(coded) if coded.any() else column


def _is_code(value: Any, words: set[str], numbers: set[float]) -> bool:
    if isinstance(value, str):
        word = value.strip()
        return word in words or (bool(numbers) and DECIMAL.fullmatch(word) is not None and float(word) in numbers)
    if isinstance(value, bool | np.bool_) or value is None:
        return False
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return number in numbers or (not numbers and str(value) in words)


def to_date(what: str, value: Any) -> datetime.date:
    """Return a date that is given as such, or written YYYY-MM-DD.

    Raises:
        InputError: It is neither; the message starts with ``what``.

    Example:
        >>> to_date("low", "2015-01-31")
        datetime.date(2015, 1, 31)
    """
    if isinstance(value, datetime.datetime):
        return value.date()
    if isinstance(value, datetime.date):
        return value
    try:
        if not isinstance(value, str) or not _DAY.fullmatch(value):
            raise ValueError
        return datetime.date.fromisoformat(value)
    except ValueError:
        raise InputError(f"{what} is {value!r}; give a date as 2015-01-31") from None


def is_date(value: Any) -> bool:
    """Return whether ``to_date`` takes a value."""
    return isinstance(value, datetime.date) or (isinstance(value, str) and _DAY.fullmatch(value) is not None)


def days_since(column: "pd.Series", name: str, start: datetime.date, *, missing: bool = False) -> np.ndarray:
    """Return a column of dates as days since one, float64 [n]; times of day are left out.

    Args:
        column: Dates, moments, or text that begins with YYYY-MM-DD.
        name: Of the column, for messages.
        start: The day 0.
        missing: Whether missing values become NaN, instead of being refused.

    Raises:
        InputError: Values that are no dates, or missing ones; says which column and how many.
    """
    days = np.array([_days(value, start) for value in column.astype(object)], dtype=object)
    wrong = sum(value is None for value in days)
    if wrong:
        raise InputError(
            f"column {name!r} has {plural(wrong, 'value')} that are no dates; write them as 2015-01-31, or name codes "
            f"of missing values by codes: [...]"
        )
    found = days.astype(np.float64)
    if not missing:
        refuse_missing(int(np.isnan(found).sum()), name)
    return found


def are_dates(column: "pd.Series", missing: bool) -> np.ndarray:
    """Return which values ``days_since`` can read, missing ones if they may be, bool [n]."""
    days = [_days(value, _EPOCH) for value in column.astype(object)]
    return np.array([value is not None and (missing or value == value) for value in days], dtype=bool)


def _days(value: Any, start: datetime.date) -> float | None:
    """Return the days to a date, NaN where it is missing, None where it is none."""
    import pandas as pd

    if value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and value != value):
        return float("nan")
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in MISSING:
            return float("nan")
        found = _WITH_TIME.fullmatch(text)
        try:
            value = None if found is None else datetime.date.fromisoformat(found[1])
        except ValueError:
            return None
    if isinstance(value, datetime.datetime):  # pandas' moments too
        value = value.date()
    return float((value - start).days) if isinstance(value, datetime.date) else None
