"""How a weighted ERM is released: by noise in its objective, or by noise on its minimiser."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torchdpcate.erm.perturbation import calibrate_objective, output_mechanism
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.weighted_erm import PublicERM, WeightedERM
from torchdpcate.laws import AddedNoise, Law, PerturbedObjective
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.worst_case import Evidence, Game
from torchdpcate.registry import Registry


@dataclass(frozen=True)
class PullNoise:
    """Noise of a rule as plans compare it.

    Attributes:
        scale: Of the noise on the summed pull of the records, by its law of ``noise_law``.
        jacobian: Epsilon that the change of the curvature takes.
    """

    scale: float
    jacobian: float = 0.0


class RuleMechanism(ABC):
    """Releases the coefficients of a weighted ERM.

    Attributes:
        way: Its name, and its yaml's.
        kinds: Kinds of noise, each a law of ``noise_law``; a pure one first, if there is one.
        source: Of its proof.
        prefix: What the names of its public constants begin with.
        curved: Whether the change of the curvature takes some of epsilon, so that the budget asks for a ridge.

    Args:
        perturbation: Kind of noise: ``gamma`` (density exp(-beta ||b||_2), pure), ``box`` (exp(-beta ||b||_inf),
            pure) or ``gaussian``.

    Raises:
        InputError: No such kind of noise.
    """

    way: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    source: ClassVar[str]
    prefix: ClassVar[str] = ""
    curved: ClassVar[bool] = False

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
    def law(self, problem: PublicERM, budget: PrivacyBudget) -> Law:
        """Return how the coefficients leave the records.

        Args:
            problem: What is public of the weighted ERM.
            budget: What the release may spend.

        Raises:
            InputError: A ridge too small for the budget, or a budget this kind of noise has no guarantee for.
        """

    @abstractmethod
    def exact(self, problem: WeightedERM, law: Law) -> Any:
        """Return what the law draws from, the curator's.

        Args:
            problem: The weighted ERM.
            law: Of ``law``, of the same problem.
        """

    @abstractmethod
    def pull_noise(self, law: Law, ridge: float) -> PullNoise:
        """Return the noise to expect.

        Args:
            law: Of ``law``.
            ridge: Ridge of the total sum.
        """

    def guarantee(self, budget: PrivacyBudget, conditions: tuple[Condition, ...] = ()) -> Guarantee:
        """Return what is claimed of a release.

        Args:
            budget: What it may spend.
            conditions: What the claim rests on beside its proof.
        """
        claimed = budget if self.perturbation == "gaussian" else PrivacyBudget(budget.epsilon, 0.0)
        return Guarantee(Level.CERTIFIED, claimed, source=self.source).resting_on(conditions)

    def game(self, problems: Sequence[WeightedERM], budget: PrivacyBudget, evidence: Evidence, **settings: Any) -> Game:
        """Return the game of an audit on the weighted ERMs of two data sets.

        Args:
            problems: Of either.
            budget: What a release may spend.
            evidence: See ``Game``, also for further settings.
            settings: Further fields of ``Game``.
        """
        laws = [self.law(problem.public, budget) for problem in problems]
        exact = [self.exact(*each) for each in zip(problems, laws, strict=True)]
        return Game(
            draw=lambda world, runs, noise: laws[world].draw(noise, runs, exact[world]),
            event=laws[0].event,
            guarantee=self.guarantee(budget, problems[0].conditions),
            evidence=evidence,
            **settings,
        )


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
    curved = True

    @property
    def formula(self) -> str:
        """The noise scale and its source, in one line."""
        scale = {
            "gamma": "b ~ exp(-beta ||b||_2), beta = (epsilon - J) / (slope W1)",
            "box": "b ~ exp(-beta ||b||_inf), beta = (epsilon - J) / (slope W1 max|psi_j|)",
            "gaussian": (
                "b ~ N(0, sigma^2 I), sigma = slope W1 s, delta_AG(1/s) + 2 delta_AG(1/2s) = delta at epsilon - J for "
                "a monotone loss, s = sigma_AG(epsilon - J, delta/2) for others; else chi's"
            ),
        }[self.perturbation]
        return f"{scale}, with 99 % of the budget, the rest pays the solver's stop; policy_learning section 3"

    def law(self, problem: PublicERM, budget: PrivacyBudget) -> PerturbedObjective:
        """See ``RuleMechanism.law``."""
        loss = problem.loss
        noise = calibrate_objective(
            budget,
            kind=self.perturbation,
            slope=loss.slope,
            bounds=problem.bounds,
            curvature=loss.curvature,
            gamma=problem.ridge,
            size=problem.size,
            largest_entry=problem.largest_entry,
            constrained=problem.constrained,
            logistic=loss.logistic,
            monotone=loss.monotone,
        )
        return PerturbedObjective(noise, problem.ridge, problem.reach)

    def exact(self, problem: WeightedERM, law: Law) -> Any:
        """See ``RuleMechanism.exact``: the map from linear terms to minimisers."""
        assert isinstance(law, PerturbedObjective)
        return lambda linear_terms: problem.solve(linear_terms, law.noise.tolerance)

    def pull_noise(self, law: Law, ridge: float) -> PullNoise:
        """See ``RuleMechanism.pull_noise``."""
        assert isinstance(law, PerturbedObjective)
        return PullNoise(law.noise.scale, law.noise.jacobian)


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
    prefix = "noise_"

    @property
    def formula(self) -> str:
        """The noise scale and its source, in one line."""
        scale = {
            "gamma": "noise ~ exp(-epsilon ||z||_2 / Delta)",
            "gaussian": "noise ~ N(0, (Delta sigma_AG(epsilon, delta))^2 I)",
        }[self.perturbation]
        return f"{scale}, Delta = slope W1 / ridge, the solver's stop included; policy_learning section 5.1"

    def law(self, problem: PublicERM, budget: PrivacyBudget) -> AddedNoise:
        """See ``RuleMechanism.law``."""
        mechanism = output_mechanism(
            budget,
            kind=self.perturbation,
            slope=problem.loss.slope,
            bounds=problem.bounds,
            gamma=problem.ridge,
            tolerance=problem.tolerance,
            constrained=problem.constrained,
        )
        return AddedNoise(mechanism, problem.size, problem.reach)

    def exact(self, problem: WeightedERM, law: Law) -> Any:
        """See ``RuleMechanism.exact``: the minimiser."""
        return problem.minimiser

    def pull_noise(self, law: Law, ridge: float) -> PullNoise:
        """See ``RuleMechanism.pull_noise``: the noise on theta times the ridge, to compare it with objective noise."""
        assert isinstance(law, AddedNoise)
        return PullNoise(ridge * law.mechanism.scale)


RULE_MECHANISMS = Registry("rule_mechanism")
"""Mechanisms by the name that users give."""


class _ByStatedName(Mapping[str, RuleMechanism]):
    """Mechanisms with their kinds of noise, by the names that statements give them."""

    def __getitem__(self, name: str) -> RuleMechanism:
        way, _, kind = name.rpartition("_")
        if way not in RULE_MECHANISMS or kind not in RULE_MECHANISMS[way].kinds:
            raise KeyError(name)
        mechanism: RuleMechanism = RULE_MECHANISMS[way](kind)
        return mechanism

    def __iter__(self) -> Iterator[str]:
        return (f"{way}_{kind}" for way, mechanism in RULE_MECHANISMS.items() for kind in mechanism.kinds)

    def __len__(self) -> int:
        return len(list(iter(self)))


STATED_MECHANISMS: Mapping[str, RuleMechanism] = _ByStatedName()
"""Mechanisms by the name that statements give them."""
