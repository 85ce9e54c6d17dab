import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr
from scipy.stats import norm

from torchdpcate.errors import InputError
from torchdpcate.release.estimate import IntervalLaw, half_width

LEVELS = [0.01, 0.5, 0.9, 0.95, 0.999, 1 - 1e-6]
SCALE = st.floats(0.01, 10)


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def width(level, s=0.0, b=()) -> float:
    return half_width(level, row(s)[0], row(*b)).item()


def normal_laplace_tail(t: float, s: float, b: float) -> float:
    """P(sZ + bL > t), t >= 0 (Reed & Jorgensen 2004)."""
    if s == 0:
        return 0.5 * math.exp(-t / b)
    left, right = s / b - t / s, s / b + t / s
    normal = 0.25 * math.exp(-t * t / (2 * s * s))
    if left > 0:
        down = normal * erfcx(left / math.sqrt(2))
    else:
        down = 0.5 * math.exp(s * s / (2 * b * b) - t / b) * ndtr(-left)
    return norm.sf(t / s) + down - normal * erfcx(right / math.sqrt(2))


def mixture_width(level: float, s: float, b: list[float]) -> float:
    """By the exact signed mixture of normal-Laplace laws, for scales that are apart."""
    weights = [math.prod(k * k / (k * k - j * j) for j in b if j != k) for k in b]

    def missed(t: float) -> float:
        return 2 * sum(w * normal_laplace_tail(t, s, k) for w, k in zip(weights, b, strict=True)) - (1 - level)

    return brentq(missed, 0, 40 * (s + sum(b)), xtol=1e-13)


@pytest.mark.parametrize("level", LEVELS)
def test_one_part_alone_has_its_own_quantile(level):
    assert width(level, s=2.0) == pytest.approx(2 * norm.ppf((1 + level) / 2), rel=1e-8)
    laplace = -3 * math.log1p(-level)
    assert laplace * (1 - 1e-9) <= width(level, b=(3.0,)) <= laplace * 1.0002 + 0.0005
    assert width(level) == 0.0


@given(SCALE, st.lists(SCALE, min_size=1, max_size=3), st.sampled_from(LEVELS[1:5]))
@settings(max_examples=20, deadline=None)
def test_laplace_and_gaussian_parts_agree_with_the_signed_mixture(s, scales, level):
    b = [scale * (1 + 0.3 * k) for k, scale in enumerate(sorted(scales))]  # apart, else the mixture cancels
    exact = mixture_width(level, s, b)
    assert exact * (1 - 1e-7) <= width(level, s, tuple(b)) <= exact * 1.0005


def test_equal_and_vanishing_scales_are_allowed():
    # two equal Laplace parts: P(|X| > t) = e^-t (1 + t/2)
    exact = brentq(lambda t: math.exp(-t) * (1 + t / 2) - 0.05, 0, 20)
    assert width(0.95, b=(1.0, 1.0)) == pytest.approx(exact, rel=2e-4)
    assert width(0.95, 1.0, (0.5, 0.0, 1e-14)) == pytest.approx(width(0.95, 1.0, (0.5,)), rel=1e-6)
    assert width(0.95, 1e-9, (1.0,)) == pytest.approx(math.log(20), rel=1e-4)


def test_more_noise_is_wider_and_units_scale():
    law = IntervalLaw(0.3, (0.1, 0.2))
    base = law.half_width(0.95)
    for wider in (IntervalLaw(0.31, law.laplace), IntervalLaw(0.3, (0.11, 0.2))):
        assert wider.half_width(0.95) > base
    scaled = IntervalLaw(3e5, (1e5, 2e5))
    assert scaled.half_width(0.95) == pytest.approx(1e6 * base, rel=1e-9)
    assert law.half_width(0.99) > base


def test_impossible_scales():
    assert width(0.95, s=math.inf) == math.inf
    assert width(0.95, 1.0, (math.inf,)) == math.inf
    for s, b in ((-1.0, ()), (math.nan, ()), (1.0, (-1.0,))):
        with pytest.raises(InputError, match="give numbers"):
            width(0.95, s, b)
