import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from tests.verify.words import check_words
from torchdpcate.cli.predict import predict
from torchdpcate.cli.verify import verify
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError, MissingError
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.evaluation.figures import svg_of
from torchdpcate.pages.reader import offline_model, reader_page
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import FixedNoise
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.file import subject
from torchdpcate.verify.finding import findings, numbers

PEOPLE = pd.DataFrame({"x": [-0.9, 0.1, 0.8], "age": [20.0, 50.0, 80.0], "sex": ["f", "m", "f"]})


def records(outcome: str, n: int, seed: int) -> tuple[TableSchema, pd.DataFrame, pd.Series, pd.Series]:
    """Return a trial: costs that the drug lowers by 2 for everybody, or a cure that it hardly changes."""
    draws = np.random.default_rng(seed)
    x = pd.DataFrame(
        {"x": draws.uniform(-1, 1, n), "age": draws.uniform(18, 90, n), "sex": draws.choice(["f", "m"], n)}
    )
    arm, about = draws.integers(0, 2, n), {"name": "y", "low": 0, "high": 60, "better": "lower"}
    y = np.clip(np.exp(1 + 0.5 * x["x"] + 0.9 * draws.normal(size=n)) + 3 - 2 * arm, 0, 60)
    if outcome == "cure":
        about = {"name": "y", "low": 0, "high": 1, "kind": "binary", "better": "higher"}
        y = (draws.uniform(size=n) < 0.3 + 0.15 * x["x"] + 0.04 * arm).astype(float)
    facts = {
        "treatment": {"name": "arm", "categories": ["placebo", "drug"]},
        "outcome": about,
        "covariates": {"x": {"low": -1, "high": 1}, "age": {"low": 18, "high": 90}, "sex": {"categories": ["f", "m"]}},
        "propensity": 0.5,
    }
    return TableSchema.from_dict(facts), x, pd.Series(np.where(arm, "drug", "placebo")), pd.Series(y)


@cache
def released(outcome: str, n: int, epsilon: float) -> ComposedRelease:
    schema, *rows = records(outcome, n, 1)
    learner = RLearner(schema, PrivacyBudget(epsilon, 1e-5), noise=FixedNoise(1)).fit(*rows)
    release = learner.release_function()
    assert isinstance(release, ComposedRelease)
    return release


@pytest.fixture
def release() -> ComposedRelease:
    """Costs that nothing modifies, of so few records that one number was planned."""
    return released("cost", 250, 4.0)


@pytest.fixture
def shrunk() -> ComposedRelease:
    """A cure, whose features are nearly all shrunk away."""
    return released("cure", 2000, 4.0)


def test_every_function_of_a_release_says_the_same(release: ComposedRelease) -> None:
    value, (low, high) = release.average_effect, release.average()
    assert release.form == "constant"
    assert "covariates" not in subject(release)
    assert low < value < high
    np.testing.assert_allclose(release.effect(PEOPLE), value, rtol=1e-12)
    np.testing.assert_allclose(release.mean_interval(PEOPLE), [[low, high]], rtol=1e-12)
    np.testing.assert_allclose(release.ate(PEOPLE), value, rtol=1e-12)
    np.testing.assert_allclose(release.ate_interval(PEOPLE), (low, high), rtol=1e-12)
    shown = release.summary()
    assert [shown[f"average{end}"] for end in ("", "_low", "_high")] == pytest.approx([value, low, high])
    assert (shown["form"], shown["features"]) == ("constant", 0)
    assert shown["intervals_of"].startswith("the average effect")
    better = release.domain.direction * value > 0
    assert release.rule().constant == better
    assert (release.rule().decide(PEOPLE) == better).all()


