"""One weighted empirical risk minimisation, what every treatment rule comes down to, and how it is released."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.fit.losses import HuberHinge, Loss, LossBounds
from torchdpcate.fit.minimise import minimise
from torchdpcate.fit.private_fit import PrivateFit, WeightBounds
from torchdpcate.laws import AddedNoise, Law, PerturbedObjective
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.mechanisms import Spread
from torchdpcate.privacy.worst_case import Evidence, Game
from torchdpcate.registry import Registry

LOSS = HuberHinge()
"""Loss of rules: the hinge loss with a rounded corner."""


@dataclass(frozen=True, eq=False)
class WeightedERM:
    r"""Weighted ERM of a linear predictor, with its public bounds.

    .. math:: F(\theta) = \sum_i w_i\, \ell(\psi_i^\top\theta, t_i) + \tfrac{\gamma}{2}\|\theta\|^2

    Attributes:
        psi: Features, float64 [n, p], rows of norm at most one.
        target: t, [n]: labels of 1 and -1.
        weights: w, [n], each in [0, ``bounds.most``].
        loss: Convex loss with public bounds of its derivatives.
        ridge: Strong convexity of the total sum, public.
        bounds: How far one record moves the weights, public.
        largest_entry: Public bound of |psi_j|.
        conditions: What a guarantee rests on beside its proof.

    Raises:
        InputError: ridge not positive; weights below zero or above their bound.

    Example:
        >>> import torch
        >>> from torchdpcate.fit.losses import HuberHinge
        >>> psi, target = torch.eye(2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
        >>> problem = WeightedERM(psi, target, torch.ones(2).double(), HuberHinge(), 4.0, WeightBounds.per_record(1.0))
        >>> [round(t, 6) for t in problem.minimiser.tolist()]
        [0.25, -0.25]
    """

    psi: Tensor
    target: Tensor
    weights: Tensor
    loss: Loss
    ridge: float
    bounds: WeightBounds
    largest_entry: float = 1.0
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.ridge < float("inf"):
            raise InputError(
                f"ridge = {self.ridge}: a rule of {self.size} coefficients from {self.n} records needs a positive, "
                "finite ridge; without one there is no bound of what one record moves"
            )
        low, high = self.weights.aminmax()
        if not bool((low >= 0) & (high <= self.bounds.most * (1 + 1e-9))):
            raise InputError(
                f"weights: some lie outside [0, {self.bounds.most:g}], where their public bound {self.bounds.most:g} "
                "keeps them; clip them, or state a larger bound"
            )

    @property
    def data(self) -> tuple[Tensor, Tensor, Tensor]:
        """Features, targets and weights."""
        return self.psi, self.target, self.weights

    @property
    def n(self) -> int:
        """Number of terms (public)."""
        return self.psi.shape[0]

    @property
    def size(self) -> int:
        """Number of coefficients p."""
        return self.psi.shape[1]

    @property
    def public(self) -> PrivateFit:
        """What is public of it."""
        facts = LossBounds.of(self.loss), self.bounds, self.ridge, self.size, self.largest_entry
        return PrivateFit(*facts, n=self.n)

    @cached_property
    def minimiser(self) -> Tensor:
        """The rule without noise, [p]. The curator's, never to be published."""
        return self.solve(self.psi.new_zeros(1, self.size), self.public.stop)[0]

    def solve(self, linear_terms: Tensor, tolerance: float) -> Tensor:
        """Minimise F(theta) + b'theta for many linear terms b [runs, p] at once, [runs, p].

        Args:
            linear_terms: b.
            tolerance: Largest norm of the gradient at the end.

        Raises:
            NumericalError: The tolerance was not reached; nothing may be released.
        """
        return minimise(*self.data, self.loss, self.ridge, linear_terms.to(self.psi), tolerance)

    def exact(self, law: Law) -> Any:
        """Return what a law draws from, the curator's: the map from linear terms to minimisers, or the minimiser."""
        if isinstance(law, PerturbedObjective):
            return lambda linear_terms: self.solve(linear_terms, law.objective.tolerance)
        return self.minimiser


_JACOBIAN_FRACTION = 0.1  # of epsilon, for the change of curvature; within 1 % of the best of a grid nearly everywhere
LEAST_RIDGE = 1e-3  # of n w_max, for conditioning and against overfitting


def default_ridge(n: int, epsilon: float, bounds: WeightBounds, curvature: float) -> float:
    r"""Return the ridge of the total sum where the user has no wish: a public function of n and the budget.

    The larger of :math:`10^{-3} n w_{max}` and the ridge at which the change of curvature costs a tenth of epsilon
    (``WeightBounds.ridge_for``).

    Args:
        n: Number of records.
        epsilon: What the release may spend.
        bounds: Public bounds of the weights.
        curvature: lambda, of the loss.

    Example:
        >>> round(default_ridge(1000, 1.0, WeightBounds.per_record(1.0), 1.0), 6)
        9.508332
    """
    return max(bounds.ridge_for(curvature, epsilon * _JACOBIAN_FRACTION), LEAST_RIDGE * n * bounds.most)


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
                "a monotone loss, s = sigma_AG(epsilon - J, 3 delta / 4) for others; else chi's"
            ),
        }[self.perturbation]
        return f"{scale}, with 99 % of the budget, the rest pays the solver's stop; policy_learning section 3"

    def law(self, fit: PrivateFit, budget: PrivacyBudget) -> PerturbedObjective:
        return PerturbedObjective(fit.objective(budget, self.perturbation))


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
        return AddedNoise(fit.output(budget, self.perturbation), fit.size)


RULE_MECHANISMS = Registry("rule_mechanism")
"""Mechanisms by the name that users give."""


def stated_mechanism(name: str) -> RuleMechanism | None:
    """Return the mechanism, with its kind of noise, that statements call so; None if there is none."""
    way, _, kind = name.rpartition("_")
    known = RULE_MECHANISMS.get(way)
    return None if known is None or kind not in known.kinds else known(kind)
