"""Every mechanism and every charge has an audit that was shipped, or is known to have none."""

from dataclasses import replace
from functools import cache

import pytest

from tests.verify.recorded import EVERY
from tests.verify.test_card import AUDIT
from tests.verify.test_every_forgery import DEFAULT
from torchdpcate.audit.registry import registry
from torchdpcate.audit.report import shipped_results
from torchdpcate.erm.private_fit import LINEAR_FITS
from torchdpcate.estimators.average.weighted import EFFECT_ESTIMATORS
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS as EFFECTS
from torchdpcate.estimators.rules.mechanisms import RULE_MECHANISMS
from torchdpcate.plan import PLANS
from torchdpcate.privacy import charge as charges
from torchdpcate.privacy.charge import Charge, Purpose, propensity_by
from torchdpcate.verify.card import make_card
from torchdpcate.verify.card_audits import audits_of, charge_audits, mechanism_audits

SHIPPED = shipped_results()
RULES = [f"{way}_{kind}" for way, mechanism in RULE_MECHANISMS.items() for kind in mechanism.kinds]
MECHANISMS = list(dict.fromkeys([*EFFECTS, *RULES, *EFFECT_ESTIMATORS, *PLANS]))
LEARNERS = ("RLearner", "DRLearner", "EffectRule")
WITHOUT = {"plug_in"}  # post-processing of nuisances, whose charges have theirs
UNNAMED = {charges.TRAINING, charges.CROSS_VALIDATION}  # as the parts of it are charged; and heuristic
COMPOSED = {charges.COMPOSED_SCORES}  # steps, of which ``audits_of`` says more


@cache
def composed():
    return EVERY["effect, continuous"]()


def of(mechanism: str, **changes):
    return replace(composed().privacy, mechanism=mechanism, blocks=(), **changes)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_has_a_shipped_audit(mechanism):
    for delta in (0.0, 1e-5):
        for learner in LEARNERS:
            for more in ({}, {"law": "gaussian"}, {"answers": "online"}, {"threshold": "squared loss"}):
                names = mechanism_audits(of(mechanism, delta=delta, public={"learner": learner, **more}))
                assert names
                assert set(names) <= SHIPPED.keys() & registry().keys() or mechanism in WITHOUT


def test_every_charge_has_a_shipped_audit():
    named = [value for value in vars(charges).values() if isinstance(value, Charge)]
    fits = [
        by(name) for name in LINEAR_FITS for by in (propensity_by, lambda name: Charge(Purpose.OUTCOME_MODEL, name))
    ]
    for charge in {*named, *fits} - UNNAMED - COMPOSED:
        assert charge_audits(charge), charge
        assert set(charge_audits(charge)) <= SHIPPED.keys(), charge


@pytest.mark.parametrize("kind", [*DEFAULT, "composed, rule", "selection, pure", "average, table of ATE"])
def test_all_that_a_release_was_charged_for_has_its_audits(kind):
    privacy = EVERY[kind]().privacy
    names = [name for name in audits_of(privacy) if name not in WITHOUT]
    assert names
    assert set(names) <= SHIPPED.keys()
    assert names[: len(mechanism_audits(privacy))] == [*mechanism_audits(privacy)] or privacy.mechanism in WITHOUT


def test_a_card_shows_them():
    shown = make_card(composed(), audit=SHIPPED)["audit"]["lower_bounds"]
    assert list(shown) == ["composed_effect"]
    assert shown["composed_effect"]["bound"] == SHIPPED["composed_effect"]["bound"]


@pytest.mark.parametrize(
    ("learner", "delta", "name"),
    [
        ("RLearner", 1e-5, "composed_effect"),
        ("RLearner", 0.0, "composed_pure_effect"),
        ("DRLearner", 1e-5, "composed_dr_effect"),
        ("EffectRule", 1e-5, "effect_rule"),
        ("EffectRule", 0.0, "pure_effect_rule"),
    ],
)
def test_a_composition_has_the_audit_of_its_learner(learner, delta, name):
    assert audits_of(of("composed", public={"learner": learner}, delta=delta))[0] == name


def test_an_audit_that_was_not_shipped_is_not_invented():
    assert make_card(composed(), audit=AUDIT)["audit"]["lower_bounds"] == "none shipped for this mechanism"