def test_a_person_s_interval_is_no_average_s(release: ComposedRelease, shrunk: ComposedRelease) -> None:
    """Of one number it is the line with the prior's deviation of effects; of what was shrunk as of any release."""
    law, line = release.law, release.averages
    assert law is not None
    assert line is not None
    middle, half = line.estimate(), 1.959964 * (line.error() ** 2 + law.missed) ** 0.5
    level = release.effect(PEOPLE)[0]
    ends = min(middle - half, level), max(middle + half, level)
    np.testing.assert_allclose(release.interval(PEOPLE), [ends] * 3, rtol=1e-6)
    assert 0 < law.missed**0.5 < release.scale
    apart = release.effect_contrast(PEOPLE[1:], PEOPLE[:1])
    np.testing.assert_allclose(apart[:, 1], 1.959964 * (2 * law.missed) ** 0.5, rtol=1e-6)
    assert shrunk.form == "linear"
    assert np.ptp(shrunk.effect(PEOPLE)) > 0
    assert shrunk.law is not None
    assert (np.diff(shrunk.interval(PEOPLE)) > 1.1 * np.diff(shrunk.average())).all()
    bare = replace(release, law=None, without="none was requested")
    assert bare.average().tolist() == release.average().tolist()
    with pytest.raises(InputError, match="has none that would hold: none was requested"):
        bare.interval(PEOPLE)


def test_what_was_shrunk_away_has_no_groups_and_its_range_is_said(shrunk: ComposedRelease) -> None:
    assert shrunk.averages is not None
    assert shrunk.line_numbers is not None
    assert not shrunk.averages.groups
    facts = shrunk.line_numbers.facts
    assert 0 < facts.effect_deviation < facts.deviation / shrunk.privacy.n**0.5
    (said,), (low, high) = check_words(shrunk).groups, shrunk.average()
    ends = np.quantile(shrunk.effect_tensor(shrunk.reference), [0.05, 0.95])
    if ends[1] - ends[0] < (high - low) / 2:
        assert said.startswith("No differences of the effect between people are shown; those below ")
    else:
        assert "between {} and {};".format(*numbers(ends.tolist(), (high - low) / 2)) in said


def test_the_finding_has_them_and_says_that_it_is_one_number(release: ComposedRelease) -> None:
    said, (low, high) = check_words(release), release.average()
    low, high = (text.lstrip("−") for text in numbers([high, low], (high - low) / 2))
    assert f"(95% interval {low} to {high})" in said.head[0]
    assert said.person == ("Everybody has the same number here: so many records carry no more.",)


def test_figures_draw_one_line_with_one_band(release: ComposedRelease) -> None:
    figure = release.plot("x")
    axes, (low, high) = figure.axes[0], release.average()
    line = axes.lines[0].get_ydata()
    np.testing.assert_allclose(line, release.average_effect, rtol=1e-12)
    drawn = np.concatenate([path.vertices[:, 1] for band in axes.collections for path in band.get_paths()])
    ends = drawn[np.abs(drawn) > 0]
    assert [ends.min(), ends.max()] == pytest.approx([low, high])
    assert svg_of(figure)


def test_the_page_and_its_controls_have_them(release: ComposedRelease) -> None:
    page, model = reader_page(release), offline_model(release.rule())["effect"]
    assert findings(release)[0].replace("'", "&#39;") in page
    assert offline_model(release) == ""
    assert "as a function of" not in page
    assert "against" not in page
    assert model["features"] == []
    assert model["betas"] == [[pytest.approx(release.average_effect)]]
    half = model["deviations"] * model["law"]["variance"] ** 0.5
    middle = model["law"]["estimates"][0] + model["law"]["correction"]
    low, high = release.interval(PEOPLE)[0]
    assert high == pytest.approx(middle + half)
    assert low == pytest.approx(min(middle - half, release.average_effect))
    assert "No difference of the effect is shown by x, age, sex." in page


def test_an_average_s_interval_is_there_without_a_law(release: ComposedRelease) -> None:
    alone = replace(release, law=None)
    assert alone.has_intervals
    np.testing.assert_allclose(alone.mean_interval(PEOPLE), [release.average()], rtol=1e-12)
    law = offline_model(alone.rule())["effect"]["law"]
    assert [*law["estimates"], law["variance"]] == pytest.approx(
        [release.averages.estimate(), release.averages.error() ** 2]
    )


