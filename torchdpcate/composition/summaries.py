"""Private numbers that later steps rest on: quantiles and clips, moments of covariates, curvatures of features."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.composition.linear_fit import Fits
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.rows import Rows
from torchdpcate.composition.steps import WEIGHTS, NoisySteps, Statistic, Summed, summed
from torchdpcate.data.records import CausalData
from torchdpcate.data.weights import times_weight
from torchdpcate.fit.weighted_basis import Indicators, Standardisation, absent, among
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.selection import quantile_by_counts

_EXACT = 2.0**-20  # grid of a choice's scores
_SQUARES = 0.65  # of mu^2 for the second moments, at no cost beside the first: see moment_sums
LEAST_SCALE = 1 / 200
"""Least clip of residuals or scores, in outcome ranges."""
LEAST_VARIANCE = 0.01  # of a covariate on [-1, 1]
LEAST_OBSERVED = 0.05
"""Released share of a covariate's values that are there, below which they have no mean."""
_DOUBT = 2.0  # of a correlation: it counts half where its noise is half of it
_LEAST_CORRELATION = 0.1  # eigenvalue of the correlations


class ExpectedMoments(NamedTuple):
    """What is expected of covariates on [-1, 1].

    Attributes:
        means: Standard deviation of their means about zero, one number or one each, [k].
        square: Their mean square, one number or one each, [k].
        square_spread: Standard deviation of that.
    """

    means: float | Tensor
    square: float | Tensor
    square_spread: float


_EXPECTED = ExpectedMoments(0.3, 0.15, 0.1)


def sizes(batch: CausalData, centre: float | None = None) -> Tensor:
    """Return what a quantile is requested of: outcomes, or how far they lie from a centre, [n].

    Args:
        batch: The records.
        centre: Released; None for the outcomes themselves.
    """
    return batch.y if centre is None else (batch.y - centre).abs()


@dataclass(frozen=True, eq=False)
class Cells(Statistic):
    """How many records lie between thresholds, of which a halving looks at one count below a threshold at a time.

    Attributes:
        sizes: A number of each record.
        edges: Thresholds, ascending.
        closed: Whether what lies at a threshold counts as below it.
    """

    sizes: Callable[[CausalData], Tensor]
    edges: Tensor
    closed: bool = False

    def moved(self) -> tuple[float, float, float]:
        """See ``Statistic``: of each count below a threshold, less a share of all."""
        return 1.0, 1, 1.0

    def __call__(self, batch: CausalData) -> Tensor:
        cells = torch.bucketize(self.sizes(batch).cpu().contiguous(), self.edges, right=not self.closed)
        size = len(self.edges) + 1
        if batch.weight is None:
            return torch.bincount(cells, minlength=size)
        return summed(lambda at, weight: torch.bincount(at, weight, minlength=size), cells, batch.weight.cpu())


@dataclass(frozen=True, eq=False)
class Weights(Statistic):
    """The sum of the records' weights, [1]."""

    def moved(self) -> tuple[float, float, float]:
        return 1.0, 1, 1.0

    def __call__(self, batch: CausalData) -> Tensor:
        assert batch.weight is not None
        return summed(lambda rows: rows.sum(0), batch.weight).cpu()[None]


def private_weight(rows: Rows, expected: float, steps: NoisySteps) -> float:
    """Return the released mean weight of the records, from an eighth of what plans expect to one.

    Args:
        rows: The records.
        expected: Public.
        steps: Pays, and draws noise.
    """
    found = float(steps.total(WEIGHTS, rows, Weights())) / rows.n
    return min(max(found, expected / 8), 1.0)


