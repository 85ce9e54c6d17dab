"""The linear head against the theory note, scikit-learn, and worst neighbours."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tests.heads.cases import real
from torchdpcate.errors import InputError
from torchdpcate.heads import linear
from torchdpcate.heads.linear import (
    LinearProblem,
    huber_sensitivity,
    sensitivity,
    solve,
    solve_perturbed,
    squared_sensitivity,
)
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma


def note_problem(threshold: float) -> LinearProblem:
    """Test value 5 of the theory note."""
    t = real(0, 0.7, 1.9, 2.6)
    psi = torch.stack([t.cos(), t.sin()], 1)
    return LinearProblem(psi, real(0.5, -0.8, 0.9, 0.3), real(0.6, -0.4, 0.9, -0.7), 0.05, 0.9, 1.0, threshold)


def random_problem(threshold: float = math.inf, n: int = 200, p: int = 7, ridge: float = 0.01) -> LinearProblem:
    generator = torch.Generator().manual_seed(3)
    psi = torch.randn(n, p, dtype=torch.float64, generator=generator)
    psi = psi / psi.norm(dim=1, keepdim=True).clamp(min=1)
    w = torch.rand(n, dtype=torch.float64, generator=generator) * 1.8 - 0.9
    s = (torch.randn(n, dtype=torch.float64, generator=generator)).clamp(-1, 1)
    return LinearProblem(psi, s, w, ridge, 0.9, 1.0, threshold)


@pytest.mark.parametrize(
    ("threshold", "expected"), [(math.inf, (0.7867975938, 1.0407157720)), (0.15, (0.6688521105, 0.6145083774))]
)
def test_heads_of_the_theory_note(threshold, expected):
    theta = solve(note_problem(threshold)).theta
    torch.testing.assert_close(theta, real(*expected), rtol=0, atol=5e-11)


@pytest.mark.parametrize("threshold", [0.05, math.inf])
def test_more_features_than_records_are_fitted_exactly(threshold):
    """Woodbury's identity: the gradient, by autograd, vanishes."""
    problem = random_problem(threshold, n=60, p=200)
    theta = solve(problem).theta.requires_grad_()
    r, tau = problem.s - problem.v @ theta, min(threshold, 1e6)
    loss = torch.where(r.abs() <= tau, r.square(), 2 * tau * r.abs() - tau**2)
    objective = loss.mean() + problem.ridge * theta.square().sum()
    (gradient,) = torch.autograd.grad(objective, theta)
    assert gradient.norm().item() <= 1.01 * problem.tolerance


@pytest.mark.parametrize("threshold", [0.02, 0.3, 5.0])
def test_huber_head_minimises_its_objective(threshold):
    problem = random_problem(threshold)

    def objective(theta):
        r = np.abs(problem.s.numpy() - problem.v.numpy() @ theta)
        loss = np.where(r <= threshold, r**2, 2 * threshold * r - threshold**2)
        return loss.mean() + problem.ridge * theta @ theta

    fit = solve(problem)
    found = minimize(objective, np.zeros(7), method="BFGS", options={"gtol": 1e-9})
    assert objective(fit.theta.numpy()) <= found.fun + 1e-14
    np.testing.assert_allclose(fit.theta.numpy(), found.x, atol=1e-6)
    assert fit.gradient_norm <= problem.tolerance


