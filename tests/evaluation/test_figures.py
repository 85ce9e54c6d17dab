import numpy as np
import pandas as pd
import pytest

from tests.evaluation.drawn import effect_figure
from torchdpcate.evaluation.comparison import budget_figure
from torchdpcate.evaluation.figures import (
    FEW,
    INTERVAL,
    EffectPanel,
    effect_panels,
    rule_figure,
)

GRID = np.linspace(0, 1, 5)


def test_effect_figure_draws_the_release_and_its_band():
    band = np.stack([GRID - 1, GRID + 1], 1)
    axes = effect_figure(GRID, GRID, band, covariate="age", claim="claim").axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), GRID)
    assert axes.collections[0].get_datalim(axes.transData).y1 == 2
    assert "age" in axes.get_xlabel()
    assert "curator" not in axes.get_title()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["released", "95% noise band of the second stage alone (no confidence interval)"]


def test_a_figure_with_nonprivate_curves_says_curator_only():
    axes = effect_figure(GRID, GRID, None, covariate="age", others={"truth": GRID + 1}).axes[0]
    assert "curator's, not for publication" in axes.get_title()
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), GRID + 1)


def lines(axes) -> dict:
    """Curves by label; a method's median among them."""
    return {line.get_label(): line for line in axes.lines} | {
        container.get_label(): container.lines[0] for container in axes.containers
    }


def test_budget_figure_draws_medians_and_ranges_over_seeds():
    errors = pd.DataFrame({"epsilon": [1, 1, 1, 4], "line": "objective", "pehe": [3.0, 1.0, 2.0, 0.5]})
    axes = budget_figure(errors).axes[0]
    line = lines(axes)["objective"]
    np.testing.assert_array_equal(line.get_xdata(), [1, 4])
    np.testing.assert_array_equal(line.get_ydata(), [2.0, 0.5])
    (ranges,) = axes.containers[0].lines[2]
    np.testing.assert_array_equal([segment[:, 1] for segment in ranges.get_segments()], [[1, 3], [0.5, 0.5]])


@pytest.mark.parametrize("quantity", ["accuracy", "value"])
def test_rules_are_drawn_between_treating_all_and_none(quantity):
    errors = pd.DataFrame(
        {
            "epsilon": [1.0, 4.0] * 3,
            "line": ["objective"] * 2 + ["treat all"] * 2 + ["treat none"] * 2,
            quantity: [-0.2, 0.8, 0.4, 0.4, -0.1, -0.3],
        }
    )
    figure = budget_figure(errors, quantity)
    axes = figure.axes[0]
    np.testing.assert_array_equal(lines(axes)["objective"].get_ydata(), [-0.2, 0.8])
    assert set(lines(axes)["treat all"].get_ydata()) == {0.4}
    assert set(lines(axes)["treat none"].get_ydata()) == {-0.2}
    assert axes.get_yscale() == "linear"
    assert quantity in axes.get_ylabel() or "decisions" in axes.get_ylabel()
    assert "curator's, not for publication" in figure.get_suptitle()


def test_rule_figure_draws_the_coefficients_by_name():
    axes = rule_figure(["intercept", "$a{", "b"], np.array([0.5, -2.0, 1.0]), claim="claim").axes[0]
    drawn = {text.get_text(): bar.get_width() for text, bar in zip(axes.get_yticklabels(), axes.patches, strict=True)}
    assert drawn == {"intercept": 0.5, "$a{": -2.0, "b": 1.0}
    assert list(drawn) == ["b", "$a{", "intercept"]  # the first is on top
    assert "claim" in axes.get_title()
    assert "not shown" not in axes.get_xlabel()


def test_panels_share_a_claim_and_mark_where_records_are_few():
    bars = np.array([[0.0, 1.0], [0.5, 1.5]])
    points = EffectPanel("sex", np.arange(2.0), np.array([0.5, 1.0]), bars, levels=("f", "m"), place="there")
    curve = EffectPanel("age", GRID, GRID, place="there", common=(0.0, 0.5))
    figure = effect_panels([points, curve], claim="claim", holds=INTERVAL)
    first, second = figure.axes
    assert [text.get_text() for text in first.get_xticklabels()] == ["f", "m"]
    np.testing.assert_array_equal([s[:, 1] for s in first.collections[0].get_segments()], bars)
    (few,) = [patch for patch in second.patches if patch.get_label() == FEW]
    assert (few.get_x(), few.get_x() + few.get_width()) == (0.5, 1.0)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["released", f"95% {INTERVAL}", FEW]
    assert figure.legends[0].get_title().get_text() == "(other covariates there)"
