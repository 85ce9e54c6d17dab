"""A user's own table: csv or parquet with its public facts in a domain file, at once or batch by batch."""

import copy
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from torchdpcate._files import PRIVATE
from torchdpcate._process import BATCH
from torchdpcate.data._arrays import listed
from torchdpcate.data._csv import PLAIN, CsvForm, last_row_remedy
from torchdpcate.data._frames import (
    CSV,
    MOST_BYTES,
    PERSON,
    about,
    file_kind,
    files_of,
    iter_frames,
    read_frame,
    rows_in_metadata,
)
from torchdpcate.data.checked import Outcomes, check_kind_said, encode_records, record_columns
from torchdpcate.data.domain import Domain
from torchdpcate.data.faults import every_fault
from torchdpcate.data.parts import RowGroups
from torchdpcate.data.persons import check_contribution, person_rows
from torchdpcate.data.records import (
    NOTHING_CLIPPED,
    CausalData,
    ClippedValues,
    RecordStream,
    arm_sizes,
    check_arms,
    check_treatment,
)
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_permutation
from torchdpcate.data.study import PublicStudy, StreamedStudy, Study, StudySource
from torchdpcate.errors import InputError, MissingError
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.unit import RECORD, PrivacyUnit

if TYPE_CHECKING:
    import pandas as pd


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
        if batch_rows < 1:
            raise InputError(f"batch_rows is {batch_rows}; give 1 or more")
        self.paths = files_of(path)
        self._groups = [None] * len(self.paths) if groups is None else list(groups)
        self.schema = TableSchema.of(domain).handling(out_of_bounds)
        self.batch_rows = batch_rows
        self.most_bytes = most_bytes
        self.form = form
        self.counted = self._count()
        self.n, self.clipped = int(self.counted.sizes.sum()), self.counted.clipped
        self._check()
        self.clipped.warn(self.schema)

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
        self, path: str | Path, groups: RowGroups | None, clusters: Counter[str] | None = None
    ) -> Iterator[CausalData]:
        """Yield the records of one file; add those of each cluster to a count, where one is given."""
        done, cluster = 0 if groups is None else groups.before, None if clusters is None else self.schema.cluster
        columns, text = record_columns(self.schema), self.schema.text_columns
        if cluster is not None:
            columns, text = _with_clusters(columns, text, self.schema)
        own = None if groups is None else groups.groups
        frames = iter_frames(path, columns, text, self.batch_rows, self.most_bytes, self.form, own)
        for frame in frames:
            rows = f"{path}, rows {done + 1} to {done + len(frame)}"
            with about(rows), _last_row(path, frame, self.schema, frames), every_fault(frame, self.schema):
                batch = encode_records(frame, self.schema)
                arm_sizes(batch.a, self._treatment, self.schema.actions)
            if clusters is not None and cluster is not None:
                clusters.update(cluster.sizes(frame[cluster.name]))
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
        clusters: Records of each cluster.
        seals: For each file, what shows that it was changed.
    """

    sizes: Tensor
    clipped: ClippedValues
    outcomes: Outcomes
    clusters: Counter[str]
    seals: list[tuple[int, ...]]


def _with_clusters(
    columns: Sequence[str], text: Set[str], schema: TableSchema
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return columns to read, and those that are text, with that of the clusters, which is text if it is no other."""
    names = () if schema.cluster is None else (schema.cluster.name,)
    return tuple(dict.fromkeys((*columns, *names))), frozenset(text) | (set(names) - set(columns))


@contextmanager
def _last_row(
    path: str | Path, frame: "pd.DataFrame", schema: TableSchema, following: Iterable[Any] = ()
) -> Iterator[None]:
    """Add to a complaint about records what to do if the last row of a csv file is none."""
    try:
        yield
    except InputError as error:
        last = file_kind(path) == CSV and next(iter(following), None) is None
        numbers = [name for name in record_columns(schema) if name not in schema.text_columns]
        raise InputError(f"{error}{last_row_remedy(frame, numbers) if last else ''}") from None


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
        if batch_rows < 1:
            raise InputError(f"batch_rows = {batch_rows}: give 1 or more")
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


