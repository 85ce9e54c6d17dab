"""Numbers from random bytes. Statistical tests: each false alarm has probability below 1e-8."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chisquare, kstest
from torch.overrides import TorchFunctionMode, resolve_name

from torchdpcate.fit.dp_sgd_plan import PoissonSampler
from torchdpcate.privacy import draws
from torchdpcate.privacy import draws as fine_gaussian
from torchdpcate.privacy.noise import NoiseSource

ALARM = 1e-8
SCALE = 0.7
DRAWS = {
    "gaussian": lambda noise, size: noise.gaussian(size, SCALE),
    "laplace": lambda noise, size: noise.laplace(size, SCALE),
    "k_norm": lambda noise, size: noise.k_norm(size, 3, SCALE),
    "cube": lambda noise, size: noise.k_norm(size, 3, SCALE, math.inf),
    "select": lambda noise, size: torch.tensor([noise.select(torch.zeros(64), 1.0) for _ in range(size)]),
    "gumbel": lambda noise, size: torch.tensor([noise.select(torch.zeros(64), 1.0, law="gumbel") for _ in range(size)]),
    "fine_gaussian": lambda noise, size: noise.fine_gaussian(size, SCALE),
    "uniform": lambda noise, size: noise.uniform(size),
    "coins": lambda noise, size: noise.coins(20 * size, 0.5),
    "chosen": lambda noise, size: noise.chosen(100 * size, 0.05),
    "poisson": lambda noise, size: next(iter(PoissonSampler(20 * size, 0.5, 1, noise))),
}


class NoSamplers(TorchFunctionMode):
    """Fails where torch itself draws a random number."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "") or str(resolve_name(func))
        sampler = name.rstrip("_") in {
            "rand", "randn", "randint", "randperm", "uniform", "normal", "exponential", "bernoulli", "multinomial",
            "poisson", "rand_like", "randn_like", "geometric", "log_normal", "cauchy", "random", "dropout",
        }  # fmt: skip
        assert not sampler, f"{name} is a sampler of torch's"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", DRAWS)
def test_no_draw_of_the_system_comes_from_a_sampler_of_torch(kind):
    with NoSamplers():
        DRAWS[kind](NoiseSource.system(), 5)


def test_that_check_sees_samplers():
    for draw in (lambda: torch.rand(3), lambda: torch.empty(3).exponential_(), lambda: torch.randint(3, (2,))):
        with pytest.raises(AssertionError, match="sampler"), NoSamplers():
            draw()


# ---- how many values there are


@pytest.mark.parametrize(
    ("draw", "at_random"),
    [
        (lambda take, n: draws.uniforms(take, n), 2.0**-53),
        (lambda take, n: draws.exponentials(take, n), 2.0**-50),
        (lambda take, n: draws.normals(take, n), 2.0**-50),
        # half-integers of deviation m meet with the probability 1 / (2 m sqrt(pi))
        (lambda take, n: fine_gaussian.half_integers(take, n, 2.0**40), 2.0**-41 / math.sqrt(math.pi)),
    ],
)
def test_draws_have_more_than_2_to_the_40_values(draw, at_random):
    n = 1_000_000
    repeated = n - len(np.unique(draw(NoiseSource.system()._bytes, n)))
    # at most 0.15 are expected, and ten or more come once in 10^15; of 2^32 values there would be over a hundred
    assert n**2 / 2 * at_random < 0.15
    assert repeated < 10
    coarse = np.floor(draws.uniforms(NoiseSource.system()._bytes, n) * 2**32)
    assert n - len(np.unique(coarse)) > 50


# ---- laws


@pytest.mark.parametrize(("name", "law"), [("uniforms", "uniform"), ("exponentials", "expon"), ("normals", "norm")])
def test_laws(name, law):
    found = getattr(draws, name)(NoiseSource.system()._bytes, 20_001)
    assert found.dtype == np.float64
    assert kstest(found, law).pvalue > ALARM


def test_ends_of_the_laws():
    zeros, ones = bytes, lambda count: b"\xff" * count
    assert draws.uniforms(zeros, 1) == 0.0
    assert draws.uniforms(ones, 1) == 1 - 2.0**-53
    assert draws.exponentials(zeros, 1) == pytest.approx(961 * math.log(2), abs=1e-12)
    assert draws.exponentials(ones, 1) == 2.0**-64  # further words are requested, and are ones
    longest = math.sqrt(2 * 961 * math.log(2))
    assert draws.normals(zeros, 2).tolist() == pytest.approx([-longest, -longest * 2.0**-961], rel=1e-12)


