"""Records that lie in parts, each of which is summed where it is."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from torchdpcate.data.records import CausalData, RecordStream
from torchdpcate.errors import InputError

RECORDS = "records"
"""Name of what each part holds from the start: its records, as a ``RecordStream``."""


class PartedStream(RecordStream):
    """Records in parts, in the order of the parts: functions go to them, and what they make of a whole part comes back.

    Attributes:
        batch_rows: Rows of a batch of each part, at most; None where nothing is known of it. A part has as many at
            least, but for the only one.
    """

    batch_rows: int | None

    @abstractmethod
    def ask(self, function: Callable[[Any], Any], of: str = RECORDS) -> list[Any]:
        """Return what a function makes of what each part holds, in the order of the parts.

        Args:
            function: Pure, and can be pickled; a sum over records.
            of: Name of what is held.

        Raises:
            InputError: A part that cannot be read.
        """

    @abstractmethod
    def holding(
        self, name: str, function: Callable[[Any], AbstractContextManager[Any]], of: str = RECORDS
    ) -> AbstractContextManager[None]:
        """Let each part hold, while the block runs, what a function makes of what it holds.

        Args:
            name: Of that.
            function: As of ``ask``; what its context gives is held.
            of: Name of what is held already.
        """

    @abstractmethod
    def first(self) -> CausalData:
        """See ``RecordStream``."""

    def __iter__(self) -> Iterator[CausalData]:
        """Refuse: no record leaves its part.

        Raises:
            InputError: Always.
        """
        raise InputError("stream: its records lie in parts, of which sums alone are given; use data.engine=null")


class RowGroups(NamedTuple):
    """Consecutive row groups of a parquet file.

    Attributes:
        groups: Their positions.
        before: Number of rows before them.
    """

    groups: range
    before: int


class Span(NamedTuple):
    """A part of some files.

    Attributes:
        paths: The files, by their positions.
        groups: Row groups of each.
        rows: Number of rows.
    """

    paths: tuple[int, ...]
    groups: tuple[RowGroups, ...]
    rows: int


def spans(groups: Sequence[Sequence[int]], parts: int) -> list[Span]:
    """Return consecutive spans of row groups of about equal length, by public sizes; fewer than asked for if they must.

    Args:
        groups: Rows of each row group of each file.
        parts: How many spans are asked for.

    Example:
        >>> spans([[10, 10], [10, 10, 20]], 3)[1]
        Span(paths=(1,), groups=(RowGroups(groups=range(0, 2), before=0),), rows=20)
    """
    n, done = sum(map(sum, groups)), 0
    found: list[dict[int, RowGroups]] = [{} for _ in range(parts)]
    sizes = [0] * parts
    for path, rows in enumerate(groups):
        for group, size in enumerate(rows):
            part = min(parts - 1, int((done + size / 2) * parts / max(1, n)))
            known = found[part].get(path, RowGroups(range(group, group), sum(rows[:group])))
            found[part][path] = known._replace(groups=range(known.groups.start, group + 1))
            sizes[part], done = sizes[part] + size, done + size
    return [Span(tuple(of), tuple(of.values()), size) for of, size in zip(found, sizes, strict=True) if of]
