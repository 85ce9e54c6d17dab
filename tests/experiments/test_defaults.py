"""The study of the default settings: its laws, its runner, its verdicts, and pages that say what table.csv says."""

import math
from pathlib import Path

import pytest
import torch

from experiments.defaults import pages, study, tables, targets
from experiments.defaults.cells import Cell, Cells
from experiments.defaults.methods import CONSTANT, DEFAULT, ZERO
from experiments.defaults.random_laws import random_setting
from experiments.defaults.runs import plan, read, run
from experiments.defaults.sources import Source, sources
from experiments.defaults.words import number, published

FOLDER = Path(study.__file__).parent
DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture
def small() -> list[Source]:
    chosen = [source for source in sources(None) if source.name in ("niu_b", "dataset1")]
    return [Source(s.name, s.title, (500,), s.draw) for s in chosen]


def cell(method: str, rmse: float, data: str = "niu_a", n: int = 4_000, epsilon: str = "1", scale: float = 0.5) -> Cell:
    return Cell(data, n, epsilon, method, 10, rmse**2, 0.01, rmse, 0.01, 0.0, 1.0, scale, 0.1, "6: 12", 0.1)


def test_runs_are_done_once_and_torn_lines_again(small, tmp_path):
    path = tmp_path / "runs.csv"

    def left() -> int:
        jobs = plan(small, range(2), path, epsilons=(1.0,), methods=(DEFAULT, CONSTANT, ZERO))
        return sum(len(job.todo) for job in jobs)

    assert left() == 12
    run(path, plan(small, range(1), path, epsilons=(1.0,), methods=(DEFAULT, CONSTANT, ZERO)))
    assert left() == 6
    rows = read(path)
    assert {row.method for row in rows} == {DEFAULT, CONSTANT, ZERO}
    assert all(row.mse > 0 for row in rows)
    text = path.read_text(encoding="utf-8")
    path.write_text(text[:-20], encoding="utf-8")
    assert left() == 7
    run(path, plan(small, range(1), path, epsilons=(1.0,), methods=(DEFAULT, CONSTANT, ZERO)))
    assert [(row.key, row.mse) for row in read(path)] == [(row.key, row.mse) for row in rows]


def test_zero_has_the_mean_square_of_the_effect(small):
    case = small[0].draw(500, 3)
    assert case.error(torch.zeros(len(case.queries)))[0] == pytest.approx(float(case.truth.square().mean()))


def test_tables_that_are_not_there_are_left_out_with_a_reason(tmp_path):
    missing = {source.name: source.missing for source in sources(tmp_path)}
    assert missing["niu_a"] is None
    assert missing["twins"] == "twins: Twin_data.csv not found"
    assert sum(reason is not None for reason in missing.values()) == 16


@pytest.mark.skipif(not DATA.exists(), reason="../shared/data is not there")
@pytest.mark.parametrize("name", ["acic_2", "twins", "lbidd_e441", "lalonde_psid"])
def test_real_tables_are_read_within_their_domains(name):
    source = next(source for source in sources(DATA) if source.name == name)
    case = source.draw(source.sizes[0], 1)
    assert case.records.n == source.sizes[0]
    case.schema.domain.check_covariates(case.records.x)
    case.schema.domain.check_outcome(case.records.y)
    assert len(case.truth) in (1, len(case.queries))
    if name == "acic_2":  # its effect is constant
        assert float(case.truth.std()) < 1e-9


def test_verdicts_are_met_missed_or_within_noise():
    word = {seen: targets.Verdict("designs", "niu_a", 1, 1.0, 1.0, seen, 0.1).word for seen in (0.9, 1.1, 1.3)}
    assert word == {0.9: "met", 1.1: "within noise", 1.3: "missed"}


def test_the_constants_target_has_a_tenth_of_the_residuals_scale():
    verdicts = targets.constants_cells(Cells([cell(DEFAULT, 0.4), cell(CONSTANT, 0.3)]))
    (verdict,) = verdicts
    assert verdict.limit == pytest.approx(1.1 * 0.3 + 0.1 * 0.5)
    assert verdict.seen == pytest.approx(0.4)


def test_surfaces_are_judged_together():
    both = [
        cell(method, rmse, f"acic_{i}", 4_322) for i in (1, 2) for method, rmse in ((DEFAULT, 2.0), (CONSTANT, 4.0))
    ]
    (verdict,) = targets.ratio_cells(Cells(both))
    assert (verdict.limit, verdict.seen) == (0.8, pytest.approx(0.5))
    assert verdict.error == pytest.approx(0.5 * math.hypot(0.01 / 2 / 2**0.5, 0.01 / 4 / 2**0.5))


def test_published_errors_are_the_least_of_three_learners():
    assert published()["niu_a", 4_000, 1.0] == pytest.approx(0.10061, rel=1e-4)  # of S, R and DR with DP-EBM
    assert (number(1234.4), number(0.03456), number(math.nan)) == ("1,234", "0.0346", "-")


def test_random_laws_are_those_of_their_seeds_and_lie_in_their_domains():
    for seed in range(8):
        setting, again = random_setting(seed), random_setting(seed)
        case = setting.case
        assert torch.equal(case.records.y, again.case.records.y)
        case.schema.domain.check_covariates(case.records.x)
        case.schema.domain.check_outcome(case.records.y)
        assert 400 < case.records.n < 17_000
        assert torch.isfinite(case.truth).all()


@pytest.mark.skipif(not (FOLDER / "table.csv").exists(), reason="the study has not been run")
def test_pages_say_what_the_table_says(tmp_path):
    cells = Cells.read(FOLDER / "table.csv")
    tables.write_table(cells, tmp_path / "table.md")
    assert (FOLDER / "table.md").read_text(encoding="utf-8") == (tmp_path / "table.md").read_text(encoding="utf-8")
    assert pages.made(cells) in (FOLDER / "README.md").read_text(encoding="utf-8")
