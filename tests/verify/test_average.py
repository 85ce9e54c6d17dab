"""A released average effect that contradicts itself does not verify; honest ones do, whatever they hold."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from torchdpcate.causal.estimand import ATT, make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.erm.noisy_gradient import NoisyGradient
from torchdpcate.erm.objective_fit import ObjectiveFit
from torchdpcate.erm.private_fit import LINEAR_FITS
from torchdpcate.errors import VerificationError
from torchdpcate.estimators.average.automatic import AverageEffect
from torchdpcate.estimators.average.balanced_difference import BalancedDifference
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect
from torchdpcate.estimators.average.difference_in_means import DifferenceInMeansEffect
from torchdpcate.estimators.average.doubly_robust import DoublyRobustEffect
from torchdpcate.estimators.average.effect_estimator import RANGES, WEIGHT_RANGES
from torchdpcate.estimators.average.horvitz_thompson import HorvitzThompsonEffect
from torchdpcate.estimators.average.known_propensity import KnownPropensityEffect
from torchdpcate.estimators.average.outcome_table import CELLS, OutcomeTable
from torchdpcate.estimators.average.score_sums import SHARES
from torchdpcate.estimators.average.stated import EFFECT_ESTIMATORS, AverageMechanism, StatedEffect
from torchdpcate.estimators.average.subsample_aggregate import SubsampleAggregateEffect
from torchdpcate.experimental.k_norm_gradient import KNormGradient
from torchdpcate.features.maps import Fourier, Legendre
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose, propensity_by
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.blocks import StatedCharge
from torchdpcate.release.estimate import Estimate
from torchdpcate.release.file import load_release
from torchdpcate.release.interval_law import IntervalLaw
from torchdpcate.release.statement import claim_sentence
from torchdpcate.verify.card import make_card
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=2.0, overlap=0.2)
PURE, SOME = PrivacyBudget(8.0, 0.0), PrivacyBudget(8.0, 1e-6)
TRIAL = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=2.0, overlap=0.2, propensity=0.5)
STRATA = Domain([0.0], [1.0], -1.0, 2.0, 0.2, ["s"], two_levels=[True], propensity={"s": {0: 0.3, 1: 0.7}})
BESIDE = {"balance": 0.1, "difference_in_means": 0.1}


def fitted(learner) -> AverageEffectRelease:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2000, 1, generator=generator, dtype=torch.float64)
    if learner.domain is STRATA:
        x = x.round()
    a = (torch.rand(2000, generator=generator) < 0.3 + 0.4 * x[:, 0]).double()
    y = (torch.rand(2000, generator=generator) < 0.3 + 0.3 * a).double()
    domain = learner.domain
    return learner.fit(x, a, domain.outcome_low + domain.outcome_range * y).release()


@cache
def balanced(shares=(), loss="balancing", budget=PURE, **settings) -> AverageEffectRelease:
    learner = CovariateBalancingEffect(DOMAIN, budget, loss=loss, shares=dict(shares) or None, **settings)
    return fitted(learner)


@cache
def everything() -> AverageEffectRelease:
    return balanced(shares=tuple(BESIDE.items()))


@cache
def table() -> AverageEffectRelease:
    return balanced(readout="outcome_table")


def refused(release: AverageEffectRelease, folder) -> str:
    with pytest.raises(VerificationError) as problem:
        verify_release(release.save(folder / "release.safetensors", overwrite=True))
    return str(problem.value)


def with_public(release: AverageEffectRelease, **public) -> AverageEffectRelease:
    return replace(release, privacy=replace(release.privacy, public={**release.privacy.public, **public}))


def halved(law: IntervalLaw) -> IntervalLaw:
    """The law with half the noise of its sums."""
    return IntervalLaw(law.gaussian, tuple(b / 2 for b in law.laplace), tuple(c / 2 for c in law.polytope))


def relabelled(release: AverageEffectRelease, *charges: Charge | Purpose, **change) -> AverageEffectRelease:
    """The release with these charges, or those of these purposes, for something else, or changed."""

    def changed(c: StatedCharge) -> StatedCharge:
        return replace(c, **change) if {replace(c.charge, piece=""), c.purpose} & set(charges) else c

    blocks = tuple(replace(block, charges=tuple(map(changed, block.charges))) for block in release.privacy.blocks)
    return replace(release, privacy=replace(release.privacy, blocks=blocks))


def _part(name: str) -> Charge:
    return Charge(Purpose.RELEASE, "balanced_difference", name)


LEARNERS = {
    **{f"{e}": lambda e=e: CovariateBalancingEffect(DOMAIN, PURE, estimand=e) for e in ("ATE", "ATT", "ATC", "ATO")},
    **{
        f"table of {e}": lambda e=e: CovariateBalancingEffect(DOMAIN, PURE, estimand=e, readout="outcome_table")
        for e in ("ATE", "ATC")
    },
    "equal weights": lambda: CovariateBalancingEffect(DOMAIN, PURE, overlap=0.5),
    "constant centre": lambda: CovariateBalancingEffect(DOMAIN, PURE, outcome_bounds=(0.8, 0.8)),
    "noise alone": lambda: CovariateBalancingEffect(DOMAIN, PrivacyBudget(0.05, 0.0), estimand="ATC"),
    "table of noise": lambda: DifferenceInMeansEffect(DOMAIN, PrivacyBudget(0.003, 0.0)),
    "difference in means": lambda: DifferenceInMeansEffect(DOMAIN, PURE),
    "horvitz_thompson": lambda: HorvitzThompsonEffect(DOMAIN, PURE),
    **{f"trial of {e}": lambda e=e: KnownPropensityEffect(TRIAL, PURE, estimand=e) for e in ("ATE", "ATO")},
    **{f"strata of {e}": lambda e=e: KnownPropensityEffect(STRATA, PURE, estimand=e) for e in ("ATE", "ATC")},
    "strata, noise alone": lambda: KnownPropensityEffect(STRATA, PrivacyBudget(0.01, 0.0), estimand="ATT"),
    "chosen": lambda: AverageEffect(DOMAIN, PURE),
    "chosen in a trial": lambda: AverageEffect(TRIAL, PURE),
    "subsample_aggregate": lambda: SubsampleAggregateEffect(DOMAIN, PrivacyBudget(80.0, 0.0)),
    **{f"aipw of {e}": lambda e=e: DoublyRobustEffect(DOMAIN, SOME, estimand=e) for e in ("ATT", "ATC", "ATO")},
    "aipw": lambda: DoublyRobustEffect(DOMAIN, SOME),
    "aipw of the treated, noise alone": lambda: DoublyRobustEffect(DOMAIN, PrivacyBudget(0.05, 1e-6), estimand="ATT"),
    "horvitz_thompson with a penalty": lambda: HorvitzThompsonEffect(DOMAIN, PURE, ridge=0.01),
    "much epsilon": lambda: CovariateBalancingEffect(DOMAIN, PrivacyBudget(1e4, 0.0), shares=BESIDE),
    "tiny outcomes": lambda: CovariateBalancingEffect(
        Domain([0.0], [1.0], 0.0, 1e-15), PURE, overlap=0.2, shares=BESIDE
    ),
    **{
        f"beside {readout} of {e}": lambda e=e, readout=readout, loss=loss: CovariateBalancingEffect(
            DOMAIN, PURE, estimand=e, readout=readout, shares=BESIDE, loss=loss
        )
        for readout in EFFECT_ESTIMATORS
        for e, loss in (("ATE", "logistic"), ("ATT", "balancing"), ("ATO", "auto"))
    },
    "beside noise alone": lambda: CovariateBalancingEffect(
        DOMAIN, PrivacyBudget(0.05, 0.0), loss="balancing", shares=BESIDE, readout="outcome_table"
    ),
    **{
        f"{name} of {basis}": lambda fitter=fitter, basis=basis: CovariateBalancingEffect(
            DOMAIN, SOME, fitter=fitter, basis=basis, shares=BESIDE
        )
        for name, fitter in {
            "gamma": ObjectiveFit("gamma"),
            "gaussian": ObjectiveFit("gaussian", share=0.3),
            "noisy gradient": NoisyGradient(steps=20),
            "k_norm_gradient": "k_norm_gradient",
            "k_norm_gradient of length": KNormGradient(2),
        }.items()
        for basis in (None, Legendre(2), *((Fourier(pairs=2),) if name == "gamma" else ()))
    },
}


@cache
def honest(name: str) -> AverageEffectRelease:
    return fitted(LEARNERS[name]())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", LEARNERS)
def test_an_honest_release_verifies(name, tmp_path):
    assert verify_release(honest(name).save(tmp_path / "release.safetensors"))


@pytest.mark.parametrize("name", ["horvitz_thompson", "subsample_aggregate", "aipw", "trial of ATE", "strata of ATC"])
def test_a_peers_estimate_must_follow_from_its_numbers(name, tmp_path):
    release = honest(name)
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


@pytest.mark.parametrize("make", [balanced, table])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: replace(m, value=m.value + 0.01), "estimate does not follow"),
        (lambda m: replace(m, law=None), "interval does not follow"),
        (lambda m: replace(m, noise_dominated=True), "interval does not follow"),
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


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        (Purpose.WEIGHTS, "it holds weights, but no charge is for them"),
        (Purpose.OUTCOME_MODEL, "it holds an outcome model, but no charge is for it"),
        (_part("balance"), "it holds balance statistics, but no charge is for them"),
        (_part("difference_in_means"), "it holds a difference in means, but no charge"),
        (_part("sums"), "it holds the number 'spread', but no charge is for it"),
    ],
)
def test_what_was_not_paid_for(of, problem, tmp_path):
    assert problem in refused(relabelled(everything(), of, charge=Charge(Purpose.OTHER, text="coffee")), tmp_path)


def test_a_number_of_its_own_has_a_charge_of_its_own(tmp_path):
    numbers = {**balanced().numbers, "oldest": 97.0}
    assert "'oldest', but no charge" in refused(replace(balanced(), numbers=numbers), tmp_path)


@pytest.mark.parametrize(
    ("make", "public", "problem"),
    [
        (balanced, {"estimand": "ATT"}, "has another estimand"),
        (balanced, {"eta": 0.3}, "weights are not those of the statement"),
        (balanced, {"eta": "a tenth"}, "its public constants, its charge"),
        (balanced, {"scale_difference": 0.01}, "scale_difference = "),
        (balanced, {"scale_size": 0.0}, "scale_size = "),
        (balanced, {"outcome_bounds": [0.7, 0.8]}, "its model_range are not those of its coefficients"),
        (balanced, {"treated_weights": [1.0, 2.0]}, "its treated_weights are not those of its coefficients"),
        (balanced, {"control_weights": [1.0]}, "its control_weights are not those of its coefficients"),
        (lambda: honest("constant centre"), {"model_range": [0.5, 0.5]}, "scale_spread = "),
        (lambda: honest("constant centre"), {"model_range": [0.1, 0.9]}, "its model_range is none"),
        (balanced, {"outcome_bounds": [0.5]}, "its public constants, its charge"),
        (table, {"scale_table": 0.1}, "scale_table = "),
        (table, {"scale_variance": None}, "its public constants, its charge"),
        (table, {"treated_weights": [1.0, 2.0]}, "its treated_weights are not those of its coefficients"),
        (table, {"control_weights": None}, "its public constants, its charge"),
        (table, {"floor_control": 1e9}, "floor_control = "),
    ],
)
def test_constants_that_contradict_each_other(make, public, problem, tmp_path):
    assert problem in refused(with_public(make(), **public), tmp_path)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *((balanced, name) for name in RANGES),
        *((make, name) for make in (table, lambda: honest("horvitz_thompson")) for name in WEIGHT_RANGES),
    ],
)
def test_the_ranges_that_noise_follows_from_are_stated(make, name, tmp_path):
    """Noise by bounds for all coefficients would be more than is paid for, and is none of the library's."""
    privacy = make().privacy
    cut = {key: value for key, value in privacy.public.items() if key != name}
    problem = refused(replace(make(), privacy=replace(privacy, public=cut)), tmp_path)
    assert "its public constants, its charge" in problem


