import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from tests.pages.releases import average as one_number
from tests.pages.releases import cohort, composed, rule
from tests.registered import AverageEffect, RLearner
from tests.verify.kinds import DEFAULT, KINDS
from tests.verify.words import check_words
from torchdpcate.cli.verify import verify
from torchdpcate.composition.planned import EffectErrors
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.pages.reader import reader_page
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import FixedNoise
from torchdpcate.release.average_effect import _example as average
from torchdpcate.release.averages import Averages
from torchdpcate.release.file import load_release
from torchdpcate.release.release import _answered_example, _example
from torchdpcate.release.rule import _policy_example
from torchdpcate.release.subgroups import _example as subgroups
from torchdpcate.verify import finding
from torchdpcate.verify.finding import Findings, findings, noise_of, numbers

FACTS = {
    "treatment": {"name": "arm", "categories": ["placebo", "drug"]},
    "outcome": {"name": "pain", "low": 0, "high": 10, "unit": "points", "better": "lower", "sd": 2},
    "covariates": {"age": {"low": 18, "high": 90, "unit": "years"}, "sex": {"categories": ["f", "m"]}},
    "propensity": 0.5,
}


SOME = PrivacyBudget(4.0, 1e-5)
WITHOUT = AdaptiveSecondStage(lines=False)


def trial(n: int = 1500) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    """Return a trial in which the drug takes 2 points off everybody's pain."""
    random = torch.Generator().manual_seed(2)
    u, v, e = torch.rand(3, n, generator=random, dtype=torch.float64)
    arm = torch.rand(n, generator=random) < 0.5
    pain = (6 - 2.0 * arm + 3 * (e - 0.5)).clamp(0, 10)
    frame = pd.DataFrame({"age": (18 + 72 * u).round().numpy(), "sex": ["f" if s < 0.5 else "m" for s in v]})
    return frame, pd.Series(["drug" if a else "placebo" for a in arm]), pd.Series(pain.numpy())


def fitted(kind, budget=SOME, facts=FACTS, n: int = 1500, **settings):
    """Return a fitted learner."""
    learner = kind(TableSchema.from_dict(facts), budget, **{"noise": FixedNoise(3)} | settings)
    return learner.fit(*trial(n))


@pytest.fixture(scope="module")
def constant():
    """A release of one number for everybody, with intervals."""
    release = fitted(RLearner, PrivacyBudget(1.0, 1e-5), n=400).release_function()
    assert release.form == "constant"
    return release


def test_an_average_is_worded_with_arms_unit_and_direction():
    said = check_words(fitted(AverageEffect).release())
    assert re.fullmatch(
        r"Among everybody, drug instead of placebo lowers pain by \d\.\d+ points on average "
        r"\(95% interval \d\.\d+ to \d\.\d+\)\.",
        said.head[0],
    )
    assert said.head[1:] == ("Lower pain is better: this speaks for drug.",)
    assert said.whom == ("It is about people like those in the 1,500 records: age 18 to 90 years; sex f, m.",)


def test_figures_are_those_that_the_interval_supports():
    """Two figures of the interval's half: .0067 has four decimals, and 125 none of its ones."""
    assert numbers([0.04603, 0.0397, 0.0532], 0.00675) == ["+0.0460", "+0.0397", "+0.0532"]
    assert numbers([-1234.5, -1359.5, -1109.5], 125.0) == ["−1,230", "−1,360", "−1,110"]


@pytest.mark.parametrize(("effect", "words"), [(0.3, "raises"), (-0.3, "lowers"), (0.01, "no effect")])
@pytest.mark.parametrize("better", ["higher", "lower", None])
def test_direction_and_what_is_better_agree_with_the_interval(effect, words, better):
    release = average(effect)
    domain = Domain([0.0], [1.0], -1.0, 1.0, better=better)
    release = replace(release, schema=TableSchema.from_domain(domain))
    said = check_words(release)
    assert words in said.head[0]
    speaks = {("raises", "higher"): "a = 1", ("raises", "lower"): "a = 0"}
    speaks |= {("lowers", "higher"): "a = 0", ("lowers", "lower"): "a = 1"}
    arm = speaks.get((words, better or ""))
    assert any(f"this speaks for {arm}." in line for line in said.head) is (arm is not None)
    assert ("more of them would narrow it" in said.head[-1]) is (words == "no effect")


def test_without_a_law_or_under_noise_nothing_is_concluded():
    release = average(0.3)
    bare = check_words(replace(release, main=replace(release.main, law=None)))
    assert bare.head[1] == "It has no interval, and nothing can be concluded from it."
    hidden = check_words(replace(release, main=replace(release.main, noise_dominated=True)))
    assert hidden.head[0].startswith("Among everybody, nothing can be concluded of the effect of a = 1 instead of 0")
    assert "more records would help" in hidden.head[1]


