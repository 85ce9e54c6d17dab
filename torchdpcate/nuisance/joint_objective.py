"""One tilted convex objective of propensity and outcomes: its public constants, and its minimiser."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.errors import NumericalError
from torchdpcate.privacy import GaussianMechanism, NoiseSource, PrivacyBudget, analytic_gaussian_sigma

_VERTICES = 16  # of the set in which the gradients of two records differ
_SOLVER_SHARE = 0.01  # of the budget, for the solver's stop and the tilt's grid
_LEAST_RIDGE = 1e-4  # of the mean objective, for conditioning
_TOLERANCE = 1e-11  # of a summed gradient, a record and gradient bound
_MOST_STEPS = 200


@dataclass(frozen=True)
class JointObjective:
    r"""The public constants of one jointly tilted objective.

    .. math::
        \sum_i \alpha\,\ell(a_i, \psi_i^\top\theta_\pi) + H_\tau(y_i - m - \psi_i^\top\theta_{a_i})
        + \kappa_\pi \|\theta_\pi\|^2 + \kappa (\|\theta_0\|^2 + \|\theta_1\|^2) + b^\top\theta,
        \quad b \sim N(0, \sigma_b^2 I),

    with the cross-entropy l, the Huber loss H (slope at most 2 tau, curvature at most 2) and ||psi|| <= 1.

    Attributes:
        alpha: weight of the propensity's loss, which bounds its gradient.
        threshold: tau, in outcome units.
        ridges: (kappa_pi, kappa), summed over the records, not their mean.
        tilt_scale: sigma_b; 0 without privacy.
        jacobian: epsilon_J, what the change of curvature costs.
        solver: noise that covers stop and grid; None without privacy.
        tolerance: largest norm of the summed gradient at the end.
    """

    alpha: float
    threshold: float
    ridges: tuple[float, float]
    tilt_scale: float
    jacobian: float
    solver: GaussianMechanism | None
    tolerance: float

    @property
    def gradient_bound(self) -> float:
        """Largest norm of one record's gradient, sqrt(alpha^2 + 4 tau^2)."""
        return math.hypot(self.alpha, 2 * self.threshold)

    def minimise(self, psi: tuple[Tensor, Tensor], a: Tensor, s: Tensor, tilt: Tensor) -> Tensor:
        """Minimiser (theta_pi, theta_0, theta_1), float64 [p + 2 p'].

        The objective is a sum over the three once the tilt is drawn; each is minimised alone.

        Args:
            psi: features of the propensity [n, p] and of the outcomes [n, p'].
            a: treatment [n].
            s: outcome less the median [n].
            tilt: b, [p + 2 p'].

        Raises:
            NumericalError: the tolerance was not reached; nothing may be released.
        """
        treatment, outcome = psi
        tilts = tilt.split([treatment.shape[1], outcome.shape[1], outcome.shape[1]])
        tolerance = self.tolerance / math.sqrt(3)
        parts = [_minimise(treatment, _cross_entropy(a, self.alpha), self.ridges[0], tilts[0], tolerance)]
        for arm in (0, 1):
            loss = _huber(s[a == arm], self.threshold)
            parts.append(_minimise(outcome[a == arm], loss, self.ridges[1], tilts[1 + arm], tolerance))
        return torch.cat(parts)

    def draw(self, psi: tuple[Tensor, Tensor], a: Tensor, s: Tensor, noise: NoiseSource) -> Tensor:
        """One run of the mechanism: coefficients [p + 2 p'] on the CPU. Arguments as in `minimise`."""
        size = psi[0].shape[1] + 2 * psi[1].shape[1]
        if self.solver is None:
            return self.minimise(psi, a, s, torch.zeros(size).to(s)).cpu()
        theta = self.minimise(psi, a, s, noise.gaussian(size, self.tilt_scale).to(s))
        return self.solver.release(theta, noise)


