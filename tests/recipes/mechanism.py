"""A new mechanism: output perturbation with its noise multiplier rounded up to a power of two."""

import math
from collections.abc import Iterator

from torchdpcate.estimators.cate.mechanisms.base import FUNCTION, FunctionMechanism, effects_stated
from torchdpcate.estimators.cate.mechanisms.worst_pairs import NEAR, function_game, linear_stage
from torchdpcate.estimators.cate.recompute import EffectFacts
from torchdpcate.estimators.mechanism import Prepared
from torchdpcate.estimators.recompute import charged_gaussian
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.noisy_numbers import grid_problems
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.release.release import FunctionRelease
from torchdpcate.second_stage.linear import sensitivity
from torchdpcate.second_stage.stage import FittedStage


class CoarseOutput(FunctionMechanism):
    r"""theta + N(0, s^2 I), s = Delta 2^k, the least such multiple that the budget allows.

    Guarantee:
        Certified (epsilon, delta), as output perturbation, whose noise is at most this.
    """

    name = "coarse_output"
    formula = "s = Delta times the least power of two above sigma_AG(epsilon, delta)"
    states = effects_stated(formula, FUNCTION, "sensitivity", "noise_scale", "threshold")

    def prepare(self, stage: FittedStage, budget: PrivacyBudget) -> Prepared:
        """Return the mechanism; the arguments and errors are the base class's."""
        linear = self.require_linear(stage)
        delta = sensitivity(linear.problem)
        multiplier = 2.0 ** math.ceil(math.log2(GaussianMechanism(budget, 1.0).scale))
        mechanism = GaussianMechanism.of_event(GaussianEvent(multiplier), delta)
        scale = mechanism.released_scale(linear.theta.numel())
        return Prepared(
            event=mechanism.event,
            guarantee=Guarantee(Level.CERTIFIED, budget, source="Balle & Wang 2018"),
            draw=lambda noise, runs: mechanism.add_noise(linear.theta.cpu().expand(runs, -1), noise),
            public={"sensitivity": delta, "noise_scale": scale, "threshold": linear.threshold},
            noise_scale=scale,
        )

    @classmethod
    def problems(cls, facts: EffectFacts) -> Iterator[str]:
        """Return what does not follow from public facts; see the base class."""
        moved = sensitivity(facts.problem(facts.threshold))
        scale = charged_gaussian(facts.event, moved).released_scale(facts.size)
        yield from facts.once()
        yield from facts.stated(sensitivity=moved)
        yield from facts.stated(facts.close, noise_scale=scale)
        yield from facts.band(scale)
        if isinstance(facts.release, FunctionRelease):
            yield from grid_problems("theta", facts.release.theta, scale)

    @worst_case("coarse_output", pair="one treated record apart from all others, its outcome at either end")
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        stages = [linear_stage((NEAR, y), n=100, ridge=0.1, threshold=0.01) for y in (-0.5, 0.5)]
        return function_game(stages, lambda stage: CoarseOutput().prepare(stage, budget))
