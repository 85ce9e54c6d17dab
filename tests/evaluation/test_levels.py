from itertools import pairwise

import numpy as np
import pytest

from torchdpcate.evaluation.figures import EffectPanel, effect_panels

LONG = ["Zürich", "St. Gallen (Universitätsspital)", "Bern", "Lausanne (Centre hospitalier)"] * 3


@pytest.mark.parametrize("names", [["a", "b"], LONG[:4], LONG, [f"level {k}" for k in range(40)]])
def test_names_of_levels_do_not_overlap(names):
    grid = np.arange(len(names), dtype=float)
    figure = effect_panels([EffectPanel("site", grid, grid, levels=names)])
    figure.draw_without_rendering()
    labels = [label for label in figure.axes[0].get_xticklabels() if label.get_text()]
    ends = [label.get_window_extent() for label in labels]
    turned = labels[0].get_rotation() > 0
    assert turned == (names not in (["a", "b"],))
    if not turned:
        assert all(left.x1 < right.x0 for left, right in pairwise(ends))
    else:  # lines of turned words are apart by more than their height
        height = labels[0].get_fontsize() * figure.dpi / 72
        apart = np.diff([label.get_transform().transform(label.get_position())[0] for label in labels])
        assert (apart > height).all()
    assert all(len(label.get_text()) <= 18 for label in labels) or not turned
