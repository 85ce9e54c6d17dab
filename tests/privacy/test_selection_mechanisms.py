"""Laws are checked against closed forms and brute force; draws by chi-squared tests, each false alarm below 1e-8."""

import itertools
import math

import pytest
import torch
from scipy.stats import chisquare

from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import FixedNoise, NoiseSource
from torchdpcate.privacy.selection import (
    SELECTIONS,
    ExponentialMechanism,
    PermuteAndFlip,
    _exponential,
    _permute_and_flip,
    exponential_law,
)

ALARM = 1e-8
NOTE = torch.tensor([30.0, 20.0, 0.0])  # of the theory note, section 8
KINDS = list(SELECTIONS.values())


def gaps(count: int, width: float, seed: int = 0) -> torch.Tensor:
    values = width * torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values - values.min()


def by_permutations(heads: torch.Tensor) -> torch.Tensor:
    """Permute-and-flip itself: candidates in random order, the first whose coin shows heads."""
    chances = torch.zeros_like(heads)
    for order in itertools.permutations(range(len(heads))):
        still = 1.0 / math.factorial(len(heads))
        for i in order:  # the best shows heads for sure, so one round of coins ends it
            chances[i] += still * heads[i]
            still = still * (1 - heads[i])
    return chances


def test_values_of_the_theory_note():
    exponential = ExponentialMechanism(1.0, 20.0).probabilities(NOTE)
    flip = PermuteAndFlip(1.0, 20.0).probabilities(NOTE)
    assert exponential.tolist() == pytest.approx([0.546549, 0.331499, 0.121952], abs=5e-7)
    assert flip.tolist() == pytest.approx([0.630281, 0.280709, 0.089009], abs=5e-7)


@pytest.mark.parametrize("count", [1, 2, 3, 6])
@pytest.mark.parametrize("width", [0.0, 0.3, 4.0])
def test_permute_and_flip_has_the_law_of_its_coins(count, width):
    d = gaps(count, width, count)
    assert torch.allclose(exponential_law(d), by_permutations(torch.exp(-d)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("count", [2, 129, 10_000])
@pytest.mark.parametrize("gap", [0.0, 1e-3, 1.0, 7.0, 9.2, 30.0])
def test_one_ahead_of_many_equal_rivals_has_a_closed_form(count, gap):
    # P(first) = int (1 - v q)^(M - 1) dv: it decays within 1 / (M q) of v = 0
    q, d = math.exp(-gap), torch.full((count,), gap, dtype=torch.float64)
    d[0] = 0.0
    first = -math.expm1(count * math.log1p(-q)) / (count * q) if gap else 1 / count
    chances = exponential_law(d)
    assert chances[0].item() == pytest.approx(first, rel=1e-11)
    assert chances.sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("source", [NoiseSource.system, lambda: NoiseSource.fixed(5)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("utilities", "epsilon", "spread"), [([30, 20, 0], 1.0, 20.0), ([0.5, 0, -2, 0.5], 0.6, 1.5)])
def test_choices_have_the_stated_law(source, kind, utilities, epsilon, spread):
    mechanism, utilities = kind(epsilon, spread), torch.tensor(utilities, dtype=torch.float64)
    counts = torch.bincount(mechanism.select(utilities, source(), 5_000), minlength=len(utilities))
    assert chisquare(counts.numpy(), 5_000 * mechanism.probabilities(utilities).numpy()).pvalue > ALARM


def worst_loss(kind, epsilon: float, spread: float, moved: float, candidates: int, runs: int = 400) -> float:
    """Largest log ratio of laws over random neighbours whose utilities move within a range ``moved``."""
    generator = torch.Generator().manual_seed(candidates)
    shape = (runs, candidates)
    u = torch.randn(shape, generator=generator, dtype=torch.float64) * 3 * spread / epsilon
    u[::2] = 0  # ties, and each of the worst corners
    corner = (torch.rand(shape, generator=generator) < 0.5).double()
    corner[::2] = 1.0
    corner[::2, 0] = 0.0
    partial = torch.rand(shape, generator=generator, dtype=torch.float64)
    moves = torch.where(torch.arange(runs)[:, None] % 4 == 1, partial, corner)
    # a floor, because a ratio of two chances that the law knows to 1e-12 says nothing of tiny ones
    before, after = (kind(epsilon, spread).probabilities(v).clamp(min=1e-6) for v in (u, u + moved * moves))
    return (before / after).log().abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("candidates", [2, 3, 10, 60])
def test_no_neighbour_within_the_spread_changes_the_law_by_more_than_epsilon(kind, candidates):
    assert worst_loss(kind, 1.3, 7.0, 7.0, candidates) <= 1.3 + 1e-6


@pytest.mark.parametrize(("kind", "candidates"), [(PermuteAndFlip, 2), (ExponentialMechanism, 60)])
def test_the_spread_is_tight(kind, candidates):
    assert worst_loss(kind, 1.3, 7.0, 7.0, candidates) > 0.97 * 1.3
    # a bound of one utility's movement alone, taken for the spread, is refuted
    assert worst_loss(kind, 1.3, 3.5, 7.0, candidates) > 1.5 * 1.3


@pytest.mark.parametrize(
    ("make", "kind", "loss"),
    [
        (_permute_and_flip, PermuteAndFlip, 1.0),
        (_exponential, ExponentialMechanism, math.log((1 + math.exp(3.5)) / (1 + math.exp(2.5)))),
    ],
)
def test_the_declared_pairs_come_near_their_claim(make, kind, loss):
    assert ratio_of(make, kind) == pytest.approx(loss, abs=1e-4)


def ratio_of(make, kind) -> float:
    """Log ratio of the first candidate's chance in the two datasets of the declared game."""
    chances, honest = [], kind.select

    def noted(self, utilities, noise, runs=1):
        chances.append(self.probabilities(utilities)[0].item())
        return honest(self, utilities, noise, runs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "select", noted)
        for dataset in (0, 1):
            make(PrivacyBudget(1.0, 1e-5)).draw(dataset, 1, NoiseSource.fixed(0))
    return math.log(chances[0] / chances[1])


def test_gumbel_noise_has_the_scale_that_opendp_prices():
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.linf_distance(T=float)
    mechanism = dp.m.make_noisy_max(
        *space, dp.zero_concentrated_divergence(), scale=ExponentialMechanism(0.8, 6.0).scale
    )
    # epsilon^2 / 8 for utilities that move by half the spread either way
    assert mechanism.map(3.0) == pytest.approx(0.8**2 / 8)


def test_what_is_chosen_is_handed_out_as_paid_for():
    class Other(FixedNoise):
        def released(self, output):
            return output + 100

    for kind in KINDS:
        assert (kind(1.0, 1.0).select(torch.zeros(4), Other(0), runs=5) >= 100).all()


def test_far_away_utilities_keep_their_differences():
    # the noise moves nothing by 300 scales but with probability e^-299
    utilities = torch.tensor([2.0**40, 2.0**40 + 300], dtype=torch.float64)
    for kind in KINDS:
        assert kind(1.0, 1.0).select(utilities, NoiseSource.system(), 3).tolist() == [1, 1, 1]
