"""What users give as tables, arrays and columns, to float64 tensors, with errors that name the column."""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchdpcate._text import plain
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MEND_MISSING = (
    "say in the domain file how they are taken: missing: indicator in the entry of a covariate, missing: drop in that "
    "of treatment or outcome"
)
"""What to do about missing values: to leave out rows or fill in what depends on records would be paid by nothing."""
MEND_CODES = "name codes of missing values in the domain file, codes: [-99, NA]"
"""What to do about cells that stand for missing values in another way."""
MEND_WORDS = "say what such cells stand for, words: {CELL: VALUE}, or one more of scores:, in the entry of the column"
"""What to do about cells that a public map turns into numbers or categories."""
MEND_DATES = "low and high as 2015-01-31, and the form of cells that are written otherwise, as format: '%d.%m.%Y'"
"""How dates are declared."""
MEND_INFINITE = "correct them, or write them as missing values"
"""What to do about infinite values."""
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_BOOLEANS = {"true": 1.0, "false": 0.0}
MISSING = ("", "na", "n/a", "nan", "null", "none", "<na>")
"""How a missing value may be written, in small letters."""
DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""How a number may be written; inf, 0x1, 1_0 and other digits are none."""
DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}(?:[ T]\d.*)?")
"""What a date may look like."""
_SIGNED = re.compile(rf"[<>=~\u2264\u2265]+\s*{DECIMAL.pattern}|{DECIMAL.pattern}\s*[+<>]")
_REMEDY = f"a number has a decimal point; correct these cells, {MEND_WORDS}, or {MEND_CODES}"
_TRUTH = "holds true and false; write 0 and 1, or declare it with categories: [0, 1]"
_TIMES = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period")
_DATES = f"holds dates; declare them: kind: date, with {MEND_DATES}"
_LAZY = ("toPandas", "collect", "compute")  # by which Spark, polars and dask bring rows
_EXACT = 2**53  # the largest number up to which float64 distinguishes all integers


def plural(count: int, noun: str) -> str:
    """Return ``"1 value"`` or ``"3 values"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: Any, most: int = 12) -> str:
    """List column names, cut short after ``most``."""
    names = [plain(name) for name in names]
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def missing_columns(needed: Sequence[str], there: Sequence[Any]) -> str | None:
    """Say which of the columns needed are missing, or there more than once; None if all are there, once.

    Of what is there the message shows nothing but a name that differs from one needed in case or blanks alone: the
    first row of a file without a header is a record.

    Args:
        needed: Names of the columns.
        there: Names of those there are.
    """
    names = [str(name) for name in there]
    missing = [name for name in needed if name not in names]
    twice = next((name for name in needed if names.count(name) > 1), None)
    if not missing and twice is not None:
        return f"column {twice!r} is there {names.count(twice)} times; rename the others"
    if not missing:
        return None
    similar = next((name for name in names if _folded(name) == _folded(missing[0])), None)
    if len(missing) == len(needed) and similar is None:
        return f"none of the columns {listed(needed)} is there: has the file a header, with commas between the names?"
    more = f" (and {plural(len(missing) - 1, 'other')})" if len(missing) > 1 else ""
    hint = f"{len(needed) - len(missing)} of the {len(needed)} needed are" if similar is None else f"{similar!r} is"
    return f"column {missing[0]!r} is missing{more}; {hint} there"


def check_columns(there: Sequence[str], needed: Sequence[str], path: str) -> None:
    """Refuse a file that lacks a column, or has one twice.

    Args:
        there: Names of its columns.
        needed: Names of those that are read.
        path: The file.

    Raises:
        InputError: Says which.
    """
    missing = missing_columns(needed, there)
    if missing:
        raise InputError(f"{path}: {missing}")


def _folded(name: str) -> str:
    return "".join(name.split()).casefold()


def to_float64(value: Any, what: str) -> Tensor:
    """Return ``value`` (NumPy, torch, pandas or nested lists of numbers) as a detached float64 tensor.

    What is missing is NaN, whatever the type: None, NaN, pandas' NA or an empty word.

    Raises:
        InputError: ``value`` is not made of real numbers; the message starts with ``what``.
    """
    if isinstance(value, Tensor) and not value.is_complex():
        return value.detach().to(torch.float64)
    try:
        array = np.asarray(value.to_pandas() if hasattr(value, "to_pandas") else value)
        if array.dtype.kind in "OU":
            import pandas as pd

            read, wrong = _read(pd.Series(array.ravel(), dtype=object), True)
            array = read.reshape(array.shape) if not wrong.any() else array.astype("U")
        if array.dtype.kind not in "biuf":  # NumPy would take moments for numbers, and drop imaginary parts
            raise TypeError
        return torch.from_numpy(array.astype(np.float64, order="C"))
    except (TypeError, ValueError, OverflowError, RuntimeError):  # their messages would show a value
        raise InputError(f"{what} must be numbers; encode what is none") from None


