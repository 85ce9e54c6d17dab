"""Entropy balancing weights as a convex fit of exponential tilts, with their certified indirect sensitivity."""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.erm.descent import Ball
from torchdpcate.erm.losses import Loss, Slopes
from torchdpcate.erm.solver import minimise
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import on_domain
from torchdpcate.nuisance.weights.balancing import BalancingWeights, largest_inverse
from torchdpcate.nuisance.weights.stationarity import between, highest, largest_difference, least_bound

_STRAY = 1e-10  # how far the fit of an arm may stop from the minimiser


@cache
def largest_mean_tilt(cap: float, ridge: float) -> float:
    r"""Largest mean of the weights e^{u}, u the predictor of a record's own arm, which stationarity allows.

    .. math:: \bar\omega = \min_{\lambda \ge 0} \sup_{|u| \le R} \{ e^u - \lambda (u(2 e^u - 1) + \rho u^2) \}
        + \lambda \sup_{|u| \le R} \{ u - \rho u^2 \}

    Example:
        >>> round(largest_mean_tilt(20.0, 0.1), 2)
        1.88
    """
    reach = math.log(cap / 2)
    u = between(-reach, reach)
    tilt, ridged = np.exp(u), ridge * u * u
    own, other = u * (2 * tilt - 1) + ridged, u - ridged
    steep = 1 + 2 * ridge * reach

    def bound(multiplier: float) -> float:
        first = highest(tilt - multiplier * own, u, cap / 2 + multiplier * (cap * (1 + reach) + steep))
        return first + multiplier * highest(other, u, steep)

    return min(cap / 2, least_bound(bound, cap))


@cache
def tilting_indirect_sensitivity(cap: float, ridge: float) -> float:
    r"""Indirect sensitivity of the weights e^{<l, psi>}, half of 1 / pi, on features of norm at most one.

    .. math:: D_1 = \max\big\{ 2 c\, M(\bar\omega / 2), \; (H + 2)\, M(\tfrac{H}{H + 2} \bar\omega) \big\},
        \quad M(W) = \min\Big\{\frac{W}{\rho + 2 W}, \sqrt{\frac{W}{8 \rho}}\Big\}

    The first where the record changes its arm, the second where it does not, H then being the largest difference of two
    gradients of its arm and at least 2. The mean weight is at most `largest_mean_tilt`. It does not depend on n. Proof:
    docs/guarantees/balancing_weights.md.

    Args:
        cap: c > 2, the largest 2 e^{<l, psi>}.
        ridge: rho of the mean objective.

    Example:
        >>> round(tilting_indirect_sensitivity(4.0, 0.1), 2)
        7.52
    """
    mean = largest_mean_tilt(cap, ridge)
    reach = math.log(cap / 2)
    stays = max(2.0, largest_difference(lambda u: 2 * np.exp(u) - 1, reach, cap))

    def moved(weight: float) -> float:
        # at most a quarter where the ridge is small beside the curvature that all weights have together
        return weight / (ridge + 2 * weight) if weight < ridge / 2 else math.sqrt(weight / (8 * ridge))

    return max(2 * cap * moved(mean / 2), (stays + 2) * moved(mean * stays / (stays + 2)))


@dataclass(frozen=True)
class TiltingLoss(Loss):
    r"""2 t e^u - u for t in {0, 1}: at its minimum t e^u balances what u is linear in; straight beyond |u| = reach.

    Its bounds are those of targets in [0, 1]; at -1, a label, it is steeper and not convex.

    Attributes:
        reach: Largest |u| that counts.
    """

    targets: ClassVar[tuple[float, float]] = (0.0, 1.0)
    reach: float

    @property
    def slope(self) -> float:  # type: ignore[override]
        """2 e^reach - 1, which is at least 1."""
        return 2 * math.exp(self.reach) - 1

    @property
    def curvature(self) -> float:  # type: ignore[override]
        """2 e^reach."""
        return 2 * math.exp(self.reach)

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """Return the loss and its two derivatives."""
        held = u.clamp(-self.reach, self.reach)
        tilt = 2 * target * held.exp()
        return Slopes(tilt * (1 + u - held) - u, tilt - 1, tilt * (u == held))


@dataclass(frozen=True)
class TiltingWeights(BalancingWeights):
    r"""Entropy balancing: exponential tilts that give each arm the covariates of everybody.

    .. math:: \hat l_a = \arg\min_{\|l\| \le R} \tfrac1n \sum_i \big( 2 \cdot 1\{a_i = a\} e^{\psi_i^\top l}
        - \psi_i^\top l \big) + \tfrac\rho2 \|l\|^2, \quad \omega_i = e^{\psi_i^\top \hat l_{a_i}}, \quad 2 e^R = c

    Each arm's moments, weighted by 2 omega = 1 / pi, come within rho l of everybody's. Nothing is normalised by an
    arm's size. A ridge without end gives weights of one, those of a balanced trial.

    Guarantee:
        Certified indirect sensitivity (`tilting_indirect_sensitivity`), the solver's stop included; free.

    Args:
        ridge: rho.
        cap: c, the largest 1 / pi(a|x); None takes the inverse of the domain's overlap.
        features: Public feature map, whose moments are balanced; None takes intercept and scaled covariates.

    Example:
        >>> domain = Domain([0.0], [1.0], -1.0, 1.0, overlap=0.25)
        >>> round(TiltingWeights(ridge=1.0).bounds(400, domain).first, 2)
        6.17
    """

    name = "entropy"

    ridge: float = 0.1
    cap: float | None = None
    features: FeatureMap | None = None

    def span(self, domain: Domain) -> tuple[float, float]:
        """Return the weights at either end of the tilts, of which none goes beyond the norm 1/ridge."""
        most = min(largest_inverse(self.cap, domain) / 2, math.exp(min(1 / self.ridge, 700.0)))
        return 1 / most, most

    def indirect_sensitivity(self, n: int, domain: Domain) -> float:
        """Return the indirect sensitivity; either fit stops near its minimiser and takes every weight with it."""
        cap = 2 * self.span(domain)[1]
        return tilting_indirect_sensitivity(cap, self.ridge) + 2 * (n - 1) * cap / 2 * _STRAY

    def balance(self, records: CausalData, domain: Domain) -> Tensor:
        """Return the weights of the records, [n]."""
        reach = math.log(self.span(domain)[1])
        psi = on_domain(self.features, domain)(records.x)
        arms = torch.stack([records.a == 0, records.a == 1]).to(psi)
        gamma, none = records.n * self.ridge, psi.new_zeros(2, psi.shape[1])
        # on a ball the distance to the minimiser is at most twice the gradient mapping over gamma
        tolerance, ones = _STRAY * gamma / 2, torch.ones_like(psi[:, 0])
        fits = minimise(psi, arms, ones, TiltingLoss(reach), gamma, none, tolerance, Ball(reach))
        return (arms * (fits @ psi.T).clamp(-reach, reach).exp()).sum(0)
