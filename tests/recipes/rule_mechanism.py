"""A new way to release a rule: noise on the minimiser, of a scale rounded up to a power of two."""

import math
from dataclasses import replace
from typing import ClassVar

import torch

from torchdpcate.estimators.rules.weighted_erm import RuleMechanism
from torchdpcate.fit.losses import HuberHinge, LossBounds
from torchdpcate.fit.private_fit import PrivateFit, WeightBounds
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import KNormMechanism
from torchdpcate.privacy.worst_case import Game, k_norm_evidence, worst_case


class CoarseRule(RuleMechanism):
    r"""theta + z, z of density exp(-||z||_2 / s), s the least power of two above Delta / epsilon.

    Guarantee:
        Certified epsilon, as output perturbation, whose noise is at most this.
    """

    way: ClassVar[str] = "coarse"
    kinds: ClassVar[tuple[str, ...]] = ("gamma",)
    source: ClassVar[str] = "policy_learning section 5.1; Giddens et al. 2023"
    prefix: ClassVar[str] = "noise_"

    @property
    def formula(self) -> str:
        """Return the noise scale and its source, in one line."""
        return "noise ~ exp(-||z||_2 / s), s the least power of two above Delta / epsilon; policy_learning section 5.1"

    def law(self, fit: PrivateFit, budget: PrivacyBudget) -> AddedNoise:
        """Return the noise: what is charged, drawn, stated and verified follows."""
        least = fit.output(budget, "gamma")
        scale = 2.0 ** math.ceil(math.log2(least.sensitivity / budget.epsilon))
        return AddedNoise(KNormMechanism(budget.epsilon, scale * budget.epsilon), fit.size)

    @worst_case("coarse_gamma", pair="a record of full weight apart from all others, with either label")
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them: the minimisers lie as far apart as the bound says."""
        fit = PrivateFit(LossBounds.of(HuberHinge()), WeightBounds.per_record(1.0), 2.0, 1)
        law = CoarseRule("gamma").law(fit, budget)
        shift = torch.tensor([fit.output(budget, "gamma").sensitivity], dtype=torch.float64)
        return Game(
            draw=lambda dataset, runs, noise: law.draw(noise, runs, dataset * shift),
            event=PureEvent(budget.epsilon),
            guarantee=Guarantee(Level.CERTIFIED, replace(budget, delta=0.0)),
            evidence=k_norm_evidence(shift, law.mechanism.scale),
        )
