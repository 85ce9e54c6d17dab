"""Private numbers that intervals of a composed effect rest on: a matrix, counts, the mean's correction, the average."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torchdpcate.composition.effect_law import (
    Covariates,
    Estimates,
    IntervalPlan,
    effect_law,
    estimates,
    nuisance_noise,
    reach,
    with_missed,
    with_nuisances,
)
from torchdpcate.composition.linear_fit import Solution
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.steps import AVERAGE, CORRECTION, COUNTS, MATRIX, NoisySteps, summed
from torchdpcate.features.weighted_basis import WeightedBasis, lengths
from torchdpcate.release.effect_law import EffectLaw, IntervalNumbers, NuisanceNumbers

_SQUARES = 0.65  # of mu^2 for the squares, at no cost beside the sum: see private_correction


class EffectSums(Protocol):
    """Sums over the effect's regression at n records, in memory or read batch by batch."""

    @property
    def n(self) -> int:
        """Number of records."""

    def total(self, terms: "Callable[[EffectRecords], Tensor]") -> Tensor:
        """Return the sum over all records of what ``terms`` sums over some."""


@dataclass(frozen=True, eq=False)
class EffectRecords:
    """The effect's regression at the records; the curator's.

    Attributes:
        psi: Features [n, p].
        residual: y - m, [n].
        treatment: a - pi, [n].
        pi: Propensities [n].
    """

    psi: Tensor
    residual: Tensor
    treatment: Tensor
    pi: Tensor

    @property
    def n(self) -> int:
        """Number of records."""
        return len(self.residual)

    def total(self, terms: "Callable[[EffectRecords], Tensor]") -> Tensor:
        """See ``EffectSums``."""
        columns = self.psi, self.residual, self.treatment, self.pi
        return summed(lambda *rows: terms(EffectRecords(*rows)), *columns)

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


def private_matrix(records: EffectSums, bounds: tuple[float, float], norm: float, steps: NoisySteps) -> Tensor:
    r"""Return the mean of :math:`w h\, \psi \psi^\top`, w = 1 / (|psi| max(pi, 1 - pi)), with noise, [p, p].

    The diagonal and :math:`\sqrt2` times the upper triangle are released as one vector, whose norm is Frobenius': noise
    of the diagonal has the step's standard deviation, that of other entries :math:`1/\sqrt2` of it.

    Args:
        records: The regression at the records.
        bounds: Of the propensity, public.
        norm: Clip of |psi|.
        steps: Pays, and draws noise.
    """

    def weighted(at: EffectRecords) -> Tensor:
        length = lengths(at.psi)
        weight = at.overlap / (at.largest * length) * (norm / length.clamp_min(norm))
        return (at.psi * weight[:, None]).T @ at.psi

    n, sums = records.n, records.total(weighted)
    p = len(sums)
    row, column = torch.triu_indices(p, p)
    times = torch.where(row == column, 1.0, math.sqrt(2)).double()
    most = lesser(bounds)[1] * norm
    sensitivity = matrix_sensitivity(bounds, norm) + p * steps.rounding(n, most)
    noisy = steps.release(MATRIX, sums.cpu()[row, column] * times, sensitivity) / n / times
    found = torch.zeros(p, p, dtype=torch.float64)
    found[row, column] = found[column, row] = noisy
    return found


def private_counts(
    records: EffectSums, theta: Tensor, scale: float, bounds: tuple[float, float], steps: NoisySteps
) -> Tensor:
    r"""Return kappa, the mean of ((a - pi) / max(pi, 1 - pi))^2 clip(r / S)^2, and that of h, [3].

    kappa is the share of residuals that are not clipped, in the weights of the regression's curvature: where clips take
    more of one arm, that arm counts by how much it moves the effect,

    .. math:: \kappa = \frac{\zeta^2}{\bar h} \cdot \frac1n \sum_i \frac{(a_i - \pi_i)^2}{\zeta^2} 1\{|r_i| < S\},
        \qquad \zeta = \max |a - \pi|.

    One event: what is summed lies in [0, 1], hence sensitivity :math:`\sqrt2`, and :math:`\sqrt3` with h scaled by its
    public range, which is left out where the propensity is one number.

    Args:
        records: The regression at the records.
        theta: Released coefficients, [p].
        scale: S.
        bounds: Of the propensity, public.
        steps: Pays, and draws noise.
    """
    low, high = overlaps(bounds)
    most = farthest(bounds) ** 2

    def counted(at: EffectRecords) -> Tensor:
        r = at.rest(theta)
        inside = (r.abs() < scale) * at.treatment.square() / most
        pulls = (at.treatment / at.largest * (r / scale).clamp(-1, 1)).square()
        shares = [(at.overlap - low) / (high - low)] if high > low else []
        return torch.stack([value.sum() for value in (inside, pulls, *shares)])

    n, sums = records.n, records.total(counted)
    noisy = steps.release(COUNTS, sums, counts_sensitivity(bounds) + 3 * steps.rounding(n, 1.0)) / n
    h = low + (high - low) * noisy[2] if high > low else noisy.new_tensor(low)
    return torch.stack([noisy[0] * most / h.clamp(low, high), noisy[1], h])


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


