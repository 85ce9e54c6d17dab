"""A user's own table: csv or parquet, with its public facts in a domain file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data._frames import MOST_BYTES, PERSON, about, read_frame, rows_in_metadata
from torchdpcate.data._rows import check_kind_said, encode_records, record_columns
from torchdpcate.data.domain import Domain
from torchdpcate.data.persons import check_contribution, person_rows
from torchdpcate.data.queries import read_queries
from torchdpcate.data.records import check_treatment
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_permutation
from torchdpcate.data.study import PublicStudy, StreamedStudy, Study, StudySource
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.unit import RECORD, PrivacyUnit


class Table(StudySource):
    """Records of a csv, csv.gz or parquet file; only the columns the domain file names are read.

    Args:
        path: The file, or a list of files with the same columns, laid end to end.
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
        person: Column that says whose a record is, or several columns that do together; then persons are protected, see
            ``person_names`` and ``person_rows``.
        per_person: Records of each person.
        too_many: ``"draw"`` as many of a person with more, or ``"refuse"`` her.
        seed: Public seed of the draw.

    Raises:
        InputError: On ``load`` or ``open``, whatever in the file is not as declared (which column, how many).

    Example:
        >>> study = Table("trial.csv", "trial.yaml").load()  # doctest: +SKIP
        >>> study.records.n, study.queries.shape  # doctest: +SKIP
        (1000, torch.Size([300, 4]))
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        domain: TableSchema | Domain | Mapping[str, Any] | str | Path,
        out_of_bounds: str = "refuse",
        queries_path: str | Path | None = None,
        queries: int = 300,
        n: int | None = None,
        stream: bool = False,
        most_bytes: int = MOST_BYTES,
        person: str | Sequence[str] | None = None,
        per_person: int = 1,
        too_many: str = "draw",
        seed: int = 0,
    ) -> None:
        self.path = path
        self.domain = domain
        self.out_of_bounds = out_of_bounds
        self.queries_path = queries_path
        self.queries = queries
        self.n = n
        self.stream = stream
        self.most_bytes = most_bytes
        self.person = person
        self.per_person = per_person
        self.too_many = too_many
        self.seed = seed

    @property
    def unit(self) -> PrivacyUnit:
        """Who is protected.

        Raises:
            InputError: Several records of each person, and no column that names her; or a setting that is not allowed.
        """
        check_contribution(self.per_person, self.too_many)
        if self.person is not None:
            return PrivacyUnit.person(" + ".join(self._own()), self.per_person)
        if self.per_person != 1 or self.too_many != "draw":
            raise InputError("data.per_person: whose a record is must be known; name the column by data.person=COLUMN")
        return RECORD

    def _own(self) -> tuple[str, ...]:
        """Return the columns that name a person."""
        own = () if self.person is None else (self.person,) if isinstance(self.person, str) else tuple(self.person)
        if self.person is not None and (not own or len(set(own)) < len(own) or not all(type(n) is str for n in own)):
            raise InputError(f"data.person = {self.person!r}: name a column, or several, each once")
        return own

    def public(self) -> PublicStudy:
        """Return schema, public queries and n, if it is given; neither the table nor its size is looked at."""
        schema = TableSchema.of(self.domain).handling(self.out_of_bounds)
        unit = self.unit
        n = None if self.n is None else self.n * unit.records
        return PublicStudy(schema, table_name(self.path), n, self._queries(schema), unit)

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

    def refuse_stream(self) -> None:
        """Refuse a stream where all records are wanted at once."""
        if self.stream:
            raise InputError(
                "data.stream is true, and this reads all records at once; leave it out, or take task=average_effect "
                "or task=cate"
            )

    def open(self) -> StreamedStudy:
        """Read the table once, to check and count it, and return records that are read anew at each use."""
        self.check_stream()
        return StreamedStudy(
            TableStream(self.path, self.domain, self.out_of_bounds, most_bytes=self.most_bytes), table_name(self.path)
        )

    def load(self) -> Study:
        """Read, check and encode the table."""
        self.refuse_stream()
        schema = TableSchema.of(self.domain).handling(self.out_of_bounds)
        columns, unit, own = record_columns(schema), self.unit, self._own()
        if own and (set(own) <= set(columns) or {schema.treatment, schema.outcome} & set(own)):
            raise InputError(
                f"data.person = {', '.join(own)}: names persons by treatment, outcome or columns of the domain alone; "
                "give a column that only names persons"
            )
        names = tuple(dict.fromkeys((*columns, *own)))
        text = schema.text_columns | (set(own) - set(columns))
        frame = read_frame(self.path, names, text, self.most_bytes, own)
        with about(self.path):
            read = encode_records(frame, schema)
            check_treatment(read.a, f"treatment column {schema.treatment!r}", schema.actions)
            check_kind_said(read, schema)
            read.clipped.warn(schema)
            rows = self._units(read.n if self.person is None else frame[PERSON].rename(None))
        records = read.subset(rows[secret_subsample(len(rows), self.n)].flatten())
        check_treatment(records.a, actions=schema.actions)
        return Study(records, schema, self._queries(schema), None, table_name(self.path), unit=unit)

    def _units(self, persons: Any) -> Tensor:
        """Return the positions of each unit's records, [units, records], of n records or of their persons."""
        if isinstance(persons, int):
            return torch.arange(persons)[:, None]
        return person_rows(persons, self.per_person, self.seed, self.too_many)

    def _queries(self, schema: TableSchema) -> Tensor:
        return schema.grid(self.queries) if self.queries_path is None else read_queries(self.queries_path, schema)


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
        raise InputError(f"data.n is {n}; the data hold {total} records, ask for 1 to {total}")
    return n


def table_name(path: Any) -> str:
    """Return the file's name without folder and endings; of several files, that of the first."""
    first = path if isinstance(path, str | Path) else next(iter(path))
    return Path(first).name.split(".")[0]
