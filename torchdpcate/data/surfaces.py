"""Known effects put on real covariates."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data._columns import numeric_column
from torchdpcate.data._frames import about, read_frame
from torchdpcate.data._rows import with_known_propensity
from torchdpcate.data.covariates import Numeric
from torchdpcate.data.facts import check_bounds, to_number
from torchdpcate.data.records import CausalData, check_treatment
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_generator
from torchdpcate.errors import InputError


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Treatment a [n], outcome y [n], true effect [n], the public bounds (low, high) of y, and its kind."""

    a: Tensor
    y: Tensor
    effect: Tensor
    bounds: tuple[float, float]
    kind: str = "continuous"


class Surface(ABC):
    """A law of treatment and outcome given real covariates, with a known effect."""

    name: str

    @abstractmethod
    def draw(self, x: Tensor, rows: Tensor, schema: TableSchema, path: Any, seed: int) -> Outcomes:
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
        raise InputError(f"data.surface = {self.name}: does not say its outcome's bounds before it draws outcomes")

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
            raise InputError(f"data.surface.effect is {effect!r}; choose one of {', '.join(_EFFECTS)}")
        self.effect = effect
        self.modifiers = modifiers
        self.noise = to_number("data.surface.noise", noise)
        self.confounding = to_number("data.surface.confounding", confounding)
        if self.noise < 0.0:
            raise InputError(f"data.surface.noise is {self.noise:g}; give 0 or more")

    def draw(self, x: Tensor, rows: Tensor, schema: TableSchema, path: Any, seed: int) -> Outcomes:
        """Draw treatment and outcome by the formula above."""
        u = _modifiers(x, schema, self.modifiers)
        generator = public_generator(seed, "surface")
        gamma = torch.rand(u.shape[1], generator=generator, dtype=torch.float64)
        tau = _EFFECTS[self.effect].of(u)
        known = known_propensity_of(x, rows, schema, path)
        a = draw_treatment(u, schema.domain.overlap, self.confounding, seed, known)
        epsilon = self.noise * (2.0 * torch.rand(len(x), generator=generator, dtype=torch.float64) - 1.0)
        return Outcomes(a, u @ gamma / u.shape[1] + tau * a + epsilon, tau, self.outcome_bounds())

    def effect_at(self, x: Tensor, schema: TableSchema) -> Tensor:
        """Return tau(u(x))."""
        return _EFFECTS[self.effect].of(_modifiers(x, schema, self.modifiers))

    def scaled(self, x: Tensor, schema: TableSchema) -> Tensor:
        """Return the modifiers [n, m] of x [n, q], scaled to [-1, 1]."""
        return _modifiers(x, schema, self.modifiers)

    def public_outcome(self, schema: TableSchema) -> tuple[float, float, str]:
        """See ``Surface.public_outcome``."""
        return *self.outcome_bounds(), "continuous"

    def outcome_bounds(self) -> tuple[float, float]:
        """Return the public bounds of the outcome."""
        low, high = _EFFECTS[self.effect].bounds
        return -1.0 + min(0.0, low) - self.noise, 1.0 + max(0.0, high) + self.noise


class GivenOutcomes(Surface):
    """Both potential outcomes from columns of a file: a benchmark's own effects.

    The record's outcome is y1 where treated, else y0. Its effect is mu1 - mu0 if the means are
    given, else y1 - y0.

    Args:
        path: csv or parquet with a row per row of the covariate file; that file itself if left out.
        outcomes: Names of the columns y0 and y1.
        means: Names of the columns mu0 and mu1, or None.
        treatment: Name of the treatment's column; if None the treatment is drawn as by
            ``GeneratedSurface``, from the first five covariates.
        event_below: If given, the outcome is the event "value below this number", 0 or 1.
        bounds: Public bounds [low, high] of the outcome; those of the domain file if left out.
        confounding: Strength of a drawn treatment's dependence on covariates; 0 tosses a coin.

    Raises:
        InputError: On ``draw``, missing file or column, other number of rows, bad treatment.
    """

    name = "given"

    def __init__(
        self,
        path: str | Path | None = None,
        outcomes: Sequence[str] = ("y0", "y1"),
        means: Sequence[str] | None = None,
        treatment: str | None = None,
        event_below: float | None = None,
        bounds: Sequence[float] | None = None,
        confounding: float = 1.0,
    ) -> None:
        self.path = path
        self.outcomes = outcomes
        self.means = means
        self.treatment = treatment
        self.event_below = event_below
        self.bounds = bounds
        self.confounding = confounding

    def draw(self, x: Tensor, rows: Tensor, schema: TableSchema, path: Any, seed: int) -> Outcomes:
        """Look the potential outcomes up, and draw the treatment if no column has it."""
        covariates, path = path, path if self.path is None else self.path
        values = self._read(path, rows)
        y0, y1 = (self._event(values[name]) for name in _pair(self.outcomes, "outcomes"))
        effect = y1 - y0
        if self.means is not None:
            mu0, mu1 = (values[name] for name in _pair(self.means, "means"))
            effect = mu1 - mu0
        if self.treatment is None:
            u = _modifiers(x, schema, None)
            known = known_propensity_of(x, rows, schema, covariates)
            a = draw_treatment(u, schema.domain.overlap, self.confounding, seed, known)
        else:
            a = values[self.treatment]
            with about(path):
                check_treatment(a, f"treatment column {self.treatment!r}")
        low, high, kind = self.public_outcome(schema)
        return Outcomes(a, torch.where(a == 1, y1, y0), effect, (low, high), kind)

    def public_outcome(self, schema: TableSchema) -> tuple[float, float, str]:
        """See ``Surface.public_outcome``: an event is binary, and the domain's kind holds for its own bounds."""
        domain = schema.domain
        low, high = check_bounds("data.surface.bounds", *(self.bounds or (domain.outcome_low, domain.outcome_high)))
        if self.event_below is not None:
            return low, high, "binary" if (low, high) == (0.0, 1.0) else "continuous"
        return low, high, domain.outcome_kind if self.bounds is None else "continuous"

    def _read(self, path: Any, rows: Tensor) -> dict[str, Tensor]:
        names = [*self.outcomes, *(self.means or ()), *([self.treatment] if self.treatment else ())]
        frame = read_frame(path, names)
        if len(frame) <= int(rows.max()):
            raise InputError(f"{path}: {len(frame)} rows for {int(rows.max()) + 1} rows of covariates")
        with about(path):
            return {name: torch.from_numpy(numeric_column(frame[name], name))[rows] for name in names}

    def _event(self, value: Tensor) -> Tensor:
        return value if self.event_below is None else (value < self.event_below).to(torch.float64)


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


def _modifiers(x: Tensor, schema: TableSchema, names: Sequence[str] | None, most: int = 5) -> Tensor:
    """Return the modifiers scaled to [-1, 1], padded with zeros to three columns."""
    if names is None:
        numeric = {c.name for c in schema.covariates if isinstance(c, Numeric)}
        names = sorted(schema.domain.names, key=lambda name: name not in numeric)[:most]
    unknown = [name for name in names if name not in schema.domain.names]
    if unknown or not names:
        raise InputError(f"data.surface.modifiers holds {unknown}; name encoded covariate columns")
    u = schema.domain.scale(x)[:, [schema.domain.names.index(name) for name in names]]
    return torch.nn.functional.pad(u, (0, max(0, 3 - u.shape[1])))


def _pair(names: Sequence[str], what: str) -> tuple[str, str]:
    if isinstance(names, str) or len(names) != 2:
        raise InputError(f"data.surface.{what} is {names}; name two columns, untreated first")
    return names[0], names[1]