@pytest.mark.parametrize(
    ("name", "public", "problem"),
    [
        ("trial of ATE", {"propensity_range": [0.4, 0.5]}, "its propensity_range is not that of its domain"),
        ("trial of ATE", {"propensity_range": [0.5]}, "its propensity_range is none"),
        ("trial of ATE", {"propensity_range": None}, "its propensity_range is none"),
        ("strata of ATC", {"scale_centre": 0.1}, "scale_centre = "),
        ("strata of ATC", {"epsilon_difference": 1.0}, "epsilon_difference = "),
        ("chosen", {"planned_error": 9.0}, "planned_error is beyond"),
        ("chosen", {"chosen_by": "a person"}, "of how its estimator was chosen"),
        ("chosen", {"planned_error": "small"}, "its public constants, its charge"),
    ],
)
def test_constants_of_a_trial_and_of_a_choice(name, public, problem, tmp_path):
    assert problem in refused(with_public(honest(name), **public), tmp_path)


def test_a_trials_numbers_are_those_that_were_paid_for(tmp_path):
    release = honest("strata of ATC")
    numbers = {name: value for name, value in release.numbers.items() if name != "size"}
    assert "its numbers are not those of known_propensity" in refused(replace(release, numbers=numbers), tmp_path)
    numbers = {**release.numbers, "spread": 1e9}
    assert "larger than records and noise can make it" in refused(replace(release, numbers=numbers), tmp_path)


