"""Covariate balancing scoring rules with clipped scores, as convex losses of a linear predictor."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.erm.losses import Logistic, Loss, Slopes


@dataclass(frozen=True)
class BalancingLoss(Loss):
    r"""Loss -S(e, z) of the linear predictor g, whose stationarity balances weighted covariates.

    With v = t g, t = +1 for the treated and -1 for controls, and L = logit(1 - eta),

    .. math:: \ell = A_t (1 + e^{-v}) - B_t v, \qquad A_+ = B_- = 1\{\alpha = -1\}, \quad A_- = B_+ = 1\{\beta = -1\}

    for \|v\| <= L, extended linearly beyond (the clipped score; for ATT and ATC below -L alone, where a weight could
    grow); for the ATO the logistic loss, unclipped. Its slope is
    -w_1 for the treated and +w_0 for controls, so that the minimiser of the sum has sum t w psi = 0.

    Slope W (1 for the ATO), curvature kappa of the ``Estimand``. Source: Zhao (2019); theory note
    ``covariate_balancing``, section 1, which corrects the ATT and ATC rows of Ohnishi & Awan (2024), table 1.

    Args:
        estimand: Estimand and clip.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> loss = BalancingLoss(ATE(0.1))
        >>> round(loss(torch.tensor([0.3]).double(), torch.ones(1)).value.item(), 6)
        1.440818
    """

    targets: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    monotone: ClassVar[bool] = True
    estimand: Estimand

    @property
    def slope(self) -> float:  # type: ignore[override]
        """W, for the ATO 1."""
        return 1.0 if self.estimand.scoring_rule == "logistic" else self.estimand.largest

    @property
    def curvature(self) -> float:  # type: ignore[override]
        """Kappa, the largest second derivative in g: (1-eta)/eta, of the logistic loss 1/4."""
        of = self.estimand
        return Logistic.curvature if of.scoring_rule == "logistic" else (1 - of.overlap) / of.overlap

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """See ``Loss``; ``target`` is +1 for the treated and -1 for controls."""
        if self.estimand.scoring_rule == "logistic":
            return Logistic()(u, target)
        alpha, beta = self.estimand.powers
        reach, v = self.estimand.reach, target * u
        treated = target > 0
        curved = torch.where(treated, float(alpha == -1), float(beta == -1)).to(u)
        linear = torch.where(treated, float(beta == -1), float(alpha == -1)).to(u)
        inside = v.clamp(-reach, reach if self.estimand.symmetric else math.inf)
        power = curved * torch.exp(-inside)
        slope = -power - linear
        value = curved + power - linear * inside + slope * (v - inside)
        return Slopes(value, target * slope, target * target * power * (v == inside))
