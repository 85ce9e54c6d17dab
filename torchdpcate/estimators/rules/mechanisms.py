"""How a weighted ERM is released: by noise in its objective, or by noise on its minimiser."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.losses import Logistic, Loss
from torchdpcate.erm.perturbation import ObjectiveNoise, calibrate_objective, output_mechanism
from torchdpcate.erm.solver import default_tolerance
from torchdpcate.errors import InputError
from torchdpcate.estimators.mechanism import Prepared, Stated
from torchdpcate.estimators.recompute import charged_gaussian
from torchdpcate.estimators.rules.recompute import RuleFacts, library_parts, rule_states, slopes_of
from torchdpcate.estimators.rules.weighted_erm import WeightedERM
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import AdditiveMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.noisy_numbers import grid_problems
from torchdpcate.registry import Registry
from torchdpcate.release.release import Release
from torchdpcate.release.rule import RuleRelease

_ANY = PrivacyBudget(1.0, 1e-6)  # a Gaussian's sensitivity does not depend on it


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
        constants: Public constants that its statements have.
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
    constants: ClassVar[tuple[str, ...]]
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
    def prepare(self, problem: WeightedERM, budget: PrivacyBudget) -> Prepared:
        """Return the mechanism on this problem; nothing is drawn yet.

        Args:
            problem: The weighted ERM, the curator's.
            budget: What the release may spend.

        Raises:
            InputError: A ridge too small for the budget, or a budget this kind of noise has no guarantee for.
        """

    @abstractmethod
    def pull_noise(
        self, budget: PrivacyBudget, *, size: int, loss: Loss, bounds: WeightBounds, ridge: float, largest_entry: float
    ) -> PullNoise:
        """Return the noise to expect, from public facts; nothing is drawn.

        Args:
            budget: What the release may spend.
            size: Number of coefficients.
            loss: The loss.
            bounds: Of the weights.
            ridge: Ridge of the total sum.
            largest_entry: Public bound of the features' entries.

        Raises:
            InputError: See ``prepare``.
        """

    @property
    def states(self) -> Stated:
        """What statements of its releases may say."""
        return rule_states(*self.constants)

    def recompute(self, release: Release) -> Iterator[str]:
        """Return what does not follow from public facts, see ``ReleaseMechanism``; nothing of a loss of the user's."""
        assert isinstance(release, RuleRelease)
        slopes = slopes_of(release)
        if slopes is not None:
            yield from library_parts(release)
            yield from self.problems(RuleFacts.of(release, slopes))
        elif release.privacy.level == Level.CERTIFIED:
            yield f"its loss is called {release.privacy.public.get('loss')}, which is none of the library's"

    @abstractmethod
    def problems(self, facts: RuleFacts) -> Iterator[str]:
        """Return what of a released rule does not follow from its public facts."""

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
    constants = ("perturbation", "tilt_scale", "epsilon_jacobian", "solver_scale")
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

    def prepare(self, problem: WeightedERM, budget: PrivacyBudget) -> Prepared:
        """Return the perturbed fit's mechanism; see ``RuleMechanism.prepare``."""
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
            logistic=type(problem.loss) is Logistic,
            monotone=problem.loss.monotone,
        )

        def draw(noise: NoiseSource, runs: int) -> Tensor:
            return objective.release(lambda linear_terms: problem.solve(linear_terms, objective.tolerance), noise, runs)

        return Prepared(
            objective.event,
            self._guarantee(problem, budget),
            draw,
            {**objective.public, "ridge": problem.ridge, "solver_scale": objective.solver_scale},
        )

    def pull_noise(
        self, budget: PrivacyBudget, *, size: int, loss: Loss, bounds: WeightBounds, ridge: float, largest_entry: float
    ) -> PullNoise:
        """See ``RuleMechanism``."""
        objective = calibrate_objective(
            budget,
            kind=self.perturbation,
            slope=loss.slope,
            bounds=bounds,
            curvature=loss.curvature,
            gamma=ridge,
            size=size,
            largest_entry=largest_entry,
            tolerance=default_tolerance(loss.slope, bounds.most),
            logistic=type(loss) is Logistic,
            monotone=loss.monotone,
        )
        return PullNoise(objective.scale, objective.jacobian)

    def problems(self, facts: RuleFacts) -> Iterator[str]:
        """See ``RuleMechanism.problems``."""
        if facts.public["perturbation"] != self.perturbation:
            yield "its perturbation is not that of its mechanism"
        bounds, most = facts.weights
        if most is not None:
            bounds = bounds.scaled(facts.number("tilt_scale") / self._stated_noise_of(facts, bounds).scale)
            yield from facts.largest(bounds, most)
        yield from facts.determinants(bounds, self.perturbation != "gaussian")
        noise = self._stated_noise_of(facts, bounds)
        yield from facts.compared("tilt_scale", noise.scale)
        # a candidate's tilt had less than is known here: the weight that follows from it, and its stop, are too large
        least = bounds if facts.alone else facts.weights[0]
        yield from facts.compared("solver_scale", self._stated_noise_of(facts, least).solver_scale)
        yield from grid_problems("theta", facts.release.theta, facts.number("solver_scale"))
        yield from facts.far(facts.number("tilt_scale") / facts.number("ridge"))

    def _stated_noise_of(self, facts: RuleFacts, bounds: WeightBounds) -> ObjectiveNoise:
        """Return the objective noise that the charge pays, with these weights and the stated cost of determinants."""
        features = facts.release.features
        return calibrate_objective(
            facts.budget,
            kind=self.perturbation,
            slope=facts.slope,
            bounds=bounds,
            curvature=facts.stated_curvature(bounds),
            gamma=facts.number("ridge"),
            size=features.dimension,
            largest_entry=features.largest_entry,
            constrained=facts.constrained,
            monotone=facts.monotone,
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
    constants = ("noise_scale",)

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

    def pull_noise(
        self, budget: PrivacyBudget, *, size: int, loss: Loss, bounds: WeightBounds, ridge: float, largest_entry: float
    ) -> PullNoise:
        """See ``RuleMechanism``: the noise on theta times the ridge, to compare it with objective noise."""
        mechanism = output_mechanism(
            budget,
            kind=self.perturbation,
            slope=loss.slope,
            bounds=bounds,
            gamma=ridge,
            tolerance=default_tolerance(loss.slope, bounds.most),
        )
        return PullNoise(ridge * mechanism.scale)

    def problems(self, facts: RuleFacts) -> Iterator[str]:
        """See ``RuleMechanism.problems``."""
        bounds, most = facts.weights
        size, stated = facts.release.features.dimension, facts.number("noise_scale")
        if most is not None:
            bounds = bounds.scaled(stated / self._stated_noise(facts, bounds).released_scale(size))
            yield from facts.largest(bounds, most)
        yield from facts.compared("noise_scale", self._stated_noise(facts, bounds).released_scale(size))
        yield from grid_problems("theta", facts.release.theta, stated)
        yield from facts.far(stated)

    def _stated_noise(self, facts: RuleFacts, bounds: WeightBounds) -> AdditiveMechanism:
        """Return the noise that the charge pays, with these weights."""
        gaussian = isinstance(facts.event, GaussianEvent)
        mechanism = output_mechanism(
            _ANY if gaussian else facts.budget,
            kind=self.perturbation,
            slope=facts.slope,
            bounds=bounds,
            gamma=facts.number("ridge"),
            tolerance=default_tolerance(facts.slope, bounds.most),
            constrained=facts.constrained,
        )
        return charged_gaussian(facts.event, mechanism.sensitivity) if gaussian else mechanism


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
