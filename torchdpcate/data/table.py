"""A user's own table: csv or parquet with its public facts in a domain file, at once or batch by batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data._frames import MOST_BYTES, PERSON, about, read_frame, rows_in_metadata
from torchdpcate.data.checked import check_kind_said, encode_records, every_fault, record_columns, warn_clipped
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import check_integer
from torchdpcate.data.persons import person_rows
from torchdpcate.data.records import check_treatment
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import PublicStudy, StreamedStudy, Study, StudySource
from torchdpcate.data.table_stream import TableStream, with_assignment
from torchdpcate.errors import InputError, MissingError
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.unit import RECORD, PrivacyUnit


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
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine not in (None, "ray"):
            raise InputError(f"data.engine = {self.engine}: choose ray or null")
        if self.engine is None and (self.address, self.parts) != (None, None):
            name = "parts" if self.address is None else "address"
            raise InputError(f"data.{name} = {self.parts or self.address}: is of data.engine=ray; add it")
        if self.engine is not None and not self.stream:
            raise InputError("data.engine = ray: sums the records of a stream; add data.stream=true")

    @property
    def _schema(self) -> TableSchema:
        return TableSchema.of(self.domain).handling(self.out_of_bounds)

    @property
    def _form(self) -> CsvForm:
        return CsvForm.of(self) or PLAIN

    @property
    def unit(self) -> PrivacyUnit:
        """Who is protected.

        Raises:
            InputError: Several records of each person, and no column that names them; or a setting that is not allowed.
        """
        check_integer("data.per_person", self.per_person)
        pairs = self._schema.pairs
        if self.person is not None:
            if pairs is not None:
                raise InputError(f"data.person: pairs ({pairs.name}) are protected as they are; leave it out")
            return PrivacyUnit.person(" + ".join(self._own()), self.per_person)
        if pairs is not None:
            return pairs.unit
        if self.per_person != 1:
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
        schema, unit = self._schema, self.unit
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
                f"{self.unit.column}: a stream does not bring a person's records together: leave data.stream out"
            )
        if self.n is not None:
            raise InputError(f"data.n is {self.n}; a stream has all records of the table: leave data.n out")

    def open(self) -> StreamedStudy:
        """Read the table once, to check and count it, and return records that are read anew at each use."""
        self.check_stream()
        given, most, form = (self.path, self.domain, self.out_of_bounds), self.most_bytes, self._form
        stream: TableStream
        if self.engine is None:
            stream = TableStream(*given, most_bytes=most, form=form)
        else:
            from torchdpcate.data.ray_table import RayTable

            stream = RayTable(*given, self.address, self.parts, most, form)
        return StreamedStudy(stream, table_name(self.path), self._points(stream.schema))

    def load(self) -> Study:
        """Read, check and encode the table."""
        if self.stream:
            raise InputError("data.stream is true, and this reads all records at once; leave it out")
        schema = self._schema
        columns, unit, own = record_columns(schema), self.unit, self._own()
        if own and (set(own) <= set(columns) or {schema.treatment, schema.outcome} & set(own)):
            raise InputError(
                f"data.person = {', '.join(own)}: names persons by treatment, outcome or columns of the domain alone; "
                "give a column that only names persons"
            )
        names, text = with_assignment((*columns, *own), schema.text_in(self.path) | (set(own) - set(columns)), schema)
        frame = read_frame(self.path, names, text, self.most_bytes, own, self._form)
        with about(self.path):
            with every_fault(frame, schema):
                read = encode_records(frame, schema)
                check_treatment(read.a, f"treatment column {schema.treatment!r}", schema.actions)
            check_kind_said(read, schema)
            warn_clipped(read.clipped, schema)
            if schema.cluster is not None:
                schema.cluster.check(schema.cluster.sizes(frame[schema.cluster.name], read.a))
            if schema.pairs is not None:
                read = schema.pairs.fold(read, frame, schema.greatest)
            rows = torch.arange(read.n)[:, None]
            if own:
                rows = person_rows(frame[PERSON].rename(None), self.per_person, self.seed)
        records = read.subset(rows[subsample(len(rows), self.n, NoiseSource.system().permutation)].flatten())
        if schema.pairs is None:
            check_treatment(records.a, actions=schema.actions)
        return Study(records, schema, self._points(schema), None, table_name(self.path), unit=unit)


def subsample(total: int, n: int | None, permuted: Callable[[int], Tensor]) -> Tensor:
    """Return the positions of n rows out of ``total``, in their order; all if n is None.

    Args:
        total: How many there are.
        n: How many to take.
        permuted: A random order of as many: of records by the system's entropy, of public rows by a seed.

    Raises:
        InputError: n is not an integer from 1 to ``total``.
    """
    if n is None:
        return torch.arange(total)
    if not isinstance(n, int) or not 1 <= n <= total:
        raise InputError(f"data.n is {n}; the data hold {total} records, request 1 to {total}")
    return permuted(total)[:n].sort().values


def table_name(path: Any) -> str:
    """Return the file's name without folder and endings; of several files, that of the first."""
    first = path if isinstance(path, str | Path) else next(iter(path))
    return Path(first).name.split(".")[0]