def is_frame(value: Any) -> bool:
    """Return whether it is a pandas DataFrame, without importing pandas."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def check_aligned(**arguments: Any) -> None:
    """Refuse pandas arguments whose indexes differ: rows are paired by position, which labels then contradict.

    What is lazy is refused too: the rows of two queries of a table may come in another order.

    Args:
        arguments: What is given, by its name; what has no index, or is of another length, is not looked at.

    Raises:
        InputError: Names two arguments and what to do.
    """
    for name, value in arguments.items():
        if any(hasattr(value, way) for way in _LAZY) and not type(value).__module__.startswith("pandas"):
            raise InputError(f"{name} is lazy; collect the table once, and give columns of that, in one order of rows")
    pandas = ("index", "to_numpy", "iloc")  # what its frames and series have, without importing it
    labelled = [pair for pair in arguments.items() if all(hasattr(pair[1], word) for word in pandas)]
    for name, value in labelled[1:]:
        first, reference = labelled[0]
        if len(value) == len(reference) and not value.index.equals(reference.index):
            raise InputError(
                f"{first} and {name} have different indexes: rows are paired by position, and their labels say "
                f"otherwise; align them by {name}.loc[{first}.index], or where positions are right drop the labels of "
                "both by reset_index(drop=True)"
            )


def to_matrix(value: Any, names: Sequence[str] | None = None, what: str = "X") -> Tensor:
    """Return ``value`` as a float64 matrix [n, q] of finite numbers.

    Args:
        value: NumPy, torch or pandas, of shape [n, q].
        names: Names of the q columns for messages; a DataFrame brings its own.
        what: Name of the argument for messages.

    Raises:
        InputError: Not a matrix, not numbers, or not finite (which column, how many).
    """
    if is_frame(value):
        names = [f"x{i}" if is_number(name) else plain(name) for i, name in enumerate(value.columns)]
        columns = [to_float64(value.iloc[:, i], f"{what}: column {name!r}") for i, name in enumerate(names)]
        matrix = torch.stack(columns, 1) if columns else torch.empty(len(value), 0, dtype=torch.float64)
    else:
        matrix = to_float64(value, what)
    if matrix.ndim != 2:
        raise InputError(f"{what} has shape {tuple(matrix.shape)}; it must be [records, covariates]")
    check_finite(matrix, names, what)
    return matrix


def is_number(name: Any) -> bool:
    """Return whether a column's name is a number: that of a frame read without a header is a value of a record."""
    try:
        float(str(name))
    except ValueError:
        return False
    return True


def check_finite(matrix: Tensor, names: Sequence[str] | None, what: str) -> None:
    """Raise InputError naming the worst column of ``matrix`` [n, q] that holds NaN or infinity."""
    if bool(torch.isfinite(matrix.sum())):
        return  # NaN and infinity stay in a sum; one that is too large is looked at number by number
    bad = (~torch.isfinite(matrix)).sum(0)
    if bad.any():
        column = int(bad.argmax())
        name = names[column] if names is not None and column < len(names) else f"x{column}"
        raise InputError(
            f"{what}: column {name!r} has {plural(int(bad[column]), 'missing or infinite value')}"
            f"{others_too(bad)}; {MEND_MISSING}"
        )


def others_too(bad: Tensor) -> str:
    """Say how many columns besides the named one have a count above zero."""
    others = int((bad > 0).sum()) - 1
    return f" (and {plural(others, 'other column')} too)" if others else ""


