import math
import os

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.stats import chisquare

from torchdpcate.fit.dp_sgd_plan import MOST_DRAWS
from torchdpcate.privacy import draws
from torchdpcate.privacy import draws as fine_gaussian
from torchdpcate.privacy.budget import LEAST_DELTA
from torchdpcate.privacy.mechanisms import KNormMechanism
from torchdpcate.privacy.noise import NoiseSource, float_loss

ALARM = 1e-8
EXACT = 2.0**-46  # what docs/guarantees/common.md grants each number, relative


class Bytes:
    """Gives bytes by a rule and keeps them."""

    def __init__(self, rule=os.urandom):
        self.rule, self.given = rule, []

    def __call__(self, count):
        self.given.append(self.rule(count))
        return self.given[-1]


def exact_fraction(words):
    """The number that begins with these words of 64 bits."""
    return sum(mpf(int(word)) / mpf(2) ** (64 * (k + 1)) for k, word in enumerate(words))


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(400):
        yield


# words that make exponentials as small and as large as they get, and those of the two sides of 1/2
EDGES = [
    [2**64 - 1, 2**64 - 1, 2**64 - 1, 2**63],
    [2**64 - 1, 0],
    [2**64 - 2, 5],
    [0, 1, 2**50],
    [0, 0, 0, 7, 9],
    [0, 2**63, 1],
    [1, 0],
    [2**63 - 1, 2**64 - 1],
    [2**63, 0],
]


def of_words(first, further):
    """Bytes of these two words, then of the others, then of ones."""
    rest = iter([*further, 2**62 + 3, 12345])
    requested = iter([first, *([word] for word in rest)])
    return lambda count: np.array(next(requested), dtype="<u8").tobytes()


@pytest.mark.parametrize("words", EDGES)
def test_exponentials_are_right_to_their_last_bits_however_small_or_large(words):
    found = draws.exponentials(of_words(words[:2], words[2:]), 1)[0]
    high = words if words[0] < 2**63 else [2**64 - 1 - words[0], *words[1:]]
    half = exact_fraction([*high, 2**62 + 3])
    truth = -mp.log(half) if words[0] < 2**63 else -mp.log1p(-half)
    assert abs(mpf(float(found)) / truth - 1) < mpf(2) ** -49


def test_normals_are_right_to_their_last_bits_and_have_their_law():
    take = Bytes()
    found = draws.normals(take, 400)
    lengths, angles, octants = take.given
    high, low = np.frombuffer(lengths, "<u8").reshape(2, 200)
    turn, more = np.frombuffer(angles, "<u8").reshape(2, 200)
    for k, octant in enumerate(octants):
        length = mp.sqrt(
            -2
            * mp.log(
                exact_fraction([high[k], low[k]])
                if high[k] < 2**63
                else 1 - exact_fraction([2**64 - 1 - int(high[k]), low[k]])
            )
        )
        angle = mp.pi / 4 * exact_fraction([turn[k], more[k]])
        parts = [mp.cos(angle), mp.sin(angle)]
        first, second = parts[::-1] if octant & 1 else parts
        signs = [1 if octant & 2 else -1, 1 if octant & 4 else -1]
        for value, truth in ((found[k], signs[0] * length * first), (found[200 + k], signs[1] * length * second)):
            assert abs(mpf(float(value)) / truth - 1) < mpf(2) ** -48
    around = np.arctan2(*draws.normals(os.urandom, 160_000).reshape(2, -1)) % (2 * math.pi)
    assert chisquare(np.bincount((around * 20 / math.pi).astype(int), minlength=40)).pvalue > ALARM


class Given(type(NoiseSource.system())):
    """The system's noise of bytes that are kept."""

    def __init__(self):
        super().__init__()
        self.take = Bytes()

    def _bytes(self, count):
        return self.take(count)


def exact_exponentials(given, count):
    high, low = np.frombuffer(given, "<u8").reshape(2, count)
    return [
        -mp.log(exact_fraction([word, more]))
        if word < 2**63
        else -mp.log1p(-exact_fraction([2**64 - 1 - int(word), more]))
        for word, more in zip(high, low, strict=True)
    ]


