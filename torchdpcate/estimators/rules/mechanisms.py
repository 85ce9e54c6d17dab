"""How a weighted ERM is released: by noise in its objective, or by noise on its minimiser."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from torchdpcate.erm.perturbation import calibrate_objective, output_mechanism
from torchdpcate.errors import InputError
from torchdpcate.estimators.mechanism import Prepared
from torchdpcate.estimators.rules.weighted_erm import WeightedERM
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.registry import Registry


class RuleMechanism(ABC):
    """Releases the coefficients of a weighted ERM.

    Args:
        perturbation: Kind of noise: ``gamma`` (density exp(-beta ||b||_2), pure), ``box`` (exp(-beta ||b||_inf),
            pure) or ``gaussian``.

    Raises:
        InputError: No such kind of noise.
    """

    way: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    source: ClassVar[str]

    def __init__(self, perturbation: str) -> None:
        if perturbation not in self.kinds:
            raise InputError(
                f"perturbation = {perturbation}: with mechanism={self.way} choose one of {', '.join(self.kinds)}"
            )
        self.perturbation = perturbation

    @property
    def name(self) -> str:
        """The mechanism's name in statements and audits."""
        return f"{self.way}_{self.perturbation}"

    @property
    @abstractmethod
    def formula(self) -> str:
        """The noise scale and its source, in one line."""

    @abstractmethod
    def prepare(self, problem: WeightedERM, budget: PrivacyBudget) -> Prepared:
        """Return the mechanism on this problem; nothing is drawn yet.

        Args:
            problem: The weighted ERM, the curator's.
            budget: What the release may spend.

        Raises:
            InputError: A ridge too small for the budget, or a budget this kind of noise has no guarantee for.
        """

    def _guarantee(self, problem: WeightedERM, budget: PrivacyBudget) -> Guarantee:
        claimed = budget if self.perturbation == "gaussian" else PrivacyBudget(budget.epsilon, 0.0)
        return Guarantee(Level.CERTIFIED, claimed, source=self.source).resting_on(problem.conditions)


class ObjectiveRule(RuleMechanism):
    r"""Objective perturbation: the minimiser of F(theta) + b'theta.

    .. math:: b \sim e^{-\beta \|b\|_K}, \quad \beta = (\varepsilon - J) / \xi_K, \quad \xi_K = \zeta_K W_1

    Guarantee:
        Certified epsilon (``gamma``, ``box``) or (epsilon, delta) (``gaussian``); theory note ``policy_learning``,
        section 3. One hundredth of the budget pays for the solver's stop.

    Example:
        >>> ObjectiveRule("box").name
        'objective_box'
    """

    way = "objective"
    kinds = ("gamma", "box", "gaussian")
    source = "policy_learning section 3; Chaudhuri et al. 2011; Iyengar et al. 2019"

    @property
    def formula(self) -> str:
        """The noise scale and its source, in one line."""
        scale = {
            "gamma": "b ~ exp(-beta ||b||_2), beta = (epsilon - J) / (slope W1)",
            "box": "b ~ exp(-beta ||b||_inf), beta = (epsilon - J) / (slope W1 max|psi_j|)",
            "gaussian": "b ~ N(0, sigma^2 I), sigma = slope W1 sigma_AG(epsilon - J, delta/2); else chi's",
        }[self.perturbation]
        return f"{scale}, with 99 % of the budget, the rest pays the solver's stop; policy_learning section 3"

    def prepare(self, problem: WeightedERM, budget: PrivacyBudget) -> Prepared:
        """Return the tilted fit's mechanism; see ``RuleMechanism.prepare``."""
        objective = calibrate_objective(
            budget,
            kind=self.perturbation,
            slope=problem.loss.slope,
            bounds=problem.bounds,
            curvature=problem.loss.curvature,
            gamma=problem.ridge,
            size=problem.size,
            largest_entry=problem.largest_entry,
            constrained=problem.domain is not None,
        )

        solver_scale = objective.solver.released_scale(problem.size)  # refuses before anything is paid

        def draw(noise: NoiseSource, runs: int) -> Tensor:
            return objective.release(lambda tilts: problem.solve(tilts, objective.tolerance), noise, runs)

        return Prepared(
            objective.event,
            self._guarantee(problem, budget),
            draw,
            {**objective.public, "ridge": problem.ridge, "solver_scale": solver_scale},
        )


class OutputRule(RuleMechanism):
    r"""Output perturbation: noise on the minimiser (Giddens et al. 2023, Algorithm 1).

    .. math:: \|\hat\theta - \hat\theta'\|_2 \le \zeta W_1 / \gamma

    Guarantee:
        Certified epsilon (``gamma``) or (epsilon, delta) (``gaussian``); theory note ``policy_learning``, section 5.1.

    Example:
        >>> OutputRule("gamma").name
        'output_gamma'
    """

    way = "output"
    kinds = ("gamma", "gaussian")
    source = "policy_learning section 5.1; Giddens et al. 2023"

    @property
    def formula(self) -> str:
        """The noise scale and its source, in one line."""
        scale = {
            "gamma": "noise ~ exp(-epsilon ||z||_2 / Delta)",
            "gaussian": "noise ~ N(0, (Delta sigma_AG(epsilon, delta))^2 I)",
        }[self.perturbation]
        return f"{scale}, Delta = slope W1 / ridge, the solver's stop included; policy_learning section 5.1"

    def prepare(self, problem: WeightedERM, budget: PrivacyBudget) -> Prepared:
        """Return the noisy minimiser's mechanism; see ``RuleMechanism.prepare``."""
        mechanism = output_mechanism(
            budget,
            kind=self.perturbation,
            slope=problem.loss.slope,
            bounds=problem.bounds,
            gamma=problem.ridge,
            tolerance=problem.tolerance,
            constrained=problem.domain is not None,
        )

        def draw(noise: NoiseSource, runs: int) -> Tensor:
            return mechanism.add_noise(problem.minimiser.expand(runs, -1), noise)

        scale = mechanism.released_scale(problem.size)
        return Prepared(
            mechanism.event, self._guarantee(problem, budget), draw, {"noise_scale": scale, "ridge": problem.ridge}
        )


RULE_MECHANISMS = Registry("rule_mechanism")
"""Mechanisms by the name that users give."""
