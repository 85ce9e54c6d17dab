"""Private targets: exact without privacy, of the stated sensitivity, and sensible when noise drowns the records."""

from typing import ClassVar

import pytest
import torch

from tests.sessions import of_ledger
from tests.sums import given
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import BudgetError, InputError
from torchdpcate.fit.arms.base import SelectionFacts
from torchdpcate.fit.arms.linear_fits import _counts_and_sums, private_target, target_mechanism
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import ARMS
from torchdpcate.privacy.draws import root_norm
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.mechanisms import LaplaceMechanism, RootPolytopeMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

DOMAIN = Domain([0.0], [1.0], outcome_low=-10.0, outcome_high=30.0)


def facts(m: int, arms: int = 2, overlap: float = 0.01) -> SelectionFacts:
    return SelectionFacts(DOMAIN, tuple(range(arms)), overlap, m, 10)


def records(a: list[int], y: list[float]) -> CausalData:
    values = torch.tensor(y, dtype=torch.float64)
    return CausalData(torch.zeros(len(a), 1).double(), torch.tensor(a).double(), values)


def many(m: int, arms: int = 2, share: float = 0.1) -> CausalData:
    """A share of the last arm; outcomes 10 and 2."""
    a = (torch.arange(m) >= m - round(share * m)).double() * (arms - 1)
    return CausalData(torch.zeros(m, 1).double(), a, 10 - 8 * a / (arms - 1))


class Watched(LaplaceMechanism):
    """A mechanism that keeps what it is given."""

    seen: ClassVar[list] = []

    def release(self, value, noise):
        self.seen.append((self.sensitivity, value.clone()))
        return value


class WatchedTable(RootPolytopeMechanism):
    """Likewise."""

    release = Watched.release
    seen = Watched.seen


def test_without_privacy_it_is_the_shares_and_the_means():
    target = private_target(records([0, 0, 1, 1, 1], [1.0, 3.0, 30.0, 24.0, -10.0]), facts(5), None)
    assert target.propensity == pytest.approx([0.4, 0.6])
    assert target.outcome == pytest.approx([2.0, 44 / 3])
    nobody = private_target(records([0, 0, 1, 1, 1], [1.0, 3.0, 30.0, 24.0, -10.0]), facts(5, arms=3), None)
    assert nobody.propensity == pytest.approx([0.395, 0.595, 0.01])
    assert nobody.outcome == pytest.approx([2.0, 44 / 3, 48 / 5])  # the mean of all


@pytest.mark.parametrize("arms", [2, 3])
def test_the_sensitivity_covers_every_neighbour_and_is_attained(arms, monkeypatch):
    name, watched = ("RootPolytopeMechanism", WatchedTable) if arms == 2 else ("LaplaceMechanism", Watched)
    monkeypatch.setattr(f"torchdpcate.fit.arms.linear_fits.{name}", watched)
    Watched.seen.clear()
    for arm in range(arms):
        for y in (-10.0, 0.0, 10.0, 30.0):
            private_target(records([0, 1, arm], [3.0, -4.0, y]), facts(3, arms), 1.0, FitSession(NoiseSource.fixed(0)))
    stated = {sensitivity for sensitivity, _ in Watched.seen}
    values = torch.stack([value for _, value in Watched.seen])
    if arms == 2:  # |z|_K of each difference; a record adds numbers that are never negative, and W in all
        assert stated == {root_norm(values[:, None] - values).max().item()} == {1.0}
    else:
        assert stated == {torch.cdist(values, values, p=1).max().item()} == {2.0}


def test_variances_of_counts_and_sums_are_those_of_the_noisy_table():
    """Root-polytope noise has covariance 4.8 and -1.2, Laplace noise of a half of a count 2 in squared scales."""
    covariance = 6 * torch.eye(4, dtype=torch.float64) - 1.2
    maps = torch.stack([torch.cat(_counts_and_sums(unit, 0)) for unit in torch.eye(4, dtype=torch.float64)], 1)
    found = maps @ covariance @ maps.T
    assert found.diagonal().tolist() == pytest.approx([6.0, 6.0, 3.0, 3.0])
    assert found[:2, 2:].abs().max() < 1e-12
    assert found[2, 3].abs() < 1e-12
    # Laplace noise of the three numbers that were released before: scale 3 / 2
    assert found[[0, 2], [0, 2]].div(torch.tensor([4 * 4.5, 4.5])).sqrt().tolist() == pytest.approx(
        [0.577, 0.816], abs=1e-3
    )


def test_the_ledger_pays_before_the_noise_and_a_poor_one_gives_nothing():
    ledger = Ledger({"train": PrivacyBudget(0.3, 0.0)})
    private_target(many(100), facts(100), 0.2, of_ledger(ledger, "train"))
    assert [(entry.charge, entry.event.epsilon) for entry in ledger.entries] == [(ARMS, 0.2)]

    class Silent(NoiseSource):
        private = True
        gaussian = laplace = generator = _bytes = _noisy_max = _gumbel_max = None

    with pytest.raises(BudgetError):
        private_target(many(100), facts(100), 0.2, of_ledger(ledger, "train", Silent()))


def test_with_many_records_it_is_near_the_truth():
    """Noise of scale 20: a hundredth of 2,000 treated, of a sum of 400: beyond 15 scales once in 10^6."""
    target = private_target(many(20_000), facts(20_000), 0.1)
    assert target.propensity == pytest.approx([0.9, 0.1], abs=15 * 40 / 20_000)
    assert target.outcome[0] == pytest.approx(10.0, abs=40 * 15 * 20 / 17_000)
    assert target.outcome[1] == pytest.approx(2.0, abs=2 * 40 * 15 * 20 / 1_400)


@pytest.mark.parametrize("arms", [2, 4])
def test_where_noise_drowns_the_records_it_says_next_to_nothing(arms):
    target = private_target(many(50, arms), facts(50, arms), 1e-3)
    # the noise of a sum, of scale 2000, has a weight of 50 / 10^8; thirty scales
    assert target.propensity == pytest.approx([1 / arms] * arms, abs=0.02)
    assert target.outcome == pytest.approx([10.0] * arms, abs=40 * 0.1)
    with pytest.raises(InputError, match=r"larger privacy\.epsilon"):
        target_mechanism(1e-7, facts(50, arms))


@pytest.mark.parametrize("seed", range(20))
def test_it_is_always_a_guess_that_may_be_given(seed):
    given = facts(30, 3, overlap=0.2)
    target = private_target(many(30, 3), given, 0.05, FitSession(NoiseSource.fixed(seed)))
    shares, means = target.numbers(given)
    assert shares.min() >= 0.2
    assert shares.sum() == pytest.approx(1)
    DOMAIN.check_outcome(means)


def test_sums_are_the_same_bit_by_bit_in_any_order_of_the_records(monkeypatch):
    generator, seen = torch.Generator().manual_seed(0), given(monkeypatch)
    train = CausalData(
        torch.zeros(5_000, 1).double(),
        (torch.rand(5_000, generator=generator) < 0.3).double(),
        40 * torch.rand(5_000, generator=generator, dtype=torch.float64) - 10,
    )
    for part in (train, train.subset(torch.randperm(5_000))):
        private_target(part, facts(5_000), 1.0)
    assert torch.equal(*seen)