@pytest.mark.parametrize(("epsilon", "told"), [(0.2, "139"), (1000.0, "")])
def test_what_was_not_worth_asking_is_said_where_its_noise_hides_it(epsilon, told):
    """Of what wide sampling alone leaves open, no plan and no budget would have warned."""
    frame, arm, pain = trial(400)
    learner = AverageEffect(TableSchema.from_dict(FACTS), PrivacyBudget(epsilon, 1e-5), noise=FixedNoise(5))
    head = check_words(learner.fit(frame, arm, pain + 2 * (arm == "drug")).release()).head
    size = f"its noise for privacy is {told}% of the outcome's standard"
    said = f"This way it is not worth asking at so many records: {size}"
    assert any(words.startswith(said) for words in head) is bool(told)
    assert "no effect of drug instead of placebo on pain is shown" in head[0]


def test_the_average_over_subgroups_counts_who_of_all_people_is_in_which():
    """Effects of 2 and -2 of a hundred people each, known without error: 1.96 times 2 over the root of 200."""
    one, other = [[50.0, 0, 0], [0.0, 0, 50]], [[0.0, 0, 50], [50.0, 0, 0]]
    release = replace(subgroups(), statistics=torch.tensor([one, other]).double())
    assert "(95% interval −0.28 to +0.28)" in Findings.of(release).head[0]


def test_a_chance_is_in_percentage_points():
    outcome = {"name": "death", "categories": ["no", "yes"], "better": "lower"}
    schema = TableSchema.from_dict({**FACTS, "outcome": outcome})
    frame, arm, pain = trial()
    death = pd.Series(np.where(pain > 5, "yes", "no"))
    said = check_words(AverageEffect(schema, SOME, noise=FixedNoise(3)).fit(frame, arm, death).release())
    assert re.search(r"lowers the chance of death by \d\d\.?\d* percentage points \(95% interval \d\d", said.head[0])


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in DEFAULT else pytest.mark.slow) for n in KINDS])
def test_releases_of_each_kind_say_short_plain_sentences_that_agree(name):
    check_words(KINDS[name]())


@pytest.mark.parametrize("make", [composed, cohort, rule, one_number, _policy_example, _example, _answered_example])
def test_what_pages_show_is_short_plain_and_agrees(make):
    check_words(make())


def test_a_rule_says_whom_it_gives_what(constant):
    rule = constant.rule()
    said = check_words(rule)
    assert said.head == ("For low pain, the rule gives drug to all of the reference population.",)
    assert "released means and spreads" in said.whom[-1]
    assert rule.decide(trial(50)[0]).all()


def test_effects_that_err_as_much_as_one_number_are_said_to_be_no_better(monkeypatch):
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5), second_stage=WITHOUT).release_function()
    release = replace(release, theta=torch.cat([release.theta[:1], release.estimates[1:]]))
    for variation, told in ((0.30, True), (0.10, False)):
        errors = EffectErrors(0.05, 0.05, 0.0, variation, 0.31)
        monkeypatch.setattr(finding, "_planned", lambda _, errors=errors: errors)
        assert ("At so many records one average effect serves as well." in check_words(release).person) is told


def test_the_average_is_the_mean_of_a_varying_effect():
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5), second_stage=WITHOUT).release_function()
    varied = torch.cat([release.theta[:1], release.estimates[1:]])
    for off in (0.0, 0.5, -3.0):
        law = replace(release.law, average=float(release.law.centre @ varied) + off)
        moved = replace(release, law=law, theta=varied)
        assert moved.form != "constant"
        mean = float(law.centre @ varied) + moved.shift
        assert moved.average_effect == pytest.approx(mean)
        assert abs(law.average - mean) <= 1.001 * law.average_variance**0.5
        assert abs(moved.shift) <= abs(off) + 1e-12
        low, high = moved.average()
        assert numbers([moved.average_effect], (high - low) / 2)[0].lstrip("−") in findings(moved)[0]


def test_lines_say_the_average_and_what_it_rests_on():
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5)).release_function()
    said, lines = check_words(release), release.averages
    low, high = release.average()
    average, *ends = (text.lstrip("−") for text in numbers([release.average_effect, high, low], (high - low) / 2))
    assert said.head == (
        f"Among everybody, drug instead of placebo lowers pain by {average} points on average "
        f"(95% interval {ends[0]} to {ends[1]}).",
        "Lower pain is better: this speaks for drug.",
    )
    assert said.rests_on[0].startswith("Treatment was randomised person by person")
    assert said.robustness == ()  # a trial has no confounders
    assert abs(release.average_effect - lines.estimate()) <= lines.error()


