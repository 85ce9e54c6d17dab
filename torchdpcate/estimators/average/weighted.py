"""Records with the weights and the centre of stage one, and estimates by their sums, such as a balanced difference."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, product
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.estimators.average.ratio_of_sums import SCALES, SUMS, NoisyEstimate, RatioOfSums, Sums, upper_bound
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.minimise import linear_predictor
from torchdpcate.fit.stacked_records import Batch
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.exact_sums import exact_sum, sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism


class Weighted(NamedTuple):
    """Records with the weights and the centre that stage one fixed.

    Attributes:
        z: Treatment in {0, 1}, [runs, b].
        y: Outcome in [0, 1], [runs, b].
        w: Weights, [runs, b].
        m: Outcome model in [0, 1], [runs, b].
    """

    z: Tensor
    y: Tensor
    w: Tensor
    m: Tensor


RANGES = ("treated_weights", "control_weights", "model_range")
"""What statements call the ranges that released coefficients leave."""


@dataclass(frozen=True, eq=False)
class ReleasedRanges:
    """What released coefficients leave of the public bounds: suprema over the domain, [runs] each.

    Attributes:
        treated: Least and largest weight of a treated record.
        control: Of a control.
        model: Least and largest value of the outcome model.
    """

    treated: tuple[Tensor, Tensor]
    control: tuple[Tensor, Tensor]
    model: tuple[Tensor, Tensor]

    def clamp(self, w: Tensor, z: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights and outcome model [runs, b] of records with treatments z within their ranges."""
        low, high = (end[:, None] for end in self.model)
        return self.within(w, z), torch.clamp(m, low, high)

    def within(self, w: Tensor, z: Tensor) -> Tensor:
        """Return weights [runs, b] of records with treatments z within their ranges."""
        ends = (torch.where(z > 0.5, t[:, None], c[:, None]) for t, c in zip(self.treated, self.control, strict=True))
        return torch.clamp(w, *ends)

    @property
    def stated(self) -> dict[str, list[float]]:
        """The first run's, as statements have them."""
        found = (self.treated, self.control, self.model)
        return {name: [end[0].item() for end in ends] for name, ends in zip(RANGES, found, strict=True)}


@dataclass(frozen=True)
class EffectFacts:
    """What is public before stage two begins.

    Attributes:
        n: Number of records.
        estimand: Estimand and overlap, which bound the weights.
        low: Least value of the outcome model, of outcomes in [0, 1].
        high: Its largest.
        imbalance: Standard deviation of an entry of sum t w phi by the noise of stage one.
        slope_bound: B, public bound of how far the outcome model's coefficients (in phi) are off, for the interval.
        ranges: Of weights and outcome model by released coefficients, in place of the bounds that hold for all; None
            before there are any.
    """

    n: int
    estimand: Estimand
    low: float = 0.5
    high: float = 0.5
    imbalance: float = 0.0
    slope_bound: float = 0.25
    ranges: ReleasedRanges | None = field(default=None, compare=False)


def released_ranges(facts: EffectFacts, features: FeatureMap, theta: Tensor, model: Tensor | None) -> ReleasedRanges:
    r"""Return suprema over the domain of the weights and of the outcome model at released coefficients.

    psi(x)'theta is within ``FeatureMap.predictor_bounds``, and weights are monotone in it; so is the outcome model.

    Args:
        facts: Bounds that hold for all coefficients.
        features: Basis, set up.
        theta: Of the propensity, [runs, p].
        model: Of the outcome model, [runs, p]; None where there is none.

    Example:
        >>> from torchdpcate import Domain
        >>> from torchdpcate.causal.estimand import ATE
        >>> from torchdpcate.fit.feature_maps import on_domain
        >>> features, none = on_domain(None, Domain([0.0], [1.0], 0.0, 1.0)), torch.zeros(1, 2, dtype=torch.float64)
        >>> released_ranges(EffectFacts(100, ATE(0.1), 0.3, 0.7), features, none, none).stated
        {'treated_weights': [2.0, 2.0], 'control_weights': [2.0, 2.0], 'model_range': [0.5, 0.5]}
    """
    ends = torch.stack(features.predictor_bounds(theta))
    weights = [facts.estimand.weights(ends, torch.full_like(ends, z)).aminmax(dim=0) for z in (1.0, 0.0)]
    low, high = facts.low, facts.high
    means = torch.full_like(ends, (low + high) / 2)
    if model is not None:
        means = torch.sigmoid(torch.stack(features.predictor_bounds(model))).clamp(low, high)
    (treated, control) = ((of.min, of.max) for of in weights)
    return ReleasedRanges(treated, control, (means[0], means[1]))