def test_weights_of_another_estimand(tmp_path):
    other = replace(balanced().weights, estimand=ATT(0.2))
    assert "weights are not those" in refused(replace(balanced(), weights=other), tmp_path)


def test_a_gradient_mechanism_that_is_called_certified(tmp_path):
    other = relabelled(balanced(), Purpose.WEIGHTS, charge=propensity_by("k_norm_gradient"))
    assert "conditional, but they are called certified" in refused(other, tmp_path)


def certified(release: AverageEffectRelease) -> AverageEffectRelease:
    """A conditional release that calls itself certified throughout, and renames the charge that would show it."""
    privacy, level = release.privacy, "certified"

    def renamed(charge: StatedCharge) -> StatedCharge:
        of = charge.charge
        of = replace(of, mechanism="objective") if of.mechanism == "k_norm_gradient" else of
        return replace(charge, level=Level.CERTIFIED, charge=of)

    blocks = tuple(
        replace(block, level=Level.CERTIFIED, charges=tuple(map(renamed, block.charges))) for block in privacy.blocks
    )
    claim = claim_sentence(privacy.epsilon, privacy.delta, level)
    return replace(release, privacy=replace(privacy, blocks=blocks, level=level, conditions=[], claim=claim))


def test_a_conditional_release_does_not_become_certified(tmp_path):
    problems = refused(certified(honest("k_norm_gradient of None")), tmp_path)
    assert "are charged by objective, but its statement says k_norm_gradient" in problems
    assert "conditional, but they are called certified" in problems


