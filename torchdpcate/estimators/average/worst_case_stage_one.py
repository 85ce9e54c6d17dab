"""Neighbouring records on which stage one is attacked, with their exact likelihood ratios."""

import math

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE
from torchdpcate.data.domain import Domain
from torchdpcate.erm.linear_fits import NoisyGradient, ObjectiveFit
from torchdpcate.erm.losses import BalancingLoss, Loss
from torchdpcate.erm.records import Batch, StackedRecords, arm
from torchdpcate.features.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import fits_by, propensity_by
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.worst_case import Game, worst_case

_DOMAIN = Domain([0.0], [1.0], outcome_low=0.0, outcome_high=1.0)
_FEATURES = on_domain(None, _DOMAIN)
_STEEP = BalancingLoss(ATE(0.25))
_LINEAR = BalancingLoss(ATE(0.5))  # every record pulls by 2, wherever theta is
_SHARE = 0.9  # of epsilon that the objective noise spends; the pair does not move the determinants
_APART = 3.0  # |g| at which the others hold the predictor, nearly three times what is clipped
_STEPS, _LENGTH = 3, 0.25  # the mean then weighs the three noises by 1.31, 1.75 and 1: .975 of what all three show
_DELTA = 1e-6  # where a budget has none


def _records(x: Tensor, z: Tensor) -> StackedRecords:
    return StackedRecords(Batch(x[:, None], _FEATURES(x[:, None]), z, torch.zeros_like(z)))


def _separated(world: int, others: int) -> StackedRecords:
    """Treated at x = 0 and controls at x = 1; and a treated record at 1, or a control at 0, where none belongs."""
    x, z = torch.zeros(2 * others + 1, dtype=torch.float64), torch.ones(2 * others + 1, dtype=torch.float64)
    x[others:], z[others:] = 1.0, 0.0
    x[-1], z[-1] = (1.0, 1.0) if world == 0 else (0.0, 0.0)
    return _records(x, z)


def log_density(theta: Tensor, records: StackedRecords, loss: Loss, ridge: float, scale: float) -> Tensor:
    r"""Log density [runs], up to a constant, of the minimiser of a sum of losses that box noise perturbs.

    .. math:: \ln\det F''(\theta) - \|F'(\theta)\|_\infty / s

    Args:
        theta: Where, [runs, p].
        records: The records.
        loss: Of a record.
        ridge: gamma.
        scale: s.
    """
    _, gradient, hessian = records.slopes(loss, arm, theta)
    hessian.diagonal(dim1=1, dim2=2).add_(ridge)
    return torch.logdet(hessian) - (gradient + ridge * theta).abs().amax(1) / scale


@worst_case(
    "balancing_objective",
    ObjectiveFit,
    attacks=[propensity_by("objective")],
    pair="a treated record where only controls are, or a control where only treated are, either of full weight",
)
def _objective(budget: PrivacyBudget) -> Game:
    fit = ObjectiveFit("box", share=_SHARE).prepare(_STEEP, 0, _FEATURES, budget)
    scale = fit.public["tilt_scale"]
    # k records on either side, of least weight, pull by k w_min max|psi_j| in each entry of two against the ridge
    entry, least = _FEATURES.largest_entry, _STEEP.estimand.smallest
    others = math.ceil(_APART / (2 * entry) * fit.ridge / (least * entry))
    worlds = [_separated(world, others) for world in (0, 1)]
    return Game(
        draw=lambda world, runs, noise: fit.draw(worlds[world], arm, noise, runs),
        event=fit.event,
        guarantee=Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0)),
        evidence=lambda theta: (
            log_density(theta, worlds[1], _STEEP, fit.ridge, scale)
            - log_density(theta, worlds[0], _STEEP, fit.ridge, scale)
        ),
        most_runs=100_000,
    )


@worst_case(
    "noisy_gradient",
    NoisyGradient,
    attacks=fits_by("noisy_gradient"),
    pair="a record of full weight, treated or not, each record pulling by a constant",
)
def _gradient(budget: PrivacyBudget) -> Game:
    budget = PrivacyBudget(budget.epsilon, budget.delta or _DELTA)
    x = torch.full((20,), 0.5, dtype=torch.float64)
    worlds = []
    for treated in (1.0, 0.0):
        x, z = x.clone(), (torch.arange(20) % 2).double()
        x[0], z[0] = 1.0, treated
        worlds.append(_records(x, z))
    fit = NoisyGradient(steps=_STEPS, length=_LENGTH, momentum=0.0, ridge=1.0).prepare(_LINEAR, 20, _FEATURES, budget)
    direction = _FEATURES(torch.ones(1, 1))[0]
    return Game(
        draw=lambda world, runs, noise: fit.draw(worlds[world], arm, noise, runs),
        event=fit.event,
        guarantee=Guarantee(Level.CERTIFIED, budget),
        # theta is a linear map of the noise, the same for both; the worlds shift it along this direction alone
        evidence=lambda theta: -(theta @ direction),
        count=fit.count,
        most_runs=100_000,
    )