@pytest.mark.parametrize("probability", [0.0, 0.004740740740740741, 0.3, 1 - 2.0**-53, 1.0])
def test_coins_have_their_probability(probability):
    found = NoiseSource.system().coins(400_000, probability)
    assert found.dtype == torch.bool
    assert binomtest(int(found.sum()), 400_000, probability).pvalue > ALARM


@pytest.mark.parametrize("probability", [0.3, 128 / 27_000, 2.0**-60, 1 - 2.0**-53])
def test_coins_are_decided_by_64_bits_exactly(probability):
    """Words around the threshold: heads just where the word, as a fraction, lies below the probability rounded down."""
    threshold = math.floor(Fraction(probability) * 2**64)
    for word in {min(max(0, threshold + move), 2**64 - 1) for move in (-(2**50), -(2**20), -1, 0, 1, 2**20)}:
        parts = [(word >> 48).to_bytes(2, "little"), ((word & (2**48 - 1)) << 16).to_bytes(8, "little")]

        def take(count, parts=parts):
            return parts.pop(0)[:count]

        assert draws.coins(take, 1, probability).tolist() == [word < threshold]


@pytest.mark.parametrize("probability", [128 / 27_000, 2.0**-4, 3e-5])
def test_the_chosen_are_those_whose_coins_show_heads(probability):
    n, runs = 40_000, 60
    noise = NoiseSource.system()
    found = [noise.chosen(n, probability) for _ in range(runs)]
    assert all(bool((f.diff() > 0).all()) and (len(f) == 0 or (f[0] >= 0 and f[-1] < n)) for f in found)
    total = sum(len(f) for f in found)
    assert binomtest(total, n * runs, probability).pvalue > ALARM
    # everywhere alike, and gaps are geometric
    counts = torch.cat(found).mul(8).div(n, rounding_mode="floor").bincount(minlength=8).numpy()
    assert chisquare(counts).pvalue > ALARM
    gaps = torch.cat([f.diff() for f in found]).numpy() - 1
    if len(gaps) > 1000:
        edges = np.floor(np.log1p(-np.arange(10) / 10) / np.log1p(-probability)).astype(int)
        shares = -np.diff(np.append((1 - probability) ** edges, 0.0))
        assert chisquare(np.histogram(gaps, [*edges, n])[0], shares * len(gaps)).pvalue > ALARM


def test_gaps_have_their_law_to_the_last_bits():
    """P(gap >= k) = (1 - p)^k with p a little below the probability: no record is more likely than requested."""
    for probability in (0.05, 1 / 27, 2.0**-40):
        top, low = draws._gaps(probability)
        ends = [int(a) << 64 | int(b) for a, b in zip(top, low, strict=True)][:-1]
        left = [Fraction(2**128 - end, 2**128) for end in ends]
        requested = Fraction(math.floor(Fraction(probability) * 2**64), 2**64)
        for before, after in zip([Fraction(1), *left[:200]], left[:200], strict=False):
            assert requested - Fraction(1, 2**99) <= 1 - after / before <= requested


def test_gaps_go_on_where_none_ends():
    """Words of ones are the longest gap, which ends without heads; then gaps of no length."""
    most = len(draws._gaps(0.05)[0]) - 1
    calls = []

    def take(count):
        calls.append(count)
        ones = min(count, 16)
        return b"\xff" * ones + b"\x00" * (count - ones)

    assert draws.chosen(take, 10 * most, 0.05)[:3].tolist() == [2 * most, 2 * most + 1, 2 * most + 2]
    assert calls[1] == 16  # the second words of both


# ---- the fine Gaussian


@pytest.mark.parametrize("source", [NoiseSource.system(), NoiseSource.fixed(3)], ids=["system", "fixed"])
def test_fine_gaussian_numbers_are_normal_on_half_steps_of_their_grid(source):
    found = source.fine_gaussian(100_000, SCALE)
    assert kstest((found / SCALE).numpy(), "norm").pvalue > ALARM
    halves = found / NoiseSource.fine_grid(SCALE) * 2
    assert bool((halves % 2 == 1).all())
    assert 2.0**-41 < NoiseSource.fine_grid(SCALE) / SCALE <= 2.0**-40
    assert source.fine_gaussian(0, SCALE).shape == (0,)


