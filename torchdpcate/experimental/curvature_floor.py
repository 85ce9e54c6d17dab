"""How little curvature a balancing loss can have: log determinants of its Hessian, and a certified lower bound."""

import torch
from torch import Tensor

from torchdpcate.erm.losses import BalancingLoss
from torchdpcate.erm.records import Batch, Records, Target
from torchdpcate.erm.solver import linear_predictor
from torchdpcate.experimental.coefficient_set import CoefficientSet

_GAP = 0.01  # below the least log determinant that the bound may be: a proposal is kept 1 % less often
_MOST_STEPS = 1_000  # a bound that is still below that is as valid
_ROUNDING = 1e-9  # of log determinants in float64


def log_curvature(records: Records, loss: BalancingLoss, target: Target, ridge: float, theta: Tensor) -> Tensor:
    r"""Return ln det H [runs] at theta [runs, p].

    .. math:: H(\theta) = \sum_i \ell''(\psi_i^\top\theta, t_i)\, \psi_i \psi_i^\top + \gamma I

    Args:
        records: One data set, or one for each row of theta.
        loss: l.
        target: t.
        ridge: gamma.
        theta: Where.
    """
    return 2 * _factor(records, loss, target, ridge, theta).diagonal(dim1=1, dim2=2).log().sum(1)


def curvature_floor(
    records: Records, loss: BalancingLoss, target: Target, ridge: float, region: CoefficientSet
) -> Tensor:
    r"""Return a lower bound m [sets] of ln det H over a set of coefficients on which no propensity is clipped.

    There l'' = exp(-t psi'theta) of one arm or both, so that by Cauchy and Binet det H is a sum of exponentials of
    linear functions and f = ln det H is convex. At any theta

    .. math::
        \min_{N(\vartheta) \le R} f(\vartheta) \ge f(\theta) - \nabla f(\theta)^\top\theta - R\, N^*(\nabla f(\theta)),
        \qquad \nabla f = -\sum_i t_i\, \ell''_i\, (\psi_i^\top H^{-1}\psi_i)\, \psi_i

    The best of these along accelerated projected gradient steps of length 1/(2p) is taken, for with
    :math:`q_i = \ell''_i\, \psi_i^\top H^{-1}\psi_i`, which add up to at most p,
    :math:`\nabla^2 f \preceq 2\sum_i q_i \psi_i\psi_i^\top \preceq 2p\,I`.

    Args:
        records: One data set, or several side by side.
        loss: Of the ATE, ATT or ATC.
        target: t.
        ridge: gamma, above 0.
        region: The set; \|psi'theta\| <= logit(1 - eta) on it.
    """
    p, sets = records.size, records.sets
    point = torch.zeros(sets, p, dtype=torch.float64)
    ahead, momentum, floor = point, torch.ones(sets, 1).double(), torch.full((sets,), -torch.inf).double()
    for _ in range(_MOST_STEPS):
        value, slope = _slope(records, loss, target, ridge, ahead)
        gap = (slope * ahead).sum(1) + region.radius * region.dual(slope)
        floor = torch.maximum(floor, value - gap)
        if bool((gap <= _GAP).all()):
            break
        new = region.project(ahead - slope / (2 * p))
        uphill = ((ahead - new) * (new - point)).sum(1, keepdim=True) > 0  # momentum that leads astray is dropped
        momentum = torch.where(uphill, 1.0, momentum)
        further = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
        ahead = region.project(new + (momentum - 1) / further * (new - point))
        point, momentum = new, further
    return floor - _ROUNDING


def _factor(records: Records, loss: BalancingLoss, target: Target, ridge: float, theta: Tensor) -> Tensor:
    """Cholesky factor of H, [runs, p, p]."""
    H = records.slopes(loss, target, theta)[2]
    H.diagonal(dim1=1, dim2=2).add_(ridge)
    return torch.linalg.cholesky(H)


def _slope(records: Records, loss: BalancingLoss, target: Target, ridge: float, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return f [runs] and its gradient [runs, p]."""
    factor = _factor(records, loss, target, ridge, theta)
    inverse = torch.cholesky_inverse(factor)

    def terms(batch: Batch) -> Tensor:
        t = target(batch)
        leverage = ((batch.psi @ inverse) * batch.psi).sum(-1)
        pull = t * loss(linear_predictor(batch.psi, theta), t).second * leverage
        return -(pull[:, None] @ batch.psi)[:, 0]

    return 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1), records.total(terms)
