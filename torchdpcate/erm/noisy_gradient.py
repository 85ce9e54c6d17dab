"""Stage one for many features and a positive delta: noisy gradient descent on all records."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdpcate.erm.losses import Loss
from torchdpcate.erm.objective_fit import ridge_of, typical_curvature
from torchdpcate.erm.private_fit import PreparedFit, PrivateLinearFit
from torchdpcate.erm.records import Records, Target
from torchdpcate.erm.streaming import summed_gradient
from torchdpcate.errors import InputError
from torchdpcate.features.maps import FeatureMap
from torchdpcate.privacy.budget import PrivacyBudget, integer, positive, probability
from torchdpcate.privacy.events import Event, GaussianEvent
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.noise import NoiseSource

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
        ``covariate_balancing``, section 3.1; Bassily, Smith & Thakurta (2014); docs/guarantees/noisy_gradient.md.

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
        >>> from torchdpcate.erm import Logistic
        >>> from torchdpcate.features.user_maps import on_domain
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
        """See ``PrivateLinearFit``."""
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
        """See ``PrivateLinearFit``."""
        if not isinstance(event, GaussianEvent):
            raise InputError(f"charge = {event}: none of noisy gradients")
        mechanism = GaussianMechanism.of_event(event, gradient_sensitivity(loss, n, features))
        length, ridge = (positive(name, public[name]) for name in ("length", "ridge"))
        momentum = probability("momentum", public["momentum"])
        return _prepared(
            mechanism, loss, n, features, integer("steps", public["steps"], least=3), length, momentum, ridge
        )


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
    scale, walk = (
        mechanism.released_scale(features.dimension),
        _Walk(features.dimension, steps, length, momentum, ridge),
    )
    if length * ridge > 1:
        raise InputError(f"length = {length:g}: with ridge = {ridge:g} give at most {1 / ridge:.3g}, or steps diverge")

    public = {
        "fitter": NoisyGradient.name,
        "steps": steps,
        "length": length,
        "momentum": momentum,
        "ridge": ridge,
        "gradient_scale": scale,
    }
    imbalance = scale / math.sqrt(steps - steps // 3) / features.largest_entry
    draw = partial(_draw, mechanism, loss, n, _pull(loss, features), walk)
    return PreparedFit(mechanism.event, public, draw, imbalance, ridge, count=steps)


class _Walk(NamedTuple):
    """How the steps are made, of p coefficients."""

    size: int
    steps: int
    length: float
    momentum: float
    ridge: float


def _draw(
    mechanism: GaussianMechanism,
    loss: Loss,
    n: int,
    pull: float,
    walk: _Walk,
    records: Records,
    target: Target,
    noise: NoiseSource,
    runs: int,
) -> Tensor:
    """Return the mean iterates of so many runs, or of one on each data set; see ``PreparedFit.draw``."""

    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        return ((batch.psi, target(batch)) for batch in records.batches())

    def gradient(theta: Tensor) -> Tensor:
        return mechanism.add_noise(summed_gradient(pairs, loss, theta, n, pull), noise) + walk.ridge * theta

    start = torch.zeros(runs, walk.size, dtype=torch.float64)
    return _descend(gradient, start, walk.steps, walk.length, walk.momentum)


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
