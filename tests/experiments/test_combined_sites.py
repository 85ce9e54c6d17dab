"""The study of combined releases: a draw, and its page."""

import math

import pytest

from experiments.defaults.combine import EFFECTS, LAWS, SITES, SIZES, Draw, draws, summarised, write


def test_cells_are_means_of_draws_and_are_printed(tmp_path, capsys) -> None:
    rows = [
        Draw(law, sizes, effects, k, seed, seed / 2, 0.9, 1.0, 0.04, 0.01, 0.09, 0.01, 1.0, 0.9, *(0.04,) * 4)
        for law in LAWS
        for sizes in SIZES
        for effects in EFFECTS
        for k in SITES
        for seed in (1, 2)
    ]
    cells = list(summarised(rows))
    assert len(cells) == 6 + 6 * 2 * 2 * 3
    assert (cells[0].law, cells[0].groups, cells[0].average) == ("trials", 120, 0.75)
    assert cells[0].combined == pytest.approx(0.2)
    write(cells, tmp_path)
    assert "| trials | both | equal | 3 | 120 | 0.750" in capsys.readouterr().out
    assert (tmp_path / "combine.png").stat().st_size > 10_000


@pytest.mark.studies
def test_a_draw_of_sites() -> None:
    pytest.importorskip("statsmodels")
    found = draws(("constant", "equal", "equal", 0))
    assert [row.sites for row in found] == list(SITES)
    assert all(0 <= row.average <= 1 and math.isfinite(row.points) for row in found)
    assert found[-1].combined < found[-1].own
