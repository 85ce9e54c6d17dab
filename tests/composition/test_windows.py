"""Private windows: what one record moves, what they are without noise, and which plans have them."""

import math

import numpy as np
import pytest
import torch

from experiments.hospital.cases import Case
from tests.composition.cases import rows
from tests.sessions import noted
from torchdpcate.composition.covariates import (
    LEAST_SPREAD,
    MomentsWithin,
    WindowCells,
    private_moments,
    private_windows,
    turned,
    turned_back,
)
from torchdpcate.composition.steps import COUNT_VARIANCE, NoisySteps, Shares
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.verify.file import verify_release

N = 20_000


def steps(mu: float, requested: list | None = None) -> NoisySteps:
    session = noted(NoiseSource.fixed(0), lambda *charge: None if requested is None else requested.append(charge))
    return NoisySteps(session, Shares(mu, {"windows": 0.5, "moments": 0.5}))


def skewed() -> torch.Tensor:
    """A laboratory value of which few reach beyond 3 % of the range, one that is normal, and a rare condition."""
    random = torch.Generator().manual_seed(0)
    normal = torch.randn(N, 2, generator=random, dtype=torch.float64)
    share = (0.01 * (0.6 * normal[:, 0]).exp()).clamp(0, 1)
    rare = torch.where(torch.rand(N, generator=random) < 0.04, 1.0, -1.0).double()
    return torch.stack([2 * share - 1, (0.2 * normal[:, 1]).clamp(-1, 1), rare], 1)


BENT, TWO = torch.tensor([True, False]), torch.tensor([False, False, True])


def windows_of(u: torch.Tensor, own: NoisySteps):
    numbers = torch.arange(u.shape[1]) < 2
    return private_windows(rows(u), WindowCells(numbers, BENT), own)


@pytest.mark.parametrize("mu", [math.inf, 20.0])
def test_windows_are_where_the_middle_of_the_values_is(mu):
    u = skewed()
    found = windows_of(u, steps(mu))
    low, high = torch.quantile(u[:, :2], torch.tensor([0.2, 0.8]).double(), dim=0)
    width = (high - low) / 1.683
    assert bool(((found.mean - (low + high) / 2).abs() < 0.1 * width).all())
    assert bool(((found.sd / width).log().abs() < 0.15).all())
    scales = private_moments(rows(u), MomentsWithin(found, TWO), steps(mu))
    z = scales(u)
    assert bool((z.mean(0).abs() < 0.15).all())
    assert bool(((z[:, :2].std(0) - 1).abs() < 0.15).all())
    assert float(scales.sd[0]) < 0.02  # one of the whole range would be .1 at least
    assert bool((scales.sd >= LEAST_SPREAD).all())


def asked_of(u: torch.Tensor, monkeypatch, answer) -> list:
    """What is requested of records u and its sensitivity, halving by halving; ``answer`` makes noisy numbers of it."""
    requested = []

    def noisy(_, values, sensitivity, event):
        requested.append((values, sensitivity))
        return answer(values)

    monkeypatch.setattr(NoisySteps, "noisy", noisy)
    windows_of(u, steps(1.0))
    return requested


def test_a_record_moves_all_counts_of_a_halving_by_what_is_declared(monkeypatch):
    low, high = -torch.ones(1, 2).double(), torch.ones(1, 2).double()
    rest = torch.zeros(40, 2).double()
    first, second = (asked_of(torch.cat([rest, last]), monkeypatch, lambda values: values) for last in (low, high))
    moves = [float((here - there).norm()) for (here, _), (there, _) in zip(first, second, strict=True)]
    assert max(moves) == pytest.approx(math.sqrt(2))  # of two covariates by one each
    for _, sensitivity in first + second:
        assert max(moves) <= sensitivity == pytest.approx(math.sqrt(2), rel=1e-9)