def joint_objective(
    n: int, size: int, threshold: float, budget: PrivacyBudget | None, *, share: float, jacobian_share: float
) -> JointObjective:
    r"""Constants of a joint objective of `n` records with `size` coefficients in all.

    .. math::
        \varepsilon_J = \ln\Big(1 + \frac{\alpha}{8\kappa_\pi}\Big) + \ln\Big(1 + \frac{1}{\kappa}\Big), \quad
        \sigma_b = 2 \sqrt{\alpha^2 + 4\tau^2}\; \sigma_{AG}(\varepsilon - \varepsilon_J, \delta / 16)

    One hundredth of the budget pays for the solver. `jacobian_share` of the rest goes to epsilon_J, divided
    between propensity and outcomes as 1 to 4, from which the ridges follow.

    Args:
        n: records of the block.
        size: coefficients of propensity and both outcomes together.
        threshold: tau, in outcome units.
        budget: of the objective; None without privacy.
        share: alpha^2 / (alpha^2 + 4 tau^2), the propensity's share of the squared gradient bound.
        jacobian_share: epsilon_J over epsilon.

    Example:
        >>> joint = joint_objective(1350, 15, 1.0, PrivacyBudget(1.0, 1e-5), share=0.2, jacobian_share=0.3)
        >>> round(joint.alpha, 6), round(joint.jacobian, 6), round(joint.tilt_scale, 6)
        (1.0, 0.297, 27.214319)
    """
    alpha = 2 * threshold * math.sqrt(share / (1 - share))
    gradient = math.hypot(alpha, 2 * threshold)
    tolerance, least = _TOLERANCE * n * gradient, _LEAST_RIDGE * n
    if budget is None:
        return JointObjective(alpha, threshold, (alpha * least, least), 0.0, 0.0, None, tolerance)
    epsilon, delta = (part * (1 - _SOLVER_SHARE) for part in (budget.epsilon, budget.delta))
    ridges = (
        max(alpha / (8 * math.expm1(0.2 * jacobian_share * epsilon)), alpha * least),
        max(1 / math.expm1(0.8 * jacobian_share * epsilon), least),
    )
    jacobian = math.log1p(alpha / (8 * ridges[0])) + math.log1p(1 / ridges[1])
    scale = 2 * gradient * analytic_gaussian_sigma(epsilon - jacobian, delta / _VERTICES)
    # The tilt's grid moves it by half a step a coordinate; a coefficient moves by 1/(2 kappa) of that. A stop a tenth
    # as coarse costs next to nothing, and needs no decrease of the objective that float64 could not resolve.
    half_step = math.sqrt(size) * NoiseSource.grid(scale) / 2
    tolerance += half_step / 10
    stray = (tolerance + half_step) / (2 * min(ridges))
    rest = PrivacyBudget(budget.epsilon * _SOLVER_SHARE, budget.delta * _SOLVER_SHARE)
    return JointObjective(alpha, threshold, ridges, scale, jacobian, GaussianMechanism(rest, 2 * stray), tolerance)


class _Slopes(NamedTuple):
    """Loss [n] and its first two derivatives [n] in the linear predictor."""

    value: Tensor
    first: Tensor
    second: Tensor


_Loss = Callable[[Tensor], _Slopes]


def _cross_entropy(a: Tensor, alpha: float) -> _Loss:
    def loss(u: Tensor) -> _Slopes:
        p = torch.sigmoid(u)
        return _Slopes(alpha * (torch.nn.functional.softplus(u) - a * u), alpha * (p - a), alpha * p * (1 - p))

    return loss


def _huber(s: Tensor, tau: float) -> _Loss:
    def loss(u: Tensor) -> _Slopes:
        r = s - u
        clipped = r.clamp(-tau, tau)
        return _Slopes(clipped * (2 * r - clipped), -2 * clipped, 2 * (r.abs() <= tau).to(r))

    return loss


def _minimise(psi: Tensor, loss: _Loss, ridge: float, tilt: Tensor, tolerance: float) -> Tensor:
    """Minimiser [p] of sum loss(psi theta) + ridge ||theta||^2 + tilt'theta, by Newton steps with backtracking.

    Raises:
        NumericalError: the tolerance was not reached; nothing may be released.
    """

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        slopes = loss(psi @ theta)
        value = slopes.value.sum() + ridge * theta @ theta + tilt @ theta
        return value, psi.T @ slopes.first + 2 * ridge * theta + tilt, slopes.second

    theta = torch.zeros_like(tilt)
    value, gradient, curvature = evaluate(theta)
    for _ in range(_MOST_STEPS):
        norm = gradient.norm()
        if norm <= tolerance:
            return theta
        hessian = (psi.T * curvature) @ psi + 2 * ridge * torch.eye(len(theta)).to(psi)
        step, length = torch.linalg.solve(hessian, gradient), 1.0
        while length > 1e-9:
            new = evaluate(theta - length * step)
            # a smaller gradient counts only where the value is level: else the two rules may take turns for ever
            level = new[0] <= value + 1e-13 * value.abs() and new[1].norm() < norm
            if new[0] <= value - 1e-4 * length * gradient @ step or level:
                break
            length /= 2
        theta, (value, gradient, curvature) = theta - length * step, new
    raise NumericalError(
        f"the nuisances stopped at gradient norm {gradient.norm():.1e}, above {tolerance:.1e}: nothing is released; "
        "lower nuisance.jacobian_share"
    )