def as_frame(X: Any) -> Any:
    """Return a pandas frame of a frame of polars or the like, lazy or not, an Arrow table, a dict or a named row.

    Anything else stays as it is.

    Args:
        X: A table of named columns; a mapping from names to columns, or to the values of one row; or arrays, which
            have no names and stay as they are.

    Example:
        >>> as_frame({"age": 50, "site": "a"})
           age site
        0   50    a
        >>> as_frame({"age": [50, 60]}).shape
        (2, 1)
        >>> as_frame([[0.5]])
        [[0.5]]
    """
    for way in (*_LAZY, "to_pandas", "df"):
        if hasattr(X, way) and not type(X).__module__.startswith("pandas"):  # of pandas it is a column
            X = getattr(X, way)()
    if hasattr(X, "iloc") and not hasattr(X, "columns") and {str} == {*map(type, X.index)}:
        X = X.to_dict()
    if isinstance(X, Mapping):
        import pandas as pd

        one = not any(hasattr(value, "__len__") and not isinstance(value, str) for value in X.values())
        return pd.DataFrame([dict(X)] if one else dict(X))
    return X


def treatment_and_outcome(A: Any, Y: Any, treatment: Any) -> tuple[Any, Any]:
    """Return treatment and outcome of ``fit(X, A, Y)`` or ``fit(X, Y, treatment=A)``.

    Args:
        A: Second argument.
        Y: Third argument, or None.
        treatment: The treatment by its name, or None.

    Raises:
        InputError: Neither or both ways.

    Example:
        >>> treatment_and_outcome([0, 1], [5.0, 6.0], None) == treatment_and_outcome([5.0, 6.0], None, [0, 1])
        True
    """
    if (Y is None) == (treatment is None):
        given = "both of them" if Y is not None else "neither"
        raise InputError(
            f"fit: Y or treatment= must be given, and {given} is; call fit(X, A, Y) or fit(X, Y, treatment=A)"
        )
    return (A, Y) if treatment is None else (treatment, A)


