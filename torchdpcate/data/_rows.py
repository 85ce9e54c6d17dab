"""Rows of a table to records within their public bounds."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate.data._columns import numeric_column
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema

if TYPE_CHECKING:
    import pandas as pd


def record_columns(schema: TableSchema) -> tuple[str, ...]:
    """Return the columns that a record has in the table: treatment, outcome, covariates."""
    return (schema.treatment, schema.outcome, *schema.columns)


def encode_records(frame: "pd.DataFrame", schema: TableSchema) -> CausalData:
    """Return the rows of a frame as records within the domain; that treatments are arms is not checked here.

    Args:
        frame: The schema's columns.
        schema: Public facts of the table, with what becomes of values outside their bounds.

    Raises:
        InputError: Values missing, not numeric, unknown, or outside their bounds (which column, how many).
    """
    x = schema.within(schema.encode(frame))
    a = schema.encode_treatment(frame)
    y = torch.from_numpy(numeric_column(frame[schema.outcome], schema.outcome))
    return CausalData(x, a, outcome_within(y, schema))


def within_domain(x: Tensor, domain: Domain, out_of_bounds: str) -> Tensor:
    """Clip covariates [n, q] into the domain, or refuse those outside.

    Raises:
        InputError: Values outside, and ``out_of_bounds`` is ``"refuse"``.
    """
    if out_of_bounds == "clip":
        return domain.clip_covariates(x)
    domain.check_covariates(x)
    return x


def outcome_within(y: Tensor, schema: TableSchema) -> Tensor:
    """Clip outcomes [n] into their bounds, or refuse those outside.

    Raises:
        InputError: Values outside, and the schema refuses them.
    """
    if schema.out_of_bounds == "clip":
        return schema.domain.clip_outcome(y)
    schema.domain.check_outcome(y, f"outcome {schema.outcome!r}")
    return y
