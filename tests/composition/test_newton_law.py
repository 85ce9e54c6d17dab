"""The law of the mean of noisy Newton points of a quadratic sum."""

import pytest
import torch

from torchdpcate.composition.linear_fit import FitPlan, NewtonPoints, newton_law

STEPS, WARM = 12, 3


def _plan(burn_in=WARM, momentum=0.0):
    scaling = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    curvature = scaling.diag()
    curvature[0, 1] = curvature[1, 0] = 0.3
    ridge = torch.tensor([0.1, 0.2, 0.05], dtype=torch.float64)
    share = 0.2 if burn_in else 0.0
    return FitPlan("outcome", scaling, ridge, STEPS, burn_in, share, 0.27, curvature, momentum)


def _hessian():
    return torch.tensor([[1.8, 0.5, 0.1], [0.5, 0.9, -0.1], [0.1, -0.1, 0.6]], dtype=torch.float64)


def _run(plan, b, noise):
    """The mean of Newton points of a quadratic sum, noise [steps, p] in its gradients; its size is never cut."""
    points = NewtonPoints(plan)
    points._against = 2.0
    for row in noise:
        points.step(_hessian() @ points.theta - b + row)
    return points.mean


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("burn_in", [0, WARM])
def test_newton_points_of_a_quadratic_sum_have_the_law(burn_in, momentum):
    plan, none = _plan(burn_in, momentum), torch.zeros(STEPS, 3, dtype=torch.float64)
    response, covariance = newton_law(plan, _hessian(), 1.5)
    b = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    assert torch.allclose(response @ b, _run(plan, b, none), atol=1e-12)
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for j in range(STEPS):
        variance = 1.5**2 * (burn_in / 0.2 if j < burn_in else (STEPS - burn_in) / (0.8 if burn_in else 1.0))
        for k in range(3):
            unit = none.clone()
            unit[j, k] = 1
            moved = _run(plan, 0 * b, unit)
            expected += variance * moved.outer(moved)
    assert torch.allclose(covariance, expected, atol=1e-12)
