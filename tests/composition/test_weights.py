"""Records with weights: sums of them, how far one moves these, and what is released of a composition by them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.composition.test_statistics import FITS, PI, RANDOM, RECORDS, STATISTICS, A, N, X, Y
from torchdpcate.composition.covariates import CELLS, turned
from torchdpcate.composition.interval_events import Correction, Counts
from torchdpcate.composition.summaries import weighted_quantile
from torchdpcate.data.records import CausalData

KEPT = (torch.rand(N, generator=RANDOM) < 0.6).double()
GIVEN = CausalData(X, A, Y, PI, follow_up=RECORDS.follow_up)
RESIDUALS = ("matrix", "counts", "correction", "average", "sums", "gradient of effect", "curvatures of effect")
SHARES, M = torch.linspace(0, 1, 21).double(), 150


@pytest.mark.parametrize("name", STATISTICS)
def test_a_sum_is_that_of_each_record_times_its_weight(name):
    statistic = STATISTICS[name]
    squared = torch.zeros(1, dtype=torch.bool)  # variances of weighted sums have squares
    if isinstance(statistic, Counts):
        squared = torch.tensor([False, True, False])
    if isinstance(statistic, Correction):
        squared = torch.tensor([False, True])
    ones = GIVEN.with_weight(torch.ones(N).double())
    each = [statistic(ones.subset(torch.tensor([i]))).double() for i in range(N)]
    for weight in (RECORDS.weight, KEPT):
        total = sum(torch.where(squared, v**2, v) * term for v, term in zip(weight, each, strict=True))
        assert torch.allclose(statistic(GIVEN.with_weight(weight)).double(), total, rtol=1e-12, atol=1e-12)
    whole = statistic(ones if name == "weights" else GIVEN).double()
    assert torch.allclose(whole, sum(each), rtol=1e-12, atol=1e-12)


def moved_by(name: str, gap: Tensor) -> Tensor:
    """How far apart the terms of pairs of records are, in the norm of the statistic's sensitivity."""
    if name == "cells":  # below each threshold, less any share of all
        return (gap.cumsum(1)[:, :-1, None] - SHARES * gap.sum(1)[:, None, None]).abs().amax((1, 2))
    if name.startswith("windows"):
        first, second = torch.triu_indices(CELLS, CELLS)[:, ::97]  # thresholds in order
        below, total = gap.cumsum(2), gap.sum(2)[..., None]
        counts = torch.stack([below[..., first] - 0.2 * total, below[..., second] - 0.8 * total], -1)
        return turned(counts).norm(dim=-1).amax(2).square().sum(1).sqrt()
    if name in ("waves", "waves about", "pairs about", "total", "sums"):
        return gap.flatten(1).abs().amax(1)
    return gap.flatten(1).norm(dim=1)


def candidates(name: str) -> CausalData:
    """Records at random, many at their ends, with weights from nought to one."""
    generator = torch.Generator().manual_seed(1)
    x = (6 * torch.rand(M, 2, generator=generator).double() - 3).clamp(-1, 1)
    y = torch.tensor([-1e3, -1.0, 0.0, 0.3, 1.0, 1e3]).double()[torch.randint(6, (M,), generator=generator)]
    a = torch.randint(2, (M,), generator=generator).double()
    pi = torch.tensor([0.3, 0.45, 0.6]).double()[torch.randint(3, (M,), generator=generator)]
    weight = torch.tensor([0.0, 0.4, 1.0, 1.0]).double()[torch.randint(4, (M,), generator=generator)]
    if name in RESIDUALS:
        a = a - pi
    if name in ("waves", "total"):
        y = y.clamp(-1, 1)
    follow_up = torch.stack([3 * x[:, 0].abs(), (y > 0).double() + (y > 1)], 1)
    return CausalData(x, a, y, pi, weight=weight, follow_up=follow_up)


@pytest.mark.parametrize("name", STATISTICS)
def test_no_two_weighted_records_are_further_apart_than_the_sensitivity(name):
    statistic, records = STATISTICS[name], candidates(name)
    terms = torch.stack([statistic(records.subset(torch.tensor([i]))).double() for i in range(records.n)])
    farthest = max(float(moved_by(name, terms - term).max()) for term in terms[::5])
    assert farthest <= statistic.moved()[0] * (1 + 1e-9)
    if name.startswith(("windows", "follow-up")) or name in ("weights", "cells", "total"):
        assert farthest == pytest.approx(statistic.moved()[0])


def test_the_regression_of_weighted_records_solves_the_weighted_equations():
    """Weighted least squares, where no residual is clipped."""
    fits = replace(FITS["outcome"], slope=1e9)
    fit = fits.of(RECORDS)
    psi, lengths = fits.basis(RECORDS.x), fits.basis(RECORDS.x).norm(dim=1)
    root = (RECORDS.weight / lengths).sqrt().numpy()
    known, *_ = np.linalg.lstsq(psi.numpy() * root[:, None], (Y - 0.5).numpy() * root, rcond=None)
    assert fit.gradient(torch.from_numpy(known)).abs().max() < 1e-9


def test_a_weighted_quantile_is_that_of_repeated_values():
    values, times = torch.randn(60, generator=RANDOM).double(), torch.randint(0, 4, (60,), generator=RANDOM)
    repeated = values.repeat_interleave(times)
    for share in (0.1, 0.5, 0.83):
        expected = np.quantile(repeated.numpy(), share, method="inverted_cdf")
        assert weighted_quantile(values, times / 3, share) == pytest.approx(expected)
