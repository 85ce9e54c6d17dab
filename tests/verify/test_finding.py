import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from tests.pages.releases import average as one_number
from tests.pages.releases import cohort, composed, rule
from tests.registered import AverageEffect, RLearner, SubgroupEffects
from tests.verify.kinds import DEFAULT, KINDS
from tests.verify.test_subgroups import released
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
    assert said.whom == ("It is about people like those in the 1,500 records: age 18 to 90 years.",)


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
    possible = "Any effect in that interval is possible; more records would narrow it."
    assert (possible in said.head) is (words == "no effect")


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
    privacy = replace(subgroups().privacy, n=200)
    release = replace(subgroups(), statistics=torch.tensor([one, other]).double(), privacy=privacy)
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


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((-3.5, -0.5), ["The effect differs between these groups: +3.00 points (95% interval +2.35 to +3.65)."]),
        ((-2.1, -1.9), ["No difference of the effect is shown between these groups: +0.20 points"]),
        ((-0.5, -3.5), ["The effect differs between these groups: −3.00 points", "Their order is not as predicted"]),
    ],
)
def test_groups_are_of_predicted_effects_and_compared(ends, said):
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5)).release_function()
    names = ("average", "group 1", "group 2", "group 3")
    estimates = torch.tensor([-2.0, ends[0], -2.0, ends[1]]).double()
    shares = torch.tensor([1.0, 0.2, 0.4, 0.3]).double()
    lines = Averages(names, estimates, torch.full((4, 4), 0.01).double(), shares, 0.0, 0.0)
    release = replace(release, averages=lines)
    groups = check_words(release).groups
    for words, who, value in zip(groups, ("highest", "lowest"), ends[::-1], strict=False):
        shown = numbers([value], 1.96 * 0.2)[0]
        assert words.startswith(f"For those with the {who} predicted effects, the effect is {shown} points (95%")
    assert [words[: len(start)] for words, start in zip(groups[2:], said, strict=True)] == said
    assert release.lines()["records"].tolist() == [1500, 333, 667, 500]  # 1,500 in all


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
    assert not any("By a noisy" in words for words in findings(release))
    many = check_words(replace(release, averages=replace(release.averages, lacking=0.163)))
    place = next(k for k, words in enumerate(many.rests_on) if "By a noisy" in words)
    assert many.rests_on[place] == "By a noisy estimate, at least 16% of the people have less."
    assert many.rests_on[place - 1] == "It is stated that everybody has a chance of at least 30% of each arm."
    assert not any(words.startswith("Everybody may get") for words in many.rests_on)
    assert "records without them would help" in many.rests_on[place + 1]


def test_without_an_interval_the_noise_stands_beside_the_number():
    release = fitted(RLearner, PrivacyBudget(1.0, 1e-5), n=400, noise=None, second_stage=WITHOUT).release_function()
    bare = replace(release, law=None, numbers=None, without="none was requested")
    said = check_words(bare).head
    assert noise_of(bare) > 0
    assert " changes pain by about −" in said[0]
    assert said[1].startswith("It has no interval, and nothing can be concluded: the error to expect is about ")
    assert "person" not in said[1]  # the number before it is a mean


def test_two_subgroups_are_compared_with_each_other():
    """Both differ from their average if and only if they differ from each other: it is one test."""
    release, rows = subgroups(), [[[25.0, 0.0, 25.0]] * 2, [[50.0, 0, 0], [0.0, 0, 50]]]
    privacy = replace(release.privacy, n=200)
    for numbers_of, start in ((rows, "The effect differs between"), (rows[:1] * 2, "No difference of the effect is")):
        made = replace(release, statistics=torch.tensor(numbers_of).double(), privacy=privacy)
        (said,) = check_words(made).groups
        assert said.startswith(start)
        assert numbers([made.contrast(*made.lines().index)[0]])[0].rstrip("0.") in said
        assert "none of" not in said
    (said,) = check_words(released("laplace")).groups  # of more than two
    assert said == "In 4 subgroups no difference from that average is shown, counting all at once."


