"""A user's own table: csv or parquet with its public facts in a domain file, at once or batch by batch."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdpcate.data._arrays import listed
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data._frames import MOST_BYTES, about, files_of, iter_frames
from torchdpcate.data.checked import Outcomes, encode_records, every_fault, record_columns, warn_clipped
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import check_integer
from torchdpcate.data.records import NOTHING_CLIPPED, CausalData, ClippedValues, arm_sizes, check_arms
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import CachedStream, RecordStream
from torchdpcate.errors import InputError


class RowGroups(NamedTuple):
    """Consecutive row groups of a parquet file.

    Attributes:
        groups: Their positions.
        before: Number of rows before them.
    """

    groups: range
    before: int


class TableStream(RecordStream):
    """Records of files as ``Table`` reads them, in constant memory; only the columns the domain file names are read.

    The constructor reads everything once: it counts the records and refuses what is not as declared. Each reading
    afterwards checks again, and refuses files that are no longer those that were counted: sums over different records
    would have no common neighbour.

    Args:
        path: The file, a list of files with the same columns, laid end to end, or a folder of parquet files.
        domain: The domain file, the name of a shipped one (``"lalonde"``), its entries, or a schema.
        out_of_bounds: ``"refuse"`` values outside their declared bounds, or ``"clip"`` them; what the domain file says
            of it is kept.
        batch_rows: Rows a batch, at most; memory grows with it and not with the files.
        most_bytes: What a row group of a parquet file may unpack to.
        form: How csv files are written.
        groups: Row groups that are read of each file, which is parquet then; None reads all of all files.

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
        form: CsvForm = PLAIN,
        groups: Sequence[RowGroups] | None = None,
    ) -> None:
        check_integer("batch_rows", batch_rows)
        self.paths = files_of(path)
        self._groups = [None] * len(self.paths) if groups is None else list(groups)
        self.schema = TableSchema.of(domain).handling(out_of_bounds)
        self.batch_rows = batch_rows
        self.most_bytes = most_bytes
        self.form = form
        self.counted = self._count()
        self.n, self.clipped = int(self.counted.sizes.sum()), self.counted.clipped
        self._check()
        warn_clipped(self.clipped, self.schema)

    def __iter__(self) -> Iterator[CausalData]:
        """Yield all records in batches; see ``RecordStream``."""
        for path, groups, seal in zip(self.paths, self._groups, self.counted.seals, strict=True):
            refuse_changed(path, seal)
            yield from self._batches(path, groups)
            refuse_changed(path, seal)

    def copied(self, folder: str | Path) -> AbstractContextManager[RecordStream]:
        """Give a copy on disk, for many passes; see ``CachedStream``.

        Args:
            folder: The curator's.
        """
        return CachedStream(self, folder)

    def _count(self) -> "Counted":
        """Read everything once."""
        sizes = torch.zeros(len(self.schema.actions), dtype=torch.long)
        found = Counted(sizes, NOTHING_CLIPPED, Outcomes(self.schema), Counter(), [])
        for path, groups in zip(self.paths, self._groups, strict=True):
            seal = _seal(path)
            for batch in self._batches(path, groups, found.clusters):
                sizes += arm_sizes(batch.a, self._treatment, self.schema.actions)
                found = found._replace(clipped=found.clipped + batch.clipped)
                found.outcomes.add(batch)
            refuse_changed(path, seal)
            found.seals.append(seal)
        return found

    def _check(self) -> None:
        """Refuse what all records together show."""
        if not self.n:
            raise InputError(f"data file {listed(self.paths)} holds no rows; bring records")
        with about(self.paths):
            check_arms(self.counted.sizes, self._treatment, self.schema.actions)
            self.counted.outcomes.check()
            if self.schema.cluster is not None:
                self.schema.cluster.check(self.counted.clusters)

    def _batches(
        self, path: str | Path, groups: RowGroups | None, clusters: Counter[tuple[str, float]] | None = None
    ) -> Iterator[CausalData]:
        """Yield the records of one file; add those of each cluster to a count, where one is given."""
        done, cluster = 0 if groups is None else groups.before, None if clusters is None else self.schema.cluster
        columns, text = record_columns(self.schema), self.schema.text_in(path)
        if cluster is not None:
            columns, text = with_assignment(columns, text, self.schema)
        own = None if groups is None else groups.groups
        frames = iter_frames(path, columns, text, self.batch_rows, self.most_bytes, self.form, own)
        for frame in frames:
            rows = f"{path}, rows {done + 1} to {done + len(frame)}"
            with about(rows), every_fault(frame, self.schema):
                batch = encode_records(frame, self.schema)
                arm_sizes(batch.a, self._treatment, self.schema.actions)
            if clusters is not None and cluster is not None:
                clusters.update(cluster.sizes(frame[cluster.name], batch.a))
            done += len(frame)
            if len(frame):
                yield batch

    @property
    def _treatment(self) -> str:
        return f"treatment column {self.schema.treatment!r}"


class Counted(NamedTuple):
    """What one reading of a table finds; the curator's.

    Attributes:
        sizes: Records of each arm, [K].
        clipped: How many values are moved to their bounds.
        outcomes: What values they have.
        clusters: Records of each arm of each cluster.
        seals: For each file, what shows that it was changed.
    """

    sizes: Tensor
    clipped: ClippedValues
    outcomes: Outcomes
    clusters: Counter[tuple[str, float]]
    seals: list[tuple[int, ...]]


def with_assignment(
    columns: Sequence[str], text: Set[str], schema: TableSchema
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return columns to read, and those that are text, with those of the design, text if they are no others."""
    names = () if schema.assignment is None else schema.assignment.columns
    return tuple(dict.fromkeys((*columns, *names))), frozenset(text) | (set(names) - set(columns))


def _seal(path: str | Path) -> tuple[int, ...]:
    """Return the file's identity, size and time of change; nothing for one that is not there, which reading reports."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def refuse_changed(path: str | Path, seal: tuple[int, ...]) -> None:
    """Refuse a file that is not the one that was read first.

    Args:
        path: The file.
        seal: Of ``Counted.seals``.

    Raises:
        InputError: It has changed.
    """
    if _seal(path) != seal:
        raise InputError(
            f"data file {str(path)!r} has changed since it was first read; leave it alone while a learner reads it, "
            "and start anew"
        )
