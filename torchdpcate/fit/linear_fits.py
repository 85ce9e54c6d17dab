"""Private fits of a linear predictor by name: the interface, objective perturbation, and noisy gradients."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.losses import Loss, LossBounds
from torchdpcate.fit.minimise import summed_gradient
from torchdpcate.fit.private_fit import (
    SOLVER_SHARE,
    ObjectiveNoise,
    PrivateFit,
    WeightBounds,
    ridge_ratio,
)
from torchdpcate.fit.stacked_records import Records, Target
from torchdpcate.privacy.budget import PrivacyBudget, integer, positive, probability
from torchdpcate.privacy.events import Event, GaussianEvent, PureEvent
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.guarantee import Condition, Level
from torchdpcate.privacy.mechanisms import GaussianMechanism, k_norm_deviation
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.registry import Registry


@dataclass(frozen=True, eq=False)
class PreparedFit:
    """A private fit about to run; everything here but ``draw`` is public.

    Attributes:
        event: What one run costs, ``count`` times.
        public: Public constants, for the statement.
        draw: (records, target, noise, runs) -> coefficients [runs, p], float64: independent runs on one data set, or
            one run on each of several.
        imbalance: Standard deviation of each entry of sum l'(g) phi at the released coefficients, phi the features
            scaled to largest entry 1: how far they are from stationary, by the noise. For a balancing loss it is the
            imbalance that the noise leaves (theory note, section 3.1).
        ridge: Ridge of the sum, which shrinks: the mean of that gradient is -ridge * theta (in psi's scale).
        level: Of the guarantee.
        conditions: On which it rests.
        count: How often the event happens in one run.
        warning: What a user must know before the draw; empty where there is nothing.
    """

    event: Event
    public: dict[str, Any]
    draw: Callable[[Records, Target, NoiseSource, int], Tensor]
    imbalance: float
    ridge: float
    level: Level = Level.CERTIFIED
    conditions: tuple[Condition, ...] = field(default=())
    count: int = 1
    warning: str = ""


LINEAR_FITS = Registry("effect/fitter")
"""Private linear fits, by name."""


class PrivateLinearFit(ABC):
    """A mechanism that fits the coefficients of a linear predictor; its constructor takes public settings.

    Attributes:
        balancing_only: Whether it fits no other loss than balancing ones.
        level: Of its guarantee.
        conditions: On which it rests.
    """

    name: ClassVar[str]
    balancing_only: ClassVar[bool] = False
    level: ClassVar[Level] = Level.CERTIFIED
    conditions: ClassVar[tuple[Condition, ...]] = ()

    @abstractmethod
    def prepare(self, loss: Loss, n: int, features: FeatureMap, budget: PrivacyBudget) -> PreparedFit:
        """Calibrate the mechanism on public facts; everything that can be refused is refused here.

        Args:
            loss: Of a record.
            n: Number of records.
            features: Feature map, set up: ||psi|| <= 1, |psi_j| <= ``largest_entry``.
            budget: What one run may cost; a pure mechanism ignores its delta.

        Raises:
            InputError: Settings that cannot be released.
        """

    @classmethod
    @abstractmethod
    def recompute(
        cls, public: Mapping[str, Any], event: Event, count: int, loss: Loss, n: int, features: FeatureMap
    ) -> PreparedFit:
        """Return the fit that has these settings among its public constants and was charged this.

        Verification compares its constants, its noise and its charge with those that are stated.

        Args:
            public: Public constants as stated, by the names of ``PreparedFit.public``; each may be forged.
            event: What was charged, so often.
            count: How often.
            loss: Of a record.
            n: Number of records.
            features: Feature map.

        Raises:
            InputError: No fit has these settings and this charge.
        """


_STEEP_SHARE, _FLAT_SHARE = 0.6, 0.85
_FLAT = 0.25  # curvature of the logistic loss, up to which little of epsilon need go to the ridge
_LEAST_RIDGE = 1e-3  # of the curvature; below it the noise that hides the solver's stop would outgrow the other


@dataclass(frozen=True)
class ObjectiveFit(PrivateLinearFit):
    r"""Objective perturbation: argmin sum_i l(g_i) + (gamma/2) ||theta||^2 + V'theta, a record in one term alone.

    .. math::
        \gamma = \frac{\kappa}{e^{(1-q)\varepsilon} - 1}, \qquad
        p(V) \propto e^{-(\varepsilon - J) \|V\|_\infty / \Delta}, \quad \Delta = 2 \zeta \max|\psi_j|

    in the scale of psi, with zeta the loss's slope (W) and kappa its curvature; epsilon is 99 % of the budget's, of
    which the rest hides the solver's stop. J is ``logistic_jacobian`` for logistic losses, (1 - q) epsilon for all
    others. The released coefficients leave sum l'(g) psi = -(V + gamma theta). V, noise of the largest entry, is least
    where covariates fill a cube.

    Guarantee:
        Certified: pure epsilon. Source: theory note ``covariate_balancing``, sections 3.1 and 3.2; Chaudhuri et al.
        (2011), Awan & Slavkovic (2021); docs/guarantees/objective_perturbation.md.

    Args:
        share: q in (0, 1), share of epsilon that the largest curvature alone leaves, from which the ridge follows. None
            takes 0.6, and 0.85 for losses as flat as the logistic one.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> from torchdpcate import Domain
        >>> from torchdpcate.fit.losses import Logistic
        >>> from torchdpcate.fit.feature_maps import on_domain
        >>> features = on_domain(None, Domain([0.0], [1.0], 0.0, 1.0))
        >>> fit = ObjectiveFit().prepare(Logistic(), 5000, features, PrivacyBudget(1 / 0.99, 0.0))
        >>> round(2 * fit.ridge, 8), round(math.sqrt(2) * fit.public["perturbation_scale"], 8)  # of phi = sqrt(2) psi
        (3.08958099, 2.01408538)
    """

    name: ClassVar[str] = "objective"

    share: float | None = None

    def __post_init__(self) -> None:
        """Refuse a share out of range."""
        if self.share is not None:
            probability("share", self.share, above_zero=True, why="the noise needs a share of epsilon, and the ridge")

    def prepare(self, loss: Loss, n: int, features: FeatureMap, budget: PrivacyBudget) -> PreparedFit:
        """See ``PrivateLinearFit``; n does not move what is released."""
        q = self.share_of(loss)
        ridge = ridge_of(loss.curvature, (1 - q) * (1 - SOLVER_SHARE) * budget.epsilon)
        once, size = WeightBounds.per_record(1.0), features.dimension
        fit = PrivateFit(LossBounds.of(loss), once, ridge, size, features.largest_entry)
        objective = fit.objective(budget, "box")

        # beside V, what the solver's noise adds along the intercept, where the sum is most curved; from 10^8 records on
        stray = objective.solver_scale * k_norm_deviation(objective.size)
        added = n * typical_curvature(loss) * stray * features.largest_entry
        imbalance = math.hypot(objective.spread.deviation / features.largest_entry, added)
        public = {"fitter": self.name, "share": q, "ridge": ridge, **objective.public}
        return PreparedFit(objective.event, public, partial(_perturbed, objective, loss, ridge), imbalance, ridge)

    @classmethod
    def recompute(
        cls, public: Mapping[str, Any], event: Event, count: int, loss: Loss, n: int, features: FeatureMap
    ) -> PreparedFit:
        if not isinstance(event, PureEvent):
            raise InputError(f"charge = {event}: none of objective perturbation")
        return cls(public["share"]).prepare(loss, n, features, PrivacyBudget(event.epsilon, 0.0))

    def share_of(self, loss: Loss) -> float:
        """Return q for a loss.

        Example:
            >>> from torchdpcate.fit.losses import HuberHinge, Logistic
            >>> ObjectiveFit().share_of(Logistic()), ObjectiveFit().share_of(HuberHinge(0.5))
            (0.85, 0.6)
        """
        if self.share is not None:
            return float(self.share)
        return _FLAT_SHARE if loss.curvature <= _FLAT else _STEEP_SHARE


def _perturbed(
    objective: ObjectiveNoise,
    loss: Loss,
    ridge: float,
    records: Records,
    target: Target,
    noise: NoiseSource,
    runs: int,
) -> Tensor:
    """Return minimisers of the perturbed sum, [runs, p]; a module's function, so that a prepared fit pickles."""

    def minimise(linear_terms: Tensor) -> Tensor:
        return records.minimise(loss, target, ridge, linear_terms, objective.tolerance)

    return objective.release(minimise, noise, runs)


def typical_curvature(loss: Loss) -> float:
    """Return a bound of a record's mean curvature at the true propensity; no claim rests on it.

    That of balancing losses is 1 for the ATE, e for the ATT and 1 - e for the ATC, far below its bound kappa.

    Example:
        >>> from torchdpcate.fit.losses import Logistic
        >>> typical_curvature(Logistic())
        0.25
    """
    return min(loss.curvature, 1.0)


def ridge_of(curvature: float, epsilon: float) -> float:
    r"""Return the ridge with which the change of one record's curvature costs at most epsilon.

    .. math:: \gamma = \kappa / (e^\varepsilon - 1)

    Example:
        >>> round(2 * ridge_of(9.0, 0.4), 8)
        36.59840607
    """
    return curvature * max(ridge_ratio(epsilon), _LEAST_RIDGE)


_RIDGE_SHARE = 0.4  # the ridge is the one with which objective perturbation would spend so much of epsilon
_LEAST_STEPS, _STEPS_A_FEATURE, _MOST_STEPS = 600, 12, 100_000
_WANDERING = 0.5  # variance of an iterate that is expected at most
_LONGEST = 0.5  # step, over the inverse of the sum's typical curvature


@dataclass(frozen=True)
class NoisyGradient(PrivateLinearFit):
    r"""Gradient steps with momentum on sum_i l(g_i) + (gamma/2) ||theta||^2, each gradient with Gaussian noise.

    .. math::
        v_{k+1} = \rho v_k + \sum_i \ell'(g_i)\psi_i + N_k + \gamma \theta_k, \quad \theta_{k+1} = \theta_k - a v_{k+1},
        \quad N_k \sim N(0, (2 \zeta \sqrt{T} \sigma_{AG}(\varepsilon, \delta))^2 I)

    from zero; the mean of the last two thirds of the steps is released. Averaging leaves of the noise what one draw of
    :math:`\sqrt{3/2}\, 2\zeta\sigma_{AG}` would, whatever T is: steps cost time alone, and with enough of them the
    coefficients leave sum l'(g) psi = -(mean of N_k) - gamma theta. Ridge, length and momentum are public; none
    depends on a record. zeta is the loss's slope: each record pulls by at most that, its score being clipped.

    Guarantee:
        Certified: (epsilon, delta), by exact composition of T Gaussian mechanisms on all records. Source: theory note
        ``covariate_balancing``, section 3.1; Bassily, Smith & Thakurta (2014); docs/guarantees/dp_sgd.md.

    Args:
        steps: T, at least 3; None takes 12 p, at least 600.
        length: a, of a step; None takes what suits n records with covariates all over their domain: see ``length_of``.
        momentum: rho in [0, 1).
        ridge: gamma of the sum, in the scale of psi; None takes kappa / (exp(0.4 epsilon) - 1), as of objective
            perturbation.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> from torchdpcate import Domain
        >>> from torchdpcate.fit.losses import Logistic
        >>> from torchdpcate.fit.feature_maps import on_domain
        >>> features = on_domain(None, Domain([0.0] * 40, [1.0] * 40, 0.0, 1.0))
        >>> fit = NoisyGradient(steps=100).prepare(Logistic(), 5000, features, PrivacyBudget(0.5, 1e-6))
        >>> fit.count, round(fit.event.noise_multiplier / 10, 6)
        (100, 8.057618)
    """

    name: ClassVar[str] = "noisy_gradient"

    steps: int | None = None
    length: float | None = None
    momentum: float = 0.95
    ridge: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        if self.steps is not None and integer("steps", self.steps, least=3) > _MOST_STEPS:
            raise InputError(f"steps = {self.steps}: give at most {_MOST_STEPS}; more change nothing but the time")
        probability("momentum", self.momentum)
        for name in ("length", "ridge"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))

    def prepare(self, loss: Loss, n: int, features: FeatureMap, budget: PrivacyBudget) -> PreparedFit:
        if budget.delta == 0:
            raise InputError("delta = 0: fitter = noisy_gradient needs privacy.delta above 0, or fitter = objective")
        p = features.dimension
        steps = self.steps or max(_LEAST_STEPS, _STEPS_A_FEATURE * p)
        ridge = self.ridge or ridge_of(loss.curvature, _RIDGE_SHARE * budget.epsilon)
        mechanism = GaussianMechanism(budget, gradient_sensitivity(loss, n, features), count=steps)
        scale = mechanism.released_scale(p)  # refuses before anything is charged
        length = self.length or length_of(n * typical_curvature(loss), p, scale, self.momentum)
        return _prepared(mechanism, loss, n, features, steps, length, self.momentum, ridge)

    @classmethod
    def recompute(
        cls, public: Mapping[str, Any], event: Event, count: int, loss: Loss, n: int, features: FeatureMap
    ) -> PreparedFit:
        if not isinstance(event, GaussianEvent):
            raise InputError(f"charge = {event}: none of noisy gradients")
        mechanism = GaussianMechanism.of_event(event, gradient_sensitivity(loss, n, features))
        length, ridge = (positive(name, public[name]) for name in ("length", "ridge"))
        momentum = probability("momentum", public["momentum"])
        steps = integer("steps", public["steps"], least=3)
        return _prepared(mechanism, loss, n, features, steps, length, momentum, ridge)