@dataclass(eq=False, repr=False, frozen=True)
class Table(CsvForm, StudySource):
    """Records of a file; only the columns the domain file names are read.

    Files are csv, csv.gz, parquet, or of Stata (dta), SPSS (sav, zsav) or SAS (sas7bdat, xpt); sav, zsav and xpt need
    pyreadstat. Values with labels are words where the domain declares words, else numbers. The arguments of
    ``CsvForm``, by name, say how csv files are written.

    Args:
        path: The file, a list of files with the same columns, laid end to end, or a folder of parquet files.
        domain: The domain file, the name of a shipped one (``"lalonde"``), its entries, or a schema.
        out_of_bounds: ``"refuse"`` values outside their declared bounds, or ``"clip"`` them, as the release will do
            with queries; what the domain file says of it is kept.
        queries_path: File of public queries (same covariate columns); otherwise a public grid.
        queries: Size of the public grid.
        n: Use only n records; all if left out. Which ones is drawn from the system's entropy at each loading: positions
            drawn by a public seed would be many other records as soon as one record moves in a sorted file. Where
            persons are named, n of these.
        most_bytes: Size of the table at eight bytes a value, and of what a row group of a parquet file unpacks to, at
            most: a small file may hold more than any memory.
        stream: Whether to read the records batch by batch, for what can be learnt in constant memory: then ``open``
            takes the place of ``load``.
        engine: ``"ray"`` sums a stream in parts on a Ray cluster, see ``RayTable``; None here.
        address: Of the cluster, see ``RayCluster``.
        parts: How many; see ``RayTable``.
        person: Column that says whose a record is, or several columns that do together; then persons are protected, see
            ``person_names`` and ``person_rows``.
        per_person: Records of each person.
        too_many: ``"draw"`` as many of a person with more, or ``"refuse"`` them.
        seed: Public seed of the draw.

    Raises:
        InputError: On ``load`` or ``open``, whatever in the file is not as declared (which column, how many).

    Example:
        >>> study = Table("trial.csv", "trial.yaml").load()  # doctest: +SKIP
        >>> study.records.n, study.queries.shape  # doctest: +SKIP
        (1000, torch.Size([300, 4]))
    """

    path: str | Path | Sequence[str | Path]
    domain: TableSchema | Domain | Mapping[str, Any] | str | Path
    out_of_bounds: str = "refuse"
    queries_path: str | Path | None = None
    queries: int = 300
    n: int | None = None
    stream: bool = False
    engine: str | None = None
    address: str | None = None
    parts: int | None = None
    most_bytes: int = MOST_BYTES
    person: str | Sequence[str] | None = None
    per_person: int = 1
    too_many: str = "draw"
    seed: int = 0

    @property
    def unit(self) -> PrivacyUnit:
        """Who is protected.

        Raises:
            InputError: Several records of each person, and no column that names them; or a setting that is not allowed.
        """
        check_contribution(self.per_person, self.too_many)
        if self.person is not None:
            return PrivacyUnit.person(" + ".join(self._own()), self.per_person)
        if self.per_person != 1 or self.too_many != "draw":
            raise MissingError(
                "data.per_person: whose a record is must be known; name the column by data.person=COLUMN"
            )
        return RECORD

    def _own(self) -> tuple[str, ...]:
        """Return the columns that name a person."""
        own = () if self.person is None else (self.person,) if isinstance(self.person, str) else tuple(self.person)
        if self.person is not None and (not own or len(set(own)) < len(own) or not all(type(n) is str for n in own)):
            raise InputError(f"data.person = {self.person!r}: name a column, or several, each once")
        return own

    def public(self) -> PublicStudy:
        """Return schema, public queries and n, if it is given; neither the table nor its size is looked at."""
        self.check_engine()
        schema = TableSchema.of(self.domain).handling(self.out_of_bounds)
        unit = self.unit
        n = None if self.n is None else self.n * unit.records
        return PublicStudy(schema, table_name(self.path), n, self._points(schema), unit)

    def stated_rows(self) -> int:
        """Return the number of rows that parquet files say they have in their metadata; no record is read.

        Raises:
            InputError: A file that is no parquet file, or not there; or persons are named, whom it does not count.
        """
        if self.unit.is_person:
            raise InputError("n = metadata: counts rows, and not the persons of data.person; give n=NUMBER")
        return rows_in_metadata(self.path)

    def check_stream(self) -> None:
        """Refuse a stream with fewer records than the table has."""
        if self.unit.is_person:
            raise InputError(
                f"data.person is {', '.join(self._own())}; a stream does not bring a person's records together: leave "
                "data.stream out"
            )
        if self.n is not None:
            raise InputError(f"data.n is {self.n}; a stream has all records of the table: leave data.n out")

    def check_engine(self) -> None:
        """Refuse an engine that is not there, and settings of one that is not chosen.

        Raises:
            InputError: Says which.
        """
        if self.engine not in (None, "ray"):
            raise InputError(f"data.engine = {self.engine}: choose ray or null")
        if self.engine is None and (self.address, self.parts) != (None, None):
            name = "parts" if self.address is None else "address"
            raise InputError(f"ray.{name} = {self.parts or self.address}: is of data.engine=ray; add it")
        if self.engine is not None and not self.stream:
            raise InputError("data.engine = ray: sums the records of a stream; add data.stream=true")

    def open(self) -> StreamedStudy:
        """Read the table once, to check and count it, and return records that are read anew at each use."""
        self.check_stream()
        self.check_engine()
        given, most, form = (self.path, self.domain, self.out_of_bounds), self.most_bytes, CsvForm.of(self) or PLAIN
        stream: TableStream
        if self.engine is None:
            stream = TableStream(*given, most_bytes=most, form=form)
        else:
            from torchdpcate.data.ray_table import RayTable

            stream = RayTable(*given, self.address, self.parts, most, form)
        return StreamedStudy(stream, table_name(self.path), self._points(stream.schema))

    def load(self) -> Study:
        """Read, check and encode the table."""
        self.check_engine()
        if self.stream:
            raise InputError("data.stream is true, and this reads all records at once; leave it out")
        schema = TableSchema.of(self.domain).handling(self.out_of_bounds)
        columns, unit, own = record_columns(schema), self.unit, self._own()
        if own and (set(own) <= set(columns) or {schema.treatment, schema.outcome} & set(own)):
            raise InputError(
                f"data.person = {', '.join(own)}: names persons by treatment, outcome or columns of the domain alone; "
                "give a column that only names persons"
            )
        names, text = _with_clusters((*columns, *own), schema.text_columns | (set(own) - set(columns)), schema)
        frame = read_frame(self.path, names, text, self.most_bytes, own, CsvForm.of(self) or PLAIN)
        with about(self.path), _last_row(files_of(self.path)[-1], frame, schema):
            with every_fault(frame, schema):
                read = encode_records(frame, schema)
                check_treatment(read.a, f"treatment column {schema.treatment!r}", schema.actions)
            check_kind_said(read, schema)
            read.clipped.warn(schema)
            if schema.cluster is not None:
                schema.cluster.check(schema.cluster.sizes(frame[schema.cluster.name]))
            rows = torch.arange(read.n)[:, None]
            if own:
                rows = person_rows(frame[PERSON].rename(None), self.per_person, self.seed, self.too_many)
        records = read.subset(rows[secret_subsample(len(rows), self.n)].flatten())
        check_treatment(records.a, actions=schema.actions)
        return Study(records, schema, self._points(schema), None, table_name(self.path), unit=unit)


def secret_subsample(total: int, n: int | None) -> Tensor:
    """Return the positions of n records out of ``total``, drawn from the system's entropy; all if n is None.

    Raises:
        InputError: n is not an integer from 1 to ``total``.
    """
    if n is None:
        return torch.arange(total)
    return NoiseSource.system().permutation(total)[: _among(total, n)].sort().values


def public_subsample(total: int, n: int | None, seed: int) -> Tensor:
    """Return the positions of n rows out of ``total``, drawn by the seed alone; all if n is None. Of public rows only.

    Raises:
        InputError: n is not an integer from 1 to ``total``.
    """
    if n is None:
        return torch.arange(total)
    return public_permutation(total, seed, "subsample")[: _among(total, n)].sort().values


def _among(total: int, n: int) -> int:
    if not isinstance(n, int) or not 1 <= n <= total:
        raise InputError(f"data.n is {n}; the data hold {total} records, request 1 to {total}")
    return n


def table_name(path: Any) -> str:
    """Return the file's name without folder and endings; of several files, that of the first."""
    first = path if isinstance(path, str | Path) else next(iter(path))
    return Path(first).name.split(".")[0]
