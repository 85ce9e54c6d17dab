"""Gene expression with a treatment and an outcome of known law: TCGA, as in the paper on private effects."""

import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data._arrays import plural
from torchdpcate.data._frames import readable
from torchdpcate.data.facts import to_number
from torchdpcate.data.records import public_generator
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.papers.semi_synthetic import (
    GeneratedSurface,
    SemiSynthetic,
    SemiSyntheticOutcomes,
    known_propensity_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLES = ("columns", "rows")
_BARCODE = re.compile(r"TCGA-[A-Z0-9]{2}-[A-Z0-9]{4}")
_PATIENT = 12  # characters of a barcode that name the patient
_TEXT = {".tsv": "\t", ".txt": "\t", ".csv": ","}
_BLOCK_BYTES = 1 << 25  # of rows of a matrix of 11,000 samples, some hundred
_ROWS = 512
_BESIDE = "if other columns stand beside the genes (data.samples=rows), name the genes by data.genes"


def read_matrix(
    path: str | Path, samples: str = "columns", genes: Sequence[str] | None = None
) -> tuple[list[str], list[str], np.ndarray]:
    """Return the names of samples [n] and genes [q], and their values [n, q].

    The file is read block by block, and of each no more is kept than the genes requested. Of a TCGA patient with
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
        other = SAMPLES[samples == "columns"]
        barcodes = sum(map(bool, map(_BARCODE.match, columns))) > len(columns) / 2
        requested = set(genes or ())
        known = sum(column in requested for column in columns)
        if (samples == "rows" and barcodes) or (samples == "columns" and known > len(requested) / 2):
            raise InputError(f"{path}: is transposed, its samples are in {other}; give data.samples={other}")
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
        raise InputError(
            f"{path}: {plural(bad, 'cell')} is missing or no number; drop these genes or impute them; {_BESIDE}"
        )
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
            f"{path}: has cells that are no numbers{where}; drop what is no gene, impute what is missing, or {_BESIDE}"
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
    requested = None if wanted is None else set(wanted)
    names: list[str] = []
    parts: list[np.ndarray] = []
    for block in _blocks(path, columns):
        own = ["" if name is None else str(name) for name in block.column(0).to_pylist()]
        kept = [place for place, name in enumerate(own) if requested is None or name in requested]
        if kept:
            names += [own[place] for place in kept]
            parts.append(np.stack([_numbers(path, column) for column in block.columns[1:]], 1)[kept])
    return names, np.concatenate(parts) if parts else np.empty((0, len(columns)))


def _numbers(path: str | Path, column: "pa.Array") -> np.ndarray:
    import pyarrow as pa

    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise InputError(f"{path}: a column holds words where numbers are wanted; {_BESIDE}; is the matrix transposed?")
    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)


def _check_names(path: str | Path, what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names) or not all(name.strip() for name in names):
        missing = sum(not name.strip() for name in names)
        twice = len(names) - len(set(names)) - max(missing - 1, 0)
        raise InputError(f"{path}: {missing} {what}s have no name and {twice} are there more than once; correct them")


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


class SumOfGenes(GeneratedSurface):
    r"""Treatment by the sum of a few public covariates, constant effect: the design of Figure 7.

    With u the modifiers scaled to [-1, 1] by their public bounds, m of them,

    .. math::
        P(A = 1 | x) = \zeta + (1 - 2\zeta)\,\mathrm{sigmoid}(c \textstyle\sum_j u_j / \sqrt m), \quad
        Y = \tfrac1m \textstyle\sum_j \gamma_j u_j + A + \varepsilon .

    The paper takes the ten covariates of largest variance, which is a statistic of the records that nothing pays for,
    and does not say how the treatment follows from their sum. Here the modifiers are named in public.

    Args:
        modifiers: Covariates in this role; the first five if left out.
        noise: As ``GeneratedSurface``.
        confounding: c; 0 tosses a coin.
    """

    name = "sum"

    def __init__(self, modifiers: Sequence[str] | None = None, noise: float = 0.5, confounding: float = 1.0) -> None:
        super().__init__("constant", modifiers, noise, confounding)

    def draw(self, x: Tensor, rows: Tensor, schema: TableSchema, path: Any, seed: int) -> SemiSyntheticOutcomes:
        """Draw treatment and outcome by the formulas above."""
        drawn = super().draw(x, rows, schema, path, seed)
        if known_propensity_of(x, rows, schema, path) is not None or not self.confounding:
            return drawn
        u = self.scaled(x, schema)
        overlap = schema.domain.overlap
        pi = overlap + (1 - 2 * overlap) * torch.sigmoid(self.confounding * u.sum(1) / u.shape[1] ** 0.5)
        toss = torch.rand(len(x), generator=public_generator(seed, "treatment"), dtype=torch.float64)
        a = (toss < pi).to(torch.float64)
        return SemiSyntheticOutcomes(a, drawn.y + (a - drawn.a) * drawn.effect, drawn.effect, drawn.bounds)


class Expression(SemiSynthetic):
    """Expression of genes, one record a patient; treatment and outcome of a surface whose effect is known.

    Which genes are covariates is public: a list from elsewhere, such as a pathway or a panel. A choice by the variance
    among these records would release something of them that nothing pays for; what depends on the outcome can be found
    privately (``screen=private``).

    Args:
        path: Expression matrix, see ``read_matrix``.
        genes: File with a gene's name a line, or a list of names; None takes all of the file, for fits alone.
        samples: Where the samples stand, ``"columns"`` or ``"rows"``.
        low: Public lower bound of every value.
        high: Public upper bound of every value.
        overlap: Of the treatment.
        modifiers: Genes by whose sum treatment and outcome go; the first ten of the list if left out.
        noise: Of the outcome, see ``SumOfGenes``.
        confounding: c of ``SumOfGenes``.
        out_of_bounds: ``"refuse"`` or ``"clip"`` values outside the bounds.
        rest: As ``SemiSynthetic``.

    Raises:
        InputError: On ``load``, whatever in the files is not as declared.
    """

    def __init__(
        self,
        path: str | Path,
        genes: str | Path | Sequence[str] | None = None,
        samples: str = SAMPLES[0],
        low: float = -9.97,
        high: float = 20.0,
        overlap: float = 0.1,
        modifiers: Sequence[str] | None = None,
        noise: float = 0.5,
        confounding: float = 1.0,
        out_of_bounds: str = "clip",
        **rest: Any,
    ) -> None:
        super().__init__(path, {}, None, out_of_bounds, **rest)
        self.genes = genes
        self.samples = samples
        self.low, self.high = to_number("data.low", low), to_number("data.high", high)
        self.overlap = overlap
        self.modifiers = modifiers
        self.noise = noise
        self.confounding = confounding

    def _handled(self) -> TableSchema:
        names = self._names()
        covariates = {gene: {"low": self.low, "high": self.high} for gene in names}
        outcome = {"name": "outcome", "low": -1, "high": 1}  # the surface brings its own bounds
        facts = {"treatment": "treatment", "outcome": outcome, "covariates": covariates, "overlap": self.overlap}
        self.surface = SumOfGenes(self.modifiers or names[:10], self.noise, self.confounding)
        return TableSchema.of(facts).handling(self.out_of_bounds)

    def _covariates(self, schema: TableSchema) -> Tensor:
        return schema.within(torch.from_numpy(np.ascontiguousarray(self._matrix[1])))

    def _names(self) -> list[str]:
        """Return the genes' names, public."""
        if self.genes is None:
            return self._matrix[0]
        names = [self.genes] if isinstance(self.genes, Path) else self.genes
        if isinstance(self.genes, str | Path):
            try:
                names = Path(self.genes).read_text(encoding="utf-8").split()
            except (OSError, UnicodeError):
                raise InputError(f"data.genes = {self.genes}: no such file of names, one a line") from None
        names = [str(name) for name in names or ()]
        if not names or len(set(names)) < len(names):
            raise InputError(f"data.genes: has {len(names)} names, {len(set(names))} different; name each gene once")
        return names

    @cached_property
    def _matrix(self) -> tuple[list[str], np.ndarray]:
        """Names and values, read once."""
        _, genes, values = read_matrix(str(self.path), self.samples, None if self.genes is None else self._names())
        return genes, values

    def public(self) -> Any:
        """Return what is public without the matrix: of a list of genes."""
        if self.genes is None:
            raise InputError("data.genes: name a list of genes; a plan does not look into the matrix for their names")
        return super().public()