def test_a_linear_term_shifts_the_quadratic_minimiser_by_its_closed_form():
    problem = random_problem()
    linear_term = torch.linspace(-1, 1, 7, dtype=torch.float64)
    shift = torch.linalg.solve(problem.curvature, linear_term) / 2
    perturbed = solve_perturbed(problem, torch.stack([linear_term, -linear_term]))
    moved = solve(problem).theta + torch.stack([-shift, shift])
    torch.testing.assert_close(perturbed, moved, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("p", [7, 300])  # fewer and more features than records
def test_solves_with_the_curvature_are_its_inverse(p):
    problem = random_problem(p=p)
    rhs = torch.randn(3, p, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(problem.solve_curvature(rhs) @ problem.curvature, rhs, rtol=1e-9, atol=1e-10)
    v = problem.v
    expected = v.T @ v / problem.n + problem.ridge * torch.eye(p, dtype=torch.float64)
    torch.testing.assert_close(problem.curvature, expected, rtol=1e-12, atol=1e-14)


def test_sensitivity_covers_the_solvers_inexactness():
    problem = random_problem(0.3)
    exact = huber_sensitivity(0.9, 0.3, problem.ridge, problem.n)
    assert sensitivity(problem) == pytest.approx(exact + problem.tolerance / problem.ridge, rel=1e-15)


@pytest.mark.parametrize("ridge", [1e-3, 0.05, 0.3, 1.0, 30.0])
def test_no_two_records_pull_further_apart_than_the_squared_sensitivity(ridge):
    """||v'r' - vr|| at one theta as long as it gets, over random pairs of any angles and lengths."""
    B, S, n, runs = 0.9, 1.3, 50, 200_000
    generator = torch.Generator().manual_seed(0)
    theta = torch.tensor([S / (2 * math.sqrt(ridge)), 0.0, 0.0], dtype=torch.float64)
    v = torch.randn(2, runs, 3, generator=generator, dtype=torch.float64)
    longest = torch.rand(2, runs, 1, generator=generator, dtype=torch.float64) < 0.7
    lengths = torch.where(longest, 1.0, torch.rand(2, runs, 1, generator=generator, dtype=torch.float64))
    v = B * lengths * v / v.norm(dim=-1, keepdim=True)
    s = S * (2.0 * torch.randint(0, 2, (2, runs), generator=generator) - 1)
    pulls = v * (s - v @ theta)[..., None]
    most = (pulls[0] - pulls[1]).norm(dim=-1).max() / (ridge * n)
    bound = squared_sensitivity(B, S, ridge, n)
    assert 0.9 * bound < most <= bound * (1 + 1e-12)
    assert bound <= 2 * B * S / (ridge * n) * (1 + B / (4 * math.sqrt(ridge)))  # of section 3.3 of the note
    steps = torch.linspace(0, math.pi, 100_001, dtype=torch.float64)
    scan = (steps.sin() * (1 + B / (2 * math.sqrt(ridge)) * steps.cos())).max().item()
    assert bound == pytest.approx(2 * B * S / (ridge * n) * scan, rel=1e-9)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_perturbed_huber_fits_solved_together_are_stationary(rows, monkeypatch):
    """The gradient is autograd's, so that the solver does not judge itself; chunks of any size agree."""
    problem = random_problem(0.1)
    monkeypatch.setattr(linear, "_MOST_NUMBERS", rows * problem.v.numel())
    linear_terms = torch.randn(20, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.3
    thetas = solve_perturbed(problem, linear_terms).requires_grad_()
    residual = problem.s - thetas @ problem.v.T
    tau = problem.threshold
    loss = torch.where(residual.abs() <= tau, residual.square(), 2 * tau * residual.abs() - tau**2).mean(1)
    objective = loss + problem.ridge * thetas.square().sum(1) + (linear_terms * thetas).sum(1)
    (gradient,) = torch.autograd.grad(objective.sum(), thetas)
    assert gradient.norm(dim=1).max().item() <= 1.01 * problem.tolerance
    assert thetas.std(0).min().item() > 0.01


def test_a_fit_ends_where_newton_steps_do_not(monkeypatch):
    """A refusal would depend on the records: gradient steps finish, as many as public facts bound."""
    monkeypatch.setattr("torchdpcate.fit.descent._MOST_STEPS", 0)
    for threshold in (0.1, math.inf):
        problem = random_problem(threshold)
        fit = solve(problem)
        assert fit.gradient_norm <= problem.tolerance
        linear_terms = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert torch.isfinite(solve_perturbed(problem, 0.01 * linear_terms)).all()


def test_steps_that_lower_value_and_gradient_in_turns_end():
    """Tiny thresholds and ridges, where accepting either made Newton's method cycle in one draw of a hundred."""
    generator = torch.Generator().manual_seed(0)
    for ridge, tau, n in ((0.012, 0.0127, 51), (0.02, 0.01, 35), (0.01, 0.02, 25)):
        psi = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        s = torch.rand(n, generator=generator, dtype=torch.float64) * 2 - 1
        problem = LinearProblem(psi / psi.norm(dim=1, keepdim=True), s, torch.full_like(s, 0.9), ridge, 0.9, 1.0, tau)
        spread = 4 * tau * 0.9 * 8 / n
        linear_terms = torch.randn(3_000, 3, generator=generator, dtype=torch.float64) * spread
        assert bool(torch.isfinite(solve_perturbed(problem, linear_terms)).all())


def test_ridge_worked_out_gives_the_noise_ratio():
    """sd = Delta sigma_AG = (2 B tau / (ridge n)) sigma_AG is noise_ratio thresholds."""
    budget = PrivacyBudget(1.0, 1e-5)
    ridge = LinearSecondStage(noise_ratio=0.3).ridge_for(0.9, 1350, budget)
    sd = huber_sensitivity(0.9, 2.0, ridge, 1350) * analytic_gaussian_sigma(1.0, 1e-5)
    assert sd == pytest.approx(0.3 * 2.0, rel=1e-12)
    assert LinearSecondStage(ridge=0.5).ridge_for(0.9, 1350, budget) == 0.5


def problem(ridge=0.1, *threshold):
    return LinearProblem(real(1.0)[:, None], real(1.0), real(1.0), ridge, 1.0, 1.0, *threshold)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        *((problem, {"ridge": ridge}, r"second_stage\.ridge") for ridge in (0.0, -1.0, math.inf, math.nan)),
        (lambda: problem(0.1, 0.0), {}, r"second_stage\.threshold = 0"),
        (LinearSecondStage, {"ridge": 0.0}, r"second_stage\.ridge = 0"),
        (LinearSecondStage, {"noise_ratio": -1.0}, r"second_stage\.noise_ratio = -1"),
        (LinearSecondStage, {"loss": "absolute"}, r"second_stage\.loss = absolute"),
        (LinearSecondStage, {"threshold": -1.0}, r"second_stage\.threshold = -1"),
        (LinearSecondStage, {"loss": "squared", "threshold": 1.0}, "the squared loss has none"),
    ],
)
def test_bad_settings_are_refused(make, settings, message):
    with pytest.raises(InputError, match=message):
        make(**settings)
