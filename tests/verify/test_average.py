import math
from dataclasses import replace
from functools import cache
from typing import ClassVar

import pytest
import torch

from tests.contract import PlanContract, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.registered import AverageEffect, ComposedAverageEffect, CovariateBalancingEffect, KnownPropensityEffect
from tests.verify.forgeries import refusal, with_public
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.average.balancing_plan import BalancingPlan
from torchdpcate.fit.feature_maps import Fourier, Legendre
from torchdpcate.fit.linear_fits import LINEAR_FITS, NoisyGradient, ObjectiveFit
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.estimate import Estimate
from torchdpcate.verify.file import verify_release

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
    if domain.censoring is not None:
        return learner.fit(x, a, torch.stack([3 * y, a], 1), **own).release()
    return learner.fit(x, a, domain.outcome_low + domain.outcome_range * y, **own).release()


@cache
def balanced(budget=PURE, **settings) -> AverageEffectRelease:
    return fitted(CovariateBalancingEffect(DOMAIN, budget, **settings))


def weighted(domain: Domain) -> Domain:
    return Domain.from_dict({**domain.to_dict(), "weights": {"name": "w", "high": 2}})


LEARNERS = {
    **{f"{e}": lambda e=e: CovariateBalancingEffect(DOMAIN, PURE, estimand=e) for e in ("ATE", "ATT", "ATC", "ATO")},
    "noise alone": lambda: CovariateBalancingEffect(DOMAIN, PrivacyBudget(0.05, 0.0), estimand="ATC"),
    **{f"trial of {e}": lambda e=e: KnownPropensityEffect(TRIAL, PURE, estimand=e) for e in ("ATE", "ATO")},
    **{f"strata of {e}": lambda e=e: KnownPropensityEffect(STRATA, PURE, estimand=e) for e in ("ATE", "ATC")},
    "strata, noise alone": lambda: KnownPropensityEffect(STRATA, PrivacyBudget(0.01, 0.0), estimand="ATT"),
    "chosen": lambda: AverageEffect(DOMAIN, PURE),
    "chosen in a trial": lambda: AverageEffect(TRIAL, PURE),
    "composed": lambda: ComposedAverageEffect(DOMAIN, SOME),
    "composed, censored, with weights": lambda: ComposedAverageEffect(weighted(FOLLOWED), SOME),
    "composed with weights": lambda: ComposedAverageEffect(weighted(DOMAIN), SOME),
    "trial with weights": lambda: KnownPropensityEffect(weighted(TRIAL), PURE),
    "strata of ATT with weights": lambda: KnownPropensityEffect(weighted(STRATA), PURE, estimand="ATT"),
    "much epsilon": lambda: CovariateBalancingEffect(DOMAIN, PrivacyBudget(1e4, 0.0)),
    "tiny outcomes": lambda: CovariateBalancingEffect(
        Domain([0.0], [1.0], 0.0, 1e-15, overlap=0.2, better="higher"), PURE
    ),
    "logistic": lambda: CovariateBalancingEffect(DOMAIN, PrivacyBudget(2.0, 0.0)),
    **{
        f"{name} of {basis}": lambda fitter=fitter, basis=basis: CovariateBalancingEffect(
            DOMAIN, SOME, fitter=fitter, basis=basis
        )
        for name, fitter in {
            "objective": ObjectiveFit(share=0.3),
            "noisy gradient": NoisyGradient(steps=20),
        }.items()
        for basis in (None, Legendre(2), *((Fourier(pairs=2),) if name == "objective" else ()))
    },
}


WEIGHTED = ("trial with weights", "strata of ATT with weights")
TRIALS = ("trial of ATE", "trial of ATO", "strata of ATE", "strata of ATC", "strata, noise alone", "chosen in a trial")
STEPS = tuple(f"{fit}_{name}" for fit in ("weights", "outcome_model") for name in ("length", "momentum"))

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
        **dict.fromkeys((name for name in LEARNERS if name.startswith("noisy gradient")), STEPS),
    }
    worked_out = ("main", "balance.expected", "balance.expected_sd")


