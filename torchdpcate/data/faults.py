"""All that is not as the domain file says of a table, told at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate.data.checked import outcome_within
from torchdpcate.data.records import arm_sizes
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@contextmanager
def every_fault(frame: "pd.DataFrame", schema: TableSchema, what: str = "covariate") -> Iterator[None]:
    """Name every column that is not as declared where reading ends at the first, one line each with its remedy.

    Args:
        frame: What is read: the schema's columns.
        schema: What is declared.
        what: ``"covariate"`` of records, or ``"query"`` of points that have covariates alone.

    Raises:
        InputError: What was refused, with all else that would be.

    Example:
        >>> import pandas as pd
        >>> unit = {"low": 0, "high": 1}
        >>> facts = {"treatment": "a", "outcome": {"name": "y", **unit}, "covariates": {"x": unit, "z": unit}}
        >>> frame, schema = pd.DataFrame({"x": ["?"], "z": [7]}), TableSchema.from_dict(facts)
        >>> with every_fault(frame, schema, "query"):  # doctest: +ELLIPSIS
        ...     schema.within(schema.encode(frame))
        Traceback (most recent call last):
        ...
        torchdpcate.errors.InputError: 2 columns are not as the domain file says:
        - column 'x' has 1 non-numeric value; ...
        - query 'z' has 1 value outside its declared bounds [0, 1]; ...
    """
    try:
        yield
    except InputError:
        found = list(column_faults(frame, schema, what))
        if len(found) < 2:
            raise
        lines = "".join(f"\n- {fault}" for fault in found)
        raise InputError(f"{len(found)} columns are not as the domain file says:{lines}") from None


def column_faults(frame: "pd.DataFrame", schema: TableSchema, what: str = "covariate") -> Iterator[str]:
    """Yield what would be refused of each column by itself: what is missing, no number, no level, or out of bounds.

    Args:
        frame: As of ``every_fault``, as are the others.
        schema: What is declared.
        what: ``"covariate"`` or ``"query"``.
    """
    if what == "covariate":
        yield from _refused(lambda: _treatment(frame, schema))
        yield from _refused(lambda: outcome_within(_there(schema.encode_outcome(frame)), schema))
    middle = schema.domain.from_unit(torch.full((1, schema.domain.dimension), 0.5, dtype=torch.float64))
    for covariate in schema.covariates:

        def check(name: str = covariate.name, encode: Callable = covariate.encode) -> None:
            x = middle.repeat(len(frame), 1)
            x[:, list(schema.places[name])] = torch.from_numpy(encode(frame[name]))
            schema.within(x, what)

        yield from _refused(check)


def _treatment(frame: "pd.DataFrame", schema: TableSchema) -> None:
    arm_sizes(_there(schema.encode_treatment(frame)), f"treatment column {schema.treatment!r}", schema.actions)


def _there(values: Tensor) -> Tensor:
    """Return the values that are not missing; where they may not be, reading refuses them."""
    return values[~values.isnan()]


def _refused(check: Callable[[], object]) -> Iterator[str]:
    try:
        check()
    except InputError as error:
        yield str(error)
