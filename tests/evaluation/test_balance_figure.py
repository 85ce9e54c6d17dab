import numpy as np
import pytest

from torchdpcate.evaluation.balance_figure import IntervalRow, balance_figure, interval_figure
from torchdpcate.release.average_effect import BalanceTable

NAMES = ["age", "$dose_{", "sex"]
RELEASED = BalanceTable(
    NAMES,
    before=[0.1, -0.4, 0.2],
    after=[0.02, 0.0, -0.05],
    expected=[0.01, -0.03, 0.0],
    expected_sd=[0.02] * 3,
)
EXACT = BalanceTable(NAMES, before=[0.12, -0.45, 0.15], after=[0.01, 0.01, 0.0])


def drawn(axes) -> dict:
    return {container.get_label(): container for container in axes.containers}


def rows(axes) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


def test_points_and_bars_are_those_of_the_table_the_largest_first():
    figure = balance_figure(RELEASED, claim="claim")
    axes = figure.axes[0]
    assert rows(axes) == ["$dose_{", "sex", "age"]
    assert axes.get_ylim() == (2.5, -0.5)  # the first row is on top
    points = drawn(axes)
    assert list(points) == ["before weighting", "after weighting"]
    np.testing.assert_array_equal(points["before weighting"].lines[0].get_xdata(), [-0.4, 0.2, 0.1])
    np.testing.assert_array_equal(points["after weighting"].lines[0].get_xdata(), [0.0, -0.05, 0.02])
    assert axes.get_title() == "claim"
    figure.savefig("/dev/null", format="png", dpi=30)


def test_the_band_is_what_is_expected():
    axes = balance_figure(RELEASED).axes[0]
    spans = [band.get_datalim(axes.transData).intervalx for band in axes.collections if band.get_label()[0] != "_"]
    np.testing.assert_allclose(spans[0], [-0.03 - 1.96 * 0.02, -0.03 + 1.96 * 0.02])
    only = balance_figure(BalanceTable(NAMES, expected=[0.01, -0.03, 0.0], expected_sd=[0.02] * 3))
    assert drawn(only.axes[0]) == {}
    assert [text.get_text() for text in only.legends[0].get_texts()] == ["expected after weighting, from public facts"]
    bare = balance_figure(BalanceTable(NAMES, before=[0.1, 0.2, 0.3])).axes[0]
    assert list(drawn(bare)) == ["before weighting"]


def test_numbers_without_noise_are_marked():
    axes = balance_figure(RELEASED, nonprivate=EXACT).axes[0]
    assert "curator's, not for publication" in axes.get_title()
    hollow = drawn(axes)["before weighting, without noise"]
    np.testing.assert_array_equal(hollow.lines[0].get_xdata(), [-0.45, 0.15, 0.12])
    assert hollow.lines[0].get_markerfacecolor() == "none"
    alone = balance_figure(None, nonprivate=EXACT).axes[0]
    assert "curator's, not for publication" in alone.get_title()
    assert rows(alone) == ["$dose_{", "sex", "age"]


def test_a_forest_plot_has_a_line_an_estimate():
    lines = [IntervalRow("balancing", 0.2, 0.1, 0.3), ("$peer_{", 0.4), ("means", 0.5, 0.45, 0.6)]
    figure = interval_figure(lines, level=0.9, claim="claim")
    axes = figure.axes[0]
    assert rows(axes) == ["balancing", "$peer_{", "means"]
    shown = [line.get_xdata().tolist() for line in axes.lines[1:]]
    assert shown == [[0.1, 0.3], [0.2], [0.4], [0.45, 0.6], [0.5]]
    assert "90% intervals" in axes.get_xlabel()
    assert axes.get_title() == "claim"


@pytest.mark.parametrize(("secret", "truth"), [(True, None), (False, 0.17)])
def test_a_forest_plot_of_what_is_not_private_says_so(secret, truth):
    axes = interval_figure([("non-private", 0.2, 0.1, 0.3, secret)], truth=truth).axes[0]
    assert "curator's, not for publication" in axes.get_title()
    assert (truth is not None) == any(line.get_label() == "truth" for line in axes.lines)