@pytest.mark.parametrize(("better", "most", "least"), [("lower", 0, 2), ("higher", 2, 0), (None, 2, 0)])
def test_groups_are_named_by_who_gains(better, most, least):
    """Estimates of groups that ascend by effect: of pain, which is to be low, the first gains most."""
    facts = {name: value for name, value in FACTS["outcome"].items() if name != "better"}
    facts = {**FACTS, "outcome": facts | ({} if better is None else {"better": better})}
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5), facts=facts).release_function()
    names = ("average", "group 1", "group 2", "group 3")
    estimates = torch.tensor([-2.0, -3.5, -2.0, -0.5]).double()
    some = torch.full((4, 4), 0.01).double()
    lines = Averages(names, estimates, some, torch.tensor([1.0, 0.3, 0.4, 0.3]).double(), 0.0, 0.0)
    groups = check_words(replace(release, averages=lines)).groups
    own = ("whose effect is estimated largest", "whose effect is estimated least")
    own = own if better is None else ("who gain most", "who gain least")
    for words, who, place in zip(groups[:2], own, (1 + most, 1 + least), strict=True):
        value = numbers([float(estimates[place])], 1.96 * 0.2)[0]
        assert words.startswith(f"For the third {who}, the effect is {value} points (95% interval")


def test_policies_are_said_by_the_cells_whose_treatment_gains(tmp_path):
    """The drug takes 2 points off everybody's pain: treating some is better than nobody, and worse than everybody."""
    stage = AdaptiveSecondStage(lines=["policies"], cells=[{"sex": True}])
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5), second_stage=stage).release_function()
    lines, table = release.averages, release.lines()
    assert lines.cells == ("sex = f", "sex = m")
    assert lines.estimate("sex = f over none") == pytest.approx(1.0, abs=0.4)
    assert lines.estimate("sex = f over all") == pytest.approx(-1.0, abs=0.4)
    own = table[table["group"] == "value of a policy"]
    against = [f"treating sex = {sex} over treating {of}" for sex in "fm" for of in ("nobody", "everybody")]
    assert list(own["line"]) == against
    assert [row["line"] for row in release.summary()["averages"]][2:] == list(own["line"])
    said = [words for words in check_words(release).groups if words.startswith("Treating one")]
    assert said == [
        "Treating one subgroup alone is shown to be better than treating nobody in 2 of 2: sex = f; sex = m.",
        "Treating one subgroup alone is shown to be better than treating everybody in none of 2.",
    ]
    assert "treating sex = f over treating nobody" in reader_page(release)
    assert load_release(release.save(tmp_path / "release.safetensors")).lines().equals(table)


def test_a_cohort_rests_on_its_confounders_first_and_says_how_strong_another_would_be():
    facts = {name: value for name, value in FACTS.items() if name != "propensity"}
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5), facts=facts | {"overlap": 0.3}).release_function()
    said, (average, end) = check_words(release), release.explained_away()
    assert said.rests_on[0] == "Nothing unmeasured drives both treatment and outcome."
    assert "a chance of at least 30%" in said.rests_on[1]
    assert f"would have to explain {average:.0%} of what covariates leave open" in said.robustness[0]
    assert 0 < end < average
    assert f"to zero, {end:.0%} of each would do." in said.robustness[1]


def test_people_at_the_stated_overlap_are_a_finding_with_what_helps():
    facts = {name: value for name, value in FACTS.items() if name != "propensity"}
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5), facts=facts | {"overlap": 0.3}).release_function()
    assert release.averages.lacking < 0.02  # half are treated, whatever their covariates
    assert not any("less of a chance" in words for words in findings(release))
    many = check_words(replace(release, averages=replace(release.averages, lacking=0.163)))
    place = next(k for k, words in enumerate(many.rests_on) if "less of a chance" in words)
    assert many.rests_on[place] == "By released numbers, at least 16% of the people have less of a chance."
    assert many.rests_on[place - 1].endswith("with a chance of at least 30%.")
    assert "records without them would help" in many.rests_on[place + 1]


def test_without_an_interval_the_noise_stands_beside_the_number():
    release = fitted(RLearner, PrivacyBudget(1.0, 1e-5), n=400, noise=None, second_stage=WITHOUT).release_function()
    bare = replace(release, law=None, numbers=None, without="none was requested")
    said = check_words(bare).head
    assert noise_of(bare) > 0
    assert " changes pain by about −" in said[0]
    assert said[1].startswith("It has no interval, and nothing can be concluded: the error to expect is about ")
    assert said[1].endswith(" for one person.") == (bare.form != "constant")


def test_verify_and_the_page_say_the_same(constant, tmp_path, capsys):
    path, first = constant.save(tmp_path / "release.safetensors"), findings(constant)[0]
    verify(str(path), as_json=True)
    assert json.loads(capsys.readouterr().out)["findings"][0] == first
    verify(str(path))
    shown = capsys.readouterr().out
    places = [shown.index(f"\n{title}\n") for title, _ in Findings.of(constant).sections()]
    assert places == sorted(places)
    assert all(words in " ".join(shown.split()) for words in findings(constant))
    assert "age: 18 to 90 years" in " ".join(shown.split())
    assert "drug instead of placebo" in shown
    assert first in reader_page(constant)