@pytest.mark.parametrize("conditions", [[], [{"name": "no cap", "text": "the loop ends", "holds": True}]])
def test_a_condition_stays(conditions, tmp_path):
    release = honest("k_norm_gradient of None")
    changed = replace(release, privacy=replace(release.privacy, conditions=conditions))
    assert "the condition 'running time' is not stated" in refused(changed, tmp_path)


@pytest.mark.parametrize("fitter", ["objective", "gamma", None])
def test_a_fitter_stays(fitter, tmp_path):
    changed = with_public(honest("k_norm_gradient of None"), weights_fitter=fitter)
    assert f"charged by k_norm_gradient, but its statement says {fitter}" in refused(changed, tmp_path)


class SilentTable(OutcomeTable):
    """An estimator of a user's, which does not say what it rests on."""

    name = "silent_table"
    holds_if = vars(AverageMechanism)["holds_if"]


@pytest.mark.parametrize("own", [None, "the moon is full"])
def test_a_new_estimator_says_what_it_rests_on_or_warns_of_everything(own, tmp_path, monkeypatch):
    monkeypatch.setitem(EFFECT_ESTIMATORS, SilentTable.name, SilentTable)
    if own is not None:
        monkeypatch.setattr(SilentTable, "rests_on", own)
    release = fitted(CovariateBalancingEffect(DOMAIN, PURE, readout=SilentTable.name))
    words = own or "its estimator does not state which of these models must follow the truth"
    assert words in release.holds_if
    assert release.holds_if == release.privacy.public["holds_if"] == release.summary()["holds_if"]
    path = release.save(tmp_path / "release.safetensors")
    assert verify_release(path)
    assert load_release(path).holds_if == release.holds_if
    assert "holds_if is not what its mechanism rests on" in refused(with_public(release, holds_if="luck"), tmp_path)
    left = {name: value for name, value in release.privacy.public.items() if name != "holds_if"}
    assert "lack holds_if" in refused(replace(release, privacy=replace(release.privacy, public=left)), tmp_path)


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


