"""How weighted records become an estimate: the interface of stage two."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.planned_error import ErrorPrior
from torchdpcate.estimators.average.stated import AverageMechanism, StatedEffect
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


Total = Callable[[Callable[[Weighted], Tensor]], Tensor]
"""From sums over a batch, [runs, k], to sums over all records, [runs, k]."""


@dataclass(frozen=True)
class EffectFacts:
    """What is public before stage two begins.

    Attributes:
        n: Number of records.
        estimand: Estimand and overlap, which bound the weights.
        low: Least value of the outcome model, of outcomes in [0, 1].
        high: Its largest.
        imbalance: Standard deviation of an entry of sum t w phi by the noise of stage one; 0 where an outcome model
            makes it second order, as the logistic loss leaves it.
        slope_bound: B, public bound of how far the outcome model's coefficients (in phi) are off, for the interval.
    """

    n: int
    estimand: Estimand
    low: float = 0.5
    high: float = 0.5
    imbalance: float = 0.0
    slope_bound: float = 0.25

    @classmethod
    def of(cls, stated: StatedEffect, low: float, high: float) -> "EffectFacts":
        """Return the facts of a release, of an outcome model within these bounds.

        Raises:
            ValueError: A slope_bound that cannot count.
        """
        slope, n, of = stated.number("slope_bound"), stated.n, stated.estimand
        left = left_imbalance(stated.number("noise_per_record") * n, of, stated.balancing, low < high)
        if slope < 0 or (slope > 0 and not left):
            raise ValueError("a slope_bound that does not count")
        return cls(n, of, low, high, left, slope)


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


def left_imbalance(noise: float, estimand: Estimand, balancing: bool, centred: bool) -> float:
    """Return what the noise of stage one leaves of the imbalance that the interval counts.

    Args:
        noise: Standard deviation of an entry of the summed gradient, in units of the features' largest entry.
        estimand: The estimand.
        balancing: Whether the balancing loss was fitted; the noise of the logistic one shows amplified.
        centred: Whether there is an outcome model, with which that of the logistic loss is of second order.
    """
    if balancing:
        return noise
    return 0.0 if centred else noise * estimand.amplification


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

    def public(self, facts: EffectFacts, epsilons: Mapping[str, float]) -> dict[str, Any]:
        """Return the public constants, as statements have them."""
        return {}
