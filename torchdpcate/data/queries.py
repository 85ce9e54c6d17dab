"""Public points at which effects are asked for."""

from pathlib import Path

from torch import Tensor

from torchdpcate.data._frames import about, read_frame
from torchdpcate.data.schema import TableSchema


def read_queries(path: str | Path, schema: TableSchema) -> Tensor:
    """Read queries from a csv or parquet file with the schema's covariate columns.

    Args:
        path: The file; other columns than the covariates are not read.
        schema: Public facts of the table.

    Returns:
        Queries, float64 [d, q], in the file's order.

    Raises:
        InputError: Missing file or column, values that are missing or not numeric, or a query
            outside the domain, unless the schema clips.
    """
    frame = read_frame(path, schema.columns, schema.text_columns)
    with about(path):
        return schema.within(schema.encode(frame), "query")