@pytest.mark.parametrize("arms", [2, 3])
def test_one_number_that_was_asked_for_has_a_page(arms: int) -> None:
    """Without a law: of two arms the average's interval, of more none."""
    draws, names = np.random.default_rng(3), ["placebo", "drug", "both"][:arms]
    facts = {
        "treatment": {"name": "arm", "categories": names},
        "outcome": {"name": "y", "low": -5, "high": 8, "better": "higher"},
        "covariates": {"x": {"low": -1, "high": 1}},
        "propensity": 0.5 if arms == 2 else [0.4, 0.3, 0.3],
    }
    arm, x = draws.integers(0, arms, 3_000), pd.DataFrame({"x": draws.uniform(-1, 1, 3_000)})
    stage = AdaptiveSecondStage(constant_only=True, intervals=False)
    learner = RLearner(TableSchema.from_dict(facts), PrivacyBudget(1.0, 1e-5), second_stage=stage)
    y = pd.Series(arm + draws.normal(size=3_000)).clip(-5, 8)
    found = learner.fit(x, pd.Series(np.array(names)[arm]), y).release_function()
    assert found.law is None
    assert found.averages is not None
    assert found.has_intervals == (arms == 2)
    assert "average" in reader_page(found)
    with pytest.raises(
        (InputError, MissingError), match="has none that would hold" if arms == 2 else "3 arms have several"
    ):
        (found.interval if arms == 2 else found.average)(*[x[:2]] * (arms == 2))


def test_files_have_them(release: ComposedRelease, tmp_path, capsys) -> None:
    path = str(release.save(tmp_path / "release.safetensors"))
    PEOPLE.to_csv(tmp_path / "people.csv", index=False)
    predict(path, str(tmp_path / "people.csv"), str(tmp_path / "found.csv"), interval=True)
    found = pd.read_csv(tmp_path / "found.csv")
    value, (low, high) = release.average_effect, release.average()
    np.testing.assert_allclose(found["effect"], value, rtol=1e-6)
    np.testing.assert_allclose(found[["low", "high"]], release.interval(PEOPLE), rtol=1e-6)
    capsys.readouterr()
    verify(path, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert [shown[f"average{end}"] for end in ("", "_low", "_high")] == pytest.approx([value, low, high])
    assert shown["findings"] == findings(release)
    verify(path)
    lines = re.findall(r"^average.*: (\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert [float(word) for word in lines] == pytest.approx([value, low, high], rel=1e-4)


def test_a_level_that_may_be_noise_stays_and_one_that_is_not_follows_the_average(release: ComposedRelease) -> None:
    """-3.65 in -6.70 to -.59 beside -1.42 was one release: the number is moved, and everywhere the same."""
    law = release.law
    assert law is not None
    level = float(law.centre @ release.theta)
    error = law.average_variance**0.5
    for apart, moved in ((0.9, 0.0), (2.0, 1.5), (-2.0, -1.5)):
        found = replace(release, law=replace(law, average=level + apart * error), averages=None, line_numbers=None)
        assert found.average_effect == pytest.approx(level + moved * error)
        np.testing.assert_allclose(found.effect(PEOPLE), found.average_effect, rtol=1e-12)
        low, high = found.average(0.05)  # a narrow one still holds the number beside it
        assert low <= found.average_effect <= high


def test_a_number_that_has_a_line_is_within_its_error(release: ComposedRelease) -> None:
    lines, value = release.averages, release.average_effect
    assert lines is not None
    assert 0 < abs(value - lines.estimate()) <= lines.error()
    low, high = lines.interval(level=0.9)
    assert release.average(0.9).tolist() == [min(low, value), max(high, value)]
    np.testing.assert_allclose(release.effect(PEOPLE), value, rtol=1e-12)
