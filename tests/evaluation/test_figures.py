"""Figures draw the numbers that they are given, name what is not private, and keep names of levels apart."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from torchdpcate.errors import InputError
from torchdpcate.evaluation.balance_figure import balance_figure, forest_figure
from torchdpcate.evaluation.comparison import budget_figure
from torchdpcate.evaluation.curator_figures import bars_figure, kept_figure, overlap_figure
from torchdpcate.evaluation.figures import BAND, FEW, INTERVAL, EffectPanel, effect_panels, rule_figure
from torchdpcate.release.average_effect import BalanceTable

GRID = np.linspace(0, 1, 5)
SECRET = "curator's, not for publication"
NAMES = ["age", "$dose_{", "sex"]
RELEASED = BalanceTable(
    NAMES, before=[0.1, -0.4, 0.2], after=[0.02, 0.0, -0.05], expected=[0.01, -0.03, 0.0], expected_sd=[0.02] * 3
)
CELLS = pd.DataFrame(
    {
        "line": ["sex = f", "sex = m", "age < 40", "age >= 40"],
        "estimate": [1.0, 2.0, 1234.5, 0.25],
        "low": [0.0, 1.0, -9000.0, 0.0],
        "high": [2.0, 3.0, 9000.0, 0.5],
        "records": [100.0, 200.0, 3.0, 150.0],
        "group": ["sex", "sex", "age", "age"],
    }
)


def drawn(axes) -> dict:
    return {container.get_label(): container.lines[0] for container in axes.containers}


def rows(axes) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


def words(figure) -> str:
    axes = figure.axes[0]
    return "\n".join([*rows(axes), *(text.get_text() for text in axes.texts), axes.get_title(), axes.get_xlabel()])


def test_an_effect_has_its_band():
    panel = EffectPanel("age", GRID, GRID, np.stack([GRID - 1, GRID + 1], 1), place="at mid-range")
    axes = effect_panels([panel], claim="claim", holds=BAND).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), GRID)
    assert axes.collections[0].get_datalim(axes.transData).y1 == 2
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["released", "95% noise band of the second stage alone (no confidence interval)"]


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


LONG = ["Zürich", "St. Gallen (Universitätsspital)", "Bern", "Lausanne (Centre hospitalier)"] * 3


@pytest.mark.first(2)
@pytest.mark.parametrize("names", [["a", "b"], LONG[:4], LONG, [f"level {k}" for k in range(40)]])
def test_names_of_levels_do_not_overlap(names):
    grid = np.arange(len(names), dtype=float)
    figure = effect_panels([EffectPanel("site", grid, grid, levels=names)])
    figure.draw_without_rendering()
    labels = [label for label in figure.axes[0].get_xticklabels() if label.get_text()]
    turned = labels[0].get_rotation() > 0
    assert turned == (names != ["a", "b"])
    if not turned:
        assert all(left.x1 < right.x0 for left, right in pairwise([label.get_window_extent() for label in labels]))
        return
    # lines of turned words are apart by more than their height
    height = labels[0].get_fontsize() * figure.dpi / 72
    apart = np.diff([label.get_transform().transform(label.get_position())[0] for label in labels])
    assert (apart > height).all()
    assert all(len(label.get_text()) <= 18 for label in labels)


def test_errors_against_budgets_are_medians_and_ranges_over_seeds():
    errors = pd.DataFrame({"epsilon": [1, 1, 1, 4], "line": "objective", "pehe": [3.0, 1.0, 2.0, 0.5]})
    axes = budget_figure(errors).axes[0]
    np.testing.assert_array_equal(drawn(axes)["objective"].get_xdata(), [1, 4])
    np.testing.assert_array_equal(drawn(axes)["objective"].get_ydata(), [2.0, 0.5])
    (ranges,) = axes.containers[0].lines[2]
    np.testing.assert_array_equal([segment[:, 1] for segment in ranges.get_segments()], [[1, 3], [0.5, 0.5]])


def test_values_of_rules_lie_between_those_of_treating_all_and_none():
    lines = np.repeat(["objective", "treat all", "treat none"], 2)
    value = [-0.2, 0.8, 0.4, 0.4, -0.1, -0.3]
    figure = budget_figure(pd.DataFrame({"epsilon": [1.0, 4.0] * 3, "line": lines, "value": value}), "value", "value")
    axes = figure.axes[0]
    shown = {line.get_label(): line.get_ydata() for line in axes.lines} | {
        name: line.get_ydata() for name, line in drawn(axes).items()
    }
    np.testing.assert_array_equal(shown["objective"], [-0.2, 0.8])
    assert [set(shown[f"treat {who}"]) for who in ("all", "none")] == [{0.4}, {-0.2}]
    assert SECRET in figure.get_suptitle()


def test_coefficients_of_a_rule_stand_by_their_names_the_first_on_top():
    axes = rule_figure(["intercept", "$a{", "b"], np.array([0.5, -2.0, 1.0]), claim="claim").axes[0]
    assert list(zip(rows(axes), [bar.get_width() for bar in axes.patches], strict=True)) == [
        ("b", 1.0), ("$a{", -2.0), ("intercept", 0.5),
    ]  # fmt: skip


def test_balance_is_that_of_the_table_the_largest_first_with_what_is_expected():
    axes = balance_figure(RELEASED, claim="claim").axes[0]
    assert (rows(axes), axes.get_title()) == (["$dose_{", "sex", "age"], "claim")
    assert axes.get_ylim() == (2.5, -0.5)  # the first row is on top
    points = drawn(axes)
    np.testing.assert_array_equal(points["before weighting"].get_xdata(), [-0.4, 0.2, 0.1])
    np.testing.assert_array_equal(points["after weighting"].get_xdata(), [0.0, -0.05, 0.02])
    spans = [band.get_datalim(axes.transData).intervalx for band in axes.collections if band.get_label()[0] != "_"]
    np.testing.assert_allclose(spans[0], [-0.03 - 1.96 * 0.02, -0.03 + 1.96 * 0.02])
    exact = BalanceTable(NAMES, before=[0.12, -0.45, 0.15], after=[0.01, 0.01, 0.0])
    axes = balance_figure(RELEASED, nonprivate=exact).axes[0]
    assert SECRET in axes.get_title()
    np.testing.assert_array_equal(drawn(axes)["before weighting, without noise"].get_xdata(), [-0.45, 0.15, 0.12])


def test_a_forest_has_a_line_a_cell_and_one_that_noise_dominates_does_not_stretch_it():
    text = words(
        forest_figure(CELLS, texts=["1,234"], label="effect on pay", claim="a claim", assumptions="it was a trial")
    )
    for part in ("sex = f", "sex\n", "1,234", "effect on pay", "a claim", "it was a trial"):
        assert part in text
    assert SECRET not in text
    figure = forest_figure(CELLS, dominated=[False, False, True, False])
    low, high = figure.axes[0].get_xlim()
    assert -1 < low < 0 < 3 < high < 4
    assert "full range: noise dominates" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert SECRET in words(forest_figure(CELLS, truth=[1.0] * 4))
    assert "60 further lines are not shown" in words(forest_figure(pd.concat([CELLS] * 30, ignore_index=True)))
    with pytest.raises(InputError, match="at least one line"):
        forest_figure(CELLS.head(0))


def test_propensities_are_counted_by_arm_beside_the_stated_overlap():
    propensity, treated = np.array([0.01, 0.02, 0.5, 0.99, 1.0]), np.array([0, 1, 0, 1, 1])
    figure = overlap_figure(propensity, treated, 0.1, arms=["placebo", "drug"])
    (axes,) = figure.axes
    heights = np.array([bar.get_height() for bar in axes.patches])
    assert heights[heights > 0].tolist() == [1.0, 2.0]  # treated above, controls below
    assert heights[heights < 0].tolist() == [-1.0, -1.0]
    assert [line.get_xdata()[0] for line in axes.lines[:2]] == [0.1, 0.9]
    assert SECRET in axes.get_title()
    assert {"placebo", "drug"} < {text.get_text() for text in axes.get_legend().get_texts()}


def test_propensities_in_use_stand_against_those_without_privacy():
    (axes,) = kept_figure(np.linspace(0, 1, 5000), np.linspace(0.2, 0.8, 5000), 0.1).axes
    assert len(axes.lines[0].get_xdata()) == 1667  # one of three
    assert list(axes.lines[1].get_xdata()) == list(axes.lines[1].get_ydata()) == [0.1, 0.9]
    assert SECRET in axes.get_title()


def test_bars_have_their_parts_and_what_was_planned():
    (axes,) = bars_figure(["a", "b"], [2.0, 1.0], "error", [1.5, 0.5], planned=0.7).axes
    assert [bar.get_width() for bar in axes.patches] == [2.0, 1.0, 1.5, 0.5]
    assert axes.lines[0].get_xdata() == [0.7, 0.7]
