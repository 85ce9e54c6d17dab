"""A stream of records copied once, as numbers, so that later readings neither parse nor check."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from torchdpcate._files import PRIVATE
from torchdpcate.data.record_stream import RecordStream
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError


class CachedStream(RecordStream):
    """Records of another stream from one npy file of float64 numbers, read a batch at a time.

    A composition reads its records some two hundred times. The file holds the records: it is the curator's, readable by
    its owner alone, and ``close`` (or the end of a ``with`` block) removes it.

    Args:
        stream: The records.
        folder: Folder of the file, made for the curator; it needs 8 bytes a number.
        batch_rows: Rows of a batch, at most; few enough for what is worked out of them to stay in a processor's cache.
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
        self, stream: RecordStream, folder: str | Path, batch_rows: int = 4_096, name: str = "records"
    ) -> None:
        if batch_rows < 1:
            raise InputError(f"batch_rows = {batch_rows}: give 1 or more")
        self.schema, self.n, self.clipped, self.batch_rows = stream.schema, stream.n, stream.clipped, batch_rows
        self.path = Path(folder) / f"{name}.npy"
        self._width, self._own, self._start = 0, False, 0
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
        q, width = self._width - 2 - self._own, self._width
        with self.path.open("rb") as file:
            file.seek(self._start)
            for first in range(0, self.n, self.batch_rows):
                rows = min(self.batch_rows, self.n - first)
                numbers = np.fromfile(file, "<f8", rows * width)
                if len(numbers) < rows * width:
                    raise InputError(f"stream: {self.path.name} was cut short; make a new one")
                part = torch.from_numpy(numbers.astype(np.float64, copy=False)).view(rows, width)
                yield CausalData(part[:, :q], part[:, q], part[:, q + 1], part[:, q + 2] if self._own else None)

    def mapped(self, change: Callable[[CausalData], CausalData], name: str) -> "CachedStream":
        """Return the stream of what is worked out of each batch, in a file beside this one.

        Args:
            change: From a batch to numbers of the same records, one row each.
            name: Of the new file.
        """
        return CachedStream(_Mapped(self, change), self.path.parent, self.batch_rows, name)

    def close(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, file: Any, stream: RecordStream) -> None:
        """Write the header, whose length and columns later readings know, and all batches."""
        done = 0
        for batch in stream:
            own = [] if batch.propensity is None else [batch.propensity[:, None]]
            rows = torch.cat([batch.x, batch.a[:, None], batch.y[:, None], *own], 1).double()
            if not done:
                self._width, self._own = rows.shape[1], bool(own)
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