def left_imbalance(noise: float, estimand: Estimand, balancing: bool) -> float:
    """Return what the noise of stage one leaves of the imbalance, which the interval counts times ``slope_bound``.

    Args:
        noise: Standard deviation of an entry of the summed gradient, in units of the features' largest entry.
        estimand: The estimand.
        balancing: Whether the balancing loss was fitted; the noise of the logistic one shows amplified.
    """
    return noise if balancing else noise * estimand.amplification


EITHER = (
    "the log-odds of treatment are linear in the basis, or the mean outcomes of both arms are; where neither holds, "
    "the estimate is biased and the interval may never hold the effect"
)
"""What a contrast of residuals rests on: weights, or the outcome model, take away what is linear in the basis."""


def weigh(facts: EffectFacts, theta: Tensor, model: Tensor | None, batch: Batch) -> Weighted:
    """Return the records of a batch with their weights and centres by released coefficients, [runs, b].

    Args:
        facts: What is public, with the ranges that the coefficients leave.
        theta: Coefficients of the propensity, [runs, p].
        model: Of the outcome model, [runs, p]; None where the centre is the middle of its bounds.
        batch: The records.
    """
    g = linear_predictor(batch.psi, theta)
    z, y = batch.z.expand_as(g), batch.y.expand_as(g)
    m = torch.full_like(g, (facts.low + facts.high) / 2)
    if model is not None:
        m = torch.sigmoid(linear_predictor(batch.psi, model)).clamp(facts.low, facts.high)
    assert facts.ranges is not None
    return Weighted(z, y, *facts.ranges.clamp(facts.estimand.weights(g, z), z, m))


Range = tuple[Tensor, Tensor]
"""Least and largest value, [runs] each."""


