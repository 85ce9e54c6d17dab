"""A user's own table: csv or parquet, with its public facts in a domain file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data._frames import MOST_BYTES, about, read_frame, rows_in_metadata
from torchdpcate.data._rows import encode_records, record_columns
from torchdpcate.data.domain import Domain
from torchdpcate.data.queries import read_queries
from torchdpcate.data.records import check_treatment
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_permutation
from torchdpcate.data.study import PublicStudy, StreamedStudy, Study, StudySource
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError
from torchdpcate.privacy.noise import NoiseSource


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
            drawn by a public seed would be many other records as soon as one record moves in a sorted file.
        most_bytes: Size of the table at eight bytes a value, and of what a row group of a parquet file unpacks to, at
            most: a small file may hold more than any memory.
        stream: Whether to read the records batch by batch, for what can be learnt in constant memory: then ``open``
            takes the place of ``load``.

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
    ) -> None:
        self.path = path
        self.domain = domain
        self.out_of_bounds = out_of_bounds
        self.queries_path = queries_path
        self.queries = queries
        self.n = n
        self.stream = stream
        self.most_bytes = most_bytes

    def public(self) -> PublicStudy:
        """Return schema, public queries and n, if it is given; neither the table nor its size is looked at."""
        schema = TableSchema.of(self.domain).handling(self.out_of_bounds)
        return PublicStudy(schema, table_name(self.path), self.n, self._queries(schema))

    def stated_rows(self) -> int:
        """Return the number of rows that parquet files say they have in their metadata; no record is read.

        Raises:
            InputError: A file that is no parquet file, or not there.
        """
        return rows_in_metadata(self.path)

    def check_stream(self) -> None:
        """Refuse a stream with fewer records than the table has."""
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
        frame = read_frame(self.path, record_columns(schema), schema.text_columns, self.most_bytes)
        with about(self.path):
            read = encode_records(frame, schema)
            check_treatment(read.a, f"treatment column {schema.treatment!r}", schema.actions)
        rows = secret_subsample(read.n, self.n)
        records = read.subset(rows)
        check_treatment(records.a, actions=schema.actions)
        return Study(records, schema, self._queries(schema), None, table_name(self.path))

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
