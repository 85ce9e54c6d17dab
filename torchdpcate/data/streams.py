"""Records that are read in batches: as they come, from a copy on disk, or in parts."""

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from torchdpcate._files import PRIVATE
from torchdpcate._process import BATCH
from torchdpcate.data.facts import check_integer
from torchdpcate.data.records import NOTHING_CLIPPED, CausalData, ClippedValues
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError

RECORDS = "records"
"""Name of what each part holds from the start: its records, as a ``RecordStream``."""


class RecordStream(ABC):
    """Records within their public bounds, in batches, in the same order at each reading.

    Attributes:
        schema: Public facts of the table.
        n: Number of records, public.
        clipped: How many values of what was read are moved to their bounds; the curator's.
    """

    schema: TableSchema
    n: int
    clipped: ClippedValues = NOTHING_CLIPPED

    @abstractmethod
    def __iter__(self) -> Iterator[CausalData]:
        """Yield all records in batches of float64 tensors, encoded and checked.

        Raises:
            InputError: Values outside the domain, or missing ones: says in which rows.
        """

    def first(self) -> CausalData:
        """Return the first batch."""
        return next(iter(self))

    def ask(self, function: Callable[[Any], Any]) -> list[Any]:
        """Return what a function makes of the records, or of each part of them where they lie in parts.

        Args:
            function: Of a ``RecordStream``.
        """
        return [function(self)]

    def close(self) -> None:  # noqa: B027
        """Give back what is held for them, such as a file; most hold nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_schema(self, schema: TableSchema, columns: bool) -> None:
        """Refuse a stream that is not of a learner's domain.

        Args:
            schema: The learner's.
            columns: Whether its columns count, and not its bounds alone.

        Raises:
            InputError: Other columns, arms or bounds.
        """
        read = self.schema if len(schema.actions) > 2 else self.schema.two_arms("the learner")
        same = read == schema if columns else read.domain == schema.domain
        if not same or read.actions != schema.actions:
            raise InputError("stream: its columns, arms or bounds are not the learner's; give both the same domain")


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


class CachedStream(RecordStream):
    """Records of another stream from one npy file of float64 numbers, read a batch at a time.

    A composition reads its records some forty times, or two hundred at small n mu. The file holds the records: it is
    the curator's, readable by its owner alone, and ``close`` (or the end of a ``with`` block) removes it.

    Args:
        stream: The records.
        folder: Folder of the file, made for the curator; it needs 8 bytes a number.
        batch_rows: Rows of a batch, at most.
        name: Of the file.

    Raises:
        InputError: A folder that cannot be written, or holds such a file; a batch size below 1; what the stream raises.

    Example:
        >>> import tempfile
        >>> from torchdpcate.data.domain import Domain
        >>> domain = Domain([0.0], [1.0], 0.0, 1.0)
        >>> class Two(RecordStream):
        ...     schema, n = domain, 2
        ...     def __iter__(self):
        ...         yield CausalData(torch.tensor([[0.1], [0.2]]), torch.tensor([0.0, 1.0]), torch.tensor([0.5, 1.0]))
        >>> with tempfile.TemporaryDirectory() as folder, CachedStream(Two(), folder) as cached:
        ...     [batch.n for batch in cached]
        [2]
    """

    def __init__(
        self, stream: RecordStream, folder: str | Path, batch_rows: int = BATCH, name: str = "records"
    ) -> None:
        check_integer("batch_rows", batch_rows)
        self.schema, self.n, self.clipped, self.batch_rows = stream.schema, stream.n, stream.clipped, batch_rows
        self.path = Path(folder) / f"{name}.npy"
        self.folder, self._skipped = self.path.parent, 0
        self._width, self._own, self._weighted, self._followed, self._start = 0, 0, False, False, 0
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        except OSError as error:
            raise _unwritable(folder, error) from None
        try:
            with os.fdopen(handle, "wb") as file:
                self._write(file, stream)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise _unwritable(folder, error) from None
            raise

    def __iter__(self) -> Iterator[CausalData]:
        """Yield all records in batches; see ``RecordStream``."""
        if not self.path.exists():
            raise InputError(f"stream: {self.path.name} was removed by close(); make a new one")
        width, own = self._width, self._own
        q = width - 2 - own - self._weighted - 2 * self._followed
        with self.path.open("rb") as file:
            file.seek(self._start + 8 * width * self._skipped)
            for first in range(0, self.n, self.batch_rows):
                rows = min(self.batch_rows, self.n - first)
                numbers = np.fromfile(file, "<f8", rows * width)
                if len(numbers) < rows * width:
                    raise InputError(f"stream: {self.path.name} was cut short; make a new one")
                part = torch.from_numpy(numbers.astype(np.float64, copy=False)).view(rows, width)
                pi = part[:, q + 2 : q + 2 + own].squeeze(1) if own else None  # of two arms one number
                weight = part[:, q + 2 + own] if self._weighted else None
                follow_up = part[:, -2:] if self._followed else None
                yield CausalData(part[:, :q], part[:, q], part[:, q + 1], pi, weight=weight, follow_up=follow_up)

    def mapped(self, change: Callable[[CausalData], CausalData], name: str) -> "CachedStream":
        """Return the stream of what is worked out of each batch, in a file of its own in ``folder``.

        Args:
            change: From a batch to numbers of the same records, one row each.
            name: Of the new file.
        """
        return CachedStream(_Mapped(self, change), self.folder, self.batch_rows, name)

    def span(self, rows: range, folder: str | Path) -> "CachedStream":
        """Return the stream of some consecutive rows of this file, which others may be mapped beside.

        Args:
            rows: Their positions.
            folder: Where files of what is worked out of them are written.
        """
        part = copy.copy(self)
        part.n, part._skipped, part.folder = len(rows), self._skipped + rows.start, Path(folder)
        return part

    def close(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)

    def _write(self, file: Any, stream: RecordStream) -> None:
        """Write the header, whose length and columns later readings know, and all batches."""
        done = 0
        for batch in stream:
            own = [] if batch.propensity is None else [batch.propensity.reshape(batch.n, -1)]
            weight = [] if batch.weight is None else [batch.weight[:, None]]
            follow_up = [] if batch.follow_up is None else [batch.follow_up]
            rows = torch.cat([batch.x, batch.a[:, None], batch.y[:, None], *own, *weight, *follow_up], 1).double()
            if not done:
                self._width, self._own = rows.shape[1], sum(part.shape[1] for part in own)
                self._weighted, self._followed = bool(weight), bool(follow_up)
                header = {"descr": "<f8", "fortran_order": False, "shape": (self.n, self._width)}
                np.lib.format.write_array_header_1_0(file, header)
                self._start = file.tell()
            done += len(rows)
            rows.numpy().astype("<f8", copy=False).tofile(file)
        if done != self.n:
            raise InputError(f"stream: {done} records, where it has n = {self.n}; give one that stays as it is")


def _unwritable(folder: str | Path, error: OSError) -> InputError:
    return InputError(f"folder = {str(folder)!r}: cannot hold the records ({error.strerror or error})")


class _Mapped(RecordStream):
    """A stream of what is worked out of another's batches."""

    def __init__(self, stream: RecordStream, change: Callable[[CausalData], CausalData]) -> None:
        self.schema, self.n, self._stream, self._change = stream.schema, stream.n, stream, change

    def __iter__(self) -> Iterator[CausalData]:
        return map(self._change, self._stream)
