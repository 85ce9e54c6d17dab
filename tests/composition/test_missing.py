"""Covariates with missing values: what one record moves, and numbers that are those of the values that are there."""

import math
from dataclasses import replace

import pytest
import torch

from tests.composition.cases import batch, rows
from tests.composition.test_windows import steps
from torchdpcate.composition.covariates import (
    MomentsWithin,
    RetainedCovariates,
    WindowCells,
    private_moments,
    private_windows,
    turned,
)
from torchdpcate.composition.summaries import Moments, private_standardisation
from torchdpcate.fit.weighted_basis import Standardisation

N = 20_000
INDICATORS = (1, None, None)  # a number, where it is missing, and a number that never is
TWO = torch.tensor([False, True, False])
CELLS_OF = WindowCells(~TWO, torch.tensor([False, False]), INDICATORS)


def table(share: float) -> torch.Tensor:
    """Scaled covariates of which a share of the first is missing: its values are far from the middle."""
    random = torch.Generator().manual_seed(1)
    u = (0.5 + 0.1 * torch.randn(N, 2, generator=random, dtype=torch.float64)).clamp(-1, 1)
    gone = torch.rand(N, generator=random) < share
    return torch.stack([u[:, 0].masked_fill(gone, 0.0), torch.where(gone, 1.0, -1.0).double(), u[:, 1]], 1)


def possible() -> torch.Tensor:
    """Records of a covariate with missing values: there, at many places, or missing, in whatever place."""
    there = torch.linspace(-1, 1, 41).double()
    values = torch.cat([there, torch.tensor([-1.0, 0.0, 1.0]).double()])
    gone = torch.cat([-torch.ones(41), torch.ones(3)]).double()
    return torch.stack([values, gone, torch.full_like(values, 0.2)], 1)


def test_no_record_moves_moments_by_more_than_one() -> None:
    """The indicator's own moments are those of a covariate of two levels, and count as such."""
    for moments in (
        Moments(indicators=INDICATORS),
        MomentsWithin(Standardisation(torch.zeros(2), torch.full((2,), 0.3)), TWO, indicators=INDICATORS),
    ):
        sums = torch.stack([moments(batch(record[None])) for record in possible()])
        most = torch.cdist(sums, sums).max()
        assert most <= moments.moved()[0] + 1e-12
        one = torch.tensor([0, 3])  # of the covariate itself: a third of the vector
        assert torch.cdist(sums[:, one], sums[:, one]).max() <= 1 / math.sqrt(3) + 1e-12


def test_no_record_moves_counts_below_two_thresholds_by_more_than_one() -> None:
    """At all thresholds in order; of the covariate that is never missing, and the same for all records, by nothing."""
    cells = torch.stack([CELLS_OF(batch(record[None])) for record in possible()])
    below, total = cells.cumsum(2)[:, :, 7::8], cells.sum(2)
    first, second = torch.triu_indices(below.shape[2], below.shape[2])
    counts = torch.stack([below[..., first] - 0.2 * total[..., None], below[..., second] - 0.8 * total[..., None]], -1)
    moved = torch.stack([torch.cdist(*2 * (turned(of).transpose(0, 1),)).max() for of in counts.unbind(1)])
    assert moved.tolist() == pytest.approx([1.0, 0.0])
    assert math.sqrt(len(moved)) == CELLS_OF.moved()[0]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_windows_and_moments_are_those_of_the_values_that_are_there(share: float) -> None:
    u = table(share)
    there = u[:, 1] < 0
    found = private_windows(rows(u), CELLS_OF, steps(math.inf))
    alone = private_windows(rows(u[there]), replace(CELLS_OF, indicators=()), steps(math.inf))
    assert torch.allclose(found.mean[0], alone.mean[0], atol=0.01)
    assert torch.allclose(found.sd[0], alone.sd[0], atol=0.01)
    assert torch.allclose(found.mean[1], found.mean[0], atol=0.02)  # of the one that never is
    for scales in (
        private_moments(rows(u), MomentsWithin(found, TWO, indicators=INDICATORS), steps(math.inf)),
        private_standardisation(rows(u), Moments(indicators=INDICATORS), steps(math.inf)),
    ):
        z = scales.of(u, None, INDICATORS)
        assert z[there, 0].mean().abs() < 0.02
        assert abs(z[there, 0].std() - 1) < 0.02
        assert not z[~there, 0].any()
        assert scales.mean[0] == pytest.approx(float(u[there, 0].mean()), abs=5e-3)


def test_counts_with_noise_have_what_is_missing_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many are missing is not read off the records beside what is paid for."""
    u, seen = table(0.5), []

    def noisy(_: object, values: torch.Tensor, sensitivity: float, event: object) -> torch.Tensor:
        seen.append((values, sensitivity))
        return torch.zeros_like(values)  # what comes after the noise knows nothing

    own = steps(1.0)
    monkeypatch.setattr(type(own), "noisy", noisy)
    first = private_windows(rows(u), CELLS_OF, own)
    second = private_windows(rows(table(0.1)), CELLS_OF, own)
    assert torch.equal(first.mean, second.mean)
    assert len(seen) == 16
    assert all(math.sqrt(2) <= sensitivity < math.sqrt(2) + 1e-6 for _, sensitivity in seen)


def test_without_its_indicator_a_missing_value_counts_as_the_middle() -> None:
    """A private choice may leave the indicator out; what is missing is 0 after standardisation all the same."""
    u = table(0.3)
    moments = Moments(columns=(0, 2), indicators=INDICATORS)
    assert moments.observed_by == (None, None)
    found = private_standardisation(rows(u), moments, steps(math.inf))
    assert found.mean[0] == pytest.approx(0.7 * 0.5, abs=0.01)
    retained = RetainedCovariates((0, 2), found, (False, False), INDICATORS)
    z = retained.of(u)
    assert not z[u[:, 1] > 0, 0].any()
    assert retained.at([1, 0]).of(u).tolist() == z[:, [1, 0]].tolist()
    assert retained.levels.observed_by == (None, None)