def arms(n, effects, label=""):
    """Return averages of several arms against the first."""
    words = [f"{label}{k}" for k in "abcde"[: len(effects) + 1]]
    outcome = {"name": "y", "low": 0, "high": 1, "better": "higher"}
    facts = {
        "treatment": {"name": "arm", "categories": words},
        "outcome": outcome,
        "covariates": {"x": {"low": 0, "high": 1}},
    }
    schema = TableSchema.from_dict(facts | {"propensity": [1 / len(words)] * len(words)})
    a = np.arange(n) % len(words)
    y = np.array([0.5, *[0.5 + effect for effect in effects]])[a] + 0.01 * (np.arange(n) // len(words) % 3 - 1)
    learner = SubgroupEffects(schema, PrivacyBudget(8.0, 0.0), subgroups="everybody", noise=FixedNoise(1))
    return learner.fit(pd.DataFrame({"x": np.full(n, 0.5)}), np.array(words)[a], y).release()


def test_each_arm_that_has_an_effect_is_named_and_each_comparison_has_its_interval():
    said = check_words(arms(5000, [0.1, 0.2, 0.3, -0.2]))
    assert said.head[:2] == (
        "Of 4 arms, these are shown to raise y: b; c; d.",
        "Of 4 arms, these are shown to lower y: e.",
    )
    assert said.head[2] == "Higher y is better: this speaks for b and c and d."
    assert sum("95% interval" in words for words in said.groups) == 4
    said = check_words(arms(600, [0.0, 0.0], "a treatment of six words called "))
    assert sum("95% interval" in words for part in (said.head, said.groups) for words in part) == 3


def test_an_estimate_off_the_middle_of_its_interval_has_a_reason(constant):
    off, lines = "The estimate lies off the middle of its interval because it is drawn", constant.averages
    for apart, told in ((0.9 * lines.own_variance**0.5, True), (0.0, False)):
        middle = lines.estimates.clone()
        middle[0] = constant.line_numbers.facts.centre - apart
        moved = replace(constant, averages=replace(lines, estimates=middle), line_numbers=constant.line_numbers)
        assert any(words.startswith(off) for words in check_words(moved).rests_on) is told


def test_averages_without_an_interval_speak_of_no_person_and_advise_what_was_not_stated():
    release = fitted(AverageEffect, noise=None).release()
    for why, helps in (("; state treated: in the domain", "stating it"), ("; give more records", "fewer covariates")):
        none = replace(release, averages=None, line_numbers=None, no_lines=f"no interval: they do not fit{why}")
        said, page = check_words(none), reader_page(none)
        assert said.head[2].endswith(f": {helps}, or more records, would help.")
        assert not re.search("person|serves", " ".join(said.head))
        assert said.person == ("These are averages: what one person gains or loses they do not say.",)
        assert "as a function of the covariates" not in page
        assert "By covariate" not in page


def test_everybody_has_one_line():
    release = fitted(AverageEffect, subgroups="everybody", noise=None).release()
    assert release.lines()["line"].tolist() == ["everybody"]
    assert check_words(release).groups == ()


def test_what_it_rests_on_names_clusters_rates_and_events_that_compete(constant):
    said = check_words(released("clusters"))
    assert "Whole clusters (school) were randomised, as the design says." in said.rests_on
    assert "Intervals count clusters of at most 20 records, correlated by at most 0.1." in said.rests_on
    clusters = {"clusters": {"name": "school", "size": 20, "correlation": 0.1}}
    schema = TableSchema.from_dict(FACTS | {"assignment": clusters})
    bare = check_words(replace(constant, schema=schema, averages=None, line_numbers=None, law=None, without="none"))
    assert not any("Intervals count" in words for words in bare.rests_on)
    assert "It has no interval, and nothing can be concluded from it." in bare.head
    assert (
        "How long a record is followed tells nothing of how often events come."
        in check_words(released("rates")).rests_on
    )
    assert "0 to 3 in the whole time of a record" in reader_page(released("rates"))
    competing = check_words(released("arms, of competing events, gaussian"))
    assert "Who has another event first counts as never having this one." in competing.rests_on


def test_a_mean_time_is_without_events_that_compete_only_where_there_are_some():
    for event, told in (
        ({"success": 1, "censored": 0}, False),
        ({"categories": [0, 1, 2], "success": 1, "censored": 0}, True),
    ):
        outcome = {"time": "t", "event": {"name": "d", **event}, "horizon": 1.0}
        schema = TableSchema.from_dict({**FACTS, "outcome": outcome})
        frame, arm, pain = trial(400)
        both = pd.DataFrame({"t": pain / 10, "d": 1})
        said = Findings.of(AverageEffect(schema, SOME, noise=FixedNoise(3)).fit(frame, arm, both).release())
        assert ("competes" in said.head[0]) is told
        others = "Any code of the event but 1 and 0 counts as an event that ends the time."
        assert (others in said.rests_on) is not told


def test_words_of_an_outcome_are_said():
    outcome = {"name": "state", "categories": ["none", "mild", "severe"], "success": "severe"}
    schema = TableSchema.from_dict({**FACTS, "outcome": outcome, "out_of_bounds": "clip"})
    frame, arm, pain = trial(400)
    state = pd.Series(np.where(pain > 6, "severe", "mild"))
    release = AverageEffect(schema, SOME, noise=FixedNoise(3)).fit(frame, arm, state).release()
    assert "the chance of state = severe" in check_words(release).head[0]
    words = {"name": "pain", "low": 0, "high": 10, "words": {"none": 0, "some": 4, "worst": 10}}
    scored = replace(average(0.3), schema=TableSchema.from_dict({**FACTS, "outcome": words}))
    assert "0 to 10 (none 0, some 4, worst 10)" in reader_page(scored)


def test_records_that_do_not_count_are_said_with_their_condition():
    facts = FACTS | {"outcome": FACTS["outcome"] | {"missing": "drop"}}
    frame, arm, pain = trial(800)
    pain[::4] = np.nan
    release = AverageEffect(TableSchema.from_dict(facts), SOME, noise=FixedNoise(3)).fit(frame, arm, pain).release()
    said = check_words(release)
    assert "Those of them whose outcome is missing do not count." in said.whom
    assert "Whether the outcome is missing does not depend on the outcome, nor on the arm." in said.rests_on
    assert "Records in the table" in reader_page(release)


def test_an_epsilon_above_ten_is_said_to_promise_little():
    little = "An epsilon above 10 promises little: handle it almost like the records."
    for epsilon, told in ((20.0, True), (4.0, False)):
        assert (
            little in check_words(fitted(AverageEffect, PrivacyBudget(epsilon, 1e-5), noise=None).release()).privacy
        ) is told


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