def _prepared(
    mechanism: GaussianMechanism,
    loss: Loss,
    n: int,
    features: FeatureMap,
    steps: int,
    length: float,
    momentum: float,
    ridge: float,
) -> PreparedFit:
    """Return the fit with this noise in every gradient."""
    if length * ridge > 1:
        raise InputError(f"length = {length:g}: with ridge = {ridge:g} give at most {1 / ridge:.3g}, or steps diverge")
    scale, pull = mechanism.released_scale(features.dimension), _pull(loss, features)
    settings = {"steps": steps, "length": length, "momentum": momentum, "ridge": ridge}
    public = {"fitter": NoisyGradient.name, **settings, "gradient_scale": scale}
    imbalance = scale / math.sqrt(steps - steps // 3) / features.largest_entry
    draw = partial(_noisy_descent, mechanism, loss, n, pull, settings)
    return PreparedFit(mechanism.event, public, draw, imbalance, ridge, count=steps)


def _noisy_descent(
    mechanism: GaussianMechanism,
    loss: Loss,
    n: int,
    pull: float,
    settings: Mapping[str, Any],
    records: Records,
    target: Target,
    noise: NoiseSource,
    runs: int,
) -> Tensor:
    """Return where steps by noisy gradients end, [runs, p]; a module's function, so that a prepared fit pickles."""
    pairs = records.pairs(target)

    def gradient(theta: Tensor) -> Tensor:
        return mechanism.add_noise(summed_gradient(pairs, loss, theta, n, pull), noise) + settings["ridge"] * theta

    start = torch.zeros(runs, records.size, dtype=torch.float64)
    return _descend(gradient, start, settings["steps"], settings["length"], settings["momentum"])


def _pull(loss: Loss, features: FeatureMap) -> float:
    """Return the largest entry of a record's gradient."""
    return loss.slope * features.largest_entry


def gradient_sensitivity(loss: Loss, n: int, features: FeatureMap) -> float:
    """Return how far one record moves the summed gradient of n of them, in the l2 norm."""
    # entries of gradients are rounded so that sums are exact, each by half a step
    return 2 * loss.slope + math.sqrt(features.dimension) * sum_grid(n, _pull(loss, features))


def length_of(curvature: float, size: int, scale: float, momentum: float) -> float:
    r"""Return the length of a step that suits covariates all over their domain; public.

    .. math:: a = \min\Big(\frac{1}{2H}, \frac{(1 - \rho) h}{\sigma^2}\Big), \qquad h = \frac{H}{3 p}

    H bounds the curvature of the sum typically, and h is that along a uniform covariate. The first does not overshoot;
    the second keeps the variance of an iterate, sigma^2 a / (2 h (1 - rho)), at 1/2, beyond which the loss is no
    parabola along its way, and the mean of gradients not the gradient at the mean. Where noise forces short steps, or
    along covariates that hardly vary, the fit stays nearer zero.

    Args:
        curvature: H.
        size: p.
        scale: sigma, of the noise of a gradient.
        momentum: rho.
    """
    h = curvature / (3 * size)
    return min(_LONGEST / curvature, (1 - momentum) * 2 * _WANDERING * h / scale**2)


def _descend(gradient: Callable[[Tensor], Tensor], theta: Tensor, steps: int, length: float, momentum: float) -> Tensor:
    """Return the mean of the last two thirds of the iterates."""
    velocity, total, unused = torch.zeros_like(theta), torch.zeros_like(theta), steps // 3
    for k in range(steps):
        velocity = momentum * velocity + gradient(theta)
        theta = theta - length * velocity
        if k >= unused:
            total = total + theta
    return total / (steps - unused)
