"""Output perturbation of a linear head: fit, then add Gaussian noise to the coefficients."""

from typing import Any

from torchdpcate.estimators.cate.head import SQUARED, Head
from torchdpcate.estimators.cate.mechanisms.base import SENSITIVITY, FunctionMechanism
from torchdpcate.estimators.cate.mechanisms.worst_pairs import NEAR, function_game, given_stage, linear_stage
from torchdpcate.estimators.cate.planned_head import PlannedHead
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.worst_case import Game, Target, worst_case
from torchdpcate.second_stage.linear import sensitivity
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
    source = "dp_cate row 2; Balle & Wang 2018"

    def law(self, head: Head, budget: PrivacyBudget) -> AddedNoise:
        """See ``Mechanism``."""
        mechanism = GaussianMechanism(budget, sensitivity(head.problem))
        return AddedNoise(mechanism, head.size or 1, head.most)

    def public(self, head: Head, law: AddedNoise) -> dict[str, Any]:
        """See ``Mechanism``."""
        return {"sensitivity": law.mechanism.sensitivity, "noise_scale": law.scale, "threshold": head.threshold}

    def band(self, law: AddedNoise) -> float:
        """See ``Mechanism``: the noise of the coefficients."""
        return law.scale

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """See ``Mechanism``: exact but for the threshold and the features' norm."""
        problem = head.problem
        return GaussianMechanism(budget, sensitivity(problem)).released_scale(problem.psi.shape[1]) * head.length

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
        attacks=[Target(Charge(Purpose.RELEASE, "output"), {"threshold": SQUARED})],
        pair="squared loss: a record of the opposite target jumps across the line on which all others lie",
    )
    @staticmethod
    def worst_neighbours_squared(budget: PrivacyBudget) -> Game:
        """Return the attack on those of the squared loss."""
        pair = worst_pair(weight_bound=0.9, target_bound=1.0, ridge=0.01, n=10_000)
        stages = [given_stage(problem) for problem in (pair.first, pair.second)]
        return function_game(stages, lambda stage: OutputPerturbation().prepare(stage, budget))
