"""The study of combined releases: a draw, and its page."""

import math

import pytest

from experiments.defaults.combine import SITES, draws


@pytest.mark.studies
def test_a_draw_of_sites() -> None:
    pytest.importorskip("statsmodels")
    found = draws(("constant", "equal", "equal", 0))
    assert [row.sites for row in found] == list(SITES)
    assert all(0 <= row.average <= 1 and math.isfinite(row.points) for row in found)
    assert found[-1].combined < found[-1].own