@dataclass(frozen=True, eq=False)
class BalancedDifference(RatioOfSums):
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
        note ``covariate_balancing``, sections 3.4 and 3.6; docs/guarantees/average_effects.md.

    Attributes:
        facts: What is public of the records, with the ranges that coefficients leave where there are some.
        epsilons: Of each of ``parts``.
    """

    name: ClassVar[str] = "balanced_difference"
    formula: ClassVar[str] = (
        "Laplace noise on D, N and Q as one event, scales in the ratio of Delta/epsilon with Delta_D = 2 W max(hi, "
        "1-lo) for the ATE, such that one record's joint l1 cost is its epsilon; covariate_balancing sections 3.4, 3.6"
    )
    parts: ClassVar[Mapping[str, float]] = {"difference": 0.40, "size": 0.05, "spread": 0.10}

    facts: EffectFacts
    epsilons: Mapping[str, float]

    @cached_property
    def laws(self) -> Mapping[str, AddedNoise]:
        """See ``RatioOfSums``: one event."""
        mechanism = LaplaceMechanism(math.fsum(self.epsilons[part] for part in self.parts), 1.0)
        return {SUMS: AddedNoise(mechanism, len(self.noisy))}

    def sums(self, query: str, numbers: Mapping[str, Tensor]) -> Sums:
        noisy, largest = self.noisy, largest_terms(self.facts)
        moved = torch.stack(torch.broadcast_tensors(*self.units.values()), -1)
        terms = partial(_terms, self.facts.estimand, noisy)
        return Sums(noisy, terms, self.facts.n, tuple(largest[part] for part in noisy), moved)

    def estimate(self, numbers: Mapping[str, Tensor]) -> NoisyEstimate:
        facts, of = self.facts, self.facts.estimand
        public = torch.full_like(numbers["difference"], self.public_size)
        numbers = {part: numbers.get(part, public) for part in self.parts}
        scales = dict.fromkeys(self.parts, torch.zeros(1, dtype=torch.float64)) | self.scales(numbers)
        size, least, most_size = numbers["size"], *(facts.n * term for term in size_ends(facts))
        if of.size_range[0] > 0:
            size = torch.minimum(torch.maximum(size, least), most_size)
        dominated = size <= SCALES * scales["size"]
        if of.size_range[0] == 0:  # nothing public holds it up
            size = torch.minimum(torch.maximum(size, (SCALES * scales["size"]).clamp_min(1.0)), most_size)
        most = facts.n * self.moved(facts)["spread"]
        squares = upper_bound(numbers["spread"], scales["spread"], most)
        estimate = (numbers["difference"] / size).clamp(-1, 1)
        imbalance = facts.slope_bound * facts.imbalance / size
        gaussian = (squares / size.square() + imbalance.square()).sqrt()
        noise = scales["difference"], estimate.abs() * scales["size"]
        return NoisyEstimate.of_ratio(estimate, size, gaussian, noise, numbers, dominated)

    def public(self) -> dict[str, Any]:
        """Return the noise scales of the sums, of outcomes scaled to [0, 1], and the ranges that they follow from."""
        scales = {f"scale_{part}": scale[0].item() for part, scale in self.scales({}).items()}
        return scales if self.facts.ranges is None else {**scales, **self.facts.ranges.stated}

    @property
    def noisy(self) -> tuple[str, ...]:
        """The parts that have noise: a size that is public, as it is where all weights are equal, has none."""
        return tuple(part for part, moved in self.sensitivities(self.facts).items() if moved > 0)

    @property
    def public_size(self) -> float:
        """N where no record moves it."""
        n, term = self.facts.n, torch.tensor([self.facts.estimand.size_range[1]], dtype=torch.float64)
        return n * exact_sum(term, n, term.item()).item()

    @cached_property
    def units(self) -> dict[str, Tensor]:
        r"""In which units one record moves all sums by 1 in the :math:`\ell_1` norm, [runs] each.

        They are in the ratio of :math:`\Delta / \epsilon`.
        """
        moved = self.moved(self.facts)
        scales = {part: moved[part] / self.epsilons[part] for part in self.noisy}
        cost = record_cost(self.facts, scales)
        return {part: scale * cost for part, scale in scales.items()}

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

    Rounding adds a step of each grid.
    """
    ranges, of = facts.ranges, facts.estimand
    steps = {part: sum_grid(facts.n, term) for part, term in largest_terms(facts).items()}
    rounding = torch.stack([steps[part] / scale for part, scale in scales.items()]).sum(0)
    if ranges is None:
        every = [torch.tensor([end], dtype=torch.float64) for end in (of.smallest, of.most_treated, of.most_control)]
        low, high = (torch.tensor([end], dtype=torch.float64) for end in (facts.low, facts.high))
        ranges = ReleasedRanges((every[0], every[1]), (every[0], every[2]), (low, high))
    return joint_cost(ranges.treated, ranges.control, ranges.model, scales, of.counted) + rounding


def size_ends(facts: EffectFacts) -> tuple[Tensor, Tensor]:
    """Return the least and the largest term of N, [runs]: by released weights where terms are half the weights."""
    ranges, of = facts.ranges, facts.estimand
    if ranges is None or of.counted is not None:
        least, most = (torch.tensor([end], dtype=torch.float64) for end in of.size_range)
        return least, most
    least = torch.minimum(ranges.treated[0], ranges.control[0])
    return least / 2, torch.maximum(ranges.treated[1], ranges.control[1]) / 2


def largest_terms(facts: EffectFacts) -> dict[str, float]:
    """Return how large a record's term of each part may be."""
    of = facts.estimand
    size = of.largest * max(facts.high, 1 - facts.low)
    return {"difference": size, "size": of.size_range[1], "spread": size**2}


def _terms(of: Estimand, parts: tuple[str, ...], batch: Weighted) -> list[Tensor]:
    pull = batch.w * (batch.y - batch.m)
    size = of.size(batch.w, batch.z).clamp(*of.size_range)
    each = {"difference": (2 * batch.z - 1) * pull, "size": size.expand_as(pull), "spread": pull.square()}
    return [each[part] for part in parts]