def in_this_order(fit: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Return a ``fit`` that answers EconML's ``fit(Y, T, X=X)`` by what to call instead."""

    @wraps(fit)
    def checked(*args: _Given.args, **named: _Given.kwargs) -> _Result:
        if (len(args) > 1 and "X" in named) or {"T", "W"} & named.keys():
            raise InputError(
                "fit: outcome and treatment before X is EconML's order; call fit(X, A, Y) or fit(X, Y, treatment=A)"
            )
        return fit(*args, **named)

    return checked


def numeric_column(
    column: "pd.Series",
    name: str,
    *,
    truth: bool = False,
    remedy: str = _REMEDY,
    missing: bool = False,
    mend: str = MEND_MISSING,
) -> np.ndarray:
    """Return a column as float64 [n]; numbers written as text count as numbers.

    Args:
        column: The column.
        name: Its name, for messages.
        truth: Whether true and false stand for 1 and 0: of arms and of the categories 0 and 1.
        remedy: What to do about words, for messages.
        missing: Whether missing values become NaN, instead of being refused.
        mend: What to do about missing values, for messages.

    Raises:
        InputError: Missing, infinite or non-numeric values, true or false where they are no numbers, or integers
            beyond 2^53; says which column and how many.
    """
    import pandas as pd

    kinds = pd.api.types
    if kinds.is_bool_dtype(column) and not truth:
        raise InputError(f"column {name!r} {_TRUTH}")
    if kinds.infer_dtype(column, skipna=True) in _TIMES:
        raise InputError(f"column {name!r} {_DATES}")
    if kinds.is_integer_dtype(column):
        beyond = int(((column > _EXACT) | (column < -_EXACT)).sum())
        if beyond:
            raise InputError(
                f"column {name!r} has {plural(beyond, 'integer')} beyond 2^53, which float64 cannot distinguish; "
                "is it an identifier? drop or rescale it"
            )
    values, wrong = _read(column, truth)
    if wrong.all() and len(wrong) and not _read(column, True)[1].any():
        raise InputError(f"column {name!r} {_TRUTH}")
    cells = column[wrong].astype(str).str.strip()
    if 2 * len(cells) > len(wrong) and cells.str.fullmatch(DATE).all():
        raise InputError(f"column {name!r} {_DATES}")
    if len(cells):
        signed = int(cells.str.fullmatch(_SIGNED).sum())
        signs = f", {'all' if signed == len(cells) else signed} of them a sign and a number" if signed else ""
        remedy = MEND_WORDS if signed == len(cells) else remedy
        raise InputError(f"column {name!r} has {plural(len(cells), 'non-numeric value')}{signs}; {remedy}")
    if not missing:
        refuse_missing(int(np.isnan(values).sum()), name, mend)
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise InputError(f"column {name!r} has {plural(infinite, 'infinite value')}; {MEND_INFINITE}")
    return values


def category_codes(
    column: "pd.Series",
    name: str,
    categories: Sequence[Any],
    remedy: str = f"correct these cells, declare categories known from outside the records, or {MEND_CODES}",
    *,
    missing: bool = False,
    others: bool = False,
) -> np.ndarray:
    """Return the position of each value in ``categories``, int64 [n].

    Blanks around a word do not count, and a cell of blanks alone is missing.

    Args:
        column: The column.
        name: Its name, for messages.
        categories: What it may hold.
        remedy: What to do about other values, for messages.
        missing: Whether a missing value has the position after the last, instead of being refused.
        others: Whether an unknown value has the position -1, instead of being refused.

    Raises:
        InputError: Missing or unknown values; says which column and how many.
    """
    if not isinstance(categories[0], str):
        numeric_column(column, name, truth=set(categories) == {0, 1}, remedy=remedy, missing=missing)  # may refuse
    codes = _positions(column, categories)
    if not missing:
        refuse_missing(int((codes == len(categories)).sum()), name)
    unknown = codes < 0
    if unknown.any() and not others:
        folded = {str(level).strip().casefold() for level in categories}
        alike = int(column[unknown].astype(str).str.strip().str.casefold().isin(folded).sum())
        by_case = f"{alike} of them by capital letters alone: {MEND_WORDS}, or " if alike else ""
        raise InputError(
            f"column {name!r} has {plural(int(unknown.sum()), 'value')} outside its declared categories "
            f"{list(categories)}; {by_case}{remedy}"
        )
    return codes


def _positions(column: "pd.Series", categories: Sequence[Any]) -> np.ndarray:
    """Return the position of each value in ``categories``, int64 [n]: -1 of others, that after the last if missing.

    1.0 is 1 too, which columns of integers have in its place where one value is missing.
    """
    import pandas as pd

    if not isinstance(categories[0], str):
        values, wrong = _read(column, set(categories) == {0, 1})
        codes = pd.Index(list(categories), dtype=np.float64).get_indexer(values)
        return np.where(np.isnan(values) & ~wrong, len(categories), codes)
    index = pd.Index([level.strip() for level in categories], dtype=object)
    codes = index.get_indexer(column.astype(str).to_numpy(dtype=object))
    codes[column.isna().to_numpy(dtype=bool)] = len(categories)
    words = column[codes < 0].astype(str).str.strip()
    codes[codes < 0] = np.where(words == "", len(categories), index.get_indexer(words))
    codes[codes < 0] = index.get_indexer(column[codes < 0].astype(str).str.strip().str.removesuffix(".0"))
    return codes


def readable_rows(column: "pd.Series", categories: Sequence[Any] = (), missing: bool = False) -> np.ndarray:
    """Return which values a column of numbers, or of these categories, may have, bool [n]; bounds are not looked at.

    Missing values are among them if ``missing`` says so.

    A column of true and false where these are no numbers is a mistake of all its rows, and ``numeric_column``'s to
    refuse.
    """
    import pandas as pd

    if pd.api.types.is_bool_dtype(column) and not (categories and isinstance(categories[0], str)):
        return np.ones(len(column), dtype=bool)
    if categories:
        codes = _positions(column, categories)
        return (codes >= 0) & (missing | (codes < len(categories)))
    values, wrong = _read(column, False)
    return np.isfinite(values) & (np.abs(values) <= _EXACT) | (missing & np.isnan(values) & ~wrong)


def _read(column: "pd.Series", truth: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return a column as numbers, NaN where there is none, and which values are neither numbers nor missing.

    Text is read as numbers, and as true or false where these are numbers.
    """
    import pandas as pd

    kinds = pd.api.types
    if kinds.is_numeric_dtype(column) and not kinds.is_complex_dtype(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan, copy=True), np.zeros(len(column), dtype=bool)
    read = pd.Series([_number(value, truth) for value in column.astype(object)], dtype=object)
    return read.to_numpy(dtype=np.float64, na_value=np.nan), np.array([value is None for value in read], dtype=bool)


def _number(value: Any, truth: bool) -> float | None:
    """Return a value as a number, NaN where it is missing, None where it is neither."""
    import pandas as pd

    if isinstance(value, str):
        word = value.strip().lower()
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


def refuse_missing(count: int, name: str, mend: str = MEND_MISSING) -> None:
    """Refuse missing values of a column, with what to do about them."""
    if count:
        raise InputError(f"column {name!r} has {plural(count, 'missing value')}; {mend}")
