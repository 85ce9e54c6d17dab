"""What cells of a table mean beside numbers and words: codes of missing values, words that stand for others, dates."""

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate.data._arrays import DECIMAL, MEND_CODES, MEND_DATES, MISSING, is_number, plural, refuse_missing
from torchdpcate.data.facts import check_name, to_number
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Code = str | int | float | tuple[str | int | float, str | int | float]
"""What may stand for a missing value in a cell; or such a cell with the number or the category that it stands for."""
MISSING_LEVEL = "missing"
"""Level of a covariate whose value is missing, and what the name of its indicator ends in."""
INDICATOR = "indicator"
"""What ``missing`` of a covariate may be in a domain file."""
_EPOCH = datetime.date(1970, 1, 1)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WITH_TIME = re.compile(rf"({_DAY.pattern})(?:[ T][0-9:.+Z-]*)?")


def check_codes(what: str, codes: Any, words: Any = None, levels: Sequence[Any] = ()) -> tuple[Code, ...]:
    """Return what else means that a value is missing, and which cells stand for other values: a public map of each.

    Args:
        what: Names the column in messages.
        codes: Words and numbers, or pairs of a cell with what it stands for; one by itself may be given without a list.
        words: From cells to what they stand for.
        levels: What they may stand for; any number where it is empty.

    Raises:
        InputError: True or false, or another thing that no cell holds; a value that a word cannot stand for.

    Example:
        >>> check_codes("'age'", [-99, "NA"], {"> 89": 90})
        (-99, 'NA', ('> 89', 90.0))
    """
    given = [codes] if isinstance(codes, str | int | float) else codes
    if not isinstance(given, Sequence):
        raise InputError(f"codes of {what} are {codes!r}; give a list of words and numbers, as [-99, NA]")
    if not isinstance(words, Mapping | None):
        raise InputError(f"words of {what} are {words!r}; give what each stands for, as {{'> 89': 90}}")
    found: list[Code] = []
    for code, value in map(_pair, (*given, *(words or {}).items())):
        if isinstance(code, str) and (value is None or not is_number(code)):
            check_name(f"a code of a missing value in {what}", code)
        elif isinstance(code, bool) or not isinstance(code, int | float | str):
            raise InputError(f"codes of {what} hold {code!r}; give words and numbers, as [-99, NA]")
        else:
            to_number(f"a code in {what}", code)
        if levels and value is not None and value not in levels:
            raise InputError(f"words of {what}: {code!r} is {value!r}; give one of {list(levels)}")
        stands = value if value is None or (levels and isinstance(value, str)) else to_number(f"words of {what}", value)
        found.append(code if stands is None else (str(code), stands))  # json has no other keys than words
    keys = [_key(code[0], text=isinstance((*levels, 0)[0], str)) for code in found if isinstance(code, tuple)]
    if len({*keys}) < len(keys):
        raise InputError(f"words of {what} name a cell twice, such as 1 and '1'; give each once")
    return tuple(found)


def _pair(code: Code) -> tuple[Any, Any]:
    """Return a cell and what it stands for, None where it is missing."""
    return code if isinstance(code, tuple) else (code, None)


def code_entries(codes: Sequence[Code]) -> dict[str, Any]:
    """Return the entries of a domain file from which ``check_codes`` makes the same."""
    words = {code[0]: code[1] for code in codes if isinstance(code, tuple)}
    plain = [code for code in codes if not isinstance(code, tuple)]
    return ({"codes": plain} if plain else {}) | ({"words": words} if words else {})


