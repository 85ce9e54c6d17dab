"""Neighbouring records on which the K-norm gradient mechanism is attacked, with their likelihood ratio."""

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE
from torchdpcate.data.domain import Domain
from torchdpcate.erm.losses import BalancingLoss
from torchdpcate.erm.records import Batch, StackedRecords, arm
from torchdpcate.experimental.k_norm_gradient import KNormGradient
from torchdpcate.features.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import fits_by
from torchdpcate.privacy.guarantee import Guarantee
from torchdpcate.privacy.worst_case import Game, worst_case

_LOSS = BalancingLoss(ATE(0.43))
_FEATURES = on_domain(None, Domain([-1.0], [1.0], 0.0, 1.0))
_FITTER = KNormGradient(ridge=18.0)  # a large one, so that few records fill the set and many proposals are kept
_OTHERS = ((-1.0, 1.0, 7), (0.0, 0.0, 16), (0.0, 1.0, 9))


def _records(world: int) -> StackedRecords:
    """Records (x, z), as often as said, and one at x = -1 whose treatment is the world."""
    rows = [(x, z) for x, z, count in (*_OTHERS, (-1.0, float(world), 1)) for _ in range(count)]
    x, z = torch.tensor(rows, dtype=torch.float64).T
    return StackedRecords(Batch(x[:, None], _FEATURES(x[:, None]), z, torch.zeros_like(z)))


def _log_density(theta: Tensor, world: int, ridge: float, scale: float) -> Tensor:
    """Of the law at theta [runs, p] in the set, up to a constant: minus the gradient's norm in units of s."""
    gradient = _records(world).slopes(_LOSS, arm, theta)[1] + ridge * theta
    return -torch.linalg.vector_norm(gradient, _FITTER.order, dim=1) / scale


@worst_case(
    "k_norm_gradient",
    KNormGradient,
    attacks=fits_by("k_norm_gradient"),
    pair="a record at one end of the domain, treated or not, others balanced best at the set's edge",
)
def _gradient(budget: PrivacyBudget) -> Game:
    worlds, pure = [_records(world) for world in (0, 1)], PrivacyBudget(budget.epsilon, 0.0)
    fit = _FITTER.prepare(_LOSS, worlds[0].n, _FEATURES, pure)
    ridge, scale = fit.ridge, fit.public["gradient_scale"]
    return Game(
        draw=lambda world, runs, noise: fit.draw(worlds[world], arm, noise, runs),
        event=fit.event,
        guarantee=Guarantee(fit.level, pure, fit.conditions, source="covariate_balancing section 3.5"),
        evidence=lambda theta: _log_density(theta, 1, ridge, scale) - _log_density(theta, 0, ridge, scale),
        most_runs=60_000,
    )
