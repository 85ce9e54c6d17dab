"""Stage two by default: a balanced difference, its size and its sum of squares, released with noise."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.estimators.average.effect_estimator import (
    Ask,
    EffectEstimator,
    EffectFacts,
    ReleasedRanges,
    Total,
    Weighted,
    contrast_assumption,
)
from torchdpcate.estimators.average.joint_cost import joint_cost
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.exact_sums import exact_sum, sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism

UPPER = math.log(5)
"""One-sided 90 % quantile of Laplace noise, in its scale: 1.609438."""
SUMS = "sums"
"""The part of the release that all three sums are."""
SCALES = 3.0
"""A denominator below this many scales of its noise is dominated by noise."""


@dataclass(frozen=True)
class BalancedDifference(EffectEstimator):
    r"""The contrast D / N of residuals of the outcome model, with the sum of squares Q of its terms.

    .. math::
        D = \sum_i t_i w_i (y_i - m(x_i)), \quad Q = \sum_i w_i^2 (y_i - m(x_i))^2, \quad
        N = \tfrac12 \sum_i w_i \text{ (ATE, ATO)},\; \sum_i z_i \text{ (ATT)},\; \sum_i (1 - z_i) \text{ (ATC)}

    t = 2z - 1; the estimate is clip(D / N, -1, 1). For weights that balance, it is the Hajek contrast for every linear
    m, and m makes the noise of stage one second order. With m in [lo, hi] the sensitivities are

    .. math::
        \Delta_D = \max\{W_1 (1 - lo), W_0 hi\} + \max\{W_1 hi, W_0 (1 - lo)\}, \quad
        \Delta_N = \tfrac12 (W - w_{min}) \text{ or } 1, \quad \Delta_Q = W^2 \max\{hi, 1 - lo\}^2

    with the ranges of weights and outcome model over the domain at the released coefficients
    (``EffectFacts.ranges``), or, before there are any, over all coefficients. No record moves all three as far: they
    are one event, whose scales are :math:`\Delta / \epsilon_k` for the shares of its epsilon, all times what a record
    costs them together over that epsilon (``joint_cost``), which is about 0.74.

    N of ATE and ATO is clamped to [n w_min / 2, n W / 2], far from zero. The interval counts the sum of squares with a
    one-sided 90 % bound of its noise, the exact Laplace laws of D and N, and what is left of the imbalance (section
    3.6): B times ``EffectFacts.imbalance`` / N.

    Guarantee:
        Certified, pure: the epsilon of all three together, weights and outcome model being fixed before. Source: theory
        note ``covariate_balancing``, sections 3.4 and 3.6; docs/guarantees/balanced_difference.md.
    """

    name: ClassVar[str] = "balanced_difference"
    formula: ClassVar[str] = (
        "Laplace noise on D, N and Q as one event, scales in the ratio of Delta/epsilon with Delta_D = 2 W max(hi, "
        "1-lo) for the ATE, such that one record's joint l1 cost is its epsilon; covariate_balancing sections 3.4, 3.6"
    )
    parts: ClassVar[Mapping[str, float]] = {"difference": 0.40, "size": 0.05, "spread": 0.10}
    centred: ClassVar[bool] = True

    @classmethod
    def assumption(cls, public: Mapping[str, Any]) -> str:
        """See ``EffectEstimator``."""
        return contrast_assumption(public)

    def laws(self, facts: EffectFacts, epsilons: Mapping[str, float]) -> dict[str, AddedNoise]:
        """See ``EffectEstimator``: one event; how large its numbers may be depends on the coefficients."""
        mechanism = LaplaceMechanism(math.fsum(epsilons[part] for part in self.parts), 1.0)
        return {SUMS: AddedNoise(mechanism, len(self.noisy(facts)), math.inf)}

    def noisy(self, facts: EffectFacts) -> list[str]:
        """Return the parts that have noise: a size that is public, as it is where all weights are equal, has none."""
        return [part for part, moved in self.sensitivities(facts).items() if moved > 0]

    def ask(self, total: Total, facts: EffectFacts, epsilons: Mapping[str, float], ask: Ask) -> dict[str, Tensor]:
        """See ``EffectEstimator``."""
        sums = dict(zip(self.parts, total(_terms(facts)).T, strict=True))
        units = self.units(facts, epsilons)
        return {SUMS: ask(SUMS, torch.stack([sums[part] / unit for part, unit in units.items()], -1))}

    def estimate(
        self, answers: Mapping[str, Tensor], facts: EffectFacts, epsilons: Mapping[str, float]
    ) -> NoisyEstimate:
        """See ``EffectEstimator``."""
        noisy = answers[SUMS]
        sums = {"size": torch.full_like(noisy[:, 0], self.public_size(facts))}
        units = self.units(facts, epsilons)
        sums = {**sums, **{part: noisy[:, k] * unit for k, (part, unit) in enumerate(units.items())}}
        return _estimate({part: sums[part] for part in self.parts}, facts, self.scales(facts, epsilons))

    def places(
        self, numbers: Mapping[str, float], facts: EffectFacts, epsilons: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """See ``EffectEstimator``."""
        units = self.units(facts, epsilons)
        return {SUMS: torch.stack([numbers[part] / unit for part, unit in units.items()], -1)}

    def reaches(self, facts: EffectFacts, epsilons: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        """See ``EffectEstimator``."""
        terms, scales = largest_terms(facts), self.scales(facts, epsilons)
        return {part: (facts.n * terms[part], scale[0].item()) for part, scale in scales.items()}

    @staticmethod
    def public_size(facts: EffectFacts) -> float:
        """Return N where no record moves it."""
        term = torch.tensor([facts.estimand.size_range[1]], dtype=torch.float64)
        return facts.n * exact_sum(term, facts.n, term.item()).item()

    def without_noise(self, total: Total, facts: EffectFacts) -> NoisyEstimate:
        """See ``EffectEstimator``."""
        sums = dict(zip(self.parts, total(_terms(facts)).T, strict=True))
        return _estimate(sums, facts, {})

    def planned(self, total: Total, facts: EffectFacts, epsilons: Mapping[str, float]) -> NoisyEstimate:
        """See ``EffectEstimator``."""
        sums = dict(zip(self.parts, total(_terms(facts)).T, strict=True))
        return _estimate(sums, facts, self.scales(facts, epsilons))

    def public(self, facts: EffectFacts, epsilons: Mapping[str, float]) -> dict[str, Any]:
        """Return the noise scales of the sums, of outcomes scaled to [0, 1], and the ranges that they follow from."""
        scales = {f"scale_{part}": scale[0].item() for part, scale in self.scales(facts, epsilons).items()}
        return scales if facts.ranges is None else {**scales, **facts.ranges.stated}

    def units(self, facts: EffectFacts, epsilons: Mapping[str, float]) -> dict[str, Tensor]:
        r"""Return in which units one record moves all sums by 1 in the :math:`\ell_1` norm, [runs] each.

        They are in the ratio of :math:`\Delta / \epsilon`.
        """
        moved = self.moved(facts)
        scales = {part: moved[part] / epsilons[part] for part in self.noisy(facts)}
        cost = record_cost(facts, scales)
        return {part: scale * cost for part, scale in scales.items()}

    def scales(self, facts: EffectFacts, epsilons: Mapping[str, float]) -> dict[str, Tensor]:
        """Return the scale of the noise in each sum that has some, [runs]."""
        scale = self.laws(facts, epsilons)[SUMS].scale
        return {part: unit * scale for part, unit in self.units(facts, epsilons).items()}

    @staticmethod
    def sensitivities(facts: EffectFacts) -> dict[str, float]:
        """Return Delta_D, Delta_N and Delta_Q for any weights and outcome model, for outcomes in [0, 1].

        Example:
            >>> from torchdpcate.causal.estimand import ATE
            >>> facts = EffectFacts(5000, ATE(0.1), low=0.3, high=0.7)
            >>> {name: round(value, 6) for name, value in BalancedDifference.sensitivities(facts).items()}
            {'difference': 14.0, 'size': 4.444444, 'spread': 49.0}
        """
        of, low, high = facts.estimand, facts.low, facts.high
        treated, control = of.most_treated, of.most_control
        above = max(treated * (1 - low), control * high)
        below = max(treated * high, control * (1 - low))
        moved = {
            "difference": above + below,
            "size": of.size_range[1] - of.size_range[0],
            "spread": of.largest**2 * max(high, 1 - low) ** 2,
        }
        # terms are rounded so that sums are exact, each by half a step
        return {part: size and size + sum_grid(facts.n, largest_terms(facts)[part]) for part, size in moved.items()}

    @classmethod
    def moved(cls, facts: EffectFacts) -> dict[str, Tensor]:
        r"""Return what one record moves each part by at the released coefficients, [runs].

        .. math::
            W_1 = \sup_x w_1(x), \quad W_0 = \sup_x w_0(x), \quad lo = \inf_x m(x), \quad hi = \sup_x m(x)

        over the domain, in the sensitivities above, which are suprema over all coefficients too.
        """
        everywhere = {part: torch.tensor([v], dtype=torch.float64) for part, v in cls.sensitivities(facts).items()}
        ranges = facts.ranges
        if ranges is None:
            return everywhere
        (_, treated), (_, control), (low, high) = ranges.treated, ranges.control, ranges.model
        above = torch.maximum(treated * (1 - low), control * high)
        below = torch.maximum(treated * high, control * (1 - low))
        least, most = size_ends(facts)
        moved = {
            "difference": above + below,
            "size": most - least,
            "spread": (torch.maximum(treated, control) * torch.maximum(high, 1 - low)).square(),
        }
        grids = {part: sum_grid(facts.n, largest) for part, largest in largest_terms(facts).items()}
        # never more than without coefficients: what rounding adds to a range that is no narrower is left out
        return {part: torch.minimum(moved[part] + grids[part], everywhere[part]) for part in cls.parts}


def record_cost(facts: EffectFacts, scales: Mapping[str, Tensor]) -> Tensor:
    """Return the largest privacy loss of one record, [runs], in sums with Laplace noise of these scales, [runs] each.

    Where an estimand of the user's has terms of N of its own, N counts in full. Rounding adds a step of each grid.
    """
    ranges, of = facts.ranges, facts.estimand
    steps = {part: sum_grid(facts.n, term) for part, term in largest_terms(facts).items()}
    rounding = torch.stack([steps[part] / scale for part, scale in scales.items()]).sum(0)
    if ranges is None:
        every = [torch.tensor([end], dtype=torch.float64) for end in (of.smallest, of.most_treated, of.most_control)]
        low, high = (torch.tensor([end], dtype=torch.float64) for end in (facts.low, facts.high))
        ranges = ReleasedRanges((every[0], every[1]), (every[0], every[2]), (low, high))
    joint, apart = dict(scales), torch.zeros(1, dtype=torch.float64)
    if type(of).size is not Estimand.size and "size" in scales:
        least, most = size_ends(facts)
        apart = (most - least) / joint.pop("size")
    return joint_cost(ranges.treated, ranges.control, ranges.model, joint, of.counted) + apart + rounding


def size_ends(facts: EffectFacts) -> tuple[Tensor, Tensor]:
    """Return the least and the largest term of N, [runs]: by released weights where terms are half the weights."""
    ranges, of = facts.ranges, facts.estimand
    if ranges is None or of.counted is not None or type(of).size is not Estimand.size:
        least, most = (torch.tensor([end], dtype=torch.float64) for end in of.size_range)
        return least, most
    least = torch.minimum(ranges.treated[0], ranges.control[0])
    return least / 2, torch.maximum(ranges.treated[1], ranges.control[1]) / 2


def largest_terms(facts: EffectFacts) -> dict[str, float]:
    """Return how large a record's term of each part may be."""
    of = facts.estimand
    reach = of.largest * max(facts.high, 1 - facts.low)
    return {"difference": reach, "size": of.size_range[1], "spread": reach**2}