def joint_cost(
    treated: Range,
    control: Range,
    model: Range,
    scales: Mapping[str, Tensor],
    counts: tuple[float, float] | None = None,
) -> Tensor:
    r"""Return the largest privacy loss, [runs], of Laplace noise of these scales on D, N and Q together.

    A record's terms are :math:`(t w r, w / 2, w^2 r^2)` with r = y - m(x); for two records, a and b, it is

    .. math:: \sup \frac{|t_a w_a r_a - t_b w_b r_b|}{b_D} + \frac{|w_a - w_b|}{2 b_N}
        + \frac{|w_a^2 r_a^2 - w_b^2 r_b^2|}{b_Q} .

    Let a be the record of the larger size :math:`|w r|`. The loss is convex in its (w, w r), so that a is a corner.
    Written without the absolute value of its last term, which is no less then, it is concave in the size q of the
    other, whose best is :math:`q = b_Q / 2 b_D`, and along its weight piecewise so: finitely many candidates, of which
    none is more than the loss of some pair (docs/guarantees/average_effects.md). With :math:`\Delta_D = 2 P` and
    :math:`b_Q \ge 2 P b_D` the squares cost nothing beside the difference. Where N counts an arm, its term is the same
    for all weights, and two records of one arm do not differ by it.

    Args:
        treated: Least and largest weight of a treated record, [runs] each.
        control: Of a control.
        model: Least and largest value of the outcome model, for outcomes in [0, 1].
        scales: b of ``difference``, ``spread`` and, unless its noise is none, ``size``, [runs] each.
        counts: The term of N of a treated record, and of a control; None where it is w / 2.

    Example:
        >>> one, ten = torch.ones(1).double(), torch.full((1,), 10.0).double()
        >>> scales = {"difference": 35.0 * one, "size": 800 / 9 * one, "spread": 490.0 * one}
        >>> weights, model = (10 / 9 * one, ten), (0.3 * one, 0.7 * one)
        >>> round(joint_cost(weights, weights, model, scales).item(), 4)
        0.4079
    """
    low, high = model
    per_d, per_q = 1 / scales["difference"], 1 / scales["spread"]
    per_size = 1 / scales["size"] if "size" in scales else torch.zeros_like(per_d)
    per_n = per_size / 2 if counts is None else torch.zeros_like(per_d)
    # the size of a residual that moves D up, and down, in either arm
    up, down = ((*treated, 1 - low), (*control, high)), ((*treated, high), (*control, 1 - low))
    pairs = [(*one, *other) for rising, falling in ((up, down), (down, up)) for one, other in product(rising, falling)]
    values = torch.stack(torch.broadcast_tensors(*chain(*pairs))).unflatten(0, (len(pairs), 6))
    w, size, others, other_size = (part.unsqueeze(2) for part in values.split([2, 1, 2, 1], 1))  # [8, ., 1, runs]
    v, q = _others(others[:, :1, 0], others[:, 1:, 0], other_size[:, :, 0], per_d, per_n, per_q)  # [8, 5, runs]
    v, q = v[:, None], q[:, None]
    p = w * size
    losses = ((p + q) * per_d + (w - v).abs() * per_n + (p.square() - q.square()) * per_q).flatten(1, 2).amax(1)
    if counts is not None:
        apart = [abs(one - other) for _ in range(2) for one, other in product(counts, counts)]
        return (losses + per_size * torch.tensor(apart, dtype=torch.float64)[:, None]).amax(0)
    # two records without a residual, of either arm, differ by their weights alone
    most = torch.maximum(treated[1], control[1]) - torch.minimum(treated[0], control[0])
    return torch.maximum(losses.amax(0), most * per_n)


def _others(
    least: Tensor, most: Tensor, size: Tensor, per_d: Tensor, per_n: Tensor, per_q: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weights and sizes at which the loss of the record of the smaller size may be largest, [pairs, 5, runs].

    Range and size are [pairs, 1, runs].
    """
    best = per_d / (2 * per_q)
    # where the loss is stationary along q = v size, N rising or falling with v
    stationary = [(per_d * size + sign * per_n) / (2 * per_q * size.square()) for sign in (1.0, -1.0)]
    at = torch.cat(torch.broadcast_tensors(least, most, best / size, *stationary), 1)
    v = torch.minimum(torch.maximum(at.nan_to_num(nan=0.0), least), most)
    return v, torch.minimum(v * size, best)
