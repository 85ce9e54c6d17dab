"""The records of one fit: checked against their public bounds, and of a private fit in a random order."""

from collections.abc import Sequence
from typing import Any

from torchdpcate.data._rows import check_kind_said, records_within
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.privacy.noise import NoiseSource


def checked_records(
    schema: TableSchema,
    X: Any,
    A: Any,
    Y: Any,
    noise: NoiseSource | None,
    actions: Sequence[int] = (0, 1),
    propensity: Any = None,
) -> CausalData:
    """Return the records of a fit, within their public bounds; with a noise source in a uniformly random order.

    Blocks, folds and groups of records go by position. A claim for tables that differ in one record, wherever it stands
    and however the tables are sorted, needs positions that do not depend on the records: any two such tables can be
    written as lists that differ in the first place alone, and a random order of either list is a random order of its
    table (docs/guarantees/common.md). The order must stay secret, and nothing keeps it.

    Args:
        schema: Columns and public bounds.
        X: Covariates: a frame with the schema's columns, or encoded columns [n, q] as NumPy or torch.
        A: Treatment [n], one of the actions.
        Y: Outcome [n].
        noise: Where the order comes from; None keeps the order, for fits without privacy.
        actions: Labels of the arms.
        propensity: Each record's known propensity [n], where the domain names a column of it that X lacks.

    Returns:
        The records, with their propensity where the domain knows it, and how many values were moved to their bounds, of
        which it warns where they are many.

    Raises:
        InputError: Wrong shapes, missing values, values outside the domain, an arm without records, or outcomes of 0
            and 1 alone where a domain file does not say their kind.

    Example:
        >>> from torchdpcate.data import Domain
        >>> schema = TableSchema.from_domain(Domain([0.0], [1.0], 0.0, 1.0))
        >>> records = checked_records(schema, [[0.1], [0.2], [0.3]], [0, 1, 1], [0.0, 1.0, 1.0], NoiseSource.system())
        >>> sorted(zip(records.x[:, 0].tolist(), records.a.tolist(), records.y.tolist()))
        [(0.1, 0.0, 0.0), (0.2, 1.0, 1.0), (0.3, 1.0, 1.0)]
    """
    records = records_within(schema.records(X, A, Y, actions, propensity), schema)
    check_kind_said(records, schema)
    records.clipped.warn(schema)
    return records if noise is None else records.subset(noise.permutation(records.n))