def private_correction(records: EffectSums, theta: Tensor, spread: float, largest: float, steps: NoisySteps) -> Tensor:
    r"""Return the sums of v and of v^2, v = (a - pi) clip(r, S2) / (largest S2) in [-1, 1], [2].

    One event: v / 2 and :math:`\sqrt{.65}\, v^2` have the joint sensitivity one, for two values at a distance d,
    :math:`d^2/4 + .65\, d^2 (2 - d)^2 \le 1` on [0, 2]: the squares cost nothing beside the sum.

    Args:
        records: The regression at the records.
        theta: Released coefficients, [p].
        spread: S2.
        largest: Bound of \|a - pi\|, public.
        steps: Pays, and draws noise.
    """

    def moments(at: EffectRecords) -> Tensor:
        v = at.treatment * at.rest(theta).clamp(-spread, spread) / (largest * spread)
        return torch.stack([v.sum() / 2, math.sqrt(_SQUARES) * v.square().sum()])

    noisy = steps.release(CORRECTION, records.total(moments), 1 + 2 * steps.rounding(records.n, 1.0))
    return torch.stack([2 * noisy[0], noisy[1] / math.sqrt(_SQUARES)])


def private_average(records: EffectSums, t: Tensor, bound: float, most: float, steps: NoisySteps) -> Tensor:
    """Return the sum of h clip(psi't) without the constant, [1]; sensitivity 2 ``bound`` ``most``.

    Args:
        records: The regression at the records.
        t: Released estimates, [p].
        bound: Of the clip.
        most: Largest h, public.
        steps: Pays, and draws noise.
    """

    def averaged(at: EffectRecords) -> Tensor:
        effect = (at.psi[:, 1:] @ t[1:].to(at.psi.device)).clamp(-bound, bound)
        return (at.overlap * effect / (bound * most)).sum()[None]

    total = records.total(averaged)
    return steps.release(AVERAGE, total, 2 + steps.rounding(records.n, 1.0)) * bound * most


def private_effect_law(
    records: EffectSums,
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

    There is no law where the noise of an estimated propensity, by what was released of it, is beyond the gate.

    Args:
        records: The regression at the records.
        basis: Its features.
        solution: Released coefficients, late iterates and their gradients.
        scale: S.
        bounds: Of the propensity, public.
        outcome_range: Of the domain.
        plan: The public plan.
        steps: Pays, and draws noise.
        covariates: Those in use.
        nuisances: What the nuisances released; None where the propensity is known.
    """
    facts = interval_plan(basis, scale, bounds, plan, steps.session.unit.records)
    norm = plan.constants.interval_norm
    matrix = private_matrix(records, bounds, norm, steps)
    counts = private_counts(records, solution.coefficients, scale, bounds, steps)
    found: Estimates = estimates(solution.point, solution.gradient, matrix, counts, facts)
    correction = private_correction(records, found.t, facts.spread, facts.treatment, steps)
    bound = reach(found.t, facts, plan.interval_reach, outcome_range)
    average = private_average(records, found.t, bound, facts.overlaps[1], steps)
    numbers = IntervalNumbers(solution.point, solution.gradient, matrix, counts, correction, average, nuisances)
    return _law(found, numbers, bound, facts, plan, covariates), numbers


def law_of(
    numbers: IntervalNumbers,
    basis: WeightedBasis,
    scale: float,
    bounds: tuple[float, float],
    outcome_range: float,
    plan: ComposedPlan,
    covariates: Covariates,
    per_person: int = 1,
) -> EffectLaw | None:
    """Return the law that released numbers make, of so many records a person; see ``private_effect_law``."""
    facts = interval_plan(basis, scale, bounds, plan, per_person)
    found = estimates(numbers.point, numbers.gradient, numbers.matrix, numbers.counts, facts)
    bound = reach(found.t, facts, plan.interval_reach, outcome_range)
    return _law(found, numbers, bound, facts, plan, covariates)


def _law(
    found: Estimates,
    numbers: IntervalNumbers,
    bound: float,
    facts: IntervalPlan,
    plan: ComposedPlan,
    covariates: Covariates,
) -> EffectLaw | None:
    law = effect_law(found, numbers.correction, numbers.average, bound, facts)
    law = with_missed(law, found, plan, facts, covariates.two_levels)
    if numbers.nuisances is None:
        return law
    noise = nuisance_noise(numbers.nuisances, plan, facts.basis, covariates, facts.per_person)
    return with_nuisances(law, found, noise)


def interval_plan(
    basis: WeightedBasis, scale: float, bounds: tuple[float, float], plan: ComposedPlan, per_person: int = 1
) -> IntervalPlan:
    """Return the public facts of the interval steps; see ``private_effect_law``."""
    constants, least = plan.constants, overlaps(bounds)
    weight, largest = sum(lesser(bounds)) / 2, farthest(bounds)

    def noise(step: str, sensitivity: float) -> float:
        return sensitivity / plan.shares.of(step)  # without privacy over infinity

    quantile = torch.special.ndtri(torch.tensor((1 + plan.huber_quantile) / 2, dtype=torch.float64)).item()
    spread = plan.interval_spread * scale / quantile
    if plan.binary:
        spread = min(spread, scale)  # the range of what residuals may be before the effect is taken off
    return IntervalPlan(
        n=plan.n,
        basis=basis,
        weight=weight,
        scale=scale,
        spread=spread,
        treatment=largest,
        overlaps=least,
        gradient_noise=noise("effect", 2 * scale) / math.sqrt(1 - constants.warm),
        matrix_noise=noise(MATRIX, matrix_sensitivity(bounds, constants.interval_norm)),
        counts_noise=noise(COUNTS, counts_sensitivity(bounds)),
        correction_noise=noise(CORRECTION, 2 * largest * spread),
        average_noise=noise(AVERAGE, 2 * least[1]),
        per_person=per_person,
    )
