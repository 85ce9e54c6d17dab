"""The study of the default settings: its laws, its runner, its verdicts, and what it prints of table.csv."""

from pathlib import Path

import torch

from experiments.defaults import study, targets
from experiments.defaults.random_laws import random_setting
from experiments.defaults.summaries import Cells
from experiments.defaults.tables import cells_page
from experiments.defaults.verdicts import made

FOLDER = Path(study.__file__).parent


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
