"""One perturbed convex objective of propensity and outcomes: its public constants, and its minimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.erm.gaussian_scale import PARALLELOGRAM, Corners
from torchdpcate.erm.losses import Huber, Logistic, Loss
from torchdpcate.erm.private_fit import SOLVER_SHARE, ObjectiveNoise, calibrate_change, ridge_ratio
from torchdpcate.erm.solver import minimise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

_LEAST_RIDGE = 1e-4  # of the mean objective, for conditioning
_TOLERANCE = 1e-11  # of a summed gradient, a record and gradient bound


@dataclass(frozen=True)
class JointObjective:
    r"""The public constants of one jointly perturbed objective.

    .. math::
        \sum_i \alpha\,\ell(a_i, \psi_i^\top\theta_\pi) + H_\tau(y_i - m - \psi_i^\top\theta_{a_i})
        + \kappa_\pi \|\theta_\pi\|^2 + \kappa (\|\theta_0\|^2 + \|\theta_1\|^2) + b^\top\theta,
        \quad b \sim N(0, \sigma_b^2 I),

    with the cross-entropy l, the Huber loss H (slope at most 2 tau, curvature at most 2) and ||psi|| <= 1.

    A known propensity has no part in it: alpha is 0, and theta_pi has no entries.

    Attributes:
        alpha: weight of the propensity's loss, which bounds its gradient; 0 where it is not fitted.
        threshold: tau, in outcome units.
        ridges: (kappa_pi, kappa), summed over the records, not their mean.
        tolerance: largest norm of the summed gradient at the end.
        objective_noise: b, calibrated; None without privacy.
    """

    alpha: float
    threshold: float
    ridges: tuple[float, float]
    tolerance: float
    objective_noise: ObjectiveNoise | None

    @property
    def gradient_bound(self) -> float:
        """Largest norm of one record's gradient, sqrt(alpha^2 + 4 tau^2)."""
        return math.hypot(self.alpha, 2 * self.threshold)

    def minimise(self, psi: tuple[Tensor, Tensor], a: Tensor, s: Tensor, linear_terms: Tensor) -> Tensor:
        """Minimisers (theta_pi, theta_0, theta_1), one a row of ``linear_terms``, float64 [runs, p + 2 p'].

        The objective is a sum over the three once b is drawn; each is minimised alone.

        Args:
            psi: features of the propensity [n, p] and of the outcomes [n, p'].
            a: treatment [n].
            s: outcome less the median [n].
            linear_terms: b, [runs, p + 2 p'].

        Raises:
            NumericalError: the tolerance was not reached; nothing may be released.
        """
        treatment, outcome = psi
        parts = linear_terms.to(s).split([treatment.shape[1], outcome.shape[1], outcome.shape[1]], 1)
        first, second = (2 * ridge for ridge in self.ridges)

        def part(psi: Tensor, target: Tensor, weight: float, loss: Loss, gamma: float, linear_term: Tensor) -> Tensor:
            weights = torch.full_like(target, weight)
            return minimise(psi, target, weights, loss, gamma, linear_term, self.tolerance / math.sqrt(3))

        found = [] if self.alpha == 0 else [part(treatment, 2 * a.to(s) - 1, self.alpha, Logistic(), first, parts[0])]
        for arm in (0, 1):
            own = a == arm
            found.append(part(outcome[own], s[own], 1.0, Huber(self.threshold), second, parts[1 + arm]))
        return torch.cat(found, 1)

    def draw(self, psi: tuple[Tensor, Tensor], a: Tensor, s: Tensor, noise: NoiseSource, runs: int = 1) -> Tensor:
        """Independent runs of the mechanism: coefficients [runs, p + 2 p'] on the CPU. Arguments as in `minimise`."""
        if self.objective_noise is None:
            return self.minimise(psi, a, s, torch.zeros(runs, psi[0].shape[1] + 2 * psi[1].shape[1])).cpu()
        return self.objective_noise.release(lambda linear_terms: self.minimise(psi, a, s, linear_terms), noise, runs)


