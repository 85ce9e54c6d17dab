from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from tests.pages.releases import cohort, composed
from tests.release.test_reader import DRAWN, RELEASES
from torchdpcate.candidates.kinds import Thresholds
from torchdpcate.composition.fit_plans import effect_variances
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.composition_plan import stated_plan
from torchdpcate.release import average_effect, release, rule
from torchdpcate.release import release as functions
from torchdpcate.release.average_effect import BalanceTable
from torchdpcate.release.composed import _example


@pytest.mark.parametrize("name", DRAWN)
def test_every_kind_returns_a_figure(name, tmp_path):
    figure = RELEASES[name]().plot()
    assert isinstance(figure, Figure)
    figure.savefig(tmp_path / "f.png")  # lays it out


def test_an_effect_is_that_of_the_release():
    line = release._example().plot().axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), 2 * line.get_xdata() - 1, atol=1e-12)


def test_a_composed_effect_is_a_mean_over_its_population_with_intervals():
    found = composed()
    figure = found.plot(["age", "site"])
    assert [axes.get_xlabel() for axes in figure.axes] == ["age", "site"]
    points = figure.axes[1].lines[0].get_ydata()
    assert 1 < points[1] - points[0] < 2.5  # two more days at site b, less what is shrunk
    for point, site in zip(points, "abc", strict=True):
        people, places = found.reference, list(found.schema.places["site"])
        people[:, places] = found.schema.encode(pd.DataFrame({"age": [50.0], "site": [site]}))[:, places]
        assert point == pytest.approx(found.effect(people).mean(), abs=1e-9)
    assert "confidence interval" in figure.legends[0].get_texts()[1].get_text()
    at = found.plot("age", profile={"site": "b"}).axes[0].lines[0].get_ydata()
    assert at.tolist() == pytest.approx(found.effect({"age": np.linspace(20, 80, 101), "site": ["b"] * 101}).tolist())


def test_an_effect_without_intervals_has_the_band_of_its_own_regression():
    """Of estimates before they were shrunk, at a mean of features, by numpy."""
    found = cohort()
    assert not found.has_intervals
    figure = found.plot("x1")
    drawn = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    people = found.reference
    people[:, 1] = 0.5
    psi = found.features(torch.as_tensor(people)).mean(0).numpy()
    variances = effect_variances(stated_plan(found), found.curvatures, found.scale).numpy()
    half = 1.959964 * np.sqrt(psi**2 @ variances)
    middle = found.effect(people).mean()
    for end in (middle - half, middle + half):
        assert np.abs(drawn - end).min() < 0.02 * half
    said = " ".join(text.get_text() for text in figure.axes[0].get_legend().get_texts())
    assert "no confidence interval" in " ".join(said.split())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"covariate": "height"}, "^covariate = height: not a covariate"),
        ({"covariate": []}, r"^covariate = \[\]"),
        ({"profile": {"site": "d"}}, "^profile.site = d: give one of a, b, c"),
        ({"level": 1.0}, "^level = 1.0"),
    ],
)
def test_what_cannot_be_drawn_is_named(settings, message):
    with pytest.raises(InputError, match=message):
        composed().plot(**settings)


def test_queries_are_ordered_or_drawn_against_a_covariate():
    queries = functions._answered_example()
    assert queries.plot().axes[0].get_xlabel() == "queries, the smallest effect first"
    against = queries.plot("x0").axes[0]
    assert (against.get_xlabel(), against.lines[0].get_xdata().tolist()) == ("x0", [0.0, 1.0])
    with pytest.raises(InputError, match=r"^level = 0"):
        queries.plot(level=0)


def test_a_rule_by_an_effect_shows_the_coefficients_that_decide():
    bars = {
        label.get_text(): bar.get_width()
        for axes in _example().plot().axes
        for label, bar in zip(axes.get_yticklabels(), axes.patches, strict=True)
    }
    one = _example().score([[1.0], [0.5]])
    assert bars["intercept"] + bars["x0"] == pytest.approx(one[0])
    assert bars["intercept"] == pytest.approx(one[1], abs=1e-12)  # x0 is 0 where it is scaled to [-1, 1]


def test_whom_a_rule_treats_changes_where_its_score_does():
    axes = rule._example().plot("x0").axes[0]
    treated = axes.collections[0].get_paths()[0].vertices
    assert treated[treated[:, 1] > 0.5][:, 0].min() == pytest.approx(0.5, abs=0.011)
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["a = 1", "a = 0"]


def test_a_policy_is_drawn_against_what_it_depends_on():
    schema = composed().schema
    chosen = Thresholds("age", [50.0]).setup(schema.domain, (0, 1))
    made = rule.PolicyRelease(chosen, (0, 1), schema, composed().privacy)
    assert [axes.get_xlabel().split(" (")[0] for axes in made.plot().axes] == ["age"]
    assert made.plot("site").axes[0].get_xlabel() == "site (other covariates spread evenly over their public bounds)"


def test_an_average_shows_its_interval_at_a_level_or_its_balance():
    found = average_effect._example()
    ends = found.plot(level=0.5).axes[0].collections[0].get_segments()[0][:, 0]
    assert ends.tolist() == pytest.approx(found.interval(0.5)[0].tolist())
    with pytest.raises(InputError, match=r"^balance = True"):
        found.plot(balance=True)
    table = BalanceTable(["age"], expected=[0.4], expected_sd=[0.02])
    labels = replace(found, balance=table).plot(balance=True).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["age"]


def test_summaries_are_plain_types():
    plain = (int, float, str, bool, list, dict, type(None))
    for make in RELEASES.values():
        summary = make().summary()
        assert summary
        assert all(isinstance(value, plain) for value in summary.values())
