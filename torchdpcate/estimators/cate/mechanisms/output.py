"""Output perturbation of a linear head: fit, then add Gaussian noise to the coefficients."""

from collections.abc import Iterator

from torchdpcate.estimators.cate.mechanisms.base import FUNCTION, SENSITIVITY, FunctionMechanism, effects_stated
from torchdpcate.estimators.cate.mechanisms.worst_pairs import NEAR, function_game, given_stage, linear_stage
from torchdpcate.estimators.cate.planned_head import PlannedHead
from torchdpcate.estimators.cate.recompute import EffectFacts
from torchdpcate.estimators.mechanism import Prepared
from torchdpcate.estimators.recompute import charged_gaussian
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.noisy_numbers import far_problems, grid_problems
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.release.release import FunctionRelease
from torchdpcate.second_stage.linear import sensitivity
from torchdpcate.second_stage.stage import FittedStage
from torchdpcate.second_stage.worst_pair import worst_pair


class OutputPerturbation(FunctionMechanism):
    r"""theta + N(0, s^2 I) with s = Delta sigma(epsilon, delta).

    Guarantee:
        Certified (epsilon, delta) for every fixed value of the nuisances: Delta is the replace-one
        sensitivity of the strongly convex fit (``second_stage.linear.sensitivity``), sigma the analytic
        Gaussian of Balle & Wang (2018). The noise of the answer at x is exactly s ||psi(x)||.
        Source: theory note ``dp_cate``, row 2.

    Example:
        >>> OutputPerturbation().name
        'output'
    """

    name = "output"
    gaussian = True
    noise_ratio = 0.1  # its noise is what the ratio says, while objective perturbation's is far below that bound
    formula = f"s = Delta sigma_AG(epsilon, delta), {SENSITIVITY}; dp_cate row 2"
    states = effects_stated(formula, FUNCTION, "sensitivity", "noise_scale", "threshold")

    def prepare(self, stage: FittedStage, budget: PrivacyBudget) -> Prepared:
        """Return the noisy coefficients' mechanism; the arguments and errors are the base class's."""
        linear = self.require_linear(stage)
        delta = sensitivity(linear.problem)
        mechanism = GaussianMechanism(budget, delta)
        theta = linear.theta.cpu()
        scale = mechanism.released_scale(theta.numel())
        return Prepared(
            event=mechanism.event,
            guarantee=Guarantee(Level.CERTIFIED, budget, source="dp_cate row 2; Balle & Wang 2018"),
            draw=lambda noise, runs: mechanism.add_noise(theta.expand(runs, -1), noise),
            public={"sensitivity": delta, "noise_scale": scale, "threshold": linear.threshold},
            noise_scale=scale,
        )

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """See ``Mechanism``: exact but for the threshold and the features' norm."""
        problem = head.problem
        return GaussianMechanism(budget, sensitivity(problem)).released_scale(problem.psi.shape[1]) * head.length

    @classmethod
    def problems(cls, facts: EffectFacts) -> Iterator[str]:
        """Return what does not follow from public facts; see the base class."""
        problem = facts.problem(facts.threshold)
        moved = facts.sensitivity
        scale = charged_gaussian(facts.event, moved).released_scale(facts.size)
        yield from facts.once()
        yield from facts.stated(sensitivity=moved)
        yield from facts.stated(facts.close, noise_scale=scale)
        yield from facts.band(scale)
        if isinstance(facts.release, FunctionRelease):
            # the gradient of the ridge is at most that of the records, and the ridge at most their loss at zero
            huber, squared = problem.threshold * problem.weight_bound / problem.ridge, problem.target_bound
            yield from grid_problems("theta", facts.release.theta, scale)
            yield from far_problems("theta", facts.release.theta, min(huber, squared / problem.ridge**0.5), scale)

    @worst_case(
        "output",
        pair="Huber loss: one treated record apart from all others, its outcome at either end of the interval",
    )
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        stages = [linear_stage((NEAR, y), n=100, ridge=0.1, threshold=0.01) for y in (-0.5, 0.5)]
        return function_game(stages, lambda stage: OutputPerturbation().prepare(stage, budget))

    @worst_case(
        "output_squared",
        pair="squared loss: a record of the opposite target jumps across the line on which all others lie",
    )
    @staticmethod
    def worst_neighbours_squared(budget: PrivacyBudget) -> Game:
        """Return the attack on those of the squared loss."""
        pair = worst_pair(weight_bound=0.9, target_bound=1.0, ridge=0.01, n=10_000)
        stages = [given_stage(problem) for problem in (pair.first, pair.second)]
        return function_game(stages, lambda stage: OutputPerturbation().prepare(stage, budget))