def test_thresholds_stay_in_order_whatever_the_answers(monkeypatch):
    """Of records at distinct places the count below the higher threshold is the larger one."""
    u = torch.linspace(-1, 1, 500).double()[:, None].repeat(1, 2)
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        noise = lambda values: values + 400 * torch.randn(values.shape, generator=random).double()  # noqa: E731
        for values, _ in asked_of(u, monkeypatch, noise):
            counts = turned_back(values.view(-1, 2))
            assert bool((counts[:, 0] <= counts[:, 1] + 1e-9).all())


def test_noise_of_turned_counts_is_two_thirds_of_that_on_each():
    """In variance, 4/3 for 2 of a move by (1, 1) of counts themselves; and no linear map of two counts does better.

    With the inverse covariance ((a, b), (b, a)) the three moves have lengths a, a and 2 (a + b), all at most one.
    """
    columns = turned_back(torch.eye(2).double())
    covariance = columns.T @ columns
    assert covariance.flatten().tolist() == pytest.approx([COUNT_VARIANCE, 2 / 3, 2 / 3, COUNT_VARIANCE])
    a = torch.linspace(0.01, 1, 400).double()[:, None]
    b = torch.linspace(-1, 1, 801).double()[None]
    there = (2 * (a + b) <= 1) & (b.abs() < a)
    assert torch.where(there, a / (a.square() - b.square()), math.inf).min() == pytest.approx(COUNT_VARIANCE)
    values = torch.randn(9, 2, generator=torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(turned_back(turned(values)), values)


def test_eight_vectors_of_counts_share_the_step():
    paid = []
    windows_of(skewed(), steps(3.0, paid))
    [(part, event, _, count)] = paid
    assert (part, count) == ("windows", 8)
    assert event.noise_multiplier == pytest.approx(math.sqrt(8 / 0.5) / 3.0, rel=1e-8)


@pytest.mark.parametrize(("share", "missed"), [(0.5, 0.02), (0.3, 0.02), (0.1, 0.02), (0.02, 1.0)])
def test_two_values_are_seen_by_released_numbers(share, missed):
    """Of rare ones z is clipped."""
    random = torch.Generator().manual_seed(0)
    even = torch.rand(N, 2, generator=random).double()
    u = torch.stack([torch.where(even[:, 0] < share, 1.0, -1.0).double(), 2 * even[:, 1] - 1], 1)
    none, own = torch.tensor([False, False]), steps(0.5)
    windows = private_windows(rows(u), WindowCells(~none, none), own)
    scales = private_moments(rows(u), MomentsWithin(windows, none), own)
    assert scales.levels([False, False]) == (True, False)
    z = scales(u)[:, 0]
    assert abs(z.mean()) < missed / 5
    assert abs(z.std() - 1) < missed


def test_most_values_at_an_end_are_told_from_all_others():
    """A price that few have to pay: a window of their quantiles has no width."""
    u = (torch.arange(N).double() / N - 0.85).clamp_min(0)[:, None] - 1
    at, own = torch.tensor([True]), steps(0.5)
    scales = private_moments(rows(u), MomentsWithin(private_windows(rows(u), WindowCells(at, ~at), own), ~at), own)
    assert scales.levels([False]) == (True,)
    z = scales(u).flatten()
    assert (z[0].item(), z[-1].item()) == pytest.approx((-1 / 3, 3))


@pytest.mark.parametrize("high", [1.0, 4.0])
def test_an_effect_is_learnt_as_well_where_two_values_are_declared_as_numbers(high, tmp_path):
    """Chosen steps of two values were lines of others: the error was ten and three times as large."""
    case, errors = Case.of("trial", 3, N), []
    records, people = case.records, case.people
    for domain in (case.schema.domain, Domain([-2] * 4 + [0] * 2, [2] * 4 + [high] * 2, -20, 20, propensity=0.5)):
        learner = RLearner(domain, PrivacyBudget(3.0, 1e-5), noise=NoiseSource.fixed(3))
        release = learner.fit(records.x, records.a, records.y).release_function()
        verify_release(release.save(tmp_path / "release.safetensors", overwrite=True))
        errors.append(np.mean((np.asarray(release.effect(people.x)) - people.effect) ** 2) / people.effect.var())
    assert errors[0] < 0.02
    assert errors[1] < 1.6 * errors[0]
