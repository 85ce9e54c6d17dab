"""Each task at the largest and the narrowest bounds that a domain takes: nothing overflows once something is spent."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.registered import (
    ComposedAverageEffect,
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
from torchdpcate.data.facts import LARGEST_BOUND
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.verify.file import verify_release

SOME, PURE = PrivacyBudget(4.0, 1e-5), PrivacyBudget(4.0, 0.0)
BLOCKS: dict[str, Any] = {
    "second_stage": LinearSecondStage(),
    "nuisance": NuisanceConfig(width=8, epochs=1, batch_size=100),
}
TRIAL = {"propensity": 0.5}
LEARNERS: dict[str, tuple[Callable[..., Any], dict[str, float]]] = {
    "effect": (lambda domain: RLearner(domain, SOME), {}),
    "effect of a trial": (lambda domain: DRLearner(domain, SOME), TRIAL),
    "two blocks": (lambda domain: RLearner(domain, SOME, **BLOCKS), {}),
    "average": (lambda domain: ComposedAverageEffect(domain, SOME), {}),
    "average of a trial": (lambda domain: KnownPropensityEffect(domain, SOME), TRIAL),
    "balancing": (lambda domain: CovariateBalancingEffect(domain, PURE), {}),
    "subgroups": (
        lambda domain: SubgroupEffects(domain, SOME, subgroups=[{"x0": [float(domain.covariate_high[0]) / 2]}]),
        {},
    ),
    "rule": (lambda domain: EffectRule(domain, SOME), {}),
    "policy": (
        lambda domain: PolicySelector(
            domain, PURE, policies=[Constants([0, 1]), Thresholds("x0", [float(domain.covariate_high[0]) / 2])]
        ),
        {},
    ),
    "owl": (lambda domain: OutcomeWeightedLearner(domain, PURE), {"propensity": 0.5}),
    "two stages": (lambda domain: TwoStageRule(domain, PURE), {}),
}
DEFAULT = ("average", "subgroups")
"""Those whose arithmetic overflows first."""
SIZES = {f"{what} up to {size:g}": (what, size) for what in ("outcome", "covariates") for size in (1e18, 1e-18)}


def test_the_sizes_are_the_largest_and_the_least():
    assert LARGEST_BOUND == 1e18


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "learner", [pytest.param(name, marks=[] if name in DEFAULT else pytest.mark.slow) for name in LEARNERS]
)
def test_a_release_verifies_at_bounds_of_any_size(learner, size, tmp_path):
    what, high = SIZES[size]
    x_high, y_high = (1.0, high) if what == "outcome" else (high, 1.0)
    make, facts = LEARNERS[learner]
    domain = Domain([0.0] * 2, [x_high] * 2, 0.0, y_high, overlap=0.2, better="higher", **facts)
    generator = torch.Generator().manual_seed(0)
    u, noise = (torch.rand(600, k, generator=generator, dtype=torch.float64) for k in (2, 1))
    a = (torch.rand(600, generator=generator) < 0.5).double()
    y = y_high * (0.3 + 0.3 * a * u[:, 0] + 0.1 * noise[:, 0])
    fitted = make(domain).fit(x_high * u, a, y)
    release = fitted.release_function() if hasattr(fitted, "release_function") else fitted.release()
    verify_release(release.save(tmp_path / "release.safetensors"))
    if hasattr(release, "effect") and callable(release.effect):
        assert np.isfinite(release.effect(x_high * u[:3])).all()
