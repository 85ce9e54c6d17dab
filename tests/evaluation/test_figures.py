"""Figures hold the numbers they were given, and say who may see them."""

import numpy as np
import pandas as pd

from torchdpcate.evaluation import budget_figure, effect_figure, save_figure

GRID = np.linspace(0, 1, 5)


def test_effect_figure_draws_the_release_and_its_band():
    band = np.stack([GRID - 1, GRID + 1], 1)
    axes = effect_figure(GRID, GRID, band, covariate="age", claim="claim").axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), GRID)
    assert axes.collections[0].get_datalim(axes.transData).y1 == 2
    assert "age" in axes.get_xlabel()
    assert "curator" not in axes.get_title()


def test_a_figure_with_nonprivate_curves_says_curator_only():
    axes = effect_figure(GRID, GRID, None, covariate="age", others={"truth": GRID + 1}).axes[0]
    assert "curator only" in axes.get_title()
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), GRID + 1)


def test_budget_figure_draws_medians_over_seeds():
    errors = pd.DataFrame({"epsilon": [1, 1, 1, 4], "estimate": "release", "pehe": [3.0, 1.0, 2.0, 0.5]})
    line = budget_figure(errors).axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), [1, 4])
    np.testing.assert_array_equal(line.get_ydata(), [2.0, 0.5])


def test_saving_writes_one_png(tmp_path):
    save_figure(effect_figure(GRID, GRID, None, covariate="x"), tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["f.png"]
