"""What a clip took, by counts on either side: against Pareto's law, and a dense posterior by numpy."""

import math

import numpy as np
import pytest
import torch

from torchdpcate.composition.tails import tail_of


def tail(above: tuple[float, float], below: tuple[float, float], noise: float = 0.0, clip: float = 1.0, most=math.inf):
    """What a clip took by counts near and beyond it, of 5,000 records."""
    return tail_of(torch.tensor([*above, *below]).double(), noise, clip, most, 0.5, 5e3)


def test_a_tail_is_a_part_of_pareto_s():
    """Exact counts of a Pareto tail give .85 of its mean excess, N C / (alpha - 1), on either side."""
    clip, beyond = 2.0, 40.0
    for alpha in (2.5, 3.0, 6.0):
        counts = beyond * (2**alpha - 1), beyond
        excess = 0.85 * beyond * clip / (alpha - 1)
        above, below, both = (tail(*of, clip=clip) for of in ((counts, (0, 0)), ((0, 0), counts), (counts, counts)))
        assert above.taken == pytest.approx(excess)
        assert below.taken == pytest.approx(-excess)
        assert (both.taken, both.size) == pytest.approx((0.0, 2 * excess), rel=1e-6)
        assert above.variance == pytest.approx(excess**2 * (0.25 + (0.5 / 3) ** 2))
        assert both.variance == pytest.approx((excess / 3) ** 2)


def test_a_tail_is_what_the_clip_of_many_pareto_scores_takes():
    generator, clip, alpha = torch.Generator().manual_seed(0), 3.0, 3.5
    x = torch.rand(10**6, generator=generator, dtype=torch.float64) ** (-1 / alpha)
    near, far = ((x > clip / 2) & (x <= clip)).sum(), (x > clip).sum()
    found = tail_of(torch.tensor([near, far, 0, 0]).double(), 0.0, clip, math.inf, 0.5, 1e6)
    assert found.taken == pytest.approx(0.85 * float((x - x.clamp(max=clip)).sum()), rel=0.05)


NOISE, MASS = 27.0, 5e3


def density(count: float, mean: np.ndarray) -> np.ndarray:
    """Of a count without its constant."""
    return np.exp(-((count - mean) ** 2) / 2 / (NOISE**2 + mean)) / np.sqrt(NOISE**2 + mean)


def posterior(*sides: tuple[float, float]) -> tuple[float, float, float]:
    """Probability of the counts of sides that are alike, mean of what a side took, and of its square: a dense sum."""
    totals, alphas = np.logspace(np.log10(0.5), 4, 2_000), np.linspace(1.2, 10, 440)
    total, alpha = (part.ravel() for part in np.meshgrid(totals, alphas, indexing="ij"))
    prior = 0.7 / math.log(MASS) * np.log(totals[1] / totals[0]) / len(alphas)
    beyond = np.append(total * 2**-alpha, 0.0)
    before, each = np.append(total, 0.0) - beyond, beyond * np.append(0.85 / np.maximum(alpha - 1, 1.0), 0.0)
    weight = np.append(np.full(len(total), prior), 0.3)
    for near, far in sides:
        weight = weight * density(near, before) * density(far, beyond)
    evidence = weight.sum()
    return evidence, (weight * each).sum() / evidence, (weight * each**2).sum() / evidence


@pytest.mark.parametrize("below", [(0.0, 0.0), (80.0, 20.0), (-20.0, -15.0)])
def test_a_tail_by_noisy_counts_is_a_posterior_mean(below):
    """Of both sides alike, with a prior probability of one half, and of each side by itself."""
    above = (90.0, 12.0)
    (first, up, up2), (second, down, down2), (both, each, each2) = (
        posterior(above),
        posterior(below),
        posterior(above, below),
    )
    alike = both / (both + first * second)
    found = tail(above, below, NOISE)
    assert found.taken == pytest.approx((1 - alike) * (up - down), rel=0.03, abs=0.02)
    assert found.size == pytest.approx((1 - alike) * (up + down) + alike * 2 * each, rel=0.03)
    model = (0.5 * (up - down)) ** 2 + (0.5 * (up + down) / 3) ** 2
    apart = up2 - up**2 + down2 - down**2 + model + alike * (up - down) ** 2
    assert found.variance == pytest.approx((1 - alike) * apart + alike * 0.36 * each2, rel=0.06)


def test_with_little_noise_a_tail_is_what_its_counts_are():
    little = tail((900.0, 100.0), (0.0, 0.0), 0.5)
    assert little.taken == pytest.approx(tail((900.0, 100.0), (0.0, 0.0)).taken, rel=0.05)


def test_sides_that_are_alike_cancel_and_others_do_not():
    """The correction of alike counts is small beside its own noise; that of a skewed sum is not shrunk."""
    same, skewed = tail((90.0, 40.0), (70.0, 40.0), NOISE), tail((220.0, 120.0), (60.0, 0.0), NOISE)
    alone = tail((220.0, 120.0), (0.0, 0.0), NOISE)
    assert abs(same.taken) < 0.1 * same.size
    assert skewed.taken > 0.75 * skewed.size
    assert skewed.taken == pytest.approx(alone.taken, rel=0.2)


def test_counts_that_may_be_noise_correct_little_and_widen():
    noise = 5.0
    few = tail((0.0, 1.0), (0.0, -9.0), noise)
    assert 0 <= few.taken < 1
    assert few.variance > 0
    assert tail((0.0, 0.0), (0.0, 0.0))[:3] == (0.0, 0.0, 0.0)
    assert tail((0.0, 10.0), (0.0, 0.0), most=0.01).taken == pytest.approx(0.1)
