"""NumPy, torch and pandas to float64 tensors, with errors that name the column."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.errors import InputError


def plural(count: int, noun: str) -> str:
    """Return ``"1 value"`` or ``"3 values"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: Any, most: int = 12) -> str:
    """List column names, cut short after `most`."""
    names = [str(name) for name in names]
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def to_float64(value: Any, what: str) -> Tensor:
    """Return `value` (NumPy, torch, pandas or nested lists of numbers) as a detached float64 tensor.

    Raises:
        InputError: `value` is not made of numbers; the message starts with `what`.
    """
    if isinstance(value, Tensor):
        return value.detach().to(torch.float64)
    try:
        return torch.tensor(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError, OverflowError):  # their messages would show a value
        raise InputError(f"{what} must be numbers; encode or drop what is not") from None


def is_frame(value: Any) -> bool:
    """Tell a pandas DataFrame without importing pandas."""
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
    """Tell a pandas frame or series without importing pandas."""
    return hasattr(value, "index") and hasattr(value, "to_numpy") and hasattr(value, "iloc")


def to_matrix(value: Any, names: Sequence[str] | None = None, what: str = "X") -> Tensor:
    """Return `value` as a float64 matrix [n, q] of finite numbers.

    Args:
        value: NumPy, torch or pandas, of shape [n, q].
        names: names of the q columns for messages; a DataFrame brings its own.
        what: name of the argument for messages.

    Raises:
        InputError: not a matrix, not numbers, or not finite (which column, how many).
    """
    if is_frame(value):
        names = [str(name) for name in value.columns]
        columns = [to_float64(value.iloc[:, i], f"{what}: column {name!r}") for i, name in enumerate(names)]
        matrix = torch.stack(columns, 1) if columns else torch.empty(len(value), 0, dtype=torch.float64)
    else:
        matrix = to_float64(value, what)
    if matrix.ndim != 2:
        raise InputError(f"{what} has shape {tuple(matrix.shape)}; it must be [records, covariates]")
    check_finite(matrix, names, what)
    return matrix


def check_finite(matrix: Tensor, names: Sequence[str] | None, what: str) -> None:
    """Raise InputError naming the worst column of `matrix` [n, q] that holds NaN or infinity."""
    bad = (~torch.isfinite(matrix)).sum(0)
    if bad.any():
        column = int(bad.argmax())
        name = names[column] if names is not None and column < len(names) else f"x{column}"
        raise InputError(
            f"{what}: column {name!r} has {plural(int(bad[column]), 'missing or infinite value')}"
            f"{_others(bad)}; drop or impute these rows"
        )


def _others(bad: Tensor) -> str:
    """Say how many columns besides the named one have a count above zero."""
    others = int((bad > 0).sum()) - 1
    return f" (and {plural(others, 'other column')} too)" if others else ""
