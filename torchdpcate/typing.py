"""What X, A and Y may be, as types for those who check their own code (the package has ``py.typed``)."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from numpy.typing import ArrayLike
from torch import Tensor


class ArrowTable(Protocol):
    """A table that any library of columns makes: polars, Arrow."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the table as a stream of Arrow's C interface."""


Covariates: TypeAlias = ArrayLike | Tensor | ArrowTable | Mapping[str, Any]
"""X: a table with the schema's columns (pandas, polars, Arrow, a dict of columns or of one row), or encoded columns
[n, q] as an array or tensor."""

Treatment: TypeAlias = ArrayLike | Tensor
"""A: treatments or actions [n], numbers or names of the schema's categories."""

Outcome: TypeAlias = ArrayLike | Tensor
"""Y: outcomes [n], in outcome units, within the domain."""