def test_a_new_fit_has_constants_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setitem(LINEAR_FITS, WarmGradient.name, WarmGradient)
    release = fitted(CovariateBalancingEffect(DOMAIN, SOME, fitter=WarmGradient.name))
    assert release.privacy.public["weights_cooling"] == 0.5
    assert verify_release(release.save(tmp_path / "release.safetensors"))
    assert "weights (cooling)" in refused(with_public(release, weights_cooling=0.25), tmp_path)
    assert "weights_schedule = fast is stated" in refused(with_public(release, weights_schedule="fast"), tmp_path)
    for name in ("weights_warming", "outcome_model_cooling"):
        assert f"{name!r}, which none states" in refused(with_public(release, **{name: 0.5}), tmp_path)
    public = {name: value for name, value in release.privacy.public.items() if name != "weights_cooling"}
    assert refused(replace(release, privacy=replace(release.privacy, public=public)), tmp_path)


def test_constants_of_a_fit_that_was_not_made(tmp_path):
    changed = with_public(honest("difference in means"), weights_ridge=1.0)
    assert "'weights_ridge', which none states" in refused(changed, tmp_path)
    changed = with_public(honest("constant centre"), outcome_model_ridge=1.0)
    assert "'outcome_model_ridge', which none states" in refused(changed, tmp_path)


@pytest.mark.parametrize(
    "name",
    ["subsample_aggregate", "aipw", "aipw of ATO", "ATE", "table of ATE", "ATO", "trial of ATE", "strata of ATC"],
)
@pytest.mark.parametrize(
    "change",
    [
        lambda law: replace(law, gaussian=law.gaussian * 1e-3),
        lambda law: replace(law, gaussian=law.gaussian * 1e3),
        lambda law: IntervalLaw(
            law.gaussian, tuple(0.0 * b for b in law.laplace), tuple(0.0 * c for c in law.polytope)
        ),
        lambda law: IntervalLaw(0.0, tuple(0.0 * b for b in law.laplace), tuple(0.0 * c for c in law.polytope)),
        lambda law: IntervalLaw(law.gaussian, (*law.laplace, 0.0), law.polytope),
    ],
    ids=["narrow", "wide", "no noise", "nothing", "another part"],
)
def test_an_interval_that_is_not_of_its_numbers(name, change, tmp_path):
    release = honest(name)
    changed = replace(release, main=replace(release.main, law=change(release.main.law)))
    assert "interval does not follow" in refused(changed, tmp_path)


@pytest.mark.parametrize("name", ["horvitz_thompson", "subsample_aggregate", "aipw"])
def test_a_peer_is_not_dominated_by_noise_that_is_absent(name, tmp_path):
    release = honest(name)
    changed = replace(release, main=replace(release.main, noise_dominated=True))
    assert "interval does not follow" in refused(changed, tmp_path)


def test_no_interval_is_known_of_horvitz_thompson(tmp_path):
    release = honest("horvitz_thompson")
    changed = replace(release, main=replace(release.main, law=IntervalLaw(1e-6)))
    assert "interval does not follow from its numbers: none is known" in refused(changed, tmp_path)