@pytest.mark.parametrize("deviation", [128.0, 150.3, 255.9])
def test_half_integers_have_the_discrete_law(deviation):
    found = fine_gaussian.half_integers(NoiseSource.system()._bytes, 400_000, deviation)
    edges = np.arange(-4 * int(deviation), 4 * int(deviation) + 1, 16)
    x = np.arange(-20 * int(deviation), 20 * int(deviation)) + 0.5
    weights = np.exp(-(x**2) / 2 / deviation**2)
    expected = np.histogram(x, [-np.inf, *edges, np.inf], weights=weights / weights.sum())[0]
    counts = np.histogram(found, [-np.inf, *edges, np.inf])[0]
    assert chisquare(counts, expected * len(found)).pvalue > ALARM
    # and within a cell: the place modulo 16 has the law of the sum, too
    residue = np.histogram(x % 16, np.arange(17), weights=weights / weights.sum())[0]
    assert chisquare(np.histogram(found % 16, np.arange(17))[0], residue * len(found)).pvalue > ALARM


@pytest.mark.parametrize("deviation", [128.0, 1.3456 * 2.0**40, 2.0**41 - 1])
def test_cells_made_by_products_end_where_exponentials_say(deviation):
    top, low = fine_gaussian._ends(deviation)
    with localcontext() as context:
        context.prec = 100
        width = Decimal(2) ** (math.frexp(deviation)[1] - 7) / Decimal(deviation)
        sums = list(accumulate((-((j * width) ** 2) / 2).exp() for j in range(math.ceil(21 / width))))
        ends = [int(end / sums[-1] * 2**128) for end in sums]
        ends = [end for end in ends if end < 2**128 - 1]
    found = [int(a) << 64 | int(b) for a, b in zip(top[:-1], low[:-1], strict=True)]
    assert len(ends) == len(found)
    assert max(abs(end - expected) for end, expected in zip(found, ends, strict=True)) <= 1


@pytest.mark.parametrize("deviation", [128.0, 1.3456 * 2.0**40])
def test_16_bits_decide_where_no_cell_ends_among_their_words(deviation):
    top, _ = fine_gaussian._ends(deviation)
    starts = np.arange(2**16, dtype=np.uint64) << np.uint64(48)
    before, after = (np.searchsorted(top, word, "right") for word in (starts, starts + np.uint64(2**48 - 1)))
    cells = fine_gaussian._cells(deviation)
    np.testing.assert_array_equal(cells[cells >= 0], before[cells >= 0])
    np.testing.assert_array_equal(cells[cells >= 0], after[cells >= 0])
    assert (cells < 0).sum() < len(top) + 1


@lru_cache
def exact_ends(deviation):
    """Where the cells end in [0, 2^1344), by powers of one exponential of 600 digits."""
    with localcontext() as context:
        context.prec = 600
        width = Decimal(2) ** (math.frexp(deviation)[1] - 7) / Decimal(deviation)
        base = (-(width**2) / 2).exp()
        sums = list(accumulate(base ** (j * j) for j in range(math.ceil(40 / width))))
        return [int(end / sums[-1] * 2**1344) for end in sums[:-1]]


RESTS = {
    "zeros": 0,
    "many ones": (1 << 1216) - (1 << 60),
    "some": (1 << 1216) - (1 << 900),
}


@pytest.mark.parametrize("rest", RESTS.values(), ids=RESTS)
def test_what_128_bits_leave_open_is_decided_by_further_ones(rest):
    """An end of a cell, and what is beyond all ends: every cell up to 40 deviations has its own probability."""
    deviation = 1.3456 * 2.0**40
    top, low = fine_gaussian._ends(deviation)
    for last in (5, len(top) - 2, len(top) - 1):
        word = int(top[last]) << 64 | int(low[last])
        parts = [
            (word >> 112).to_bytes(2, "little"),
            (word >> 64 - 16 & (2**48 - 1) << 16).to_bytes(8, "little"),
            (word & (2**64 - 1)).to_bytes(8, "little"),
            rest.to_bytes(152, "little"),
        ]
        expected = sum(end <= word << 1216 | rest for end in exact_ends(deviation))
        assert fine_gaussian._cell(lambda count, parts=parts: parts.pop(0)[:count], 1, deviation).tolist() == [expected]
        # near 13 deviations several ends begin with the same 128 bits
        assert expected >= last if last == len(top) - 1 else last - 8 <= expected <= last + 1
        assert parts == []
    cells = len(exact_ends(deviation)) + 1
    assert fine_gaussian._cell(lambda count: b"\xff" * count, 1, deviation).tolist() == [cells - 1]
    assert (cells - 1) * 2.0 ** (math.frexp(deviation)[1] - 7) / deviation > 39.9