def joint_objective(
    n: int, size: int, threshold: float, budget: PrivacyBudget | None, *, share: float, jacobian_share: float
) -> JointObjective:
    r"""Constants of a joint objective of `n` records with `size` coefficients in all.

    .. math::
        \varepsilon_J = \ln\Big(1 + \frac{\alpha}{8\kappa_\pi}\Big) + \ln\Big(1 + \frac{1}{\kappa}\Big), \quad
        \sigma_b = 2 \sqrt{\alpha^2 + 4\tau^2}\; \sigma

    with the least sigma that ``joint_corners`` allow, or `erm.objective_sigma` in four dimensions where delta is too
    large for them. One hundredth of the budget pays for the solver. `jacobian_share` of the rest goes to epsilon_J,
    divided between propensity and outcomes as 1 to 4, from which the ridges follow.

    Args:
        n: records of the block.
        size: coefficients of propensity and both outcomes together.
        threshold: tau, in outcome units.
        budget: of the objective; None without privacy.
        share: alpha^2 / (alpha^2 + 4 tau^2), the propensity's share of the squared gradient bound; 0 for a propensity
            that is known, and then the outcomes have all of epsilon_J.
        jacobian_share: epsilon_J over epsilon.

    Example:
        >>> joint = joint_objective(1350, 15, 1.0, PrivacyBudget(1.0, 1e-5), share=0.2, jacobian_share=0.3)
        >>> round(joint.alpha, 6), round(joint.objective_noise.jacobian, 6), round(joint.objective_noise.scale, 6)
        (1.0, 0.297, 24.961932)
    """
    alpha = 2 * threshold * math.sqrt(share / (1 - share))
    gradient = math.hypot(alpha, 2 * threshold)
    tolerance, least = _TOLERANCE * n * gradient, _LEAST_RIDGE * n
    if budget is None:
        return JointObjective(alpha, threshold, (alpha * least, least), tolerance, None)
    epsilon = budget.epsilon * (1 - SOLVER_SHARE)
    first, second = (0.2, 0.8) if alpha else (0.0, 1.0)
    own = max(alpha / 8 * ridge_ratio(first * jacobian_share * epsilon), alpha * least) if alpha else 0.0
    ridges = (own, max(ridge_ratio(second * jacobian_share * epsilon), least))
    noise = calibrate_change(
        budget,
        kind="gaussian",
        size=size,
        shift=2 * gradient,
        jacobian=(math.log1p(alpha / (8 * own)) if alpha else 0.0) + math.log1p(1 / ridges[1]),
        gamma=2 * (min(ridges) if alpha else ridges[1]),
        tolerance=tolerance,
        # two records, each with a direction in the propensity's block, if it is fitted, and one in its arm's
        dimension=min(size, 4 if alpha else 2),
        corners=[joint_corners(share)],
    )
    return JointObjective(alpha, threshold, ridges, noise.tolerance, noise)


def joint_corners(share: float) -> Corners:
    r"""Return the points between which the difference of two records' gradients lies, at its worst.

    .. math::
        \delta \le 2 \sum_{q \in \{0, \alpha^2, \alpha^2, 4 \alpha^2\}}
        \big[ \delta_G(q) + \delta_G(q + 16 \tau^2) \big]

    by squared lengths, with those of xi^2 = 4 (alpha^2 + 4 tau^2): both records of one arm, on opposite features of
    the propensity and on one of the outcome (docs/guarantees/convex_nuisances.md).

    Args:
        share: s = alpha^2 / (alpha^2 + 4 tau^2); 0 where no propensity is fitted.

    Example:
        >>> [(count, round(length, 6)) for count, length in joint_corners(0.2).points]
        [(2.0, 1.0), (4.0, 0.921954), (2.0, 0.894427), (2.0, 0.447214), (4.0, 0.223607)]
    """
    if share == 0:
        return PARALLELOGRAM
    squared = ((2.0, 1.0), (4.0, 1 - 0.75 * share), (2.0, 1 - share), (2.0, share), (4.0, share / 4))
    return Corners(tuple((count, math.sqrt(part)) for count, part in squared), convex=True)