IMBALANCED = {
    "balancing": lambda: balanced(estimand="ATT"),
    "balancing, no model": lambda: balanced(outcome_bounds=(0.5, 0.5)),
    "logistic": lambda: balanced(loss="logistic"),
    "logistic, no model": lambda: balanced(loss="logistic", outcome_bounds=(0.5, 0.5)),
    "logistic table": lambda: balanced(loss="logistic", estimand="ATT", readout="outcome_table"),
    "balancing table": lambda: table(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", IMBALANCED)
def test_the_interval_counts_the_imbalance(name, tmp_path):
    release = IMBALANCED[name]()
    public, unit = release.privacy.public, release.domain.outcome_range
    mechanism = EFFECT_ESTIMATORS[release.privacy.mechanism]
    size = mechanism.work_out(StatedEffect.of(release)).estimate.size.item()
    factor = make_estimand(release.estimand, 0.2).amplification if public["loss"] == "logistic" else 1.0
    left = unit * public["slope_bound"] * public["noise_per_record"] * 2000 * factor / size
    rest = math.sqrt(release.main.law.gaussian**2 - left**2)  # sampling alone
    cut = replace(release, main=replace(release.main, law=replace(release.main.law, gaussian=rest)))
    assert "interval does not follow" in refused(cut, tmp_path)
    quiet = with_public(cut, noise_per_record=1e-9)
    assert "noise of noise_per_record is too little" in refused(quiet, tmp_path)


@pytest.mark.parametrize("slope", [0.0, 0.25])
def test_a_slope_bound_that_the_interval_does_not_count(slope, tmp_path):
    changed = with_public(balanced(loss="logistic"), slope_bound=slope)
    assert "interval does not follow" in refused(changed, tmp_path)


@pytest.mark.parametrize(
    ("name", "public", "problem"),
    [
        ("horvitz_thompson", {"sum_scale": 1e-9}, "sum_scale = "),
        ("horvitz_thompson", {"sum_scale": 1e9}, "sum_scale = "),
        ("horvitz_thompson", {"control_weights": [1.25, 5.0]}, "its control_weights are not those of its coefficients"),
        ("horvitz_thompson", {"treated_weights": [1.0]}, "its treated_weights are not those of its coefficients"),
        ("horvitz_thompson", {"weights_tilt_scale": 1e-9}, "noise of weights (tilt_scale) is too little"),
        ("horvitz_thompson", {"epsilon_weights": 40.0}, "epsilon_weights = 40 is stated, but 4 was charged"),
        ("horvitz_thompson", {"epsilon_sum": 40.0}, "epsilon_sum = 40 is stated, but 4 was charged"),
        ("subsample_aggregate", {"sum_scale": 1e-9}, "sum_scale = "),
        ("subsample_aggregate", {"epsilon_sums": 1.0}, "epsilon_sums = 1 is stated, but 80 was charged"),
        ("subsample_aggregate", {"groups": 2001}, "2001 groups cannot be made"),
        ("subsample_aggregate", {"groups": 44.0}, "44.0 groups cannot be made"),
        ("aipw", {"score_scale": 1e-9}, "score_scale = "),
        ("aipw", {"score_scale": 1e9}, "score_scale = "),
        ("aipw", {"score_range": [-1.0, 1e9]}, "score_range is none of the ATE"),
        ("aipw", {"score_range": [0.0, 1.0]}, "score_range is none of the ATE"),
        ("aipw", {"split": 0.25}, "blocks are not those of its split"),
        ("aipw of ATO", {"score_scale": 1e-9}, "score_scale = "),
        ("aipw of ATO", {"size_scale": 1e-9}, "size_scale = "),
        ("aipw of ATO", {"size_range": [0.0, 1.0]}, "size_range is none of the ATO"),
        ("aipw of ATO", {"size_range": [1e-3, 1e-3]}, "size_range is none of the ATO"),
        ("aipw of ATT", {"size_range": [1e-3, 1e-3]}, "size_range is none of the ATT"),
        ("aipw of ATT", {"size_scale": 1e-9}, "size_scale = "),
        ("ATE", {"weights_tilt_scale": 1e-9}, "noise of weights (tilt_scale) is too little"),
        ("ATE", {"weights_ridge": 1e-9}, "noise of weights (ridge) is too little"),
        ("ATE", {"weights_ridge": 1e9}, "noise of weights (ridge) is more than"),
        ("ATE", {"weights_perturbation": "gaussian"}, "its public constants, its charge"),
        ("ATE", {"weights_perturbation": "gamma"}, "noise of weights (tilt_scale) is too little"),
        ("ATE", {"outcome_model_tilt_scale": 1e-9}, "noise of outcome_model (tilt_scale) is too little"),
        ("ATE", {"outcome_model_solver_scale": 1e-9}, "noise of outcome_model (solver_scale) is too little"),
        ("ATE", {"outcome_model_fitter": "noisy_gradient"}, "outcome_model are charged by objective"),
        ("ATE", {"loss": "logistic"}, "noise of weights (tilt_scale) is more than"),
        ("ATE", {"loss": "another"}, "which is none"),
        ("ATE", {"epsilon_sums": 400.0}, "epsilon_sums = 400 is stated, but 4.4 was charged"),
        ("ATE", {"epsilon_difference": 0.1}, "epsilon_difference is stated, but no charge is for it"),
        ("ATE", {"epsilon_stage_one": 400.0}, "epsilon_stage_one = 400 is stated, but 2.4 was charged"),
        ("ATE", {"epsilon_outcome_model": 0.1}, "epsilon_outcome_model = 0.1 is stated, but 1.2 was charged"),
        ("ATE", {"epsilon_balance": 0.1}, "epsilon_balance is stated, but no charge is for it"),
        ("ATE", {"scale_difference": 1e9}, "scale_difference = "),
        ("ATE", {"outcome_bounds": [0.5, 0.5]}, "are not there together"),
        ("ATE", {"outcome_bounds": None}, "are not there together"),
        ("constant centre", {"outcome_bounds": [0.3, 0.7]}, "are not there together"),
        ("gaussian of None", {"epsilon_stage_one": 1.0}, "epsilon_stage_one = 1 is stated"),
        ("gaussian of None", {"weights_tilt_scale": 1e-9}, "noise of weights (tilt_scale) is too little"),
        ("noisy gradient of None", {"weights_gradient_scale": 1e-9}, "noise of weights (gradient_scale) is too little"),
        ("noisy gradient of None", {"weights_steps": 21}, "charge of its weights is not that of noisy_gradient"),
        ("noisy gradient of None", {"epsilon_stage_one": 1.0}, "epsilon_stage_one = 1 is stated"),
        ("k_norm_gradient of None", {"weights_gradient_scale": 1e-9}, "noise of weights (gradient_scale) is too"),
        ("k_norm_gradient of None", {"weights_radius": 1e9}, "noise of weights (radius) is more"),
        ("table of ATE", {"floor_treated": 1e-9, "floor_control": 1e-9}, "floor_control = "),
        ("table of noise", {"floor_treated": 1e-9}, "floor_treated = "),
        ("difference in means", {"floor_control": 1e-9}, "floor_control = "),
    ],
)
def test_noise_that_is_not_what_was_paid_for(name, public, problem, tmp_path):
    assert problem in refused(with_public(honest(name), **public), tmp_path)


def moved(release: AverageEffectRelease, value: float, **public) -> AverageEffectRelease:
    return with_public(replace(release, main=replace(release.main, value=value)), **public)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: moved(honest("aipw"), 3.0, size_range=[1e-3, 1e-3]), "size_range is none of the ATE"),
        (lambda: with_public(replace(honest("aipw"), estimand="ATO"), estimand="ATO"), "not those of aipw for the ATO"),
        (
            lambda: with_public(replace(honest("horvitz_thompson"), estimand="ATT", weights=None), estimand="ATT"),
            "none of the ATT",
        ),
        (
            lambda: moved(
                honest("subsample_aggregate"), 3 * honest("subsample_aggregate").numbers["sum"] / 1000, groups=1000
            ),
            "its interval does not follow",
        ),
        (lambda: replace(everything(), weights=None, outcome_theta=None), "it holds no weights"),
        (lambda: replace(everything(), outcome_theta=None), "charged for its outcome_model, but does not hold"),
        (lambda: replace(balanced(), numbers={"difference": 1.0, "size": 9.0}), "not those of balanced_difference"),
        (
            lambda: replace(
                everything(), weights=replace(everything().weights, theta=torch.full((2,), 1e308, dtype=torch.float64))
            ),
            "its weights hold numbers that no fit gives",
        ),
        (
            lambda: replace(everything(), outcome_theta=torch.full((2,), -1e308, dtype=torch.float64)),
            "its outcome_model hold numbers that no fit gives",
        ),
        *(
            (
                lambda make=make, name=name: replace(make(), numbers={**make().numbers, name: 1e200}),
                f"the number {name!r} is larger than records and noise can make it",
            )
            for make, names in (
                (balanced, BalancedDifference.parts),
                (table, (*CELLS, "variance")),
                (lambda: honest("aipw of ATT"), SHARES),
                (lambda: honest("subsample_aggregate"), ("sums",)),
                (lambda: honest("horvitz_thompson"), ("sum",)),
            )
            for name in names
        ),
    ],
)
def test_a_release_that_contradicts_itself(make, problem, tmp_path):
    assert problem in refused(make(), tmp_path)


