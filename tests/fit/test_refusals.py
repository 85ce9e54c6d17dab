"""What is refused in one line that names what is wrong: a call, and a word of the line."""

import math
from functools import partial

import pytest

from tests.fit.cases import objective_delta
from tests.fit.nuisance_cases import plan
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.dp_sgd_plan import PoissonSampler
from torchdpcate.fit.gaussian_scale import objective_sigma
from torchdpcate.fit.linear_fits import ObjectiveFit
from torchdpcate.fit.losses import BalancingLoss, Huber, HuberHinge
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.nuisance_kinds import Nuisances
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

NAN, PURE, BUDGET = math.nan, PrivacyBudget(1.0, 0.0), PrivacyBudget(1.0, 1e-6)
ATE = BalancingLoss(make_estimand("ATE", 0.1))
DOMAIN = Domain([0.0], [1.0], 0.0, 1.0)
SETTINGS = {
    NuisanceConfig: [
        {"batch_size": 0},
        {"epochs": 1.5},
        {"average": 1.5},
        {"noise_walk": 0.0},
        {"max_grad_norm": None, "optimizer": "adam"},
    ],
    partial(Nuisances, DOMAIN): [
        {"width": -1},
        {"learning_rate": 0.0},
        {"optimizer": "lion"},
        {"outcome_share": 1.0},
    ],
    plan: [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": NAN},
        {"max_grad_norm": -1.0},
        {"sampling_rate": 1.5},
        {"steps": 0},
    ],
    ObjectiveFit: [{"share": 0.0}, {"share": 1.0}, {"share": NAN}],
    HuberHinge: [{"smoothing": 0.0}, {"smoothing": NAN}],
    Huber: [{"threshold": -1.0}],
}
CALLS = [
    (lambda: NuisanceConfig(batch_size=128).plan(100, BUDGET), "batch_size=128 exceeds"),
    (lambda: NuisanceConfig(batch_size=128).plan(1000, PURE), "delta"),
    (lambda: NuisanceConfig(batch_size=10, epochs=1).check(60, DOMAIN, PrivacyBudget(1.0, 1e-30), ()), "delta"),
    (lambda: plan(steps=2**38).check_precision(160), r"steps=.* 2\^40"),
    (lambda: plan(noise_multiplier=1e7).check_precision(160), "noise_multiplier"),
    *(
        (partial(PoissonSampler, *case, NoiseSource.fixed(0)), "=")
        for case in ((0, 0.1, 1), (5, 0.0, 1), (5, 1.1, 1), (5, 0.1, 0))
    ),
    (lambda: WeightBounds.per_record(0.0), r"bounds\.most"),
    (lambda: WeightBounds(4.0, 4.0, 4.0, own=True), r"bounds\.first"),
    (lambda: objective_sigma(1.0, 1e-5, 2.0, 1.0), "determinants"),
    (lambda: objective_sigma(1.0, 0.0, 2.0), "delta"),
    (lambda: objective_sigma(1.0, 1e-5, 2.0, 0.0, 0), "dimension"),
    (lambda: objective_delta(1.0, 1.0, -2.0), "shift"),
]


@pytest.mark.parametrize(
    ("call", "word"),
    [*((partial(make, **bad), next(iter(bad))) for make, settings in SETTINGS.items() for bad in settings), *CALLS],
)
def test_a_bad_setting_is_named_in_one_line(call, word):
    with pytest.raises(InputError, match=word) as refused:
        call()
    assert "\n" not in str(refused.value)
