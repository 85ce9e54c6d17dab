"""What a clip took, by counts on either side: against Pareto's law, and a dense posterior by numpy."""

import math
import statistics

import numpy as np
import pytest
import torch

from torchdpcate.composition.tails import Residuals, tail_of


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


OUTCOMES = {
    "normal": lambda draws, n: draws.normal(size=n),
    "Weibull": lambda draws, n: draws.weibull(0.7, n),
    "to the left": lambda draws, n: -draws.exponential(size=n),
    "mostly zero": lambda draws, n: (draws.random(n) < 0.4) * np.exp(0.8 * draws.normal(size=n)),
}


def clipped_scores(residual, own: float, clip: float, noise: float, draws: np.random.Generator, n: int = 20_000):
    """What a clip takes of scores of residuals whose location is Huber's, and what is said of it."""
    quantile, sample = 0.74, residual(draws, 400_000)
    centre = np.median(sample)
    for _ in range(60):
        scale = np.quantile(np.abs(sample - centre), quantile)
        centre += np.clip(sample - centre, -scale, scale).mean()
    deviation, other = scale / statistics.NormalDist().inv_cdf((1 + quantile) / 2), 1 - own
    treated, r = draws.random(n) < own, residual(draws, n) - centre
    x = np.where(treated, r / own, -r / other) / deviation
    clip, far = clip / math.sqrt(own * other), 4 / math.sqrt(own * other)
    counts = [((side > clip / 2) & (side <= clip), side > clip) for side in (x, -x)]
    noisy = torch.tensor([float(bin_.sum()) + noise * draws.normal() for side in counts for bin_ in side]).double()
    square, error = np.minimum(x**2, far**2).mean(), noise / n * far**2
    facts = Residuals(1.0, quantile, 50.0, 1 / own + 1 / other, own, square + error * draws.normal(), error, far)
    every = (tail_of(noisy, noise, clip, math.inf, 0.5, n, known) for known in (facts, None))
    return float((x - x.clip(-clip, clip)).sum()), *every


@pytest.mark.parametrize("own", [0.5, 0.15])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_what_a_clip_takes_of_a_rare_arm_is_held_by_its_law(outcome, own):
    """Laws that are not among those of the prior: within three of its deviations in 36 of 40 draws."""
    draws = np.random.default_rng(0)
    found = [clipped_scores(OUTCOMES[outcome], own, 2.5, 40.0, draws) for _ in range(40)]
    apart = [abs(taken - tail.taken) / math.sqrt(tail.variance) for taken, tail, _ in found]
    assert sum(far < 3 for far in apart) >= 36


def test_skewness_of_both_arms_does_not_cancel_where_one_is_rare():
    """Laws of residuals say so; sides that are alike, which one half of the prior was, do not."""
    draws = np.random.default_rng(1)
    found = [clipped_scores(OUTCOMES["Weibull"], 0.15, 2.5, 80.0, draws) for _ in range(10)]
    taken, by_laws, by_sides = (sum(each) for each in zip(*((t, a.taken, b.taken) for t, a, b in found), strict=True))
    assert by_laws == pytest.approx(taken, rel=0.5)
    assert by_sides < 0.5 * taken