def test_each_block_is_stated_once(tmp_path):
    """Charges spread over blocks of the same records would look like half the epsilon."""
    release = balanced()
    block = release.privacy.blocks[0]
    blocks = (
        replace(block, n=1000, charges=block.charges[:2]),
        replace(block, name="others", n=1000, charges=block.charges[2:]),
    )
    changed = replace(release, privacy=replace(release.privacy, blocks=blocks))
    assert "its blocks of records are not those of balanced_difference" in refused(changed, tmp_path)
    trained, scored = honest("aipw").privacy.blocks
    changed = replace(
        honest("aipw"), privacy=replace(honest("aipw").privacy, blocks=(replace(trained, charges=()), scored))
    )
    assert "the charges of block 'nuisance' are not those of aipw" in refused(changed, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: Estimate(77.0, b.law),
        lambda b: Estimate(77.0, IntervalLaw(0.0, (), b.law.polytope)),
        lambda b: Estimate(b.value + 0.01, b.law),
        lambda b: Estimate(b.value, None),
        lambda b: Estimate(b.value, IntervalLaw(0.0)),
        lambda b: Estimate(b.value, IntervalLaw(1e9, (), b.law.polytope)),
        lambda b: Estimate(b.value, IntervalLaw(b.law.gaussian, (0.1,), b.law.polytope)),
        lambda b: Estimate(b.value, IntervalLaw(b.law.gaussian, (), tuple(c / 1e3 for c in b.law.polytope))),
        lambda b: Estimate(b.value, IntervalLaw(b.law.gaussian, (), tuple(c * 1e3 for c in b.law.polytope))),
        lambda b: Estimate(b.value, IntervalLaw(b.law.gaussian, (), tuple(-c for c in b.law.polytope))),
        lambda b: Estimate(b.value, b.law, noise_dominated=True),
    ],
)
def test_a_difference_in_means_that_is_not_of_a_table(change, tmp_path):
    release = everything()
    assert "difference in means" in refused(replace(release, beside=change(release.beside)), tmp_path)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"before": [1e296]}, "balance statistics are larger"),
        ({"after": [-1e296]}, "balance statistics are larger"),
        ({"before_sd": [-9.0]}, "noise in its balance statistics is not"),
        ({"before_sd": [0.0]}, "noise in its balance statistics is not"),
        ({"after_sd": [0.0]}, "noise in its balance statistics is not"),
        ({"after": None, "after_sd": None}, "balance statistics are not all there"),
        ({"expected": [9.0]}, "that it expects does not follow"),
        ({"expected_sd": [-9.0]}, "that it expects does not follow"),
        ({"expected": None, "expected_sd": None}, "that it expects does not follow"),
        ({"before": None, "after": None}, "has noise of what it does not hold"),
        ({"names": ["age"]}, "not of its features"),
    ],
)
def test_a_balance_table_that_was_changed(columns, problem, tmp_path):
    release = everything()
    assert problem in refused(replace(release, balance=replace(release.balance, **columns)), tmp_path)


