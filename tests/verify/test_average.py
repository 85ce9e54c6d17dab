from dataclasses import replace
from functools import cache
from typing import ClassVar

import torch

from tests.contract import PlanContract, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.registered import CovariateBalancingEffect, KnownPropensityEffect
from tests.verify import test_rules
from tests.verify.forgeries import refusal
from torchdpcate.data.domain import Domain
from torchdpcate.fit.feature_maps import Fourier, Legendre
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release import rule, subgroups
from torchdpcate.release.average_effect import AverageEffectRelease

DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=2.0, overlap=0.2, better="higher")
PURE, SOME = PrivacyBudget(8.0, 0.0), PrivacyBudget(8.0, 1e-6)
TRIAL = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=2.0, overlap=0.2, propensity=0.5, better="higher")
FOLLOWED = Domain([0.0], [1.0], 0.0, 2.0, 0.2, censoring={"time": "t", "event": "d", "horizon": 2.0})
STRATA = Domain(
    [0.0], [1.0], -1.0, 2.0, 0.2, ["s"], two_levels=[True], propensity={"s": {0: 0.3, 1: 0.7}}, better="higher"
)


def fitted(learner) -> AverageEffectRelease:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2000, 1, generator=generator, dtype=torch.float64)
    if learner.domain.columns == STRATA.columns:
        x = x.round()
    a = (torch.rand(2000, generator=generator) < 0.3 + 0.4 * x[:, 0]).double()
    y = (torch.rand(2000, generator=generator) < 0.3 + 0.3 * a).double()
    domain = learner.domain
    own = {} if domain.weights is None else {"weight": 1 + y}
    return learner.fit(x, a, domain.outcome_low + domain.outcome_range * y, **own).release()


def weighted(domain: Domain) -> Domain:
    return Domain.from_dict({**domain.to_dict(), "weights": {"name": "w", "high": 2}})


LEARNERS = {
    **{f"{e}": lambda e=e: CovariateBalancingEffect(DOMAIN, PURE, estimand=e) for e in ("ATE", "ATT", "ATC", "ATO")},
    "noise alone": lambda: CovariateBalancingEffect(DOMAIN, PrivacyBudget(0.05, 0.0), estimand="ATC"),
    **{f"trial of {e}": lambda e=e: KnownPropensityEffect(TRIAL, PURE, estimand=e) for e in ("ATE", "ATO")},
    **{f"strata of {e}": lambda e=e: KnownPropensityEffect(STRATA, PURE, estimand=e) for e in ("ATE", "ATC")},
    "strata, noise alone": lambda: KnownPropensityEffect(STRATA, PrivacyBudget(0.01, 0.0), estimand="ATT"),
    "trial with weights": lambda: KnownPropensityEffect(weighted(TRIAL), PURE),
    "strata of ATT with weights": lambda: KnownPropensityEffect(weighted(STRATA), PURE, estimand="ATT"),
    "much epsilon": lambda: CovariateBalancingEffect(DOMAIN, PrivacyBudget(1e4, 0.0)),
    "tiny outcomes": lambda: CovariateBalancingEffect(
        Domain([0.0], [1.0], 0.0, 1e-15, overlap=0.2, better="higher"), PURE
    ),
    "logistic": lambda: CovariateBalancingEffect(DOMAIN, PrivacyBudget(2.0, 0.0)),
    **{
        f"objective of {basis}": lambda basis=basis: CovariateBalancingEffect(DOMAIN, SOME, basis=basis)
        for basis in (None, Legendre(2), Fourier(pairs=2))
    },
}


WEIGHTED = ("trial with weights", "strata of ATT with weights")
TRIALS = ("trial of ATE", "trial of ATO", "strata of ATE", "strata of ATC", "strata, noise alone")
ALIKE = [name for name in LEARNERS if " of Legendre" in name]
"""Fits on a basis that another fit keeps the contract on; each has it without one."""


@cache
def honest(name: str) -> AverageEffectRelease:
    return fitted(LEARNERS[name]())


class TestContract(PlanContract):
    made: ClassVar = {name: lambda name=name: honest.__wrapped__(name) for name in LEARNERS if name not in ALIKE}
    default = ("ATE",)
    untold = ("learner", "planned_error", "outcome_bounds", "centred")
    untold_in: ClassVar = {
        **dict.fromkeys((*TRIALS, *WEIGHTED), ("eta",)),
        "logistic": ("slope_bound",),  # little noise: what it counts is less than the interval's digits
        "much epsilon": ("slope_bound", "weights_share", "outcome_model_share"),
        "objective of Fourier()": ("seed", "bandwidth"),
    }
    worked_out = ("main", "balance.expected", "balance.expected_sd")


def test_a_tiny_unit_of_outcomes_does_not_hide_an_estimate(tmp_path):
    release = honest("tiny outcomes")
    for value in (0.0, release.main.value / 2, 1e-13):
        moved = replace(release, main=replace(release.main, value=value))
        refusal(moved, tmp_path)


def test_mechanisms_of_one_kind_of_file_are_not_each_others(tmp_path):
    cells, chosen = subgroups._example(), rule._policy_example()
    for release, other in ((cells, honest("ATE")), (chosen, test_rules.released("owl"))):
        assert "not those of one release by its plan" in refusal(replace(release, privacy=other.privacy), tmp_path)