def quantile_of(
    rows: Rows,
    sizes: Callable[[CausalData], Tensor],
    quantile: float,
    low: float,
    high: float,
    levels: int,
    step: str,
    steps: NoisySteps,
    places: Tensor | None = None,
) -> float:
    r"""Return a quantile of a number of each record by halving an interval, by a noisy count below each middle.

    Each of the ``levels`` counts has sensitivity one and shares the step evenly. Of records with weights it is the
    weight below the middle less the share of all of it, :math:`\sum_i v_i (1\{s_i < m\} - q)`, whose terms lie within
    an interval of length one that holds zero: no sum of the weights is needed. By pure events it is chosen at once
    among the middles that halving may end at, with a fraction of that noise (``privacy.quantile``). One pass counts
    what all halvings may meet.

    Args:
        rows: The records.
        sizes: A number of each record.
        quantile: In (0, 1).
        low: Of the public interval.
        high: Of the public interval.
        levels: Halvings.
        step: The step that pays.
        steps: Pays, and draws noise.
        places: Which of those middles, by position, a pure event chooses among; None for all.
    """
    if not steps.private:
        values = rows.each(sizes)
        if steps.weight is not None:
            return weighted_quantile(values, rows.each(_weight_of), quantile)
        return float(torch.quantile(values[:: max(1, len(values) // 2**24 + 1)], quantile))
    if steps.pure:
        event = steps.pay(step)
        assert isinstance(event, PureEvent)
        middles = low + (high - low) * (torch.arange(2**levels, dtype=torch.float64) + 0.5) / 2**levels
        middles = middles if places is None else middles[places]
        cells, noise = Cells(sizes, middles, closed=True), steps.session.noise
        below = rows.total(cells).cumsum(0)
        if steps.weight is None:
            chosen = quantile_by_counts(below[:-1], rows.n, quantile, event.epsilon, noise)
        else:
            scores = -((below - quantile * below[-1])[:-1] / _EXACT).round().abs() * _EXACT
            chosen = noise.select(scores, event.epsilon, steps.sensitivity(cells, rows.n) + _EXACT)
        return noise.released(float(middles[chosen]))
    each, edges = steps.pay(step, count=levels), halvings(low, high, levels)
    cells = Cells(sizes, edges)
    below, sensitivity, wanted = rows.total(cells).cumsum(0).double(), 1.0, quantile * rows.n
    if steps.weight is not None:
        below, sensitivity, wanted = below - quantile * below[-1], steps.sensitivity(cells, rows.n), 0.0
    for _ in range(levels):
        middle = (low + high) / 2
        count = steps.noisy(below[int(torch.searchsorted(edges, middle))][None], sensitivity, each).item()
        low, high = (middle, high) if count < wanted else (low, middle)
    return (low + high) / 2


def _weight_of(batch: CausalData) -> Tensor:
    return times_weight(torch.ones_like(batch.y, dtype=torch.float64), batch)


def weighted_quantile(values: Tensor, weight: Tensor, quantile: float) -> float:
    """Return the least of values [n] at or below which a share of all weight [n] lies; of the curator's fits alone."""
    order = values.argsort()
    below = weight[order].cumsum(0)
    return float(values[order][int(torch.searchsorted(below, quantile * below[-1]).clamp_max(len(values) - 1))])


def halvings(low: float, high: float, levels: int) -> Tensor:
    """Return all middles that ``levels`` halvings of an interval may meet, ascending, [2^levels - 1].

    Example:
        >>> halvings(0.0, 1.0, 2).tolist()
        [0.25, 0.5, 0.75]
    """
    edges = torch.tensor([low, high], dtype=torch.float64)
    for _ in range(levels):
        middles = (edges[:-1] + edges[1:]) / 2  # by the same arithmetic as each halving
        edges = torch.cat([torch.stack([edges[:-1], middles], 1).flatten(), edges[-1:]])
    return edges[1:-1]


OUTCOME, RESIDUAL = "outcome scale", "residual scale"
"""Steps that release one quantile each."""
_FEW = 0.95  # quantile that is requested then
_NEITHER = 1 / 8  # of the interval, where that one is nothing too: about the residual scale of plans

Quantile = Callable[[float, str], float]
"""From a level and a step to the quantile of sizes, in [0, y_range / 2], that the step releases."""


class OutcomeScale(NamedTuple):
    """Clip of the outcome's regression.

    Attributes:
        clip: In outcome units.
        few: Whether most records have one outcome; the clip is that of all later steps then, and ``RESIDUAL`` is spent.
    """

    clip: float
    few: bool = False


def outcome_scale(quantile: Quantile, plan: ComposedPlan, y_range: float) -> OutcomeScale:
    """Return the clip of outcomes about their released centre.

    Where so many outcomes are one number (no cost, no visit, a 0 of 0 and 1) that the planned quantile is nothing,
    clipping there would leave all others without a say, and the effect nearly zero. The step of the residual's scale
    then requests a higher quantile of the outcome's sizes: which level it requests depends on what was released before,
    what it costs does not.

    Args:
        quantile: Of the outcome's sizes |y - centre|.
        plan: The public plan.
        y_range: Of the outcome.
    """
    found = quantile(plan.huber_quantile, OUTCOME)
    if found >= y_range * LEAST_SCALE:
        return OutcomeScale(found)
    found = quantile(_FEW, RESIDUAL) if RESIDUAL in plan.shares.shares else 0.0
    if found < y_range * LEAST_SCALE:
        found = unseen_scale(plan, y_range)
    return OutcomeScale(found, few=True)


def unseen_scale(plan: ComposedPlan, y_range: float) -> float:
    """Return the clip of outcomes of which nearly all are one number: no quantile of theirs, but on its grid.

    Args:
        plan: The public plan.
        y_range: Of the outcome.
    """
    return y_range / 2 * (_NEITHER + 0.5 ** (plan.constants.quantile_levels + 1))


def residual_scale(quantile: Quantile, plan: ComposedPlan, y_range: float, outcome: OutcomeScale) -> float:
    """Return the clip S of residuals y - m.

    Args:
        quantile: Of the residuals' sizes.
        plan: The public plan.
        y_range: Of the outcome.
        outcome: The outcome's clip, which stands where it is that of all steps, or where the plan has no other.
    """
    if outcome.few or RESIDUAL not in plan.shares.shares:
        return outcome.clip
    return max(quantile(plan.huber_quantile, RESIDUAL), y_range * LEAST_SCALE)


@dataclass(frozen=True, eq=False)
class Moments(Statistic):
    r"""What means and spreads of k covariates in [-1, 1] are released by, [2 k].

    Of :math:`u_j / (2\sqrt{k})` and of :math:`\sqrt{.65}\, u_j^2 / \sqrt{k}`, whose joint sensitivity is one: with
    d = |a - b| for two values of a covariate, :math:`d^2/4 + .65\, d^2 (2 - d)^2 \le 1` on [0, 2]. No term is longer
    than :math:`\sqrt{.25 + .65}`, so that weights leave the sensitivity.

    Where values are missing, sums are of the others: a missing one counts as 0, the middle of [-1, 1], which is one of
    the values that a covariate may have, so that the sensitivity is the same.

    Attributes:
        columns: The covariates; None for all.
        indicators: For each of all covariates the position of the one that says where it is missing, or None.
    """

    columns: tuple[int, ...] | None = field(default=None, kw_only=True)
    indicators: Indicators = field(default=(), kw_only=True)

    @property
    def observed_by(self) -> Indicators:
        """For each of the covariates the position of its indicator among them; None where there is none."""
        return among(self.columns, self.indicators)

    def moved(self) -> tuple[float, float, float]:
        return 1.0, 2, 1.0

    def values(self, u: Tensor) -> Tensor:
        """Return the numbers within [-1, 1], [n, k], of covariates u [n, q]."""
        return u if self.columns is None else u[:, list(self.columns)]

    def __call__(self, batch: CausalData) -> Tensor:
        u, gone = self.values(batch.x), absent(batch.x, self.columns, self.indicators)
        u = u if gone is None else u.masked_fill(gone, 0.0)
        root = math.sqrt(u.shape[1])
        if batch.weight is None:
            first, second = summed(lambda rows: torch.stack([rows.sum(0), rows.square().sum(0)]), u)
        else:
            weight = batch.weight.to(u)
            first, second = summed(lambda rows, v: torch.stack([v @ rows, v @ rows.square()]), u, weight)
        return torch.cat([first / (2 * root), math.sqrt(_SQUARES) * second / root])


def private_standardisation(rows: Summed, moments: Moments, steps: NoisySteps, drawn: bool = False) -> Standardisation:
    """Return released means and spreads of covariates, by one event.

    Args:
        rows: The records, covariates scaled to [-1, 1].
        moments: Of the covariates.
        steps: Pays, and draws noise.
        drawn: Whether means and squares are drawn to what is expected of covariates, as far as their noise says.
    """
    mean, square = released_moments(rows, moments, steps, _EXPECTED if drawn else None)
    return Standardisation(mean, (square - mean.square()).clamp(LEAST_VARIANCE, 1).sqrt())


def released_moments(
    rows: Summed, moments: Moments, steps: NoisySteps, expected: ExpectedMoments | None = None
) -> tuple[Tensor, Tensor]:
    """Return released means, in [-1, 1], and mean squares of covariates, [k] each.

    Of covariates with missing values they are those of the others: sums over n, over the released share that is there.
    Below ``LEAST_OBSERVED`` of it the mean is 0. Where a private choice left out the indicator, it is not known: a
    missing value then counts as the middle.

    Args:
        rows: As of ``private_standardisation``, as are the next two.
        moments: Of the covariates.
        steps: Pays, and draws noise.
        expected: What both are drawn to, as far as their noise says; None leaves them.
    """
    n = steps.mass(rows.n)
    noisy = steps.total("moments", rows, moments) / n
    k = len(noisy) // 2
    root = math.sqrt(k)
    mean = (2 * root * noisy[:k]).clamp(-1, 1)
    square = root * noisy[k:] / math.sqrt(_SQUARES)
    there = _observed(mean, moments.observed_by)
    if there is not None:
        known, divisor = there >= LEAST_OBSERVED, there.clamp_min(LEAST_OBSERVED)
        mean = torch.where(known, mean / divisor, 0.0).clamp(-1, 1)
        square = torch.where(known, square / divisor, (expected or _EXPECTED).square)
    if expected is not None:
        noise = steps.scale("moments", 1.0, 2 * k) / n
        sd = noise if there is None else noise / there.clamp_min(LEAST_OBSERVED)
        mean = mean * _trust(expected.means, 2 * root * sd)
        trust = _trust(expected.square_spread, root * sd / math.sqrt(_SQUARES))
        square = expected.square + (square - expected.square) * trust
    return mean, square


def _observed(mean: Tensor, indicators: Indicators) -> Tensor | None:
    """Return the share of each covariate's values that are there, [k], by released means of indicators in [-1, 1]."""
    pairs = [(place, where) for place, where in enumerate(indicators) if where is not None]
    if not pairs:
        return None
    places, where = (list(part) for part in zip(*pairs, strict=True))
    there = torch.ones_like(mean)
    there[places] = (1 - mean[where]) / 2
    return there


def _trust(spread: float | Tensor, noise: float | Tensor) -> float | Tensor:
    """Return the weight of a number that varies so much and has so much noise, both standard deviations."""
    return spread**2 / (spread**2 + noise**2)


@dataclass(frozen=True, eq=False)
class Curvatures(Statistic):
    """Weighted second moments of a regression's features, [p (p + 1) / 2].

    A record's matrix is positive semidefinite and clipped to a Frobenius norm: two differ by at most sqrt(2) times
    that. The upper triangle by rows, entries off the diagonal times sqrt(2): its norm is the matrix's Frobenius norm.

    Attributes:
        fits: The regression, with the norm.
        size: Number of its features p.
    """

    fits: Fits
    size: int

    def moved(self) -> tuple[float, float, float]:
        return math.sqrt(2) * self.fits.norm, self.size, self.fits.norm

    def __call__(self, batch: CausalData) -> Tensor:
        psi, weight = self.fits.curved(batch)
        squared, most = psi.square().sum(1), self.fits.norm
        clipped = times_weight(weight * (most / (weight * squared).clamp_min(most)), batch)
        row, column, root = _upper(psi.shape[1], psi.device)
        return summed(lambda rows, each: rows.T @ (each[:, None] * rows), psi, clipped)[row, column] * root


def private_curvatures(rows: Summed, fits: Fits, planned: Tensor, step: str, steps: NoisySteps) -> Tensor:
    r"""Return the mean of weight psi psi' over records, float64 [p, p], drawn towards the plan by the noise's share.

    The diagonal is shrunk to the planned one; of the correlations only what stands out of the noise's spectrum is
    retained. A plan without this step has the planned diagonal instead.

    Args:
        rows: The records.
        fits: The regression.
        planned: The diagonal that the plan expects, [p].
        step: The step that pays.
        steps: Pays, and draws noise.
    """
    if steps.private and step not in steps.shares.shares:
        return planned.diag()
    n, p = steps.mass(rows.n), len(planned)
    statistic = Curvatures(fits, p)
    noisy = steps.total(step, rows, statistic) / n
    sd = steps.scale(step, steps.sensitivity(statistic, rows.n), len(noisy)) / n
    row, column, root = _upper(p)
    matrix = torch.zeros(p, p, dtype=torch.float64)
    matrix[row, column] = matrix[column, row] = noisy / root
    trust = 1 / (1 + (2 * sd / planned).square())
    diagonal = torch.minimum(
        torch.maximum(trust * matrix.diagonal() + (1 - trust) * planned, planned / 2), 2.5 * planned
    )
    unit = diagonal.sqrt()
    correlations = _spectrum(matrix / torch.outer(unit, unit), sd / math.sqrt(2) / torch.outer(unit, unit))
    return correlations * torch.outer(unit, unit)


def _spectrum(noisy: Tensor, sd: Tensor) -> Tensor:
    r"""Return correlations [p, p] of which noise of known deviations [p, p] is taken, entry by entry and by spectrum.

    Eigenvalues l of the part off the diagonal become :math:`l (1 - (e/l)^2)_+` with
    :math:`e = 2 \max_i (\sum_j s_{ij}^2)^{1/2}`, about the largest eigenvalue of the noise alone; those of the
    whole are at least a tenth.
    """
    one = torch.eye(len(noisy), dtype=torch.float64)
    trust = (1 - one) / (1 + (_DOUBT * sd).square())
    edge = 2 * (trust * sd).square().sum(1).max().sqrt()
    value, vector = torch.linalg.eigh((trust * noisy).clamp(-1, 1))
    retained = value * (1 - (edge / value.abs().clamp_min(1e-12)).square()).clamp_min(0)
    if not bool(retained.any()):
        return one
    value, vector = torch.linalg.eigh(one + (vector * retained) @ vector.T)
    found = (vector * value.clamp_min(_LEAST_CORRELATION)) @ vector.T
    return (found + found.T) / 2


def _upper(p: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and columns of the upper triangle of a matrix [p, p], and 1 on the diagonal, sqrt(2) off it."""
    row, column = torch.triu_indices(p, p, device=device)
    return row, column, 1 + (math.sqrt(2) - 1) * (row != column).double()
