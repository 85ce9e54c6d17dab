"""The ensemble over folds: what one replaced record moves stays within its stated sensitivity."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.hospital import fold_ensemble as ensemble
from experiments.hospital.cases import Case


def mean_and_square(x, a, y, folds, known):
    scores = ensemble._scores(x, a, y, folds, known)
    return scores.mean().item(), scores.square().mean().item()


@pytest.mark.parametrize("known", [None, 0.5])
def test_a_replaced_record_moves_the_mean_by_the_sensitivity_at_most(known):
    generator = torch.Generator().manual_seed(0)
    folds, n = 5, 5 * ensemble.FOLD
    largest = 1 / (ensemble.CLIP if known is None else known)
    others = (2 * largest - 1 if known is None else largest) / folds
    for trial in range(9):
        x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        a = (torch.rand(n, generator=generator) < 0.1 * (1 + trial)).double()
        y = torch.rand(n, generator=generator, dtype=torch.float64).round()
        before = mean_and_square(x, a, y, folds, known)
        x[0], a[0], y[0] = 1e3 * (-1) ** trial, 1 - a[0], 1 - y[0]
        after = mean_and_square(x, a, y, folds, known)
        assert abs(after[0] - before[0]) <= 2 * largest / n + others
        assert abs(after[1] - before[1]) <= largest**2 / n + 2 * largest * others


def test_the_estimate_nears_the_difference_of_a_trial_as_the_budget_grows():
    case = Case.of("hospital, costs trial", 3, 2_000)
    records, deviation = case.records, case.records.y.std()
    y = np.clip(records.y + 2 * deviation * records.a, *records.bounds)
    found = ensemble.fold_ensemble(replace(case, records=replace(records, y=y)), 1_000.0, 1e-5, 0)
    assert abs((found.value - case.people.effect.mean()) / deviation - 2) < 0.3
    assert found.low < found.value < found.high
