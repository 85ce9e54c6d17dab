import math

import pytest
import torch
from sklearn.svm import LinearSVC

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit import minimise as solver
from torchdpcate.fit.descent import newton
from torchdpcate.fit.losses import Huber, HuberHinge, Logistic
from torchdpcate.fit.minimise import default_tolerance, minimise

LOSSES = [HuberHinge(0.5), HuberHinge(0.05), Logistic(), Huber(0.3), Huber(50.0)]


def problem(n=60, p=4, runs=None, seed=0):
    """Features of norm at most one, labels and weights; for many data sets at once with `runs`."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n,) if runs is None else (runs, n)
    psi = torch.randn(*shape, p, dtype=torch.float64, generator=generator)
    psi = psi / psi.norm(dim=-1, keepdim=True)
    noisy = psi[..., 0] - 0.5 * psi[..., -1] + 0.3 * torch.randn(*shape, dtype=torch.float64, generator=generator)
    return psi, noisy.sign(), 2 * torch.rand(*shape, dtype=torch.float64, generator=generator)


def slope(theta, psi, target, weights, loss, gamma, linear_term):
    """One run's gradient, of values that are written out anew."""
    theta = theta.clone().requires_grad_()
    value = (weights * loss(psi @ theta, target).value).sum() + gamma / 2 * theta @ theta + linear_term @ theta
    return torch.autograd.grad(value, theta)[0]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_minimisers_are_where_no_step_leads_on(loss):
    """A convex sum is least where its slope is none."""
    data = problem()
    linear_terms = 3 * torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = minimise(*data, loss, 1.5, linear_terms, 1e-9)
    for theta, linear_term in zip(found, linear_terms, strict=True):
        assert slope(theta, *data, loss, 1.5, linear_term).abs().max() < 1e-7


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_stop_certifies_the_distance_to_the_minimiser(loss):
    data, linear_terms = problem(), torch.zeros(1, 4)
    exact = minimise(*data, loss, 0.2, linear_terms, 1e-12)
    for tolerance in (3.0, 0.3, 1e-3, 1e-6):
        rough = minimise(*data, loss, 0.2, linear_terms, tolerance)
        assert (rough - exact).norm() <= tolerance / 0.2 + 1e-10


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_data_sets_solved_together_are_those_solved_alone(rows, monkeypatch):
    psi, target, weights = problem(runs=5)
    monkeypatch.setattr(solver, "MOST_NUMBERS", rows * psi[0].numel())
    linear_terms, gamma = problem(n=5)[0], torch.linspace(0.5, 3, 5, dtype=torch.float64)
    loss = HuberHinge(0.5)
    together = minimise(psi, target, weights, loss, gamma, linear_terms, 1e-9)
    for k in range(5):
        alone = minimise(psi[k], target[k], weights[k], loss, gamma[k].item(), linear_terms[k : k + 1], 1e-9)
        torch.testing.assert_close(together[k], alone[0], rtol=0, atol=1e-8)
    shared = minimise(psi[0], target[0], weights, loss, 1.0, linear_terms, 1e-9)  # weights alone differ
    alone = minimise(psi[0], target[0], weights[3], loss, 1.0, linear_terms[3:4], 1e-9)
    torch.testing.assert_close(shared[3], alone[0], rtol=0, atol=1e-8)


def test_support_vector_machine_of_scikit_learn():
    """The hinge is the limit of small smoothing h: h/4 away a record, so sqrt(sum w h / (2 gamma)) in theta."""
    psi, target, weights = problem(n=200)
    h, gamma = 1e-6, 2.0
    found = minimise(psi, target, weights, HuberHinge(h), gamma, torch.zeros(1, 4), 1e-9)[0]
    other = LinearSVC(loss="hinge", C=1 / gamma, fit_intercept=False, tol=1e-10, max_iter=10**6, dual=True)
    other.fit(psi.numpy(), target.numpy(), sample_weight=weights.numpy())
    bound = math.sqrt(weights.sum().item() * h / (2 * gamma))
    assert bound < 0.01
    torch.testing.assert_close(found, torch.as_tensor(other.coef_[0]), rtol=0, atol=bound)


def test_more_features_than_records_are_fine_with_a_ridge_alone():
    psi, target, weights = problem(n=6, p=40)
    found = minimise(psi, target, weights, HuberHinge(0.5), 0.1, torch.zeros(1, 40), 1e-9)[0]
    residue = found - psi.T @ torch.linalg.lstsq(psi.T, found).solution[:, None].squeeze(1)
    assert residue.norm() < 1e-7  # without a linear term the minimiser is a sum of records
    for gamma in (0.0, -1.0, torch.tensor([1.0, 0.0])):
        with pytest.raises(InputError, match=r"ridge = .*more features than records"):
            minimise(psi, target, weights, HuberHinge(0.5), gamma, torch.zeros(2, 40), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 5])
def test_hard_cases_meet_the_public_stop(p):
    """Tiny smoothing, tiny ridge, huge linear terms, no weight at all."""
    psi, target, _ = problem(n=3_000, p=p)
    linear_terms = torch.logspace(-3, 6, 10).double()[:, None] * problem(n=10, p=p, seed=3)[0]
    for weights in (torch.full((3_000,), 4.0).double(), torch.zeros(3_000).double()):
        for loss in (HuberHinge(1e-3), Logistic(), Huber(1e-3)):
            stop = default_tolerance(loss.slope, 4.0) + 1e-9 * linear_terms.norm().item()
            found = minimise(psi, target, weights, loss, 1e-3, linear_terms, stop)
            assert bool(torch.isfinite(found).all())


def test_a_fit_that_misses_its_stop_raises():
    """No gradient is of negative length, on any processor."""
    with pytest.raises(NumericalError, match=r"the fit stopped at a .* nothing is released; raise the ridge"):
        minimise(*problem(), HuberHinge(0.5), 3.0, torch.zeros(1, 4), -1.0)


def test_a_point_that_is_not_a_number_is_no_minimiser():
    def evaluate(theta):
        return theta.square().sum(1) / 2, theta * math.nan, theta

    start = torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(NumericalError, match="nothing is released"):
        newton(evaluate, lambda theta, gradient, rest: gradient, start, 1e-9)


def test_newton_steps_back_where_a_full_step_overshoots():
    """sqrt(1 + t^2): full Newton steps diverge from beyond 1."""

    def evaluate(theta):
        root = (1 + theta.square()).sqrt()
        return root.sum(1), theta / root, root**-3

    start = torch.tensor([[0.5], [3.0], [-50.0]], dtype=torch.float64)
    theta, norm = newton(evaluate, lambda theta, gradient, second: gradient / second, start, 1e-9)
    assert (theta.abs() <= 1e-8).all()
    assert (norm <= 1e-9).all()
