"""Records with the weights and the centre that stage one fixed: what is public of them, and estimates by their sums."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.estimators.average.ratio_of_sums import RatioOfSums
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.minimise import linear_predictor
from torchdpcate.fit.stacked_records import Batch
from torchdpcate.registry import Registry
from torchdpcate.release.statement import UNSTATED

EFFECT_ESTIMATORS = Registry("effect/estimator")
"""Effect estimators on weighted records, by name."""


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
        >>> from torchdpcate.fit.user_maps import on_domain
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


_PROPENSITY = "the log-odds of treatment are linear in the basis"
_EITHER = (
    f"{_PROPENSITY}, or the mean outcomes of both arms are; where neither holds, the estimate is biased and the "
    "interval may never hold the effect"
)
_ALONE = f"{_PROPENSITY}; where they are not, the estimate is biased and the interval may never hold the effect"


def contrast_assumption(public: Mapping[str, Any]) -> str:
    """Return what a contrast of weighted outcomes, or of their residuals, rests on.

    Weights that balance the basis, or residuals of an outcome model in it, take away what is linear in it.

    Args:
        public: Public constants of its statement: the loss of its weights, and whether there is an outcome model.

    Example:
        >>> contrast_assumption({"loss": "logistic"})[:49]
        'the log-odds of treatment are linear in the basis'
    """
    return _EITHER if public.get("loss") == "balancing" or "outcome_bounds" in public else _ALONE


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


@dataclass(frozen=True, eq=False)
class EffectEstimator(RatioOfSums):
    """An estimate by sums over weighted records, of a plan or of a user's own: one class in ``effect/estimator``.

    Attributes:
        name: What statements call it.
        formula: Its noise scales in words, with their source.
        parts: What the budget is shared among, by name, with the default share of all of it.
        centred: Whether outcomes are centred by an outcome model.
        rests_on: Which models must follow the truth for estimate and interval, in words, beside that nothing else
            confounds and that treated and controls overlap; the full warning where a class does not say it.
        facts: What is public of the records, with the ranges that coefficients leave where there are some.
        epsilons: Of each of ``parts``.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    parts: ClassVar[Mapping[str, float]]
    centred: ClassVar[bool] = False
    rests_on: ClassVar[str] = UNSTATED

    facts: EffectFacts
    epsilons: Mapping[str, float]

    @classmethod
    def assumption(cls, public: Mapping[str, Any]) -> str:
        """Return what it rests on where it has these public settings: ``rests_on``."""
        return cls.rests_on
