"""A released average effect that contradicts itself does not verify; honest ones do, whatever they hold."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from torchdpcate.data import Domain
from torchdpcate.effects import (
    CovariateBalancingEffect,
    DifferenceInMeansEffect,
    DoublyRobustEffect,
    HorvitzThompsonEffect,
    SubsampleAggregateEffect,
)
from torchdpcate.effects.balanced_difference import SCALES, UPPER
from torchdpcate.effects.outcome_table import CELLS
from torchdpcate.errors import VerificationError
from torchdpcate.orthogonal import Weighting
from torchdpcate.privacy import NoiseSource, PrivacyBudget
from torchdpcate.release import AverageEffectRelease, Estimate, IntervalLaw, make_card, verify_average, verify_release

DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=2.0, overlap=0.2)
PURE = PrivacyBudget(8.0, 0.0)


def fitted(learner) -> AverageEffectRelease:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2000, 1, generator=generator, dtype=torch.float64)
    a = (torch.rand(2000, generator=generator) < 0.3 + 0.4 * x[:, 0]).double()
    y = 3 * (torch.rand(2000, generator=generator) < 0.3 + 0.3 * a).double() - 1
    return learner.fit(x, a, y).release()


@cache
def balanced(**settings) -> AverageEffectRelease:
    return fitted(CovariateBalancingEffect(DOMAIN, PURE, loss="balancing", **settings))


@cache
def everything() -> AverageEffectRelease:
    shares = {"balance": 0.1, "difference_in_means": 0.1}
    return fitted(CovariateBalancingEffect(DOMAIN, PURE, loss="balancing", shares=shares))


@cache
def table() -> AverageEffectRelease:
    return balanced(readout="outcome_table")


def refused(release: AverageEffectRelease, folder) -> str:
    with pytest.raises(VerificationError) as problem:
        verify_release(release.save(folder / "release.safetensors"))
    return str(problem.value)


def with_public(release: AverageEffectRelease, **public) -> AverageEffectRelease:
    return replace(release, privacy=replace(release.privacy, public={**release.privacy.public, **public}))


def halved(law: IntervalLaw) -> IntervalLaw:
    """The law with half the noise of the readout."""
    return IntervalLaw(law.gaussian, tuple(b / 2 for b in law.laplace), tuple(c / 2 for c in law.polytope))


def relabelled(release: AverageEffectRelease, start: str, **change) -> AverageEffectRelease:
    """The release with the charges whose labels start so called otherwise, or changed."""
    blocks = [
        {**block, "charges": [{**c, **change} if c["label"].startswith(start) else c for c in block["charges"]]}
        for block in release.privacy.blocks
    ]
    return replace(release, privacy=replace(release.privacy, blocks=blocks))


LEARNERS = {
    **{f"{e}": lambda e=e: CovariateBalancingEffect(DOMAIN, PURE, estimand=e) for e in ("ATE", "ATT", "ATC", "ATO")},
    **{
        f"table of {e}": lambda e=e: CovariateBalancingEffect(DOMAIN, PURE, estimand=e, readout="outcome_table")
        for e in ("ATE", "ATC")
    },
    "equal weights": lambda: CovariateBalancingEffect(DOMAIN, PURE, eta=0.5),
    "constant centre": lambda: CovariateBalancingEffect(DOMAIN, PURE, outcome_bounds=(0.8, 0.8)),
    "noise alone": lambda: CovariateBalancingEffect(DOMAIN, PrivacyBudget(0.05, 0.0), estimand="ATC"),
    "table of noise": lambda: DifferenceInMeansEffect(DOMAIN, PrivacyBudget(0.003, 0.0)),
    "difference in means": lambda: DifferenceInMeansEffect(DOMAIN, PURE),
    "horvitz_thompson": lambda: HorvitzThompsonEffect(DOMAIN, PURE),
    "subsample_aggregate": lambda: SubsampleAggregateEffect(DOMAIN, PURE),
    "aipw": lambda: DoublyRobustEffect(DOMAIN, PrivacyBudget(8.0, 1e-6)),
    "aipw of the treated, noise alone": lambda: DoublyRobustEffect(DOMAIN, PrivacyBudget(0.05, 1e-6), estimand="ATT"),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_an_honest_release_verifies(name, tmp_path):
    assert verify_release(fitted(LEARNERS[name]()).save(tmp_path / "release.safetensors"))


@pytest.mark.parametrize("name", ["horvitz_thompson", "subsample_aggregate", "aipw"])
def test_a_peers_estimate_must_follow_from_its_numbers(name, tmp_path):
    release = fitted(LEARNERS[name]())
    moved = replace(release, main=replace(release.main, value=release.estimate + 0.01))
    assert "its estimate does not follow" in refused(moved, tmp_path)


def test_one_that_holds_everything_verifies(tmp_path):
    release = everything()
    assert release.balance.before is not None
    assert release.beside is not None
    assert verify_release(release.save(tmp_path / "release.safetensors"))


def test_a_card_shows_the_audits_of_its_parts():
    names = [
        *("balanced_difference", "balancing_objective", "objective_box", "covariate_balancing_effect"),
        *("balance_statistics", "outcome_table"),
    ]
    found = {"claimed": 1.0, "bound": 0.5, "delta": 0.0, "confidence": 0.95, "attack": "threshold", "trials": 10}
    shown = make_card(everything(), audit=dict.fromkeys([*names, "laplace"], found))["audit"]["lower_bounds"]
    assert sorted(shown) == sorted(names)


def test_constants_are_those_of_the_learners():
    assert (verify_average.SCALES, verify_average.UPPER, verify_average.TABLE) == (SCALES, UPPER, CELLS)


@pytest.mark.parametrize("make", [balanced, table])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: replace(m, value=m.value + 0.01), "estimate does not follow"),
        (lambda m: replace(m, law=None), "interval does not follow"),
        (lambda m: replace(m, swamped=True), "interval does not follow"),
        (lambda m: replace(m, law=replace(m.law, gaussian=m.law.gaussian * 0.5)), "interval does not follow"),
        (lambda m: replace(m, law=IntervalLaw(m.law.gaussian)), "interval does not follow"),
        (lambda m: replace(m, law=halved(m.law)), "interval does not follow"),
    ],
)
def test_an_estimate_that_is_not_of_its_numbers(make, change, problem, tmp_path):
    assert problem in refused(replace(make(), main=change(make().main)), tmp_path)


@pytest.mark.parametrize(("make", "number"), [(balanced, "difference"), (table, "treated_high")])
def test_a_number_that_was_changed(make, number, tmp_path):
    release = make()
    numbers = {**release.numbers, number: release.numbers[number] * 1.01}
    assert "estimate does not follow" in refused(replace(release, numbers=numbers), tmp_path)


@pytest.mark.parametrize("learner", [HorvitzThompsonEffect, SubsampleAggregateEffect])
def test_a_mean_that_was_changed(learner, tmp_path):
    release = fitted(learner(DOMAIN, PURE))
    changed = replace(release, main=replace(release.main, value=release.estimate / 2 + 0.1))
    assert "estimate does not follow" in refused(changed, tmp_path)


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        ("weights: ", "it holds weights, but no charge is for them"),
        ("outcome model: ", "it holds an outcome model, but no charge is for it"),
        ("release by balanced_difference: balance", "it holds balance statistics, but no charge is for them"),
        ("release by balanced_difference: difference_in_means", "it holds a difference in means, but no charge"),
        ("release by balanced_difference: spread", "it holds the number 'spread', but no charge is for it"),
    ],
)
def test_what_was_not_paid_for(start, problem, tmp_path):
    assert problem in refused(relabelled(everything(), start, label="coffee"), tmp_path)


def test_a_number_of_its_own_has_a_charge_of_its_own(tmp_path):
    numbers = {**balanced().numbers, "oldest": 97.0}
    assert "'oldest', but no charge" in refused(replace(balanced(), numbers=numbers), tmp_path)


@pytest.mark.parametrize(
    ("make", "public", "problem"),
    [
        (balanced, {"estimand": "ATT"}, "tells another estimand"),
        (balanced, {"eta": 0.3}, "weights are not those of the statement"),
        (balanced, {"eta": "a tenth"}, "constants or its numbers"),
        (balanced, {"scale_difference": 0.01}, "noise of difference is too little"),
        (balanced, {"scale_size": 0.0}, "noise of size is too little"),
        (balanced, {"outcome_bounds": [0.0, 1.0]}, "noise of spread is too little"),
        (balanced, {"outcome_bounds": [0.5]}, "constants or its numbers"),
        (table, {"scale_table": 0.1}, "noise of table is too little"),
        (table, {"scale_variance": None}, "constants or its numbers"),
        (table, {"floor_control": 1e9}, "does not follow"),
    ],
)
def test_constants_that_contradict_each_other(make, public, problem, tmp_path):
    assert problem in refused(with_public(make(), **public), tmp_path)


def test_weights_of_another_estimand(tmp_path):
    other = replace(balanced().weights, weighting=Weighting("ATT", 0.2))
    assert "weights are not those" in refused(replace(balanced(), weights=other), tmp_path)


def test_a_gradient_mechanism_that_is_called_certified(tmp_path):
    label = "weights: propensity by k_norm_gradient"
    assert "conditional, but they are called certified" in refused(
        relabelled(balanced(), "weights: ", label=label), tmp_path
    )


def test_a_release_that_claims_nothing_is_not_asked(tmp_path):
    release = fitted(CovariateBalancingEffect(DOMAIN, PURE, noise=NoiseSource.fixed(0)))
    changed = replace(release, main=Estimate(0.0, None))
    assert verify_release(changed.save(tmp_path / "release.safetensors"))
