"""Tables as people have them: pandas, polars, Arrow, a dict of columns, or one row."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from torchdpcate.errors import InputError

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def as_frame(X: Any) -> Any:
    """Return a pandas frame of a polars frame, an Arrow table, a dict or a named row; anything else as it is.

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
    package = type(X).__module__.partition(".")[0]
    if package == "polars" and hasattr(X, "to_arrow"):
        X = X.collect() if hasattr(X, "collect") else X
        return X.to_arrow().to_pandas()
    if package == "pyarrow" and hasattr(X, "to_pandas"):
        return X.to_pandas()
    if package == "pandas" and hasattr(X, "index") and not hasattr(X, "columns") and _has_names(X.index):
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


def _has_names(index: Any) -> bool:
    return len(index) > 0 and all(isinstance(name, str) for name in index)
