"""Records that are read batch by batch, as often as they are needed, in constant memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from torchdpcate.data.clipped import NOTHING_CLIPPED, Clipped
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError


class RecordStream(ABC):
    """Records within their public bounds, in batches, in the same order at each reading.

    Attributes:
        schema: Public facts of the table.
        n: Number of records, public.
        clipped: How many values of what was read are moved to their bounds; the curator's.
    """

    schema: TableSchema
    n: int
    clipped: Clipped = NOTHING_CLIPPED

    @abstractmethod
    def __iter__(self) -> Iterator[CausalData]:
        """Yield all records in batches of float64 tensors, encoded and checked.

        Raises:
            InputError: Values outside the domain, or missing ones: says in which rows.
        """

    def check_schema(self, schema: TableSchema, columns: bool) -> None:
        """Refuse a stream that is not of a learner's domain.

        Args:
            schema: The learner's.
            columns: Whether its columns count, and not its bounds alone.

        Raises:
            InputError: Other columns, arms or bounds.
        """
        read = self.schema.two_arms()
        same = read == schema if columns else read.domain == schema.domain
        if not same or read.actions != schema.actions:
            raise InputError("stream: its columns, arms or bounds are not the learner's; give both the same domain")
