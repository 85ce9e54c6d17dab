import json
from dataclasses import replace

import pandas as pd
import pytest
import torch

from tests.registered import AverageEffect, RLearner
from torchdpcate.cli.verify import verify
from torchdpcate.data.schema import TableSchema
from torchdpcate.pages.reader import reader_page
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import FixedNoise
from torchdpcate.verify.card import card_html
from torchdpcate.verify.finding import findings, noise_of, numbers

FACTS = {
    "treatment": {"name": "arm", "categories": ["placebo", "drug"]},
    "outcome": {"name": "pain", "low": 0, "high": 10, "unit": "points", "better": "lower", "sd": 2},
    "covariates": {"age": {"low": 18, "high": 90, "unit": "years"}, "sex": {"categories": ["f", "m"]}},
    "propensity": 0.5,
}


SOME = PrivacyBudget(4.0, 1e-5)


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


def test_the_average_is_the_mean_of_a_varying_effect():
    release = fitted(RLearner, PrivacyBudget(20.0, 1e-5)).release_function()
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


def test_without_an_interval_the_noise_stands_beside_the_number():
    release = fitted(RLearner, PrivacyBudget(1.0, 1e-5), n=400, noise=None).release_function()
    bare = replace(release, law=None, numbers=None, without="none was requested")
    said = findings(bare)
    assert noise_of(bare) > 0
    assert "where noise alone is about" in said[0]
    assert (" for one person, and errors" in said[0]) == (bare.form != "constant")
    assert ", and errors of the nuisances come on top: it has no interval" in said[0]
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
