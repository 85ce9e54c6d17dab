"""Where Newton's method ends early, gradient steps finish the fit: on all data, within a count that is known before."""

import math

import pytest
import torch

from torchdpcate.errors import NumericalError
from torchdpcate.fit import descent
from torchdpcate.fit.descent import newton
from torchdpcate.fit.losses import CrossEntropy, HuberHinge, Logistic
from torchdpcate.fit.minimise import minimise, minimise_batches


def problem(n=60, p=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    psi = torch.randn(n, p, dtype=torch.float64, generator=generator)
    return psi / psi.norm(dim=1, keepdim=True), (torch.rand(n, generator=generator) < 0.7).double() * 2 - 1


TILTS = torch.tensor([[0.0] * 4, [3.0, -1.0, 2.0, 5.0], [40.0, 0.0, 0.0, 0.0]], dtype=torch.float64)


@pytest.mark.first(1)
@pytest.mark.parametrize("loss", [HuberHinge(0.05), Logistic(), CrossEntropy()], ids=repr)
@pytest.mark.parametrize("streamed", [False, True])
def test_gradient_steps_finish_what_newton_steps_leave(loss, streamed, monkeypatch):
    psi, target = problem()
    target = (target + 1) / 2 if loss == CrossEntropy() else target

    def fit():
        if streamed:
            return minimise_batches(lambda: [(psi[:25], target[:25]), (psi[25:], target[25:])], loss, 0.3, TILTS, 1e-8)
        return minimise(psi, target, torch.ones(60), loss, 0.3, TILTS, 1e-8)

    exact = fit()
    for steps in (0, 1):
        monkeypatch.setattr(descent, "_MOST_STEPS", steps)
        assert (fit() - exact).norm(dim=1).max() <= 2e-8 / 0.3


@pytest.mark.slow
def test_newton_steps_that_lead_astray_are_left_behind():
    """The kinked hinge, with steps uphill and steps that are no number: the start is as good as any other point."""

    def evaluate(theta):
        slopes = HuberHinge(0.01)(theta, torch.ones(1, 1))
        return slopes.value.sum(1) + 0.05 * theta.square().sum(1), slopes.first + 0.1 * theta, theta

    start = torch.tensor([[-3.0], [0.5], [20.0]], dtype=torch.float64)
    ends = torch.full((3,), 0.1, dtype=torch.float64), torch.full((3,), 50.1, dtype=torch.float64)
    for astray in (lambda theta, gradient, _: -1e6 * gradient, lambda theta, gradient, _: gradient * math.nan):
        theta, norm = newton(evaluate, astray, start, 1e-9, bounds=lambda: ends)
        assert bool((norm <= 1e-9).all())
        torch.testing.assert_close(theta, theta[:1].expand(3, 1), rtol=0, atol=2e-8)
        with pytest.raises(NumericalError, match="nothing is released"):
            newton(evaluate, astray, start, 1e-9)


@pytest.mark.parametrize("condition", [1.0, 10.0, 1e4])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-9])
def test_the_counted_steps_are_enough_and_not_far_too_many(condition, tolerance):
    """A quadratic with eigenvalues mu, ..., L, in whose worst directions the rate is attained; and a wrong L fails."""
    scales = torch.logspace(0, math.log10(condition), 12, dtype=torch.float64)
    calls = []

    def evaluate(theta):
        calls.append(1)
        return (scales * theta.square()).sum(1) / 2, scales * theta, theta

    start = torch.tensor([[1.0] * 12, [1e4] * 12], dtype=torch.float64)
    ends = [torch.full((2,), end, dtype=torch.float64) for end in (1.0, condition)]
    steep = evaluate(start)[1].norm(dim=1)
    calls.clear()
    norm = descent.descend(evaluate, start, tolerance, *ends, steep)[1]
    assert bool((norm <= tolerance).all())
    bound = 3 + math.ceil(2 * math.sqrt(condition) * math.log(3 * math.sqrt(2) * condition * steep.max() / tolerance))
    assert len(calls) <= bound
    if condition > 1:
        assert len(calls) > bound / 4
        assert not bool(
            (descent.descend(evaluate, start, tolerance, ends[0], ends[1] / 4, steep)[1] <= tolerance).all()
        )


def test_the_count_has_a_public_bound(monkeypatch):
    """n, the largest weight and gamma bound it, whatever the records: for every data set it is no larger."""
    monkeypatch.setattr(descent, "_MOST_STEPS", 0)
    counts = []
    plain = descent.descend

    def counted(evaluate, start, tolerance, least, most, steepness):
        counts.append((most / least).max().item())
        assert bool((steepness <= 60 + 10).all())
        return plain(evaluate, start, tolerance, least, most, steepness)

    monkeypatch.setattr(descent, "descend", counted)
    for seed in range(5):
        psi, target = problem(seed=seed)
        minimise(psi, target, torch.ones(60), Logistic(), 0.5, TILTS[1:2], 1e-6)
    assert max(counts) <= (60 / 4 + 0.5) / 0.5 * (1 + 1e-12)
