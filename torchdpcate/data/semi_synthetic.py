"""Real covariates with a known effect."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from torchdpcate.data._frames import about, read_frame
from torchdpcate.data._rows import outcome_within
from torchdpcate.data.domain import Domain
from torchdpcate.data.queries import read_queries
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_split
from torchdpcate.data.study import PublicStudy, Study, StudySource, record_average
from torchdpcate.data.surfaces import GeneratedSurface, Surface, known_propensity_of
from torchdpcate.data.table import public_subsample, table_name


class SemiSynthetic(StudySource):
    """Covariates of a real table; treatment and outcome of a surface whose effect is known.

    The queries are held-out rows, with the truth there: research data, never to be released about
    people who did not agree to it.

    A propensity that the domain knows is that of the surface's treatment too, and a column of it is read with the
    covariates.

    Args:
        path: csv, csv.gz or parquet of covariates, or a list of such files.
        domain: The domain file, the name of a shipped one (``"acic2016"``, ``"twins"``), its entries,
            or a schema. The surface replaces its outcome bounds by its own.
        surface: Where treatment, outcome and effect come from; a ``GeneratedSurface`` if left out.
        out_of_bounds: ``"refuse"`` or ``"clip"`` values outside their bounds.
        n: Use n rows, a subsample drawn by ``seed`` without looking at them; all if left out. Records
            and held-out rows together.
        train_fraction: Share of these rows that become records; the others are held out.
        queries: Ask for effects at this many held-out rows (all if fewer).
        queries_path: File of queries (same covariate columns); replaces held-out rows.
        public_queries: Ask at a public grid instead of held-out rows, which are people's records: for releases
            that publish their queries. The truth is known there for a generated surface alone.
        seed: Public seed of subsample, surface and split.

    Raises:
        InputError: On ``load``, whatever in the files is not as declared (which column, how many).

    Example:
        >>> study = SemiSynthetic("x.csv", "acic2016").load()  # doctest: +SKIP
        >>> study.records.n, study.effect.shape  # doctest: +SKIP
        (4322, torch.Size([300]))
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        domain: TableSchema | Domain | Mapping[str, Any] | str | Path,
        surface: Surface | None = None,
        out_of_bounds: str = "refuse",
        n: int | None = None,
        train_fraction: float = 0.9,
        queries: int = 300,
        queries_path: str | Path | None = None,
        public_queries: bool = False,
        seed: int = 0,
    ) -> None:
        self.path = path
        self.domain = domain
        self.surface = surface
        self.out_of_bounds = out_of_bounds
        self.n = n
        self.train_fraction = train_fraction
        self.queries = queries
        self.queries_path = queries_path
        self.public_queries = public_queries
        self.seed = seed

    def public(self) -> PublicStudy:
        """Return schema with the surface's outcome bounds, number of records if n is given, and public points."""
        schema, surface = self._handled(), self.surface or GeneratedSurface()
        low, high, kind = surface.public_outcome(schema)
        schema = schema.with_outcome_bounds(low, high, origin=self._origin(surface), kind=kind)
        n = None if self.n is None else len(public_split(self.n, self.train_fraction, self.seed, "held-out")[0])
        points = read_queries(self.queries_path, schema) if self.queries_path else schema.grid(self.queries)
        return PublicStudy(schema, f"{table_name(self.path)}_{surface.name}", n, points)

    def load(self) -> Study:
        """Read the covariates, draw the outcomes, and hold some rows out."""
        schema, surface = self._handled(), self.surface or GeneratedSurface()
        x = self._covariates(schema)
        rows = public_subsample(len(x), self.n, self.seed)
        drawn = surface.draw(x[rows], rows, schema, self.path, self.seed)
        schema = schema.with_outcome_bounds(*drawn.bounds, origin=self._origin(surface), kind=drawn.kind)
        y = outcome_within(drawn.y, schema)
        train, held_out = public_split(len(rows), self.train_fraction, self.seed, "held-out")
        known = known_propensity_of(x[rows], rows, schema, self.path)
        records = CausalData.from_arrays(x[rows[train]], drawn.a[train], y[train])
        records = records.with_propensity(None if known is None else known[train])
        name, truth = f"{table_name(self.path)}_{surface.name}", partial(surface.effect_at, schema=schema)
        average = partial(record_average, drawn.effect[train], records.a)
        if self.queries_path is not None or self.public_queries:
            given = self.queries_path
            queries = schema.grid(self.queries) if given is None else read_queries(given, schema)
            return Study(records, schema, queries, surface.effect_at(queries, schema), name, truth, average)
        held_out = held_out[: self.queries]  # type: ignore[assignment]
        return Study(records, schema, x[rows[held_out]], drawn.effect[held_out], name, truth, average)

    def _covariates(self, schema: TableSchema) -> Tensor:
        frame = read_frame(self.path, schema.columns, schema.text_columns)
        with about(self.path):
            return schema.within(schema.encode(frame))

    def _handled(self) -> TableSchema:
        return TableSchema.of(self.domain).handling(self.out_of_bounds)

    @staticmethod
    def _origin(surface: Surface) -> str:
        return f"surface {surface.name}: stated by it, not read off the records"
