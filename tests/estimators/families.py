"""Every family of learners by name, with records that each of them takes: for the tests that go through them all."""

from typing import Any

import torch

from tests.registered import (
    AverageEffect,
    CovariateBalancingEffect,
    DRLearner,
    EffectRule,
    KnownPropensityEffect,
    OutcomeWeightedLearner,
    PolicySelector,
    RLearner,
    SubgroupEffects,
    TwoStageRule,
)
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget

OBSERVED = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0, overlap=0.25, names=["age", "height"], better="higher")
TRIAL = Domain.from_dict(OBSERVED.to_dict() | {"propensity": 0.5})
BUDGET, PURE = PrivacyBudget(8.0, 1e-5), PrivacyBudget(8.0, 0.0)
X = torch.rand(600, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
A = torch.arange(600) % 2
Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "effect": (RLearner, {}),
    "two blocks": (
        RLearner,
        {"nuisance": NuisanceConfig(width=0, batch_size=50, epochs=1), "second_stage": LinearSecondStage()},
    ),
    "doubly robust": (
        DRLearner,
        {"nuisance": NuisanceConfig(width=0, batch_size=50, epochs=1), "second_stage": LinearSecondStage()},
    ),
    "rule": (EffectRule, {}),
    "weighted rule": (OutcomeWeightedLearner, {}),
    "two stages": (TwoStageRule, {}),
    "average": (AverageEffect, {}),
    "balancing": (CovariateBalancingEffect, {}),
    "average of a trial": (KnownPropensityEffect, {}),
    "line subgroups": (AverageEffect, {}),
    "subgroups": (SubgroupEffects, {"propensity": "randomised"}),
    "policies": (PolicySelector, {}),
    "fixed policies": (PolicySelector, {"nuisance_guarantee": "fixed"}),
}
TRIALS = "weighted rule", "average of a trial"
"""Those that need a known propensity."""


def made(
    name: str,
    domain: Domain | TableSchema | None = None,
    budget: PrivacyBudget | None = BUDGET,
    kind: type | None = None,
    **settings: Any,
) -> Any:
    """Return a learner of a family; cells and policies part the first covariate in the middle of its bounds."""
    domain = domain or (TRIAL if name in TRIALS else OBSERVED)
    known = TableSchema.of(domain).domain
    first, middle = known.names[0], float(known.covariate_low[0] + known.covariate_high[0]) / 2
    own = {
        "subgroups": {"subgroups": [{first: [middle]}]},
        "policies": {"policies": [Constants([0, 1]), Thresholds(first, [middle])]},
    }.get(name.split()[-1], {})
    family, fixed = FAMILIES[name]
    return (kind or family)(domain, budget, **own | fixed | settings)