def read_cells(column: "pd.Series", codes: Sequence[Code], *, text: bool = False) -> "pd.Series":
    """Return a column in which what the codes say is missing, and words are the values that they stand for.

    A code that is a number is every way to write it, -99 as -99.0; of a column of words it is the word.

    Args:
        column: The column.
        codes: Of ``check_codes``.
        text: Whether the column holds words.

    Example:
        >>> import pandas as pd
        >>> read_cells(pd.Series(["4", "-99.0", ".", " > 89"]), (-99, ".", ("> 89", 90))).tolist()
        ['4', None, None, 90]
    """
    import pandas as pd

    if not codes:
        return column
    kinds = pd.api.types
    meanings: dict[Any, Any] = {str(code).strip(): value for code, value in map(_pair, codes)}
    numbers = {float(code): value for code, value in meanings.items() if DECIMAL.fullmatch(code)}
    other = text or kinds.is_bool_dtype(column) or kinds.is_complex_dtype(column)
    if kinds.is_numeric_dtype(column) and not other:
        cells = column.to_numpy(np.float64, na_value=np.nan)
        if kinds.is_integer_dtype(column):  # stay so: those that float64 cannot distinguish are refused later
            column = column.astype(
                "Int64" if all(float(value or 0).is_integer() for value in numbers.values()) else float
            )
        for number, value in numbers.items():
            column = column.mask(cells == number, np.nan if value is None else value)
        return column
    stands: dict[Any, Any] = meanings | numbers
    keys = [_key(cell, text) for cell in column.astype(object)]
    if stands.keys().isdisjoint(keys):
        return column
    return pd.Series([stands.get(key, cell) for key, cell in zip(keys, column, strict=True)], column.index, object)


def _key(cell: Any, text: bool) -> str | float | None:
    """Return what a cell is looked up by: its word, or its number where it is one; a column's type says nothing."""
    word = None if isinstance(cell, bool | np.bool_ | None) else str(cell).strip()
    named = word is None or (text and isinstance(cell, str)) or not DECIMAL.fullmatch(word)
    return word if named or word is None else float(word)


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


def check_format(what: str, form: Any) -> str:
    """Return how dates are written, with %d, %m and %Y (or %y, %b) for their parts; empty if it is as 2015-01-31.

    Raises:
        InputError: It is not so, or does not tell days apart.

    Example:
        >>> check_format("covariate 'seen'", "%d.%m.%Y")
        '%d.%m.%Y'
    """
    day = datetime.date(1999, 12, 31)
    try:
        if form == "" or datetime.datetime.strptime(day.strftime(form), form).date() == day:
            return form  # type: ignore[no-any-return]
    except (TypeError, ValueError, re.error):
        pass
    raise InputError(f"format of {what} is {form!r}; give it with %d, %m and %Y, as '%d.%m.%Y' of 31.01.2015")


def days_since(
    column: "pd.Series", name: str, start: datetime.date, form: str = "", *, missing: bool = False
) -> np.ndarray:
    """Return a column of dates as days since one, float64 [n]; times of day are left out.

    Args:
        column: Dates, moments, or text that begins with YYYY-MM-DD, or has another form.
        name: Of the column, for messages.
        start: The day 0.
        form: Of text, see ``check_format``.
        missing: Whether missing values become NaN, instead of being refused.

    Raises:
        InputError: Values that are no dates, or missing ones; says which column and how many.
    """
    days = np.array([_days(value, start, form) for value in column.astype(object)], dtype=object)
    wrong = sum(value is None for value in days)
    if wrong:
        raise InputError(
            f"column {name!r} has {plural(wrong, 'value')} that are no dates as declared; give {MEND_DATES}, or "
            f"{MEND_CODES}"
        )
    found = days.astype(np.float64)
    if not missing:
        refuse_missing(int(np.isnan(found).sum()), name)
    return found


def are_dates(column: "pd.Series", missing: bool, form: str = "") -> np.ndarray:
    """Return which values ``days_since`` can read, missing ones if they may be, bool [n]."""
    days = [_days(value, _EPOCH, form) for value in column.astype(object)]
    return np.array([value is not None and (missing or value == value) for value in days], dtype=bool)


def _days(value: Any, start: datetime.date, form: str) -> float | None:
    """Return the days to a date, NaN where it is missing, None where it is none."""
    import pandas as pd

    if value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and value != value):
        return float("nan")
    if form and isinstance(value, int | float | np.number):  # such as 20150131
        value = f"{value:.17g}"
    if isinstance(value, str):
        text = value.strip()
        if form and text.isdigit():  # of which a first zero is lost where it was a number
            text = text.zfill(len(_EPOCH.strftime(form)))
        if text.lower() in MISSING:
            return float("nan")
        found = _WITH_TIME.fullmatch(text)
        try:
            value = datetime.datetime.strptime(text, form) if form else found and datetime.date.fromisoformat(found[1])
        except ValueError:
            return None
    if isinstance(value, datetime.datetime):  # pandas' moments too
        value = value.date()
    return float((value - start).days) if isinstance(value, datetime.date) else None
