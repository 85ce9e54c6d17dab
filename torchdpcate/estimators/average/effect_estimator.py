"""How weighted records become an estimate: the interface of stage two."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.planned_error import ErrorPrior
from torchdpcate.estimators.average.stated import AverageMechanism, ContradictionError, StatedEffect
from torchdpcate.estimators.recompute import CLOSE
from torchdpcate.features.maps import FeatureMap
from torchdpcate.privacy.budget import as_number
from torchdpcate.privacy.session import FitSession


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


WEIGHT_RANGES = ("treated_weights", "control_weights")
RANGES = (*WEIGHT_RANGES, "model_range")
"""What statements call the ranges that released coefficients leave."""

Total = Callable[[Callable[[Weighted], Tensor]], Tensor]
"""From sums over a batch, [runs, k], to sums over all records, [runs, k]."""


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

    @property
    def stated_weights(self) -> dict[str, list[float]]:
        """The first run's of weights alone."""
        return {name: ends for name, ends in self.stated.items() if name in WEIGHT_RANGES}


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

    @property
    def weight_bounds(self) -> Tensor:
        """W_1 and W_0, the largest weights by released coefficients, [runs, 2], or by all of them, [1, 2]."""
        if self.ranges is None:
            return torch.tensor([[self.estimand.most_treated, self.estimand.most_control]], dtype=torch.float64)
        return torch.stack([self.ranges.treated[1], self.ranges.control[1]], -1)

    @classmethod
    def of(cls, stated: StatedEffect, low: float, high: float) -> "EffectFacts":
        """Return the facts of a release, of an outcome model within these bounds, before the ranges that it states.

        Raises:
            ValueError: A slope_bound that cannot count.
        """
        slope, n, of = stated.number("slope_bound"), stated.n, stated.estimand
        left = left_imbalance(stated.number("noise_per_record") * n, of, stated.balancing)
        if slope < 0 or (slope > 0 and not left):
            raise ValueError("a slope_bound that does not count")
        return cls(n, of, low, high, left, slope)


def released_ranges(facts: EffectFacts, features: FeatureMap, theta: Tensor, model: Tensor | None) -> ReleasedRanges:
    r"""Return suprema over the domain of the weights and of the outcome model at released coefficients.

    psi(x)'theta is within ``FeatureMap.reach``, and weights are monotone in it; so is the outcome model.

    Args:
        facts: Bounds that hold for all coefficients.
        features: Basis, set up.
        theta: Of the propensity, [runs, p].
        model: Of the outcome model, [runs, p]; None where there is none.

    Example:
        >>> from torchdpcate import Domain
        >>> from torchdpcate.causal.estimand import ATE
        >>> from torchdpcate.features.user_maps import on_domain
        >>> features, none = on_domain(None, Domain([0.0], [1.0], 0.0, 1.0)), torch.zeros(1, 2, dtype=torch.float64)
        >>> released_ranges(EffectFacts(100, ATE(0.1), 0.3, 0.7), features, none, none).stated
        {'treated_weights': [2.0, 2.0], 'control_weights': [2.0, 2.0], 'model_range': [0.5, 0.5]}
    """
    ends = torch.stack(features.reach(theta))
    weights = [facts.estimand.weights(ends, torch.full_like(ends, z)).aminmax(dim=0) for z in (1.0, 0.0)]
    low, high = facts.low, facts.high
    means = torch.full_like(ends, (low + high) / 2)
    if model is not None:
        means = torch.sigmoid(torch.stack(features.reach(model))).clamp(low, high)
    (treated, control) = ((of.min, of.max) for of in weights)
    return ReleasedRanges(treated, control, (means[0], means[1]))


def with_stated_ranges(stated: StatedEffect, facts: EffectFacts, names: tuple[str, ...] = RANGES) -> EffectFacts:
    """Return the facts of a release with the ranges that its coefficients leave.

    Args:
        stated: The release.
        facts: Its other facts.
        names: The ranges that it states.

    Raises:
        ContradictionError: It has no coefficients, or states other ranges.
    """
    release = stated.release
    if release.weights is None:
        raise ContradictionError("it holds no weights, which its mechanism rests on")
    weights, model = release.weights, release.outcome_theta
    found = released_ranges(facts, weights.features, weights.theta[None], None if model is None else model[None])
    for name in names:
        claimed, ends = [as_number(end) for end in stated.public[name]], found.stated[name]
        if len(claimed) != 2 or not all(math.isclose(*pair, rel_tol=CLOSE) for pair in zip(claimed, ends, strict=True)):
            raise ContradictionError(f"its {name} are not those of its coefficients")
    return replace(facts, ranges=found)


