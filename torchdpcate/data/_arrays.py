"""NumPy, torch and pandas to float64 tensors, with errors that name the column."""

from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate._text import plain
from torchdpcate.errors import InputError

MEND_MISSING = "fill in a value that does not depend on the records, or drop these rows"
"""What to do about missing values: a mean of the records would be a statistic that nothing paid for."""


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
    if len(missing) == len(needed):
        return f"none of the columns {listed(needed)} is there: has the file a header, with commas between the names?"
    more = f" (and {plural(len(missing) - 1, 'other')})" if len(missing) > 1 else ""
    similar = next((name for name in names if _folded(name) == _folded(missing[0])), None)
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

    Raises:
        InputError: ``value`` is not made of real numbers; the message starts with ``what``.
    """
    if isinstance(value, Tensor):
        if value.is_complex():
            raise InputError(f"{what} must be numbers; encode or drop what is not")
        return value.detach().to(torch.float64)
    try:
        array = np.asarray(value)
        # NumPy would take words, moments and durations for numbers, and drop imaginary parts.
        if array.dtype.kind not in "biufO" or (array.dtype.kind == "O" and not _are_numbers(array)):
            raise TypeError
        return torch.tensor(array.astype(np.float64))
    except (TypeError, ValueError, OverflowError):  # their messages would show a value
        raise InputError(f"{what} must be numbers; encode or drop what is not") from None


def _are_numbers(array: np.ndarray) -> bool:
    """Return whether an array of Python objects holds numbers and missing values alone."""
    import pandas as pd

    kinds = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")
    kind = pd.api.types.infer_dtype(array.ravel(), skipna=True)
    return kind in kinds or ("mixed" in kind and all(isinstance(value, Real | Decimal) for value in array.flat))


def is_frame(value: Any) -> bool:
    """Return whether it is a pandas DataFrame, without importing pandas."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def check_aligned(**arguments: Any) -> None:
    """Refuse pandas arguments whose indexes differ: rows are paired by position, which labels then contradict.

    Args:
        arguments: What is given, by its name; what has no index, or is of another length, is not looked at.

    Raises:
        InputError: Names two arguments and what to do.
    """
    labelled = [(name, value) for name, value in arguments.items() if _is_pandas(value)]
    for name, value in labelled[1:]:
        first, reference = labelled[0]
        if len(value) == len(reference) and not value.index.equals(reference.index):
            raise InputError(
                f"{first} and {name} have different indexes: rows are paired by position, and their labels say "
                f"otherwise; align them by {name}.loc[{first}.index], or where positions are right drop the labels of "
                "both by reset_index(drop=True)"
            )


def _is_pandas(value: Any) -> bool:
    """Return whether it is a pandas frame or series, without importing pandas."""
    return hasattr(value, "index") and hasattr(value, "to_numpy") and hasattr(value, "iloc")


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
        names = [f"x{i}" if _is_number(name) else plain(name) for i, name in enumerate(value.columns)]
        columns = [to_float64(value.iloc[:, i], f"{what}: column {name!r}") for i, name in enumerate(names)]
        matrix = torch.stack(columns, 1) if columns else torch.empty(len(value), 0, dtype=torch.float64)
    else:
        matrix = to_float64(value, what)
    if matrix.ndim != 2:
        raise InputError(f"{what} has shape {tuple(matrix.shape)}; it must be [records, covariates]")
    check_finite(matrix, names, what)
    return matrix


def _is_number(name: Any) -> bool:
    """Return whether a column's name is a number: that of a frame read without a header is a value of a record."""
    try:
        float(str(name))
    except ValueError:
        return False
    return True


def check_finite(matrix: Tensor, names: Sequence[str] | None, what: str) -> None:
    """Raise InputError naming the worst column of ``matrix`` [n, q] that holds NaN or infinity."""
    bad = (~torch.isfinite(matrix)).sum(0)
    if bad.any():
        column = int(bad.argmax())
        name = names[column] if names is not None and column < len(names) else f"x{column}"
        raise InputError(
            f"{what}: column {name!r} has {plural(int(bad[column]), 'missing or infinite value')}"
            f"{_others(bad)}; {MEND_MISSING}"
        )


def _others(bad: Tensor) -> str:
    """Say how many columns besides the named one have a count above zero."""
    others = int((bad > 0).sum()) - 1
    return f" (and {plural(others, 'other column')} too)" if others else ""
