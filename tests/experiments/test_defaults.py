"""The study of the default settings: its laws, its runner, its verdicts, and what it prints of table.csv."""

from pathlib import Path

import pytest
import torch

from experiments.defaults import study, targets
from experiments.defaults.methods import CONSTANT, DEFAULT, ZERO
from experiments.defaults.random_laws import random_setting
from experiments.defaults.runs import plan, read, run
from experiments.defaults.sources import Source, sources
from experiments.defaults.summaries import Cells
from experiments.defaults.tables import cells_page
from experiments.defaults.verdicts import made

FOLDER = Path(study.__file__).parent
DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture
def small() -> list[Source]:
    chosen = [source for source in sources(None) if source.name in ("niu_b", "dataset1")]
    return [Source(s.name, s.title, (500,), s.draw) for s in chosen]


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


def test_random_laws_are_those_of_their_seeds_and_lie_in_their_domains():
    for seed in range(8):
        setting, again = random_setting(seed), random_setting(seed)
        case = setting.case
        assert torch.equal(case.records.y, again.case.records.y)
        case.schema.domain.check_covariates(case.records.x)
        case.schema.domain.check_outcome(case.records.y)
        assert 400 < case.records.n < 17_000
        assert torch.isfinite(case.truth).all()


def test_the_kept_table_is_printed_and_judged():
    cells = Cells.read(FOLDER / "table.csv")
    printed = cells_page(cells)
    assert all(f"## {name}: " in printed for name in cells.names)
    assert " 383 | 22 | 2 |" in made(cells)
