"""Private numbers that intervals of a composed effect rest on: a matrix, counts, the mean's correction, the average."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdpcate.composition.constants import of_kind
from torchdpcate.composition.effect_law import (
    TYPICAL,
    Covariates,
    Estimates,
    IntervalPlan,
    effect_clip,
    effect_law,
    estimates,
    inverse_within,
    nuisance_noise,
    with_nuisances,
)
from torchdpcate.composition.linear_fit import Solution
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.priors import prior_variances
from torchdpcate.composition.steps import (
    AVERAGE,
    CORRECTION,
    COUNTS,
    MATRIX,
    NoisySteps,
    Statistic,
    Summed,
    propensity_of,
    summed,
)
from torchdpcate.composition.summaries import LEAST_SCALE, unseen_scale
from torchdpcate.data.records import CausalData
from torchdpcate.fit.weighted_basis import PAIRED, UNITS, WeightedBasis, all_features, lengths
from torchdpcate.release.effect_law import EffectLaw, IntervalNumbers, NuisanceNumbers

_SQUARES = 0.65  # of mu^2 for the squares, at no cost beside the sum: see Correction


@dataclass(frozen=True, eq=False)
class EffectRecords:
    """The effect's regression at some records; the curator's.

    Attributes:
        psi: Features [n, p].
        residual: y - m, [n].
        treatment: a - pi, [n].
        pi: Propensities [n].
        weight: v of each record, [n]; None where all count alike.
    """

    psi: Tensor
    residual: Tensor
    treatment: Tensor
    pi: Tensor
    weight: Tensor | None = None

    def weighted(self, each: Tensor) -> Tensor:
        """Return what each record adds, [n], times its weight."""
        return each if self.weight is None else self.weight * each

    @property
    def largest(self) -> Tensor:
        """max(pi, 1 - pi), [n]."""
        return torch.maximum(self.pi, 1 - self.pi)

    @property
    def overlap(self) -> Tensor:
        """H = pi (1 - pi), [n]."""
        return self.pi * (1 - self.pi)

    def rest(self, theta: Tensor) -> Tensor:
        """Return residuals r = y - m - (a - pi) psi'theta, [n]."""
        return self.residual - self.treatment * (self.psi @ theta.to(self.psi.device))


@dataclass(frozen=True, eq=False)
class EffectStatistic(Statistic):
    """A sum over the effect's regression, of batches of ``residuals``.

    Attributes:
        basis: Features of standardised covariates.
        bounds: Of the propensity, public.
    """

    basis: Callable[[Tensor], Tensor]
    bounds: tuple[float, float]

    @abstractmethod
    def terms(self, at: EffectRecords) -> Tensor:
        """Return the sum over some records."""

    def __call__(self, batch: CausalData) -> Tensor:
        columns = self.basis(batch.x), batch.y, batch.a, propensity_of(batch)
        weight = () if batch.weight is None else (batch.weight,)
        return summed(lambda *rows: self.terms(EffectRecords(*rows)), *columns, *weight)


