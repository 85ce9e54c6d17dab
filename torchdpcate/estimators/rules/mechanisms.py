"""How a weighted ERM is released: by noise in its objective, or by noise on its minimiser."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self

from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.weighted_erm import WeightedERM
from torchdpcate.fit.private_fit import PrivateFit
from torchdpcate.laws import AddedNoise, Law, PerturbedObjective
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.mechanisms import Spread
from torchdpcate.privacy.worst_case import Evidence, Game
from torchdpcate.registry import Registry


class RuleMechanism(ABC):
    """Releases the coefficients of a weighted ERM.

    Attributes:
        way: Its name, and its yaml's.
        kinds: Kinds of noise, each a law of ``noise_law``; a pure one first, if there is one.
        source: Of its proof.
        prefix: What the names of its public constants begin with.
        curved: Whether the change of the curvature takes some of epsilon, so that the budget requests a ridge.

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
    def law(self, fit: PrivateFit, budget: PrivacyBudget) -> Law:
        """Return how the coefficients leave the records.

        Args:
            fit: What is public of the weighted ERM.
            budget: What the release may spend.

        Raises:
            InputError: A ridge too small for the budget, or a budget this kind of noise has no guarantee for.
        """

    @classmethod
    def spreads(cls, fit: PrivateFit, budget: PrivacyBudget) -> dict[str, Spread]:
        """Return how far each kind of noise reaches that has a guarantee here; arguments as in ``law``."""
        found = {}
        for kind in cls.kinds:
            with suppress(InputError):  # delta = 0, or a ridge too small for objective noise
                spread = cls(kind).law(fit, budget).spread
                if spread is not None:
                    found[kind] = spread
        return found

    @classmethod
    def least_noisy(cls, fit: PrivateFit, budget: PrivacyBudget) -> Self:
        """Return the mechanism with the kind of noise of least length; arguments as in ``law``."""
        lengths = {kind: spread.length for kind, spread in cls.spreads(fit, budget).items()}
        return cls(min(lengths, key=lambda kind: lengths[kind], default=cls.kinds[0]))

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
        exact = [problem.exact(law) for problem, law in zip(problems, laws, strict=True)]
        return Game(
            draw=lambda dataset, runs, noise: laws[dataset].draw(noise, runs, exact[dataset]),
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

    def law(self, fit: PrivateFit, budget: PrivacyBudget) -> PerturbedObjective:
        """See ``RuleMechanism.law``."""
        return PerturbedObjective(fit.objective(budget, self.perturbation), fit.most)


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

    def law(self, fit: PrivateFit, budget: PrivacyBudget) -> AddedNoise:
        """See ``RuleMechanism.law``."""
        return AddedNoise(fit.output(budget, self.perturbation), fit.size, fit.most)


RULE_MECHANISMS = Registry("rule_mechanism")
"""Mechanisms by the name that users give."""


def stated_mechanism(name: str) -> RuleMechanism | None:
    """Return the mechanism, with its kind of noise, that statements call so; None if there is none."""
    way, _, kind = name.rpartition("_")
    known = RULE_MECHANISMS.get(way)
    return None if known is None or kind not in known.kinds else known(kind)
