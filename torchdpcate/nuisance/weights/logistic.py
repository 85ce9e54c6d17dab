"""Inverse propensity weights of a ridge logistic regression, with their certified indirect sensitivity."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.solver import minimise
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import on_domain
from torchdpcate.nuisance.weights.balancing import BalancingWeights
from torchdpcate.nuisance.weights.stationarity import between, highest, largest_difference, least_bound

_STRAY = 1e-10  # how far the fit may stop from the minimiser
_LAMBERT = 0.2784645427610738  # W(1/e), the largest s sigma(-s)
_FLAT = 40.0  # predictors beyond which weights do not move


@cache
def logistic_reach(ridge: float) -> float:
    r"""Largest norm of l, hence largest predictor: at the minimum :math:`\rho \|l\|^2` is the mean of s sigma(-s).

    Example:
        >>> round(logistic_reach(0.1), 6)
        1.668726
    """
    top = 1 + _LAMBERT  # where s sigma(-s) is highest, at W(1/e)
    if ridge * top * top < _LAMBERT:
        return math.sqrt(_LAMBERT / ridge)
    return float(brentq(lambda r: ridge * r - 1 / (1 + math.exp(r)), 0.0, top)) * (1 + 1e-12)


@cache
def logistic_indirect_sensitivity(overlap: float, ridge: float) -> float:
    r"""Indirect sensitivity of weights 1 / (2 clip(pi(a|x))) by ridge logistic fits on features of norm at most one.

    .. math:: D_1 = H M, \quad M = \min_{M, \lambda \ge 0} \Big\{ M : \sup_{|s| \le r} \Psi_M(s)
        + \lambda \big(s \sigma(-s) - \rho s^2\big) \le M \rho \Big\}, \quad
        \Psi_M(s) = \max_{0 \le c \le 1} \tfrac12 e^{-s} c - M \sigma(s) \sigma(-s) c^2

    s is the predictor of a record's own arm, r its `logistic_reach`, H the largest difference of two records'
    gradients. The middle term is what stationarity leaves: weights are large for few records only, and where they move,
    the loss is curved. It does not depend on n. Proof: docs/guarantees/balancing_weights.md.

    Args:
        overlap: zeta, the least propensity of either arm.
        ridge: rho of the mean loss + rho/2 ||l||^2.

    Example:
        >>> round(logistic_indirect_sensitivity(0.25, 0.1), 2)
        2.54
    """
    reach, edge = logistic_reach(ridge), math.log(1 / overlap - 1)
    # below the clip nothing moves and s sigma(-s) falls; above _FLAT all three terms fall
    s = between(-min(reach, edge), min(reach, _FLAT))
    steep, curved = np.exp(-s) / 2, expit(s) * expit(-s)
    stationary = s * expit(-s) - ridge * s * s
    end = float(max(-s[0], s[-1]))
    steepest, most = 1 + end / 4 + 2 * ridge * end, math.exp(-s[0]) / 2

    def least(multiplier: float) -> float:
        def excess(bound: float) -> float:
            share = np.minimum(1.0, steep / (2 * bound * curved))
            value = steep * share - bound * curved * share**2 + multiplier * stationary
            return highest(value, s, most + bound / 10 + multiplier * steepest) - bound * ridge

        high = most / ridge  # valid for any fit, for no weight is steeper
        if excess(high) > 0:
            return high
        low = 0.25 / (ridge + 0.25)  # half of what balanced arms reach, whose predictors are all zero
        return float(brentq(excess, low, high, xtol=1e-9 * low, rtol=1e-9)) * (1 + 1e-6)

    return largest_difference(lambda u: expit(-u), reach, 0.25) * least_bound(least, 4 * most)


@dataclass(frozen=True)
class LogisticWeights(BalancingWeights):
    r"""Weights 1 / (2 clip(pi(a|x))) with pi by ridge logistic regression on the same records, without privacy.

    .. math:: \hat l = \arg\min_l \tfrac1n \sum_i \log(1 + e^{-t_i \psi_i^\top l}) + \tfrac\rho2 \|l\|^2,
        \quad \pi = \sigma(\psi^\top \hat l)

    Guarantee:
        Certified indirect sensitivity (`logistic_indirect_sensitivity`), the solver's stop included; free. The
        features' norm is at most one and their entries smaller still, so that even a small ridge shrinks the propensity
        strongly towards 1/2.

    Args:
        ridge: rho.
        features: Public feature map; None takes intercept and scaled covariates.

    Example:
        >>> round(LogisticWeights(ridge=1.0).bounds(400, Domain([0.0], [1.0], -1.0, 1.0, overlap=0.25)).first, 2)
        2.9
    """

    name = "ipw"

    ridge: float = 0.1
    features: FeatureMap | None = None

    def span(self, domain: Domain) -> tuple[float, float]:
        """Return the weights at the propensities nearest to zero and one that a fit reaches."""
        most = min(1 / domain.overlap, 1 + math.exp(min(logistic_reach(self.ridge), 700.0))) / 2
        return 0.5 / (1 - 0.5 / most), most

    def indirect_sensitivity(self, n: int, domain: Domain) -> float:
        """Return the indirect sensitivity; either fit stops near its minimiser and takes every weight with it."""
        steepest = self.span(domain)[1]
        return logistic_indirect_sensitivity(domain.overlap, self.ridge) + 2 * (n - 1) * steepest * _STRAY

    def balance(self, records: CausalData, domain: Domain) -> Tensor:
        """Return the weights of the records, [n]."""
        psi = on_domain(self.features, domain)(records.x)
        label, gamma = 2 * records.a.double() - 1, records.n * self.ridge
        none = psi.new_zeros(1, psi.shape[1])
        fit = minimise(psi, label, torch.ones_like(label), Logistic(), gamma, none, _STRAY * gamma)[0]
        own = torch.sigmoid(label * (psi @ fit))
        least = 0.5 / self.span(domain)[1]
        return 0.5 / own.clamp(least, 1 - least)
