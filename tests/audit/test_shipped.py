"""Every mechanism and every charge has an audit that was shipped, or is known to have none."""

from dataclasses import replace
from functools import cache

import pytest

from tests.audit.shipped import audits_of, shipped_results
from tests.verify.kinds import DEFAULT
from tests.verify.recorded import EVERY
from torchdpcate.audit.report import registry
from torchdpcate.composition.steps import CHOICES
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS as EFFECTS
from torchdpcate.estimators.rules.weighted_erm import RULE_MECHANISMS
from torchdpcate.plan import PLANS
from torchdpcate.privacy import charge as charges
from torchdpcate.privacy.charge import Charge, fits_by
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.blocks import Block, StatedCharge

SHIPPED = shipped_results()
RULES = [f"{way}_{kind}" for way, mechanism in RULE_MECHANISMS.items() for kind in mechanism.kinds]
MECHANISMS = list(dict.fromkeys([*EFFECTS, *RULES, *PLANS]))
LEARNERS = ("RLearner", "DRLearner", "EffectRule")
WITHOUT = {"plug_in"}  # post-processing of nuisances, whose charges have theirs
UNNAMED = {
    charges.TRAINING,
}  # as the parts of it are charged; and heuristic


@cache
def composed():
    return EVERY["effect, continuous"]()


def of(mechanism: str, *charged: Charge, **changes):
    stated = tuple(StatedCharge(charge, Level.CERTIFIED) for charge in charged)
    return replace(composed().privacy, mechanism=mechanism, blocks=(Block("all", 1, stated),), **changes)


def shown(privacy) -> tuple[str, ...]:
    return audits_of(privacy, SHIPPED)


def test_the_shipped_results_say_what_the_registry_s_audits_attack():
    for name, case in registry().items():
        assert SHIPPED[name]["attacks"] == [target.to_dict() for target in case.attacks]


@pytest.mark.first(3)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_has_a_shipped_audit(mechanism):
    for delta in (0.0, 1e-5):
        for learner in LEARNERS:
            for more in ({}, {"law": "gaussian"}, {"answers": "online"}, {"threshold": "squared loss"}):
                names = shown(of(mechanism, delta=delta, public={"learner": learner, **more}))
                assert names or mechanism in WITHOUT


def test_every_charge_has_a_shipped_audit():
    named = [value for value in vars(charges).values() if isinstance(value, Charge)]
    for charge in {*named, *fits_by("objective")} - UNNAMED:
        assert shown(of("none", charge)), charge


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*DEFAULT, "composed, rule", "selection, pure", "average, ATE"])
def test_all_that_a_release_was_charged_for_has_its_audits(kind):
    privacy = EVERY[kind]().privacy
    own = shown(replace(privacy, blocks=()))
    assert own or privacy.mechanism in WITHOUT
    assert shown(privacy)[: len(own)] == own


@pytest.mark.parametrize(
    ("mechanism", "public", "delta", "names"),
    [
        ("composed", {"learner": "RLearner"}, 1e-5, ("composed_effect",)),
        ("composed", {"learner": "RLearner"}, 0.0, ("composed_pure_effect",)),
        ("composed", {"learner": "EffectRule"}, 1e-5, ("effect_rule",)),
        ("composed", {"learner": "EffectRule"}, 0.0, ("pure_effect_rule",)),
        ("composed", {"learner": "EffectRule", "effect_by": "sums"}, 0.0, ("effect_sums", "pure_effect_rule")),
        ("output", {"threshold": 0.5}, 1e-5, ("output",)),
        ("output", {"threshold": "squared loss"}, 1e-5, ("output_squared",)),
        ("subgroups", {"law": "gaussian"}, 1e-5, ("subgroups_gaussian",)),
        ("gaussian_process", {"answers": "online"}, 1e-5, ("online",)),
        ("influence", {}, 1e-5, ("influence", "influence_below_n_min")),
        ("exponential", {}, 0.0, ("exponential_mechanism",)),
    ],
)
def test_a_release_has_the_audits_of_its_constants(mechanism, public, delta, names):
    assert shown(of(mechanism, public=public, delta=delta)) == names


def test_choices_of_a_composition_and_its_scores_have_theirs():
    chosen = [charges.COMPOSED_EFFECT.with_part(choice) for choice in CHOICES]
    assert shown(of("composed", *chosen, public={"learner": "RLearner"})) == ("composed_effect", "gumbel_top_k")
    scores = of("permute_and_flip", charges.COMPOSED_SCORES.with_part("outcome"), public={"policies": 3})
    assert shown(scores) == ("permute_and_flip", "composed_selection")


def test_a_release_by_person_has_the_audit_of_persons():
    assert shown(replace(composed().privacy, person={"column": "id", "records": 2}))[:2] == (
        "composed_effect",
        "person",
    )
