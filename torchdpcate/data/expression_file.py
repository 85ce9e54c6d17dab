"""Gene expression matrices: csv, tsv or parquet, genes by samples or samples by genes, in blocks of rows."""

import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate.data._arrays import plural
from torchdpcate.data._frames import readable
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLES = ("columns", "rows")
_BARCODE = re.compile(r"TCGA-[A-Z0-9]{2}-[A-Z0-9]{4}")
_PATIENT = 12  # characters of a barcode that name the patient
_TEXT = {".tsv": "\t", ".txt": "\t", ".csv": ","}
_BLOCK_BYTES = 1 << 25  # of rows of a matrix of 11,000 samples, some hundred
_ROWS = 512


def read_matrix(
    path: str | Path, samples: str = "columns", genes: Sequence[str] | None = None
) -> tuple[list[str], list[str], np.ndarray]:
    """Return the names of samples [n] and genes [q], and their values [n, q].

    The file is read block by block, and of each no more is kept than the genes asked for. Of a TCGA patient with
    several samples the first by barcode is kept, which is the primary tumour where there is one: a person is one
    record.

    Args:
        path: tsv, csv (both also gzipped) or parquet; the first row and the first column hold names.
        samples: Where they stand: ``"columns"`` (UCSC Xena: genes by samples) or ``"rows"``.
        genes: The genes to read, in this order; None reads all.

    Raises:
        InputError: Another kind of file, a transposed matrix, names that are missing or there twice, genes that are
            not in the file, or values that are missing or no numbers (how many).
    """
    if samples not in SAMPLES:
        raise InputError(f"data.samples = {samples!r}: choose from {', '.join(SAMPLES)}")
    with readable(path):
        columns = _header(path)[1:]
        _check_axes(path, samples, columns, genes)
        if samples == "columns":
            people, (found, values) = columns, _rows(path, range(1, len(columns) + 1), genes)
            values = values.T
            if sum(map(bool, map(_BARCODE.match, found))) > len(found) / 2:
                raise InputError(f"{path}: is transposed, its samples are in rows; give data.samples=rows")
        else:
            _check_names(path, "gene", columns)
            found = list(columns if genes is None else genes)
            places = {gene: place for place, gene in enumerate(columns, start=1)}
            _check_known(path, found, places.keys())
            people, values = _rows(path, [places[gene] for gene in found], None)
    _check_names(path, "sample", people)
    _check_names(path, "gene", found)
    if genes is not None:
        _check_known(path, genes, found)
        place_of = {gene: place for place, gene in enumerate(found)}
        values, found = values[:, [place_of[gene] for gene in genes]], list(genes)
    bad = int((~np.isfinite(values)).sum())
    if bad:
        raise InputError(f"{path}: {plural(bad, 'cell')} is missing or no number; drop these genes or impute them")
    kept = _one_each(people)
    return [people[place] for place in kept], found, values[kept]


def _header(path: str | Path) -> list[str]:
    """Return the names of the first row."""
    if _is_parquet(path):
        import pyarrow.parquet as pq

        return list(pq.read_schema(path).names)
    with (gzip.open if str(path).lower().endswith(".gz") else open)(path, "rt", encoding="utf-8", newline="") as lines:
        header = next(csv.reader([lines.readline()], delimiter=_delimiter(path)), [])
    if len(header) < 2:
        raise InputError(f"{path}: its first row has {plural(len(header), 'name')}; give one for each column")
    return header