def _terms(facts: EffectFacts) -> Callable[[Weighted], Tensor]:
    largest, of = largest_terms(facts), facts.estimand

    def terms(batch: Weighted) -> Tensor:
        pull = batch.w * (batch.y - batch.m)
        size = of.size(batch.w, batch.z).clamp(*of.size_range)  # an estimand of the user's need not keep to it
        each = ((2 * batch.z - 1) * pull, size.expand_as(pull), pull.square())
        return torch.stack([exact_sum(v, facts.n, largest[part]) for part, v in zip(largest, each, strict=True)], -1)

    return terms


def _estimate(sums: Mapping[str, Tensor], facts: EffectFacts, scales: Mapping[str, Tensor]) -> NoisyEstimate:
    """Return the estimate from sums [runs] with noise of these scales; parts that are not named have none."""
    none = torch.zeros(1, dtype=torch.float64)
    noise_d, noise_n, noise_q = (scales.get(part, none) for part in BalancedDifference.parts)
    least, most_size = (facts.n * term for term in size_ends(facts))
    size = torch.maximum(sums["size"], least) if facts.estimand.size_range[0] > 0 else sums["size"]
    size = torch.minimum(size, most_size) if facts.estimand.size_range[0] > 0 else size
    noise_dominated = size <= SCALES * noise_n
    if facts.estimand.size_range[0] == 0:  # nothing public holds it up
        size = torch.minimum(torch.maximum(size, (SCALES * noise_n).clamp_min(1.0)), most_size)
    most = facts.n * BalancedDifference.moved(facts)["spread"]
    squares = torch.minimum((sums["spread"] + UPPER * noise_q).clamp_min(0), most)
    estimate = (sums["difference"] / size).clamp(-1, 1)
    laplace = torch.stack([noise_d / size, estimate.abs() * noise_n / size], -1)
    imbalance = facts.slope_bound * facts.imbalance / size
    return NoisyEstimate(
        estimate,
        (squares / size.square() + imbalance.square()).sqrt(),
        laplace,
        None,
        noise_dominated,
        size,
        dict(sums),
    )
