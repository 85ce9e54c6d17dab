"""Sums of doubly robust scores, released with noise, and what follows from them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.causal.score import Scored, ScoreRanges
from torchdpcate.estimators.average.balanced_difference import SCALES, SUMS, UPPER
from torchdpcate.estimators.average.effect_estimator import Ask
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.sum_and_squares import TermRange, sum_and_half_squares, sums_mechanism
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.budget import split_epsilon
from torchdpcate.privacy.exact_sums import exact_sum, far_problems, sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism

SHARES = {"score": 0.75, "size": 0.05, "spread": 0.20}
"""Parts of the budget where the size is private. About best for n from 2,500 to 25,000 records, epsilon from 0.5 to 5
and eta = 0.1."""


def epsilons_of(epsilon: float, estimand: Estimand) -> dict[str, float]:
    """Return the epsilon of each part; one for all sums where the number of records is the size.

    Example:
        >>> from torchdpcate.causal.estimand import ATE, ATT
        >>> {part: round(value, 4) for part, value in epsilons_of(1.0, ATT(0.1)).items()}
        {'score': 0.75, 'size': 0.05, 'spread': 0.2}
        >>> epsilons_of(1.0, ATE(0.1))
        {'sums': 1.0}
    """
    return {SUMS: epsilon} if estimand.public_size else split_epsilon(epsilon, SHARES)


def laws_of(n: int, estimand: Estimand, epsilon: float) -> dict[str, AddedNoise]:
    """Return the noise of each part, in units in which one record moves it by 1; of sums together, of places."""
    epsilons = epsilons_of(epsilon, estimand)
    if estimand.public_size:
        return {SUMS: AddedNoise(sums_mechanism(n, epsilons[SUMS]), 2, float(n))}
    # how large sums may be depends on the ranges (``ScoreSums.far_problems``); each square counts at most one
    most = {"score": math.inf, "size": math.inf, "spread": float(n)}
    return {part: AddedNoise(LaplaceMechanism(own, 1.0), 1, most[part]) for part, own in epsilons.items()}


def sensitivities(ranges: ScoreRanges, n: int) -> dict[str, Tensor]:
    """Return Delta_A and Delta_B of n records, [runs] each: the ranges' widths and one step of the sum's exact grid."""
    return {
        "score": ranges.change + sum_grid(n, ranges.largest),
        "size": ranges.size_change + sum_grid(n, 1.0),
    }


@dataclass(frozen=True, eq=False)
class ScoreSums:
    r"""Sums of a, of b, and of squared centred scores, in units in which one record moves them by 1.

    .. math:: A = \sum_i a_i, \quad B = \sum_i b_i, \quad \tau = \mathrm{clip}(A/B, -1, 1), \quad
        Q = \sum_i (a_i - \tau b_i)^2

    each with Laplace noise of scale Delta/epsilon for its part of epsilon: Delta_A the width of the range of a, Delta_B
    that of b, and Delta_Q = sup (a - tau b)^2 at the effect just released; all plus a step of the public grid on which
    the sum is exact (``exact_sum``). For the ATE b = 1, B = n is public, and A and the squares about the middle of the
    range are one event (``sums_mechanism``), in which the squares cost nothing.

    Attributes:
        ranges: Of the score by nuisances that were paid for.
        estimand: Whose score it is.
        n: Number of scored records.
        laws: Noise of each part.
    """

    ranges: ScoreRanges
    estimand: Estimand
    n: int
    laws: Mapping[str, AddedNoise]

    @classmethod
    def of(cls, ranges: ScoreRanges, estimand: Estimand, n: int, epsilon: float) -> "ScoreSums":
        """Return the sums of n records at this epsilon."""
        return cls(ranges, estimand, n, laws_of(n, estimand, epsilon))

    def ask(self, scored: Scored, ask: Ask) -> dict[str, Tensor]:
        """Return the sums with noise.

        Args:
            scored: Records with nuisances, none of which they were trained on.
            ask: Charges before it draws.
        """
        a, b = self.ranges.clip(*self.estimand.score(*scored))
        if self.estimand.public_size:
            return {SUMS: ask(SUMS, sum_and_half_squares(self._within.places(a)))}
        moved, largest = sensitivities(self.ranges, self.n), self.ranges.largest
        answers = {"score": ask("score", (exact_sum(a, self.n, largest) / moved["score"])[:, None])}
        answers["size"] = ask("size", (exact_sum(b, self.n, 1.0) / moved["size"])[:, None])
        tau = self._effect(self.numbers(answers))[0]
        most = self.ranges.reach(tau).square()
        squares = (a - tau[:, None] * b).square().minimum(most[:, None])
        spread = exact_sum(squares, self.n, most.amax().item()) / _square_change(most, self.n)
        return {**answers, "spread": ask("spread", spread[:, None])}

    def numbers(self, answers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums that there are, [runs] each, as releases hold them."""
        if self.estimand.public_size:
            return dict(zip(("score", "spread"), self._within.sums(answers[SUMS], self.n), strict=True))
        sums = {part: answers[part][:, 0] * unit for part, unit in sensitivities(self.ranges, self.n).items()}
        return {**sums, **({"spread": answers["spread"][:, 0] * self._square(sums)} if "spread" in answers else {})}

    def places(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums of a release [runs] in their units again, but for rounding."""
        if self.estimand.public_size:
            return {SUMS: self._within.of_places(numbers["score"], numbers["spread"], self.n)}
        units = {**sensitivities(self.ranges, self.n), "spread": self._square(numbers)}
        return {part: (numbers[part] / unit)[:, None] for part, unit in units.items()}

    def estimate(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """Return the estimate and the law of its error by the answers."""
        sums, n, noise_a = self.numbers(answers), self.n, self.noise_scales["score"]
        total = sums["score"]
        if self.estimand.public_size:
            deviations = self._within.most_deviations(total, sums["spread"], n, self.laws[SUMS].scale)
            size, none = torch.full_like(total, n), torch.zeros_like(total)
            return _estimate((total / n).clamp(-1, 1), size, deviations, noise_a[:, None], none, sums)
        tau, divisor = self._effect(sums)
        most, noise_b = self.ranges.reach(tau).square(), self.noise_scales["size"]
        upper = _upper(sums["spread"], _square_change(most, n) * self.laws["spread"].scale, most, n)
        return _estimate(tau, divisor, upper, torch.stack([noise_a, tau.abs() * noise_b], 1), noise_b, sums)

    def far_problems(self, numbers: Mapping[str, Tensor]) -> Iterator[str]:
        """Return what in the sums of a release is beyond what records and noise can make."""
        most = {"score": self.n * self.ranges.largest, "size": self.n * self.ranges.most.amax().item()}
        for part, scale in self.noise_scales.items():
            yield from far_problems(part, numbers[part], most[part], scale.item())

    @property
    def noise_scales(self) -> dict[str, Tensor]:
        """Scales of the noise in the sum of a, and in that of b where it is private, [runs] each."""
        if self.estimand.public_size:
            return {"score": self._within.half * self.laws[SUMS].scale}
        return {part: unit * self.laws[part].scale for part, unit in sensitivities(self.ranges, self.n).items()}

    @property
    def _within(self) -> TermRange:
        return TermRange(*self.ranges.ends)

    def _effect(self, sums: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return effect(sums["score"], sums["size"], self.noise_scales["size"], self.ranges, self.n)

    def _square(self, sums: Mapping[str, Tensor]) -> Tensor:
        return _square_change(self.ranges.reach(self._effect(sums)[0]).square(), self.n)


def conclude(scored: Scored, ranges: ScoreRanges, estimand: Estimand) -> NoisyEstimate:
    """Conclude from the sums as they are. The curator's, never to be published."""
    a, b = estimand.score(*scored)
    n = a.shape[1]
    total, size = exact_sum(a, n, ranges.largest), exact_sum(b, n, 1.0)
    none = torch.zeros_like(total)
    tau, divisor = effect(total, size, none, ranges, n)
    squares = (a - tau[:, None] * b).square().sum(1)
    sums = {"score": total, "size": size, "spread": squares}
    return _estimate(tau, divisor, squares, none[:, None], none, sums)


def _square_change(most: Tensor, n: int) -> Tensor:
    """Return Delta_Q, [runs], of n squares of at most ``most`` [runs]."""
    return most + sum_grid(n, most.amax().item())


def _upper(squares: Tensor, scale: Tensor, most: Tensor, n: int) -> Tensor:
    """Return the one-sided bound of a sum of n squares of at most ``most`` with noise of this scale, all [runs]."""
    return (squares + UPPER * scale).clamp(torch.zeros_like(most), n * most)


def effect(total: Tensor, size: Tensor, noise_b: Tensor, ranges: ScoreRanges, n: int) -> tuple[Tensor, Tensor]:
    """Return the estimate and its denominator, both [runs], kept within what n records can give and above its noise.

    Args:
        total: A, [runs].
        size: B, [runs].
        noise_b: Scale of the noise in B, [runs].
        ranges: Of the score.
        n: Number of scored records.
    """
    least = torch.maximum(n * ranges.least.amin(1), (SCALES * noise_b).clamp_min(1e-9))
    divisor = torch.maximum(torch.minimum(size, n * ranges.most.amax(1)), least)
    return (total / divisor).clamp(-1, 1), divisor


def _estimate(
    tau: Tensor,
    divisor: Tensor,
    squares: Tensor,
    noise: Tensor,
    noise_b: Tensor,
    sums: Mapping[str, Tensor],
) -> NoisyEstimate:
    """Return an estimate with the law of its error, by its denominator, squared scores and Laplace scales [runs, k]."""
    return NoisyEstimate(
        estimate=tau,
        gaussian=squares.sqrt() / divisor,
        laplace=noise / divisor[:, None],
        polytope=None,
        noise_dominated=divisor <= SCALES * noise_b,
        size=divisor,
        released=sums,
    )
