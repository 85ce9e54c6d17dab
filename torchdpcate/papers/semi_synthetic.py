"""Known effects put on real covariates."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.data._arrays import numeric_column
from torchdpcate.data._frames import about, read_frame
from torchdpcate.data.checked import outcome_within, with_known_propensity
from torchdpcate.data.covariates import Numeric
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import to_number
from torchdpcate.data.records import CausalData, public_generator, public_permutation, public_split
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import PublicStudy, Study, StudySource, record_average
from torchdpcate.data.table import subsample, table_name
from torchdpcate.errors import InputError


@dataclass(frozen=True, eq=False)
class SemiSyntheticOutcomes:
    """Treatment a [n], outcome y [n], true effect [n], the public bounds (low, high) of y, and its kind."""

    a: Tensor
    y: Tensor
    effect: Tensor
    bounds: tuple[float, float]
    kind: str = "continuous"


class Surface(ABC):
    """A law of treatment and outcome given real covariates, with a known effect."""

    name: ClassVar[str]

    @abstractmethod
    def draw(self, x: Tensor, rows: Tensor, schema: TableSchema, path: Any, seed: int) -> SemiSyntheticOutcomes:
        """Draw treatment and outcome.

        Args:
            x: Encoded covariates [n, q], inside the domain.
            rows: Positions [n] of these records in the covariate file.
            schema: Public facts of the covariates.
            path: The covariate file.
            seed: Public seed.

        Raises:
            InputError: The surface does not fit the table.
        """

    def public_outcome(self, schema: TableSchema) -> tuple[float, float, str]:
        """Return the outcome's bounds and its kind, before anything is drawn.

        Args:
            schema: Public facts of the covariates.

        Raises:
            InputError: A surface that knows them from its draws alone.
        """
        raise InputError(f"surface = {self.name}: does not say its outcome's bounds before it draws outcomes")

    def effect_at(self, x: Tensor, schema: TableSchema) -> Tensor | None:
        """Return the true effect [n] at any x [n, q], or None where only the records' is known."""
        return None


class GeneratedSurface(Surface):
    r"""Bounded baseline, effect, noise and propensity of a few public covariates.

    With u the modifiers scaled to [-1, 1] by their public bounds, m of them,

    .. math::
        Y = \tfrac1m \textstyle\sum_j \gamma_j u_j + \tau(u) A + \varepsilon, \quad
        P(A = 1 | x) = \zeta + (1 - 2\zeta)\,\mathrm{sigmoid}(c\,\textstyle\sum_j \beta_j u_j),

    :math:`\gamma_j \sim U[0, 1]`, :math:`\beta_j \sim U[-1, 1]`, :math:`\varepsilon \sim U[-s, s]`.
    The outcome lies in :math:`[-1 + \min(0, \tau_{lo}) - s, 1 + \max(0, \tau_{hi}) + s]`: public by
    construction, whatever the records are. The propensity keeps the domain's overlap; one that the domain knows takes
    its place.

    Args:
        effect: ``"smooth"``: 1 + sin(pi u1) + u2 u3, in [-1, 3]; ``"linear"``: 1 + u1; ``"constant"``: 1.
        modifiers: Encoded columns in this role; the first five if left out, numeric ones first.
        noise: s, 0 or more.
        confounding: c; 0 tosses a coin for the treatment.

    Raises:
        InputError: An argument is out of range, or (on ``draw``) a modifier is no column.
    """

    name = "generated"

    def __init__(
        self,
        effect: str = "smooth",
        modifiers: Sequence[str] | None = None,
        noise: float = 0.5,
        confounding: float = 1.0,
    ) -> None:
        if effect not in _EFFECTS:
            raise InputError(f"surface.effect is {effect!r}; choose one of {', '.join(_EFFECTS)}")
        self.effect = effect
        self.modifiers = modifiers
        self.noise = to_number("surface.noise", noise)
        self.confounding = to_number("surface.confounding", confounding)
        if self.noise < 0.0:
            raise InputError(f"surface.noise is {self.noise:g}; give 0 or more")

    def draw(self, x: Tensor, rows: Tensor, schema: TableSchema, path: Any, seed: int) -> SemiSyntheticOutcomes:
        """Draw treatment and outcome by the formula above."""
        u = modifiers_of(x, schema, self.modifiers)
        generator = public_generator(seed, "surface")
        gamma = torch.rand(u.shape[1], generator=generator, dtype=torch.float64)
        tau = _EFFECTS[self.effect].of(u)
        known = known_propensity_of(x, rows, schema, path)
        a = draw_treatment(u, schema.domain.overlap, self.confounding, seed, known)
        epsilon = self.noise * (2.0 * torch.rand(len(x), generator=generator, dtype=torch.float64) - 1.0)
        return SemiSyntheticOutcomes(a, u @ gamma / u.shape[1] + tau * a + epsilon, tau, self.outcome_bounds())

    def effect_at(self, x: Tensor, schema: TableSchema) -> Tensor:
        """Return tau(u(x))."""
        return _EFFECTS[self.effect].of(modifiers_of(x, schema, self.modifiers))

    def scaled(self, x: Tensor, schema: TableSchema) -> Tensor:
        """Return the modifiers [n, m] of x [n, q], scaled to [-1, 1]."""
        return modifiers_of(x, schema, self.modifiers)

    def public_outcome(self, schema: TableSchema) -> tuple[float, float, str]:
        return *self.outcome_bounds(), "continuous"

    def outcome_bounds(self) -> tuple[float, float]:
        """Return the public bounds of the outcome."""
        low, high = _EFFECTS[self.effect].bounds
        return -1.0 + min(0.0, low) - self.noise, 1.0 + max(0.0, high) + self.noise


