import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdpcate.causal.estimand import ESTIMANDS, make_estimand
from torchdpcate.fit.losses import BalancingLoss, CrossEntropy, Huber, HuberHinge, Logistic

LABELS = [HuberHinge(0.5), HuberHinge(0.01), HuberHinge(3.0), Logistic()]
BALANCING = [BalancingLoss(make_estimand(name, 0.2)) for name in ESTIMANDS]
NUMBERS = [Huber(0.7), Huber(40.0)]
SHARES = [CrossEntropy()]
POINTS = st.lists(st.floats(-15, 15), min_size=1, max_size=20)


@pytest.mark.parametrize("loss", LABELS + BALANCING + NUMBERS + SHARES)
@given(points=POINTS, positive=st.booleans(), y=st.floats(-15, 15))
@settings(max_examples=15, deadline=None)
def test_slopes_are_the_derivatives_and_within_the_bounds(loss, points, positive, y):
    label = 1.0 if positive else -1.0
    target = torch.tensor(
        label if loss in LABELS + BALANCING else (y + 15) / 30 if loss in SHARES else y, dtype=torch.float64
    )
    u = torch.tensor(points, dtype=torch.float64)
    slopes, step = loss(u, target), 1e-6
    first = (loss(u + step, target).value - loss(u - step, target).value) / (2 * step)
    assert ((slopes.first - first).abs() <= 1e-6 + loss.curvature * step).all()
    change = (loss(u + step, target).first - loss(u - step, target).first) / (2 * step)
    smooth = (loss(u + step, target).second - loss(u - step, target).second).abs() < 1e-3  # not across a corner
    assert ((slopes.second - change).abs()[smooth] <= 1e-5 * loss.curvature).all()
    assert loss in BALANCING or (slopes.value >= 0).all()
    assert (slopes.first.abs() <= loss.slope * (1 + 1e-12)).all()
    assert ((slopes.second >= 0) & (slopes.second <= loss.curvature * (1 + 1e-12))).all()


@pytest.mark.parametrize("loss", [*LABELS, Huber(0.7), CrossEntropy()])
def test_the_bounds_are_attained(loss):
    u = torch.linspace(-4, 4, 8_001, dtype=torch.float64) * (10 if isinstance(loss, Logistic | CrossEntropy) else 1)
    slopes = loss(u, torch.tensor(1.0, dtype=torch.float64))
    assert slopes.first.abs().max().item() == pytest.approx(loss.slope, rel=1e-6)
    assert slopes.second.max().item() == pytest.approx(loss.curvature, rel=1e-6)


def test_losses_at_points_worked_out_by_hand():
    u, one = torch.tensor([-1.0, 0.4, 1.0, 1.2, 1.6], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    assert HuberHinge(0.5)(u, one).value.tolist() == pytest.approx([2.0, 0.6, 0.125, 0.045, 0.0])
    assert HuberHinge(0.5)(-u, -one).value.tolist() == pytest.approx([2.0, 0.6, 0.125, 0.045, 0.0])
    assert Huber(math.inf)(u, one).value.tolist() == pytest.approx((one - u).square().tolist())
    assert Logistic()(800 * one, -one).value.item() == pytest.approx(800.0)  # no overflow
    assert Logistic()(u, one).value.tolist() == pytest.approx([math.log1p(math.exp(-v)) for v in u.tolist()])


def test_cross_entropy_of_labels_is_logistic_and_of_shares_a_mean_of_both():
    u = torch.linspace(-900, 900, 61, dtype=torch.float64)
    ends = [CrossEntropy()(u, torch.tensor(t, dtype=torch.float64)) for t in (0.0, 1.0)]
    for end, label in zip(ends, (-1.0, 1.0), strict=True):
        for found, expected in zip(end, Logistic()(u, torch.tensor(label)), strict=True):
            torch.testing.assert_close(found, expected)
    between = CrossEntropy()(u, torch.tensor(0.3, dtype=torch.float64))
    for found, low, high in zip(between, *ends, strict=True):
        torch.testing.assert_close(found, 0.7 * low + 0.3 * high)
