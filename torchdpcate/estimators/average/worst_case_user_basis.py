"""A basis that a user might write, one record of which would pull ninety times as hard as stage one pays for."""

from typing import Any

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE
from torchdpcate.data.domain import Domain
from torchdpcate.erm.linear_fits import ObjectiveFit
from torchdpcate.erm.losses import BalancingLoss
from torchdpcate.erm.records import Batch, StackedRecords, arm
from torchdpcate.estimators.average.worst_case_stage_one import log_density
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import UserFeatures, on_domain
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.worst_case import Game, worst_case

_DOMAIN = Domain([0.0], [90.0], outcome_low=0.0, outcome_high=1.0)
_RECORDS = 200
_SHARE = 0.95  # of epsilon that the objective noise spends; the pair does not move the determinants


class _Ages(FeatureMap):
    """(1, age), age in years: norms up to 90, where ||psi|| <= 1 is what every claim rests on."""

    __module__ = "a_user"  # or it would count as the library's own

    @property
    def dimension(self) -> int:
        return 2

    def config(self) -> dict[str, Any]:
        return {}

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(x), x], 1).double()


def _records(features: FeatureMap, treated: float) -> StackedRecords:
    """The newborn, of either arm by halves, and one record of ninety years."""
    x, z = torch.zeros(_RECORDS, 1, dtype=torch.float64), torch.arange(_RECORDS, dtype=torch.float64) % 2
    x[0], z[0] = _DOMAIN.covariate_high, treated
    return StackedRecords(Batch(x, features(x), z, torch.zeros_like(z)))


@worst_case(
    "user_basis",
    UserFeatures,
    pair="a record of ninety years among the newborn, treated or not, with a basis of intercept and age in years",
)
def _user_basis(budget: PrivacyBudget) -> Game:
    # the record alone moves the coefficient of age, whose ratio is that of stage one for a feature of norm one
    features = on_domain(_Ages(), _DOMAIN)
    pure, loss = PrivacyBudget(budget.epsilon, 0.0), BalancingLoss(ATE(0.5))
    fit = ObjectiveFit("box", share=_SHARE).prepare(loss, _RECORDS, features, pure)
    worlds, scale = [_records(features, treated) for treated in (0.0, 1.0)], fit.public["tilt_scale"]

    return Game(
        draw=lambda world, runs, noise: fit.draw(worlds[world], arm, noise, runs),
        event=fit.event,
        guarantee=Guarantee(Level.CERTIFIED, pure).resting_on(features.conditions),
        evidence=lambda theta: (
            log_density(theta, worlds[1], loss, fit.ridge, scale)
            - log_density(theta, worlds[0], loss, fit.ridge, scale)
        ),
        most_runs=100_000,
    )
