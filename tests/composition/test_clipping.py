"""Clipped scores: moments of clipped normal numbers, residuals by the mean square, the first order in the outcome."""

from itertools import pairwise

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from torchdpcate.composition.score_errors import (
    ArmScores,
    clipped_by_normal,
    clipped_normal,
    first_order,
    normal_residual,
)


def _of(*values):
    return torch.tensor(values, dtype=torch.float64)


def _integral(f, mean, deviation):
    """The mean of f of a normal number, split where the clip bends it."""
    ends = [mean - 12 * deviation, *(e for e in (-1.0, 1.0) if abs(e - mean) < 12 * deviation), mean + 12 * deviation]
    return sum(quad(lambda v: f(v) * norm.pdf(v, mean, deviation), *ends, epsabs=1e-12)[0] for ends in pairwise(ends))


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.7, 0.2), (-1.4, 0.5), (0.1, 3.0)])
def test_moments_of_a_clipped_normal_number_are_their_integrals(mean, deviation):
    found = clipped_normal(_of(mean), _of(deviation))

    def clip(v):
        return min(max(v, -1.0), 1.0)

    assert found.inside.item() == pytest.approx(_integral(lambda v: float(abs(v) < 1), mean, deviation), abs=1e-9)
    assert found.mean.item() == pytest.approx(_integral(clip, mean, deviation), abs=1e-9)
    assert found.square.item() == pytest.approx(_integral(lambda v: clip(v) ** 2, mean, deviation), abs=1e-9)


def _arms(pi):
    middle = _of(0.1, -0.2, 0.0)
    return ArmScores(middle, -1 / (1 - pi), 1 - pi), ArmScores(middle, 1 / pi, pi)


def test_residuals_are_those_that_make_the_mean_square():
    pi, residual = _of(0.2, 0.3, 0.7), 0.3
    arms = _arms(pi)
    square = sum(float((a.share * clipped_by_normal(a, residual, 1.0).square).mean()) for a in arms)
    assert normal_residual(arms, square) == pytest.approx(residual, rel=1e-9)


def test_the_first_order_is_the_derivative_of_the_mean_clipped_score():
    """By differences, with the scores' centre the mean of the arms' difference, about the true means."""
    pi, residual = _of(0.2, 0.3, 0.7), 0.4
    effect = _of(0.3, 0.1, 0.5)
    error0, error1 = _of(0.4, -1.0, 0.3), _of(1.0, 0.5, -0.7)

    def mean_score(step):
        d0, d1 = step * error0, step * error1
        centre = (effect + d1 - d0).mean()
        middle = effect + d1 - d0 - centre  # of scores; corrections are off by the models' errors
        treated = clipped_normal(middle - d1 / pi, residual / pi)
        control = clipped_normal(middle + d0 / (1 - pi), residual / (1 - pi))
        found = (pi * treated.mean + (1 - pi) * control.mean).mean() + centre
        return found.item(), control.inside, treated.inside

    h = 1e-5
    slope = (mean_score(h)[0] - mean_score(-h)[0]) / (2 * h)
    of_control, of_treated = first_order(pi, *mean_score(0.0)[1:])
    assert abs(slope) > 0.01
    assert ((of_control * error0 + of_treated * error1).mean().item()) == pytest.approx(slope, rel=1e-6)