@pytest.mark.parametrize("dimension", [1, 2, 3, 25, 300])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_euclidean_draws_are_as_exact_as_the_page_says(dimension, scale):
    noise, step = Given(), 2.0**-60
    found = noise.k_norm(1, dimension, scale, 2.0, step)[0]
    lengths, angles, octants, gamma = noise.take.given
    pairs = (dimension + 1) // 2
    turns = np.frombuffer(angles, "<u8").reshape(2, pairs)
    first, second = [], []
    for radius, high, low, octant in zip(exact_exponentials(lengths, pairs), *turns, octants, strict=True):
        angle = mp.pi / 4 * exact_fraction([high, low])
        parts = [mp.cos(angle), mp.sin(angle)]
        parts = parts[::-1] if octant & 1 else parts
        first.append((1 if octant & 2 else -1) * mp.sqrt(2 * radius) * parts[0])
        second.append((1 if octant & 4 else -1) * mp.sqrt(2 * radius) * parts[1])
    direction = [*first, *second][:dimension]
    length = mp.sqrt(sum(z * z for z in direction))
    total = sum(exact_exponentials(gamma, dimension))
    for value, z in zip(found.tolist(), direction, strict=True):
        truth = mpf(scale) * z / length * total
        assert abs(mpf(value) - truth) < EXACT * abs(truth) + mpf(step)


def test_cube_draws_are_as_exact_as_the_page_says():
    noise, step, dimension = Given(), 2.0**-60, 30
    found = noise.k_norm(1, dimension, 1.0, math.inf, step)[0]
    uniform, gamma = noise.take.given
    total = sum(exact_exponentials(gamma, dimension + 1))
    for value, word in zip(found.tolist(), np.frombuffer(uniform, "<u8"), strict=True):
        truth = (2 * exact_fraction([word]) - 1) * total
        assert abs(mpf(value) - truth) < EXACT * total + mpf(step)


@pytest.mark.parametrize("order", [2.0, math.inf])
def test_what_is_released_is_moved_by_a_uniform_number_of_cells(order):
    """So its probability is that of a cube of 2^15 cells around it, which a draw's last bits hardly change."""
    noise, size = Given(), 40_000
    found = noise.k_norm(size, 2, 1.0, order) / noise.grid(1.0)
    kept = iter(noise.take.given)
    again = Given()
    again.take.rule = lambda count: next(kept)
    unmoved = again.k_norm(size, 2, 1.0, order, 2.0**-60) / noise.grid(1.0)
    moved = (found - unmoved.floor()).long().flatten()
    assert 1 - 2**14 <= int(moved.min()) < int(moved.max()) <= 2**14
    assert chisquare(np.bincount((moved.numpy() + 2**14 - 1) // 512, minlength=64)).pvalue > ALARM
    assert set((np.bincount(moved.numpy() % 8, minlength=8) > 0).tolist()) == {True}


def loss(spread, exponentials):
    """Twice the bound of the page, from its parts: kappa, the half width 2^-7 s of the cube, the longest length."""
    longest = exponentials + math.sqrt(2 * exponentials * 666) + 666
    return 2 * EXACT * 2 * 2.0**7 * spread * longest


def test_what_float64_adds_to_epsilon_is_the_pages_bound_and_small():
    assert float_loss(6670) == pytest.approx(loss(math.sqrt(6670), 6670), rel=1e-12)
    assert float_loss(30, math.inf) == pytest.approx(loss(30, 31), rel=1e-12)
    assert 6e-6 < float_loss(6670) < 7e-6
    assert float_loss(4, math.inf) < 3e-8


@pytest.mark.parametrize(
    ("mechanism", "size", "spread", "exponentials", "rounding"),
    [
        (KNormMechanism(0.05, 1.0), 6670, math.sqrt(6670), 6670, math.sqrt(6670)),
        (KNormMechanism(1.0, 3.0), 25, 5.0, 25, 5.0),
        (KNormMechanism(0.2, 1.0, math.inf), 40, 40, 41, 1.0),
    ],
)
def test_the_released_scale_pays_for_float64_and_for_rounding(mechanism, size, spread, exponentials, rounding):
    """Delta' / s' + the loss is at most epsilon, with Delta' enlarged by the grid's rounding."""
    scale = mechanism.released_scale(size)
    grid = 2.0**-20 * scale  # the largest step of noise of this scale
    spent = (mechanism.sensitivity + rounding * grid) / scale + loss(spread, exponentials)
    assert spent == pytest.approx(mechanism.epsilon, rel=1e-12)
    assert scale < mechanism.scale * (1 + 2e-3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 50.0, 600.0])
def test_what_gaussian_noise_in_great_number_leaves_out_is_nothing_beside_the_least_delta(epsilon):
    tails = MOST_DRAWS * mp.erfc(fine_gaussian.REACH / mp.sqrt(2))  # of all numbers, on both sides
    ratios = mpf(2) ** -1149
    assert (1 + mp.exp(epsilon)) * (tails + ratios) < mpf(LEAST_DELTA) * mpf(10) ** -40
    kappa = 2.0**-50
    moved = MOST_DRAWS * kappa**2 + kappa * math.sqrt(2 * MOST_DRAWS * 1150 * math.log(2))
    assert 2 * moved < 8e-8