def planned_size(facts: EffectFacts, treated: float) -> float:
    """Return the planned denominator N, everybody's propensity being the share of the treated."""
    e = torch.tensor([treated, treated], dtype=torch.float64)
    z = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return facts.n * (torch.stack([e[0], 1 - e[1]]) * facts.estimand.size(facts.estimand.at(e, z), z)).sum().item()


def planned_sampling(facts: EffectFacts, prior: ErrorPrior) -> float:
    """Return the planned standard error by sampling, for outcomes in [0, 1]."""
    e = torch.tensor([prior.treated, prior.treated], dtype=torch.float64)
    z = torch.tensor([1.0, 0.0], dtype=torch.float64)
    squares = (torch.stack([e[0], 1 - e[1]]) * facts.estimand.at(e, z).square()).sum().item()
    return prior.deviation * math.sqrt(prior.spread * facts.n * squares) / planned_size(facts, prior.treated)


def left_imbalance(noise: float, estimand: Estimand, balancing: bool) -> float:
    """Return what the noise of stage one leaves of the imbalance, which the interval counts times ``slope_bound``.

    Args:
        noise: Standard deviation of an entry of the summed gradient, in units of the features' largest entry.
        estimand: The estimand.
        balancing: Whether the balancing loss was fitted; the noise of the logistic one shows amplified.
    """
    return noise if balancing else noise * estimand.amplification


_PROPENSITY = "the log-odds of treatment are linear in the basis"
_EITHER = (
    f"{_PROPENSITY}, or the mean outcomes of both arms are; where neither holds, the estimate is biased and the "
    "interval may never hold the effect"
)
_ALONE = f"{_PROPENSITY}; where they are not, the estimate is biased and the interval may never hold the effect"


def contrast_holds_if(public: Mapping[str, Any]) -> str:
    """Return what a contrast of weighted outcomes, or of their residuals, rests on.

    Weights that balance the basis, or residuals of an outcome model in it, take away what is linear in it.

    Args:
        public: Public constants of its statement: the loss of its weights, and whether there is an outcome model.

    Example:
        >>> contrast_holds_if({"loss": "logistic"})[:49]
        'the log-odds of treatment are linear in the basis'
    """
    return _EITHER if public.get("loss") == "balancing" or "outcome_bounds" in public else _ALONE


class EffectEstimator(AverageMechanism):
    """Releases sums of weighted records, and an estimate that follows from them alone.

    Attributes:
        parts: What the budget is shared among, by name, with the default share of all of it.
        centred: Whether outcomes are centred by an outcome model.
    """

    on_weights: ClassVar[bool] = True
    parts: ClassVar[Mapping[str, float]]
    centred: ClassVar[bool] = False

    @abstractmethod
    def run(
        self, total: Total, facts: EffectFacts, epsilons: Mapping[str, float], session: FitSession
    ) -> NoisyEstimate:
        """Charge for the sums, add noise, estimate; weights and centre are fixed before.

        Args:
            total: Sums over the weighted records.
            facts: Public facts.
            epsilons: Of each of ``parts``.
            session: Pays, and draws the noise.
        """

    @abstractmethod
    def without_noise(self, total: Total, facts: EffectFacts) -> NoisyEstimate:
        """Return the estimate from the sums as they are. The curator's, never to be published."""

    def planned(self, total: Total, facts: EffectFacts, epsilons: Mapping[str, float]) -> NoisyEstimate | None:
        """Return the estimate of these sums as they are, with the law that noise would give it; nothing is drawn.

        Args:
            total: Sums over typical records, which are public.
            facts: Public facts.
            epsilons: Of each of ``parts``.

        Returns:
            None where an estimator does not say.
        """
        return None

    def charged(self, epsilons: Mapping[str, float]) -> dict[str, float]:
        """Return what is charged by the epsilons of a plan's parts, as statements have it: each part as it is."""
        return dict(epsilons)

    def public(self, facts: EffectFacts, epsilons: Mapping[str, float]) -> dict[str, Any]:
        """Return the public constants, as statements have them."""
        return {}
