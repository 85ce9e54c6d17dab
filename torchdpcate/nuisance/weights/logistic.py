"""Inverse propensity weights of a ridge logistic regression, with their certified indirect sensitivity."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.solver import minimise
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import on_domain
from torchdpcate.nuisance.weights.balancing import BalancingWeights

_STRAY = 1e-10  # how far the fit may stop from the minimiser


def logistic_indirect_sensitivity(overlap: float, ridge: float) -> float:
    r"""Indirect sensitivity of weights 1 / (2 clip(pi(a|x))) by ridge logistic fits on features of norm at most one.

    .. math:: D_1 = \tfrac12 \min\Big\{ \frac{2}{\rho}\Big(\frac1\zeta - 1\Big),\;
        \sqrt{\frac{1 - \zeta}{\zeta^3 \rho}} \Big\}

    It does not depend on n. Source: theory note ``policy_learning``, section 4.2.

    Args:
        overlap: zeta, the least propensity of either arm.
        ridge: rho of the mean loss + rho/2 ||l||^2.

    Example:
        >>> round(logistic_indirect_sensitivity(0.25, 0.1), 6)
        10.954451
    """
    steep = 2 * (1 / overlap - 1) / ridge
    monotone = math.sqrt((1 - overlap) / (overlap**3 * ridge))
    return min(steep, monotone) / 2


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
        >>> LogisticWeights(ridge=1.0).bounds(400, Domain([0.0], [1.0], -1.0, 1.0, overlap=0.25)).first.__round__(6)
        7.0
    """

    name = "ipw"

    ridge: float = 0.1
    features: FeatureMap | None = None

    def span(self, domain: Domain) -> tuple[float, float]:
        """Return the weights at the clipped propensities."""
        return 0.5 / (1 - domain.overlap), 0.5 / domain.overlap

    def indirect_sensitivity(self, n: int, domain: Domain) -> float:
        """Return the indirect sensitivity; either fit stops near its minimiser and takes every weight with it."""
        steepest = (1 / domain.overlap - 1) / 2
        return logistic_indirect_sensitivity(domain.overlap, self.ridge) + 2 * (n - 1) * steepest * _STRAY

    def balance(self, records: CausalData, domain: Domain) -> Tensor:
        """Return the weights of the records, [n]."""
        psi = on_domain(self.features, domain)(records.x)
        label, gamma = 2 * records.a.double() - 1, records.n * self.ridge
        none = psi.new_zeros(1, psi.shape[1])
        fit = minimise(psi, label, torch.ones_like(label), Logistic(), gamma, none, _STRAY * gamma)[0]
        own = torch.sigmoid(label * (psi @ fit))
        return 0.5 / own.clamp(domain.overlap, 1 - domain.overlap)
