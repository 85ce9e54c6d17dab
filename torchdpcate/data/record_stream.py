"""Records that are read batch by batch, as often as they are needed, in constant memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema


class RecordStream(ABC):
    """Records within their public bounds, in batches, in the same order at each reading.

    Attributes:
        schema: Public facts of the table.
        n: Number of records, public.
    """

    schema: TableSchema
    n: int

    @abstractmethod
    def __iter__(self) -> Iterator[CausalData]:
        """Yield all records in batches of float64 tensors, encoded and checked.

        Raises:
            InputError: Values outside the domain, or missing ones: says in which rows.
        """