class WarmGradient(NoisyGradient):
    """A fit of a user's, with public constants of its own."""

    name = "warm_gradient"

    def prepare(self, *facts):
        return self.own(super().prepare(*facts))

    @classmethod
    def recompute(cls, public, *facts):
        return cls.own(super().recompute(public, *facts))

    @classmethod
    def own(cls, fit):
        return replace(fit, public={**fit.public, "fitter": cls.name, "cooling": 0.5, "schedule": "slow"})


@pytest.mark.slow
def test_a_new_fit_has_constants_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setitem(LINEAR_FITS, WarmGradient.name, WarmGradient)
    release = fitted(CovariateBalancingEffect(DOMAIN, SOME, fitter=WarmGradient.name))
    assert release.privacy.public["weights_cooling"] == 0.5
    assert verify_release(release.save(tmp_path / "release.safetensors"))
    refusal(with_public(release, weights_cooling=0.25), tmp_path)
    refusal(with_public(release, weights_schedule="fast"), tmp_path)
    for name in ("weights_warming", "outcome_model_cooling"):
        refusal(with_public(release, **{name: 0.5}), tmp_path)
    public = {name: value for name, value in release.privacy.public.items() if name != "weights_cooling"}
    assert refusal(replace(release, privacy=replace(release.privacy, public=public)), tmp_path)


IMBALANCED = {
    "balancing": lambda: balanced(estimand="ATT"),
    "logistic": lambda: balanced(PrivacyBudget(2.0, 0.0)),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", IMBALANCED)
def test_the_interval_counts_the_imbalance(name, tmp_path):
    release = IMBALANCED[name]()
    public, unit = release.privacy.public, release.domain.outcome_range
    plan = BalancingPlan.restated(release)
    size = plan.estimate(plan.answers(release)).size.item()
    factor = make_estimand(release.estimand, 0.2).amplification if public["loss"] == "logistic" else 1.0
    left = unit * public["slope_bound"] * public["noise_per_record"] * 2000 * factor / size
    rest = math.sqrt(release.main.law.gaussian**2 - left**2)  # sampling alone
    cut = replace(release, main=replace(release.main, law=replace(release.main.law, gaussian=rest)))
    refusal(cut, tmp_path)
    quiet = with_public(cut, noise_per_record=1e-9)
    refusal(quiet, tmp_path)


def other_fit(**changes) -> AverageEffectRelease:
    release = balanced()
    if "theta" in changes:
        changes = {"weights": replace(release.weights, theta=changes["theta"])}
    return replace(release, **changes)


def other_balance(**columns) -> AverageEffectRelease:
    return replace(balanced(), balance=replace(balanced().balance, **columns))


LARGE = torch.full((2,), 1e308, dtype=torch.float64)


@pytest.mark.parametrize(
    "make",
    [
        lambda: other_fit(weights=None, outcome_theta=None),
        lambda: other_fit(outcome_theta=None),
        lambda: other_fit(numbers={"difference": 1.0, "size": 9.0}),
        lambda: other_fit(theta=LARGE),
        lambda: other_fit(outcome_theta=-LARGE),
        lambda: other_balance(before=[0.1]),  # statistics that no charge is for
        lambda: other_balance(expected_sd=[-9.0]),
        lambda: other_balance(names=["age"]),
    ],
)
def test_a_release_that_contradicts_itself(make, tmp_path):
    refusal(make(), tmp_path)


def test_a_tiny_unit_of_outcomes_does_not_hide_an_estimate(tmp_path):
    release = honest("tiny outcomes")
    for value in (0.0, release.estimate / 2, 1e-13):
        moved = replace(release, main=replace(release.main, value=value))
        refusal(moved, tmp_path)


def test_a_release_that_claims_nothing_is_not_asked(tmp_path):
    release = fitted(CovariateBalancingEffect(DOMAIN, PURE, noise=NoiseSource.fixed(0)))
    changed = replace(release, main=Estimate(0.0, None))
    assert verify_release(changed.save(tmp_path / "release.safetensors"))
