"""A new mechanism: output perturbation with its noise multiplier rounded up to a power of two."""

import math
from typing import Any

from torchdpcate.estimators.cate.head import Head
from torchdpcate.estimators.cate.mechanisms.base import FunctionMechanism
from torchdpcate.estimators.cate.mechanisms.worst_pairs import NEAR, function_game, linear_stage
from torchdpcate.heads.linear import sensitivity
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.worst_case import Game, worst_case


class CoarseOutput(FunctionMechanism):
    r"""theta + N(0, s^2 I), s = Delta 2^k, the least such multiple that the budget allows.

    Guarantee:
        Certified (epsilon, delta), as output perturbation, whose noise is at most this.
    """

    name = "coarse_output"
    formula = "s = Delta times the least power of two above sigma_AG(epsilon, delta)"
    source = "Balle & Wang 2018"

    def law(self, head: Head, budget: PrivacyBudget) -> AddedNoise:
        """Return the noise: what is charged, drawn, stated and verified follows."""
        event = GaussianEvent(2.0 ** math.ceil(math.log2(GaussianMechanism(budget, 1.0).scale)))
        return AddedNoise(GaussianMechanism.of_event(event, sensitivity(head.problem)), head.size)

    def public(self, head: Head, law: AddedNoise) -> dict[str, Any]:
        """Return the public constants."""
        return {"sensitivity": law.mechanism.sensitivity, "noise_scale": law.scale, "threshold": head.threshold}

    def band(self, law: AddedNoise) -> float:
        """Return the noise of an answer per unit of its features' norm."""
        return law.scale

    @worst_case("coarse_output", pair="one treated record apart from all others, its outcome at either end")
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        stages = [linear_stage((NEAR, y), n=100, ridge=0.1, threshold=0.01) for y in (-0.5, 0.5)]
        return function_game(stages, lambda stage: CoarseOutput().prepare(stage, budget))
