import json
from dataclasses import replace

import pandas as pd
import pytest
import torch

from tests.registered import AverageEffect, RLearner
from tests.verify.forgery import card_html
from torchdpcate.cli.verify import verify
from torchdpcate.composition.planned import EffectErrors
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.schema import TableSchema
from torchdpcate.pages.reader import reader_page
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import FixedNoise
from torchdpcate.release.averages import Averages
from torchdpcate.release.file import load_release
from torchdpcate.verify import finding
from torchdpcate.verify.finding import findings, noise_of, numbers

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
    said = findings(fitted(AverageEffect).release())
    assert said[0].startswith("Among everybody, drug instead of placebo changes pain by −")
    assert " points on average (95% interval −" in said[0]
    assert said[1] == "Lower pain is better: this speaks for drug."


def test_a_rule_says_whom_it_gives_what(constant):
    rule = constant.rule()
    said = findings(rule)
    assert said[0].startswith("So that pain be low, the rule gives drug to everybody, by one estimated effect of drug")
    assert rule.decide(trial(50)[0]).all()


def test_effects_that_err_as_much_as_one_number_are_said_to_be_no_better(monkeypatch):
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5), second_stage=WITHOUT).release_function()
    release = replace(release, theta=torch.cat([release.theta[:1], release.estimates[1:]]))
    for variation, told in ((0.30, True), (0.10, False)):
        errors = EffectErrors(0.05, 0.05, 0.0, variation, 0.31)
        monkeypatch.setattr(finding, "_planned", lambda _, errors=errors: errors)
        assert ("one average effect serves as well" in findings(release)[-1]) is told


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
        assert numbers([moved.average_effect])[0] in findings(moved)[0]


def test_lines_say_the_average_the_groups_and_what_it_rests_on():
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5)).release_function()
    said, lines = findings(release), release.averages
    low, high = release.average()
    average, *ends = numbers([release.average_effect, low, high])
    assert said[0] == (
        "Among everybody, drug instead of placebo changes pain by "
        f"{average} points on average (95% interval {ends[0]} to {ends[1]})."
    )
    assert said[1] == "Lower pain is better: this speaks for drug."
    assert said[-1].startswith("This rests on the following: treatment was randomised person by person")
    assert not any("confounder" in words for words in said)  # a trial has none
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
    said = next(words for words in findings(replace(release, averages=lines)) if words.startswith("Of the third"))
    own = "whose effect is estimated largest" if better is None else "who gain most"
    assert said.startswith(f"Of the third {own} by the released effect it is")
    shown = numbers([float(estimates[1 + most]), float(estimates[1 + least])])
    assert shown[0] in said.split(", of the third")[0]
    assert shown[1] in said.split(", of the third")[1]


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
    said = next(words for words in findings(release) if words.startswith("Treating exactly"))
    assert said == (
        "Treating exactly the people of one subgroup improves pain over treating nobody in 2 of 2: sex = f; sex = m; "
        "over treating everybody in 0 of 2 (each 95% interval by itself lies above zero)."
    )
    assert "treating sex = f over treating nobody" in reader_page(release)
    assert load_release(release.save(tmp_path / "release.safetensors")).lines().equals(table)


def test_a_cohort_rests_on_its_confounders_first_and_says_how_strong_another_would_be():
    facts = {name: value for name, value in FACTS.items() if name != "propensity"}
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5), facts=facts | {"overlap": 0.3}).release_function()
    said = findings(release)
    rests = next(words for words in said if words.startswith("This rests"))
    assert rests.startswith(
        "This rests on the following: no unmeasured cause of both treatment and outcome is left; people of all"
    )
    average, end = release.explained_away()
    strong = next(words for words in said if words.startswith("A confounder that is not among"))
    assert f"would have to explain {average:.0%} of what is left of the outcome" in strong
    assert 0 < end < average
    assert f"; {end:.0%} of each would bring its interval's end there." in strong


def test_people_at_the_stated_overlap_are_a_finding_with_what_helps():
    facts = {name: value for name, value in FACTS.items() if name != "propensity"}
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5), facts=facts | {"overlap": 0.3}).release_function()
    assert release.averages.lacking < 0.02  # half are treated, whatever their covariates
    assert not any("stated overlap" in words for words in findings(release))
    many = replace(release, averages=replace(release.averages, lacking=0.163))
    said = findings(many)
    place = next(k for k, words in enumerate(said) if "stated overlap" in words)
    assert said[place].startswith(
        "By the released propensity at least 16% of the people lie at the stated overlap of 0.3"
    )
    assert "ATT or ATO" in said[place]
    assert said[place + 1].startswith("This rests on the following")


def test_without_an_interval_the_noise_stands_beside_the_number():
    release = fitted(RLearner, PrivacyBudget(1.0, 1e-5), n=400, noise=None, second_stage=WITHOUT).release_function()
    bare = replace(release, law=None, numbers=None, without="none was requested")
    said = findings(bare)
    assert noise_of(bare) > 0
    assert "where the error to expect is about" in said[0]
    assert (" for one person: it has no interval" in said[0]) == (bare.form != "constant")
    assert "nothing can be concluded" in said[0]
    assert not any("speaks for" in words for words in said)


def test_inspect_page_and_card_say_the_same(constant, tmp_path, capsys):
    path, first = constant.save(tmp_path / "release.safetensors"), findings(constant)[0]
    verify(str(path), as_json=True)
    assert json.loads(capsys.readouterr().out)["findings"][0] == first
    verify(str(path))
    shown = capsys.readouterr().out
    assert "changes pain by" in " ".join(shown.split())
    assert "age: 18 to 90 years" in " ".join(shown.split())
    assert "drug instead of placebo" in shown
    assert first in reader_page(constant)
    assert first in card_html(constant)
