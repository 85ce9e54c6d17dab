"""What several arms do not have is refused in one line that names what has it."""

import pytest

from tests.registered import AverageEffect, DRLearner, EffectRule, RLearner, SubgroupEffects
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget

SOME = PrivacyBudget(1.0, 1e-5)
FACTS = {
    "treatment": {"name": "arm", "categories": ["placebo", "low", "high"], "reference": "placebo"},
    "outcome": {"name": "y", "low": 0, "high": 10, "better": "higher"},
    "covariates": {"x": {"low": 0, "high": 1}},
}
TRIAL = {"propensity": [0.4, 0.3, 0.3]}
CENSORED = {"outcome": {"time": "t", "event": "d", "horizon": 5, "kind": "restricted_mean", "better": "higher"}}
ALONE = "put the records of two arms into a file of their own"
CASES = {
    "subgroups of a cohort": (
        lambda schema: SubgroupEffects(schema, SOME, subgroups=[{"x": [0.5]}]),
        {},
        ("propensity=randomised", "task=cate (RLearner) has effects of all arms and their means", ALONE),
    ),
    "a rule of a censored outcome": (lambda schema: EffectRule(schema, SOME), CENSORED, ("task=cate", ALONE)),
    "averages of the treated": (
        lambda schema: AverageEffect(schema, SOME, estimand="ATT"),
        TRIAL,
        ("estimand = 'ATT'", ALONE),
    ),
    "intervals by covariates": (
        lambda schema: RLearner(schema, SOME, second_stage=AdaptiveSecondStage(intervals=True)),
        TRIAL,
        ("compare two arms; the average of each arm has one", "leave intervals=auto"),
    ),
    "doubly robust pseudo-outcomes": (lambda schema: DRLearner(schema, SOME), {}, ("task=cate", "(RLearner)", ALONE)),
    "pure events": (lambda schema: RLearner(schema, PrivacyBudget(1.0, 0.0)), {}, ("delta = 0: effects of 3 arms",)),
    "two blocks": (
        lambda schema: RLearner(schema, SOME, second_stage=LinearSecondStage()),
        {},
        ("has 3 arms, and a second stage on a block",),
    ),
}


@pytest.mark.parametrize(("make", "facts", "words"), CASES.values(), ids=CASES)
def test_a_refusal_names_what_to_do_instead(make, facts, words) -> None:
    with pytest.raises(InputError) as refused:
        make(TableSchema.from_dict(FACTS | facts)).check(4000)
    said = str(refused.value)
    assert "\n" not in said
    for word in words:
        assert word in said


def test_what_they_name_is_there() -> None:
    for facts in ({}, TRIAL, CENSORED, TRIAL | CENSORED):
        RLearner(TableSchema.from_dict(FACTS | facts), SOME).check(4000)
    AverageEffect(TableSchema.from_dict(FACTS | TRIAL), SOME).check(4000)
    for cells in ("everybody", [{"x": [0.5]}]):
        SubgroupEffects(TableSchema.from_dict(FACTS | TRIAL), SOME, subgroups=cells).check(4000)
        SubgroupEffects(TableSchema.from_dict(FACTS), SOME, subgroups=cells, propensity="randomised").check(4000)