def _blocks(path: str | Path, columns: Sequence[int]) -> "Iterator[pa.RecordBatch]":
    """Yield the rows below the first one in blocks: the column of names, and the columns at these places."""
    if _is_parquet(path):
        import pyarrow.parquet as pq

        file = pq.ParquetFile(path)
        names = [file.schema_arrow.names[place] for place in (0, *columns)]
        yield from (batch.select(names) for batch in file.iter_batches(batch_size=_ROWS, columns=names))
        return
    import pyarrow as pa
    from pyarrow import csv as arrow

    own = [f"c{place}" for place in range(len(_header(path)))]  # names may be there twice, which is said later
    chosen = [own[place] for place in columns]
    types = pa.schema([(own[0], pa.string()), *((column, pa.float64()) for column in chosen)])
    read = arrow.ReadOptions(block_size=_BLOCK_BYTES, skip_rows=1, column_names=own)
    convert = arrow.ConvertOptions(
        column_types=types, include_columns=[own[0], *chosen], null_values=["", "NA", "NaN", "null"]
    )
    try:
        with arrow.open_csv(path, read, arrow.ParseOptions(delimiter=_delimiter(path)), convert) as reader:
            yield from reader
    except pa.ArrowInvalid as error:
        if "conversion error" not in str(error):
            raise
        place = re.search(r"column #(\d+)", str(error))  # by its number: a sample's name tells of a person
        where = f", first in column {int(place[1]) + 1}" if place else ""
        raise InputError(
            f"{path}: has cells that are no numbers{where}; drop them or impute them, and if other columns stand "
            "beside genes name the genes by data.genes"
        ) from None


def _is_parquet(path: str | Path) -> bool:
    return str(path).lower().endswith((".parquet", ".pq"))


def _delimiter(path: str | Path) -> str:
    name = str(path).lower().removesuffix(".gz")
    for ending, delimiter in _TEXT.items():
        if name.endswith(ending):
            return delimiter
    raise InputError(f"data.path = {path}: is no expression matrix; use {', '.join(_TEXT)}, also with .gz, or .parquet")


def _rows(path: str | Path, columns: Sequence[int], wanted: Sequence[str] | None) -> tuple[list[str], np.ndarray]:
    """Return the names and the values of rows at these columns, of the rows wanted alone."""
    asked = None if wanted is None else set(wanted)
    names: list[str] = []
    parts: list[np.ndarray] = []
    for block in _blocks(path, columns):
        own = ["" if name is None else str(name) for name in block.column(0).to_pylist()]
        kept = [place for place, name in enumerate(own) if asked is None or name in asked]
        if kept:
            names += [own[place] for place in kept]
            parts.append(np.stack([_numbers(path, column) for column in block.columns[1:]], 1)[kept])
    return names, np.concatenate(parts) if parts else np.empty((0, len(columns)))


def _numbers(path: str | Path, column: "pa.Array") -> np.ndarray:
    import pyarrow as pa

    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise InputError(f"{path}: a column holds words where numbers are wanted; is the matrix transposed?")
    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)


def _check_axes(path: str | Path, samples: str, columns: Sequence[str], genes: Sequence[str] | None) -> None:
    """Refuse a matrix that lies the other way round, as far as barcodes and the genes asked for tell."""
    other = SAMPLES[samples == "columns"]
    barcodes = sum(map(bool, map(_BARCODE.match, columns))) > len(columns) / 2
    asked = set(genes or ())
    known = sum(column in asked for column in columns)
    if (samples == "rows" and barcodes) or (samples == "columns" and known > len(asked) / 2):
        raise InputError(f"{path}: is transposed, its samples are in {other}; give data.samples={other}")


def _check_names(path: str | Path, what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names) or not all(name.strip() for name in names):
        missing = sum(not name.strip() for name in names)
        twice = len(names) - len(set(names)) - max(missing - 1, 0)
        raise InputError(f"{path}: {missing} {what}s have no name and {twice} are there more than once; mend them")


def _check_known(path: str | Path, genes: Sequence[str], known: Any) -> None:
    unknown = sorted(set(genes) - set(known))
    if unknown:
        first = min(map(list(genes).index, unknown)) + 1  # no name: a list that is another file may be of records
        raise InputError(
            f"{path}: {plural(len(unknown), 'gene')} of the list not in the file (number {first} first); is it "
            "transposed (data.samples), or are its genes named in another way?"
        )


def _one_each(people: Sequence[str]) -> list[int]:
    """Return the places of one sample of each patient; of all samples, where they have no barcodes of TCGA."""
    if not all(map(_BARCODE.match, people)):
        return list(range(len(people)))
    first: dict[str, int] = {}
    for place in sorted(range(len(people)), key=people.__getitem__):
        first.setdefault(people[place][:_PATIENT], place)
    return sorted(first.values())
