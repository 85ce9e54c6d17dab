"""A user's own table, read batch by batch as often as it is needed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchdpcate.data._arrays import listed
from torchdpcate.data._frames import MOST_BYTES, about, among_rows, iter_frames
from torchdpcate.data._rows import Outcomes, encode_records, record_columns
from torchdpcate.data.clipped import NOTHING_CLIPPED, Clipped
from torchdpcate.data.domain import Domain
from torchdpcate.data.record_stream import RecordStream
from torchdpcate.data.records import CausalData, arm_sizes, check_arms
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError


class TableStream(RecordStream):
    """Records of csv, csv.gz or parquet files, in constant memory; only the columns the domain file names are read.

    The constructor reads everything once: it counts the records and refuses what is not as declared. Each reading
    afterwards checks again, and refuses files that are no longer those that were counted: sums over different records
    would have no common neighbour.

    Args:
        path: The file, or a list of files with the same columns, laid end to end.
        domain: The domain file, the name of a shipped one (``"lalonde"``), its entries, or a schema.
        out_of_bounds: ``"refuse"`` values outside their declared bounds, or ``"clip"`` them; what the domain file says
            of it is kept.
        batch_rows: Rows a batch, at most; memory grows with it and not with the files.
        most_bytes: What a row group of a parquet file may unpack to.

    Raises:
        InputError: A missing, broken or empty file, a missing column, values missing, not numeric or outside the
            domain (which column, how many, among which rows), or an arm without records.

    Example:
        >>> import tempfile
        >>> import pandas as pd
        >>> unit = {"low": 0, "high": 1}
        >>> domain = {"treatment": "a", "outcome": {"name": "y", **unit}, "covariates": {"x": unit}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pd.DataFrame({"a": [0, 1, 1], "y": [0.0, 1.0, 0.5], "x": 0.5}).to_csv(f"{folder}/t.csv")
        ...     stream = TableStream(f"{folder}/t.csv", domain, batch_rows=2)
        ...     stream.n, [batch.n for batch in stream]
        (3, [2, 1])
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        domain: TableSchema | Domain | Mapping[str, Any] | str | Path,
        out_of_bounds: str = "refuse",
        batch_rows: int = 65536,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        if batch_rows < 1:
            raise InputError(f"batch_rows is {batch_rows}; give 1 or more")
        self.paths = [path] if isinstance(path, str | Path) else list(path)
        self.schema = TableSchema.of(domain).handling(out_of_bounds)
        self.batch_rows = batch_rows
        self.most_bytes = most_bytes
        self.n, self._seals, self.clipped = self._count()
        self.clipped.warn(self.schema)

    def __iter__(self) -> Iterator[CausalData]:
        """Yield all records in batches; see ``RecordStream``."""
        for path, seal in zip(self.paths, self._seals, strict=True):
            _refuse_changed(path, seal)
            yield from self._batches(path)
            _refuse_changed(path, seal)

    def _count(self) -> tuple[int, list[tuple[int, ...]], Clipped]:
        """Read everything once; return the number of records, what shows that a file was changed, what is clipped."""
        name, actions = self._treatment, self.schema.actions
        sizes = torch.zeros(len(actions), dtype=torch.long)
        seals, clipped, outcomes = [], NOTHING_CLIPPED, Outcomes(self.schema)
        for path in self.paths:
            seal = _seal(path)
            for batch in self._batches(path):
                sizes += arm_sizes(batch.a, name, actions)
                clipped += batch.clipped
                outcomes.add(batch)
            _refuse_changed(path, seal)
            seals.append(seal)
        if not sizes.any():
            raise InputError(f"data file {listed(self.paths)} holds no rows; bring records")
        with about(self.paths):
            check_arms(sizes, name, actions)
            outcomes.check()
        return int(sizes.sum()), seals, clipped

    def _batches(self, path: str | Path) -> Iterator[CausalData]:
        """Yield the records of one file."""
        done = 0
        columns, text = record_columns(self.schema), self.schema.text_columns
        for frame in iter_frames(path, columns, text, self.batch_rows, self.most_bytes):
            with among_rows(path, done + 1, done + len(frame)):
                batch = encode_records(frame, self.schema)
                arm_sizes(batch.a, self._treatment, self.schema.actions)
            done += len(frame)
            if len(frame):
                yield batch

    @property
    def _treatment(self) -> str:
        return f"treatment column {self.schema.treatment!r}"


def _seal(path: str | Path) -> tuple[int, ...]:
    """Return the file's identity, size and time of change; nothing for one that is not there, which reading reports."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _refuse_changed(path: str | Path, seal: tuple[int, ...]) -> None:
    if _seal(path) != seal:
        raise InputError(
            f"data file {str(path)!r} has changed since it was first read; leave it alone while a learner reads it, "
            "and start anew"
        )