def overlaps(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the least and the largest pi (1 - pi) of propensities within bounds.

    Example:
        >>> overlaps((0.3, 0.6))
        (0.21, 0.25)
    """
    low, high = bounds
    least = min(low * (1 - low), high * (1 - high))
    return least, 0.25 if low <= 0.5 <= high else max(low * (1 - low), high * (1 - high))


def lesser(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the least and the largest min(pi, 1 - pi) of propensities within bounds."""
    low, high = bounds
    return min(low, 1 - high), 0.5 if low <= 0.5 <= high else max(min(low, 1 - low), min(high, 1 - high))


def matrix_sensitivity(bounds: tuple[float, float], norm: float) -> float:
    r"""Return how far one record moves the sum of w h psi psi', in Frobenius norm.

    A record's is :math:`\min(\pi, 1-\pi)\, |\psi|\, u u^\top` with a unit vector u, :math:`|\psi|` clipped at ``norm``:
    :math:`\|a\, u u^\top - b\, v v^\top\|_F^2 = a^2 + b^2 - 2 a b (u^\top v)^2 \le a^2 + b^2`.

    Args:
        bounds: Of the propensity.
        norm: Clip of |psi|.

    Example:
        >>> round(matrix_sensitivity((0.5, 0.5), 2.0), 6)
        1.414214
    """
    return math.sqrt(2) * lesser(bounds)[1] * norm


def farthest(bounds: tuple[float, float]) -> float:
    """Return the largest |a - pi| of propensities within bounds.

    Example:
        >>> farthest((0.3, 0.6))
        0.7
    """
    return max(bounds[1], 1 - bounds[0])


def counts_sensitivity(bounds: tuple[float, float]) -> float:
    """Return how far one record moves the sums of ``private_counts``, in the l2 norm."""
    low, high = overlaps(bounds)
    return math.sqrt(2 + (high > low))


@dataclass(frozen=True, eq=False)
class Matrix(EffectStatistic):
    r"""The sum of :math:`w h\, \psi \psi^\top`, w = 1 / (|psi| max(pi, 1 - pi)), [p (p + 1) / 2].

    The diagonal and :math:`\sqrt2` times the upper triangle are one vector, whose norm is Frobenius': noise of the
    diagonal has the step's standard deviation, that of other entries :math:`1/\sqrt2` of it.

    Attributes:
        norm: Clip of |psi|.
        size: p.
    """

    norm: float
    size: int

    def moved(self) -> tuple[float, float, float]:
        return matrix_sensitivity(self.bounds, self.norm), self.size, lesser(self.bounds)[1] * self.norm

    @property
    def upper(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows and columns of the entries, and what they are multiplied by."""
        row, column = torch.triu_indices(self.size, self.size)
        return row, column, torch.where(row == column, 1.0, math.sqrt(2)).double()

    def terms(self, at: EffectRecords) -> Tensor:
        length = lengths(at.psi)
        weight = at.overlap / (at.largest * length) * (self.norm / length.clamp_min(self.norm))
        return (at.psi * at.weighted(weight)[:, None]).T @ at.psi

    def __call__(self, batch: CausalData) -> Tensor:
        row, column, times = self.upper
        return super().__call__(batch).cpu()[row, column] * times


@dataclass(frozen=True, eq=False)
class Counts(EffectStatistic):
    """Records that are not clipped, squared pulls, and h, [3]; see ``private_counts``.

    What is summed lies in [0, 1]; h is scaled by its public range, and left out where the propensity is one number.
    Pulls are squared with the record's weight, as the variance of a weighted sum has them.

    Attributes:
        theta: Released coefficients, [p].
        scale: S.
    """

    theta: Tensor
    scale: float

    def moved(self) -> tuple[float, float, float]:
        return counts_sensitivity(self.bounds), 3, 1.0

    def terms(self, at: EffectRecords) -> Tensor:
        low, high = overlaps(self.bounds)
        r = at.rest(self.theta)
        inside = at.weighted((r.abs() < self.scale) * at.treatment.square() / farthest(self.bounds) ** 2)
        pulls = at.weighted(at.treatment / at.largest * (r / self.scale).clamp(-1, 1)).square()
        shares = [at.weighted((at.overlap - low) / (high - low))] if high > low else []
        return torch.stack([value.sum() for value in (inside, pulls, *shares)])


@dataclass(frozen=True, eq=False)
class Correction(EffectStatistic):
    r"""Sums of v / 2 and of :math:`\sqrt{.65}\, v^2`, v = (a - pi) clip(r, S2) / (max \|a - pi\| S2) in [-1, 1], [2].

    Their joint sensitivity is one, for two values at a distance d,
    :math:`d^2/4 + .65\, d^2 (2 - d)^2 \le 1` on [0, 2]: the squares cost nothing beside the sum. The weight of a
    record is part of its v, which stays in [-1, 1].

    Attributes:
        theta: Released coefficients, [p].
        spread: S2.
    """

    theta: Tensor
    spread: float

    def moved(self) -> tuple[float, float, float]:
        return 1.0, 2, 1.0

    def terms(self, at: EffectRecords) -> Tensor:
        largest = farthest(self.bounds)
        v = at.weighted(at.treatment * at.rest(self.theta).clamp(-self.spread, self.spread) / (largest * self.spread))
        return torch.stack([v.sum() / 2, math.sqrt(_SQUARES) * v.square().sum()])


@dataclass(frozen=True, eq=False)
class Average(EffectStatistic):
    """The sum of h clip(psi't) without the constant, over its largest size, [1].

    Attributes:
        t: Released estimates, [p].
        bound: Of the clip.
    """

    t: Tensor
    bound: float

    def moved(self) -> tuple[float, float, float]:
        return 2.0, 1, 1.0

    def terms(self, at: EffectRecords) -> Tensor:
        effect = (at.psi[:, 1:] @ self.t[1:].to(at.psi.device)).clamp(-self.bound, self.bound)
        return at.weighted(at.overlap * effect / (self.bound * overlaps(self.bounds)[1])).sum()[None]


def private_matrix(rows: Summed, statistic: Matrix, steps: NoisySteps) -> Tensor:
    """Return the mean matrix with noise, [p, p]."""
    row, column, times = statistic.upper
    found = torch.zeros(statistic.size, statistic.size, dtype=torch.float64)
    found[row, column] = found[column, row] = steps.total(MATRIX, rows, statistic) / steps.mass(rows.n) / times
    return found


def private_counts(rows: Summed, statistic: Counts, steps: NoisySteps) -> Tensor:
    r"""Return kappa, the mean of ((a - pi) / max(pi, 1 - pi))^2 clip(r / S)^2, and that of h, [3].

    kappa is the share of residuals that are not clipped, in the weights of the regression's curvature: where clips take
    more of one arm, that arm counts by how much it moves the effect,

    .. math:: \kappa = \frac{\zeta^2}{\bar h} \cdot \frac1n \sum_i \frac{(a_i - \pi_i)^2}{\zeta^2} 1\{|r_i| < S\},
        \qquad \zeta = \max |a - \pi|.
    """
    low, high = overlaps(statistic.bounds)
    noisy = steps.total(COUNTS, rows, statistic) / steps.mass(rows.n)
    h = low + (high - low) * noisy[2] if high > low else noisy.new_tensor(low)
    return torch.stack([noisy[0] * farthest(statistic.bounds) ** 2 / h.clamp(low, high), noisy[1], h])


def private_correction(rows: Summed, statistic: Correction, steps: NoisySteps) -> Tensor:
    """Return the sums of v and of v^2, [2]."""
    noisy = steps.total(CORRECTION, rows, statistic)
    return torch.stack([2 * noisy[0], noisy[1] / math.sqrt(_SQUARES)])


def private_effect_law(
    rows: Summed,
    basis: WeightedBasis,
    solution: Solution,
    scale: float,
    bounds: tuple[float, float],
    outcome_range: float,
    plan: ComposedPlan,
    steps: NoisySteps,
    covariates: Covariates,
    nuisances: NuisanceNumbers | None,
) -> tuple[EffectLaw | None, IntervalNumbers]:
    """Run the interval steps of a plan, and return the law that intervals rest on, with what it was made of.

    There is no law where the noise of an estimated propensity, by what was released of it, is beyond the limit.

    Args:
        rows: ``residuals`` of the records.
        basis: Features of the effect.
        solution: Released coefficients, late iterates and their gradients.
        scale: S.
        bounds: Of the propensity, public.
        outcome_range: Of the domain.
        plan: The public plan.
        steps: Pays, and draws noise.
        covariates: Those in use.
        nuisances: What the nuisances released; None where the propensity is known.
    """
    facts = interval_plan(basis, scale, bounds, outcome_range, plan, steps.session.unit.records)
    theta, known = solution.coefficients, (basis, bounds)
    matrix = private_matrix(rows, Matrix(*known, plan.constants.interval_norm, basis.dimension), steps)
    counts = private_counts(rows, Counts(*known, theta, scale), steps)
    found: Estimates = estimates(solution.point, solution.gradient, matrix, counts, facts)
    correction = private_correction(rows, Correction(*known, found.t, facts.spread), steps)
    bound = effect_clip(found.t, facts, plan.interval_clip, outcome_range)
    statistic = Average(*known, found.t, bound)
    average = steps.total(AVERAGE, rows, statistic) * statistic.bound * overlaps(statistic.bounds)[1]
    numbers = IntervalNumbers(solution.point, solution.gradient, matrix, counts, correction, average, nuisances)
    return law_of(numbers, facts, outcome_range, plan, covariates), numbers


def law_of(
    numbers: IntervalNumbers, facts: IntervalPlan, outcome_range: float, plan: ComposedPlan, covariates: Covariates
) -> EffectLaw | None:
    """Return the law that released numbers make by the facts of ``interval_plan``; see ``private_effect_law``."""
    found = estimates(numbers.point, numbers.gradient, numbers.matrix, numbers.counts, facts)
    bound = effect_clip(found.t, facts, plan.interval_clip, outcome_range)
    own = effect_law(found, numbers.correction, numbers.average, bound, facts)
    law: EffectLaw | None = with_hidden(own, found, facts, plan.binary)
    if law is not None and numbers.nuisances is not None:
        noise = nuisance_noise(numbers.nuisances, plan, facts.basis, covariates, facts.per_person)
        law = with_nuisances(law, found, noise)
    return None if law is None else with_persons(law, found.overlap, plan, facts, covariates.two_levels)


def interval_plan(
    basis: WeightedBasis,
    scale: float,
    bounds: tuple[float, float],
    outcome_range: float,
    plan: ComposedPlan,
    per_person: int = 1,
) -> IntervalPlan:
    """Return the public facts of the interval steps; see ``private_effect_law``.

    The correction's clip S2 is several standard deviations of normal residuals with the quantile S, and at most the
    outcome's range; that is its size where S is no quantile of residuals, as nearly all outcomes are one number.
    """
    constants, least = plan.constants, overlaps(bounds)
    weight, largest = sum(lesser(bounds)) / 2, farthest(bounds)

    def noise(step: str, sensitivity: float) -> float:
        return sensitivity / plan.shares.of(step)  # without privacy over infinity

    quantile = torch.special.ndtri(torch.tensor((1 + plan.huber_quantile) / 2, dtype=torch.float64)).item()
    spread = min(plan.interval_spread * scale / quantile, outcome_range)
    if scale in (unseen_scale(plan, outcome_range), LEAST_SCALE * outcome_range):
        spread = outcome_range
    return IntervalPlan(
        n=plan.mass,
        basis=basis,
        weight=weight,
        scale=scale,
        spread=spread,
        treatment=largest,
        overlaps=least,
        gradient_noise=noise("effect", 2 * scale) / math.sqrt(1 - constants.burn_in),
        matrix_noise=noise(MATRIX, matrix_sensitivity(bounds, constants.interval_norm)),
        counts_noise=noise(COUNTS, counts_sensitivity(bounds)),
        correction_noise=noise(CORRECTION, 2 * largest * spread),
        average_noise=noise(AVERAGE, 2 * least[1]),
        per_person=per_person,
    )


_LARGE = 1e9  # n mu at which a prior has all kinds of features
_AS_IT_VARIES, _BEYOND = 0.9, 0.3  # of |c|, see ``with_hidden``
_SCALE_SPREAD, _FARTHEST, _SCALES = 0.7, 5.0, 31  # of log s: deviation, range in deviations, points


def with_hidden(law: EffectLaw, found: Estimates, facts: IntervalPlan, binary: bool) -> EffectLaw:
    r"""Return the law with what clipped residuals are expected to hide of the projection, and of its mean.

    Clipping at S moves the arms' means apart by b(x) where the skewness of their residuals differs. The correction c
    is the mean of b, released. How b varies with the covariates, and what of it lies beyond S2, where the correction
    itself is clipped, are not released; both are expected to be of the size of c:

    .. math:: V \mathrel{+}= \frac{(.9\,c)^2}{\sqrt{a}}\, \bar e\, B (B^\top M B)^{-1} B^\top, \qquad
        \mathrm{var}(\text{average}) \mathrel{+}= (.3\,c)^2

    with the a combinations B of features beside the constant, and M over its planned size: the variance of b, a linear
    function of them, is :math:`\sqrt a\,(.9\,c)^2` over the records.

    Args:
        law: Of the projection.
        found: Estimates of the features' coefficients.
        facts: Of the interval steps.
        binary: Whether the outcome has two values, whose residuals are not clipped.
    """
    if binary:
        return law
    covariance, varying = law.covariance, found.directions.shape[1] - 1
    if varying:
        size = (_AS_IT_VARIES * law.correction) ** 2 / math.sqrt(varying)
        covariance = covariance + size * TYPICAL * facts.weight * inverse_within(found.directions, found.matrix)
    hidden = (_BEYOND * law.correction) ** 2
    return replace(law, covariance=covariance, average_variance=law.average_variance + hidden)


def with_persons(
    law: EffectLaw, overlap: float, plan: ComposedPlan, facts: IntervalPlan, two_levels: Sequence[bool]
) -> EffectLaw:
    r"""Return the law with what persons' effects are expected to be, given the estimates; post-processing.

    Effects have a variance s over persons, of which the requested feature j is expected to hold the share p_j. The
    directions' coefficients b, in units of planned deviations, and their estimates are

    .. math:: \log\frac{s}{g S^2} \sim N(0, .7^2), \qquad b \mid s \sim N(0, s\, Q^\top \mathrm{diag}(p)\, Q),
        \qquad \hat b \mid b \sim N(b, V)

    with the plan's prior variance g. Posterior mean and covariance of b, over s too, are those of a person's effect
    where the propensity is known; where it is estimated, confounding is no noise that a prior tells from effects, and
    the estimates stay as they are. What the features miss has the variance

    .. math:: E[s \mid \hat b]\,\Big(\kappa\, \gamma\, (1 - \mathrm{tr}\, Q^\top \mathrm{diag}(p)\, Q) + \kappa_q\Big)

    with gamma the mean square of widely clipped residuals over that of normal ones (at least 1: where tails are long,
    the clip hides effects in them), and kappa_q where some covariates of a trial were not chosen. In a cohort kappa is
    larger. Without a direction kappa_q is kappa gamma, and kappa that of a trial; of two values kappa_q is zero, as
    their prior is wide. Source: empirical Bayes after Morris (1983).

    Args:
        law: Of the projection, with all errors of its estimates.
        overlap: Released mean of pi (1 - pi).
        plan: The public plan.
        facts: Of the interval steps.
        two_levels: Whether each retained covariate has two levels.
    """
    known, estimated, unchosen = plan.constants.missed
    basis, root = facts.basis, facts.planned[1:].sqrt()
    pairs = tuple(feature for feature in basis.features if feature.kind in PAIRED)
    every = all_features(two_levels, plan.constants.kinds) + pairs
    each = prior_variances(every, 1.0, plan.constants, _LARGE) / (1 + (plan.constants.pair_variance if pairs else 0))
    shares = each[[every.index(feature) for feature in basis.features if feature.kind != UNITS]]
    if basis.units is not None:
        own = [feature.i for feature in basis.features if feature.kind == UNITS]
        shares = torch.cat([shares, of_kind("effect")["units"]["variance"] * basis.units.shares[own]])
    q = law.directions[1:, 1:] * root[:, None]
    errors = law.covariance if law.nuisances is None else law.covariance + law.nuisances
    estimate, v = q.T @ (root * law.estimates[1:]), q.T @ (root.outer(root) * errors[1:, 1:]) @ q
    at = torch.linspace(-_FARTHEST, _FARTHEST, _SCALES, dtype=torch.float64)
    scales = plan.head_variance * facts.scale**2 * (_SCALE_SPREAD * at).exp()
    prior = scales[:, None, None] * (TYPICAL * facts.weight * (q.T * shares) @ q)
    root_of = torch.linalg.cholesky(v + prior)
    pulled = torch.cholesky_solve(estimate.expand(len(at), -1)[:, :, None], root_of)
    fit = root_of.diagonal(dim1=1, dim2=2).log().sum(1) + (pulled[:, :, 0] @ estimate) / 2
    chance = torch.softmax(-at.square() / 2 - fit, 0)
    size, tails, total = float(chance @ scales), 1.0, facts.n * overlap
    if not plan.binary:
        squares = (law.correction_variance * total**2 - facts.correction_noise**2) / facts.per_person
        tails = max(squares / total / (facts.spread / plan.interval_spread) ** 2, 1.0)
    kappa, more = known * tails, unchosen * (plan.covariates > len(two_levels))
    if not len(estimate):
        more = kappa
    elif law.nuisances is not None:
        kappa, more = estimated * tails, 0.0
    held = float(q.square().sum(1) @ shares)
    missed = size * (kappa * max(1 - held, 0.0) + more * (not plan.binary))
    if law.nuisances is not None:
        return replace(law, missed=missed)
    means = (prior @ pulled)[:, :, 0]
    mean, rest = chance @ means, prior - prior @ torch.cholesky_solve(prior, root_of)
    rest = torch.einsum("s,sij->ij", chance, rest + (means - mean)[:, :, None] * (means - mean)[:, None, :])
    back, shrunk, spread = q / root[:, None], law.estimates.clone(), torch.zeros_like(law.covariance)
    shrunk[1:], spread[1:, 1:] = back @ mean, back @ rest @ back.T
    shrunk[0] += float(law.centre @ (law.estimates - shrunk)) / float(law.centre[0])
    return replace(law, missed=missed, shrunk=shrunk, spread=spread)