def known_propensity_of(x: Tensor, rows: Tensor, schema: TableSchema, path: Any) -> Tensor | None:
    """Return the propensity that the schema knows, [n], of covariates x [n, q] in these rows of a file; else None.

    Raises:
        InputError: Its column is not in the file, or has other values than propensities.
    """
    column, own = schema.propensity_column, None
    if column is not None:
        with about(path):
            own = torch.from_numpy(numeric_column(read_frame(path, [column])[column], column))[rows]
    zero = x.new_zeros(len(x))
    return with_known_propensity(CausalData(x, zero, zero, own), schema).propensity


def draw_treatment(u: Tensor, overlap: float, confounding: float, seed: int, known: Tensor | None = None) -> Tensor:
    """Draw A [n], P(A = 1) = overlap + (1 - 2 overlap) sigmoid(confounding u'beta), beta_j ~ U[-1, 1], or as known."""
    generator = public_generator(seed, "treatment")
    beta = 2.0 * torch.rand(u.shape[1], generator=generator, dtype=torch.float64) - 1.0
    drawn = overlap + (1.0 - 2.0 * overlap) * torch.sigmoid(confounding * (u @ beta))
    pi = drawn if known is None else known
    return (torch.rand(len(u), generator=generator, dtype=torch.float64) < pi).to(torch.float64)


@dataclass(frozen=True)
class _Effect:
    """A bounded effect of scaled modifiers u [n, m >= 3]."""

    of: Callable[[Tensor], Tensor]
    bounds: tuple[float, float]


_EFFECTS = {
    "smooth": _Effect(lambda u: 1.0 + torch.sin(math.pi * u[:, 0]) + u[:, 1] * u[:, 2], (-1.0, 3.0)),
    "linear": _Effect(lambda u: 1.0 + u[:, 0], (0.0, 2.0)),
    "constant": _Effect(lambda u: torch.ones_like(u[:, 0]), (1.0, 1.0)),
}


def modifiers_of(x: Tensor, schema: TableSchema, names: Sequence[str] | None, most: int = 5) -> Tensor:
    """Return the modifiers scaled to [-1, 1], padded with zeros to three columns."""
    if names is None:
        numeric = {c.name for c in schema.covariates if isinstance(c, Numeric)}
        names = sorted(schema.domain.names, key=lambda name: name not in numeric)[:most]
    unknown = [name for name in names if name not in schema.domain.names]
    if unknown or not names:
        raise InputError(f"surface.modifiers holds {unknown}; name encoded covariate columns")
    u = schema.domain.scale(x)[:, [schema.domain.names.index(name) for name in names]]
    return torch.nn.functional.pad(u, (0, max(0, 3 - u.shape[1])))


@dataclass(eq=False, repr=False)
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
        queries: Request for effects at this many held-out rows (all if fewer).
        queries_path: File of queries (same covariate columns); replaces held-out rows.
        public_queries: Request at a public grid instead of held-out rows, which are people's records: for releases
            that publish their queries. The truth is known there for a generated surface alone.
        seed: Public seed of subsample, surface and split.

    Raises:
        InputError: On ``load``, whatever in the files is not as declared (which column, how many).

    Example:
        >>> study = SemiSynthetic("x.csv", "acic2016").load()  # doctest: +SKIP
        >>> study.records.n, study.effect.shape  # doctest: +SKIP
        (4322, torch.Size([300]))
    """

    path: str | Path | Sequence[str | Path]
    domain: TableSchema | Domain | Mapping[str, Any] | str | Path
    surface: Surface | None = None
    out_of_bounds: str = "refuse"
    n: int | None = None
    train_fraction: float = 0.9
    queries: int = 300
    queries_path: str | Path | None = None
    public_queries: bool = False
    seed: int = 0

    def public(self) -> PublicStudy:
        """Return schema with the surface's outcome bounds, number of records if n is given, and public points."""
        schema, surface = self._handled(), self.surface or GeneratedSurface()
        low, high, kind = surface.public_outcome(schema)
        schema = schema.with_outcome_bounds(low, high, origin=self._origin(surface), kind=kind)
        n = None if self.n is None else len(public_split(self.n, self.train_fraction, self.seed, "held-out")[0])
        points = self._points(schema)
        return PublicStudy(schema, f"{table_name(self.path)}_{surface.name}", n, points)

    def load(self) -> Study:
        """Read the covariates, draw the outcomes, and hold some rows out."""
        schema, surface = self._handled(), self.surface or GeneratedSurface()
        x = self._covariates(schema)
        rows = subsample(len(x), self.n, partial(public_permutation, seed=self.seed, purpose="subsample"))
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
            queries = self._points(schema)
            return Study(records, schema, queries, surface.effect_at(queries, schema), name, truth, average)
        held_out = held_out[: self.queries]  # type: ignore[assignment]
        return Study(records, schema, x[rows[held_out]], drawn.effect[held_out], name, truth, average)

    def _covariates(self, schema: TableSchema) -> Tensor:
        frame = read_frame(self.path, schema.columns, schema.text_in(self.path))
        with about(self.path):
            return schema.within(schema.encode(frame))

    def _handled(self) -> TableSchema:
        return TableSchema.of(self.domain).handling(self.out_of_bounds)

    @staticmethod
    def _origin(surface: Surface) -> str:
        return f"surface {surface.name}: stated by it, not read off the records"