def test_a_balance_table_of_nothing(tmp_path):
    table_of_another, release = balanced().balance, honest("horvitz_thompson")
    assert "but its mechanism has none" in refused(replace(release, balance=table_of_another), tmp_path)
    logistic = replace(balanced(loss="logistic"), balance=table_of_another)
    assert "that it expects does not follow" in refused(logistic, tmp_path)


def test_a_tiny_unit_of_outcomes_does_not_hide_an_estimate(tmp_path):
    release = honest("tiny outcomes")
    for value in (0.0, release.estimate / 2, 1e-13):
        moved = replace(release, main=replace(release.main, value=value))
        assert "estimate does not follow" in refused(moved, tmp_path)


def test_a_number_that_is_written_as_words(tmp_path):
    for name in ("subsample_aggregate", "difference in means"):
        assert "its public constants, its charge" in refused(with_public(honest(name), eta="0.2"), tmp_path)
    assert "its public constants, its charge" in refused(with_public(balanced(), scale_spread="1e9"), tmp_path)


def test_a_release_that_claims_nothing_is_not_asked(tmp_path):
    release = fitted(CovariateBalancingEffect(DOMAIN, PURE, noise=NoiseSource.fixed(0)))
    changed = replace(release, main=Estimate(0.0, None))
    assert verify_release(changed.save(tmp_path / "release.safetensors"))
