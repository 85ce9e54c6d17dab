"""Covariate balancing scoring rules as losses."""

import pytest
import torch

from tests.estimators.average.eight import ETA, PHI, THETA, Z
from torchdpcate.causal.estimand import ATE, ESTIMANDS, make_estimand
from torchdpcate.fit.losses import BalancingLoss

# the note's section 7: sums over the eight records
VALUES = {
    "ATE": (26.32646809, [3.36721163, -4.60379367, 8.07553055]),
    "ATC": (12.43962823, [-1.41962823, -2.26272429, 3.32315408]),
    "ATT": (13.88683986, [4.78683986, -2.34106938, 4.75237647]),
    "ATO": (7.97743419, [0.44128856, -1.05357066, 1.73890968]),
}
SIGNS = 2 * Z - 1


def _sums(loss: BalancingLoss, theta: torch.Tensor) -> tuple[float, torch.Tensor]:
    slopes = loss(PHI @ theta, SIGNS)
    return slopes.value.sum().item(), PHI.T @ slopes.first


@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_values_and_gradients_of_the_note(estimand: str) -> None:
    value, gradient = _sums(BalancingLoss(make_estimand(estimand, ETA)), THETA)
    assert abs(value - VALUES[estimand][0]) < 5e-9
    torch.testing.assert_close(gradient, torch.tensor(VALUES[estimand][1], dtype=torch.float64), atol=5e-9, rtol=0)


def test_values_beyond_the_clip() -> None:
    value, gradient = _sums(BalancingLoss(ATE(ETA)), 4 * THETA)
    assert abs(value - 107.71702739) < 5e-9
    expected = torch.tensor([17.09748017, -11.08388825, 23.09662966], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, atol=5e-9, rtol=0)


@pytest.mark.parametrize("estimand", ["ATE", "ATC", "ATT"])
def test_the_slope_is_the_weight_and_so_the_minimiser_balances(estimand: str) -> None:
    of = make_estimand(estimand, ETA)
    g = torch.linspace(-4, 4, 81, dtype=torch.float64)
    for z in (0.0, 1.0):
        slope = BalancingLoss(of)(g, torch.full_like(g, 2 * z - 1)).first
        torch.testing.assert_close(-(2 * z - 1) * slope, of.weights(g, torch.full_like(g, z)), atol=0, rtol=1e-12)


@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_its_bounds_are_attained_and_no_more(estimand: str) -> None:
    loss = BalancingLoss(make_estimand(estimand, ETA))
    slopes = loss(torch.linspace(-40, 40, 80_001, dtype=torch.float64), torch.tensor([[-1.0], [1.0]]))
    assert 0.999 * loss.slope < slopes.first.abs().max() <= loss.slope * (1 + 1e-12)
    assert 0.998 * loss.curvature < slopes.second.max() <= loss.curvature * (1 + 1e-12)
