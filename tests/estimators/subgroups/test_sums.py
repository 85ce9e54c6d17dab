"""Sums of cells: exact, and moved by one record no further than their noise is made for."""

import math

import pytest
import torch

from torchdpcate.estimators.subgroups.plan import cell_sums, record_numbers, sensitivity
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.release.cell_effects import GAUSSIAN, LAPLACE, NUMBERS, RATE, basis, powers

N = 12
OUTCOMES = {LAPLACE: (1.0, 4.0), GAUSSIAN: (1.0, 4.0), RATE: (0.0, 5.0)}


def sums_of(y, a, w, cells, law, strata):
    return cell_sums(record_numbers(y, w, law, 1.0, 4.0), a, cells, strata)


def neighbours(law, seed, pairs=4000, arms=2):
    """How far the sums move, in the law's norm, when one record is replaced: many pairs, two partitions."""
    generator = torch.Generator().manual_seed(seed)
    moved = []
    for _ in range(pairs // 100):
        ends = torch.rand(2, 100, generator=generator, dtype=torch.float64)
        # half of them at the ends of outcome and weight, where the worst ones are
        u = torch.where(torch.rand(2, 100, generator=generator) < 0.5, ends.round(), ends)
        w = torch.where(torch.rand(2, 100, generator=generator) < 0.7, 1.0, torch.rand(2, 100, generator=generator))
        a = torch.randint(0, arms, (2, 100), generator=generator)
        cells = torch.randint(0, 3, (2, 100, 2), generator=generator) + torch.tensor([0, 3])
        numbers = [record_numbers(-3 + 8 * u[k], w[k].double(), law, *OUTCOMES[law], u[1 - k]) for k in (0, 1)]
        at = torch.zeros(2, 100, 6, arms, NUMBERS[law], dtype=torch.float64)
        for k in (0, 1):
            for partition in (0, 1):
                at[k, torch.arange(100), cells[k, :, partition], a[k]] = numbers[k]
        change = (at[0] - at[1]).flatten(1)
        moved.append(change.norm(2 if law == GAUSSIAN else 1, dim=1).max())
    return float(max(moved))


@pytest.mark.parametrize(("law", "one", "two"), [(LAPLACE, 2.0, 4.0), (GAUSSIAN, 2.0, 2.828427125)])
def test_the_sensitivity_is_that_of_the_pages(law, one, two):
    assert sensitivity(law, 1, 10**6) == pytest.approx(one, rel=1e-8)
    assert sensitivity(law, 2, 10**6) == pytest.approx(two, rel=1e-8)
    grids = {LAPLACE: 3, GAUSSIAN: math.sqrt(3)}[law]
    assert sensitivity(law, 1, 10**9) - 2 == pytest.approx(grids * sum_grid(10**9, 1.0), rel=1e-6)


@pytest.mark.parametrize("law", NUMBERS)
@pytest.mark.parametrize(("seed", "arms"), [(0, 2), (1, 2), (2, 1), (3, 5)])
def test_no_pair_of_records_moves_the_sums_further(law, seed, arms):
    found = neighbours(law, seed, arms=arms)
    assert found <= sensitivity(law, 2, N) * (1 + 1e-12)
    assert found >= 0.999 * sensitivity(law, 2, N)  # and one attains it


def test_a_larger_share_of_count_or_variance_would_cost_more():
    """The basis of Gaussian noise is as large as it can be: count and variance are free up to here."""
    u = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    for factor, free in ((1.0, True), (1.05, False)):
        for row in (0, 2):
            numbers = powers(u) @ basis(GAUSSIAN).T
            numbers[:, row] *= factor
            across = math.sqrt(2) * numbers.norm(dim=1).max()
            assert (float(across) <= 2 + 1e-9) is free


def test_sums_are_exact_in_any_order():
    generator = torch.Generator().manual_seed(0)
    y, w = (torch.rand(501, generator=generator, dtype=torch.float64) for _ in range(2))
    a, cells = torch.randint(0, 2, (501,), generator=generator), torch.randint(0, 4, (501, 2), generator=generator)
    found = sums_of(y, a, w, cells, GAUSSIAN, 4)
    order = torch.randperm(501, generator=generator)
    assert torch.equal(found, sums_of(y[order], a[order], w[order], cells[order], GAUSSIAN, 4))
    assert found[:, :, 0].sum() == pytest.approx(2 * w.sum().item())


def test_sums_are_those_of_the_records():
    y = torch.tensor([-3.0, 1.0, 5.0, 3.0], dtype=torch.float64)  # u = -1, 0, 1, 1/2
    a, cells = torch.tensor([0, 0, 1, 1]), torch.tensor([[0], [0], [0], [1]])
    one = torch.ones(4, dtype=torch.float64)
    assert sums_of(y, a, one, cells, GAUSSIAN, 2).tolist() == [[[2, -1, 1], [1, 1, 0]], [[0, 0, 0], [1, 0.5, 0.75]]]
    assert sums_of(y, a, one, cells, LAPLACE, 2).tolist() == [
        [[1.25, 0.5, 0.25], [0, 0, 1]],
        [[0, 0, 0], [0.0625, 0.375, 0.5625]],
    ]
