"""Every scale drawn, against a formula written anew from the theory note and against what was charged for it.

A recording noise source and the charges share one log, so that the order is seen too; what is released less
what was drawn must be the value without noise, so that no draw can be shrunk after it was made.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from tests.privacy.scaled_gaussians import exact_delta
from tests.registered import (
    InfluencePerturbation,
    ObjectivePerturbation,
    OutputPerturbation,
    RLearner,
    SmoothSensitivity,
)
from tests.release.helpers import QUERIES, stage
from tests.sessions import noted
from torchdpcate import LinearSecondStage
from torchdpcate.causal.score import DRScore
from torchdpcate.data.records import public_split
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.papers.oprescu import Dataset1
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import SmoothNoise
from torchdpcate.privacy.events import ApproximateEvent, GaussianEvent, PureEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

# Facts of helpers.DOMAIN: outcome range, and the bounds (B, S) of the two scores with features of norm one.
R, OVERLAP = 4.0, 0.1
R_BOUNDS, DR_BOUNDS = (1 - OVERLAP, R), (1.0, R / OVERLAP)
STEP = R * 2.0**-36  # of the public grid of answers
BUDGETS = [PrivacyBudget(1.0, 1e-5), PrivacyBudget(3.0, 1e-7)]
ANALYTIC = 5e-9  # the library's analytic Gaussian errs by up to 1e-9, upwards


@dataclass(frozen=True, eq=False)
class Charged:
    event: object


@dataclass(frozen=True, eq=False)
class Drawn:
    size: int
    scale: float
    step: float | None
    values: torch.Tensor


@dataclass(frozen=True, eq=False)
class Selected:
    scores: torch.Tensor
    epsilon: float
    sensitivity: float
    index: int


class Recorder(NoiseSource):
    """Fixed noise that says it is private, and keeps what it was requested in the order of asking."""

    private = True

    def __init__(self) -> None:
        self.log: list = []
        self.inner = NoiseSource.fixed(11)

    def charge(self, event, level, count) -> None:
        self.log.append(Charged(event))

    def gaussian(self, size, scale, step=None):
        values = self.inner.gaussian(size, scale, step)
        self.log.append(Drawn(size, scale, step, values.clone()))
        return values

    def laplace(self, size, scale):
        raise AssertionError("no mechanism of this package draws Laplace noise")

    def generator(self, device="cpu"):
        return self.inner.generator(device)

    def permutation(self, n):
        return self.inner.permutation(n)  # the records' own order

    def _bytes(self, count):
        return self.inner._bytes(count)  # the coins of DP-SGD

    def _noisy_max(self, scores, epsilon, sensitivity):
        index = self.inner.select(scores, epsilon, sensitivity)
        self.log.append(Selected(scores.clone(), epsilon, sensitivity, index))
        return index

    _gumbel_max = _noisy_max


def kinds(log: list) -> list[type]:
    return [type(entry) for entry in log]


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """Balle & Wang (2018), theorem 8, as it stands. Its difference loses some 1e-12 of itself here."""
    half, middle = 0.5 / sigma, epsilon * sigma
    return norm.cdf(half - middle) - math.exp(epsilon) * norm.cdf(-half - middle)


def gaussian_sigma(epsilon: float, delta: float) -> float:
    return brentq(lambda s: gaussian_delta(s, epsilon) - delta, 1e-2, 1e5, xtol=1e-13, rtol=1e-14)


def worst_turn(beta: float) -> float:
    """The largest sin t (1 + beta/2 cos t), by search."""
    found = minimize_scalar(
        lambda t: -math.sin(t) * (1 + beta / 2 * math.cos(t)), bounds=(0, math.pi / 2), options={"xatol": 1e-12}
    )
    return -float(found.fun)


def on_a_grid(sensitivity: float, sigma: float, size: int) -> float:
    """The s with s = sigma (Delta + sqrt(p) g), g = 2^-20 s the coarsest grid: dp_cate, section 7."""
    return sensitivity * sigma / (1 - sigma * math.sqrt(size) * 2.0**-20)


def rounded(value: np.ndarray, step: float) -> np.ndarray:
    return np.round(value / step) * step


def grid_step(scale: float) -> float:
    return 2.0 ** (math.floor(math.log2(scale)) - 20)


# Records, ridge and threshold; both scores, which have another B and S, so that constants would show.
STAGES = [
    pytest.param(lambda: stage(400, 0.02, 0.5), R_BOUNDS, id="r"),
    pytest.param(lambda: stage(250, 0.3, 1.7), R_BOUNDS, id="r-strong-ridge"),
    pytest.param(lambda: stage(300, 0.05, 2.5, DRScore), DR_BOUNDS, id="dr"),
]


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize(("make", "bounds"), STAGES)
def test_objective_draws_what_it_charges_for(make, bounds, budget):
    """sigma_b = 4 tau B sigma_AG(epsilon' - ln(1 + B^2/(n ridge)), 3 delta'/4) of 99 % of what is charged, and
    sigma_AG(1 %) (tol / ridge + sqrt(p) grid / (2 n ridge)) on the solution; the two shares compose to the charge by
    adding them."""
    fitted, noise, B = make(), Recorder(), bounds[0]
    head = ObjectivePerturbation().privatize(fitted, budget, noted(noise, noise.charge))
    assert kinds(noise.log) == [Charged, Drawn, Drawn]
    charged, linear_term, cover = noise.log
    assert charged.event == ApproximateEvent(budget.epsilon, budget.delta)

    problem = fitted.problem
    n, p = problem.psi.shape
    tau, ridge, tol = fitted.threshold, fitted.ridge, problem.tolerance
    epsilon, delta = charged.event.epsilon, charged.event.delta
    sigma = gaussian_sigma(0.99 * epsilon - math.log(1 + B**2 / (n * ridge)), 0.99 * delta * 3 / 4)
    assert (linear_term.size, cover.size) == (p, p)
    assert linear_term.scale == pytest.approx(4 * tau * B * sigma, rel=ANALYTIC)
    exact = gaussian_sigma(0.01 * epsilon, 0.01 * delta)
    moved = tol / ridge + math.sqrt(p) * grid_step(linear_term.scale) / 2**12 / (2 * n * ridge)
    assert cover.scale == pytest.approx(on_a_grid(moved, exact, p), rel=ANALYTIC)

    # The solver's noise taken off, theta solves the mean objective perturbed by the full draw, up to the
    # solver's tolerance and half a grid step a coefficient (curvature at most 2 (1 + ridge)).
    theta = (head.output - cover.values).numpy()
    v, s = (problem.w[:, None] * problem.psi).numpy(), problem.s.numpy()
    slopes = -2 * v * np.clip(s - v @ theta, -tau, tau)[:, None]
    gradient = slopes.sum(0) / n + 2 * ridge * theta + linear_term.values.numpy() / n
    allowed = tol + 2 * (1 + ridge) * math.sqrt(p) * grid_step(cover.scale) / 2
    assert np.linalg.norm(gradient) <= allowed * 1.01
    # The check is sharp: half the draw more or less would show.
    assert ridge * cover.values.norm().item() > 10 * allowed


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(("make", "bounds"), STAGES)
def test_output_draws_what_it_charges_for(make, bounds, squared, budget):
    """s = Delta sigma_AG(epsilon, delta), Delta = 2 B tau / (ridge n), or with the squared loss
    2 B S max_t sin t (1 + B cos t / (2 sqrt ridge)) / (ridge n); plus tol / ridge and the rounding."""
    fitted = make().squared() if squared else make()
    noise, (B, S) = Recorder(), bounds
    head = OutputPerturbation().privatize(fitted, budget, noted(noise, noise.charge))
    assert kinds(noise.log) == [Charged, Drawn]
    charged, drawn = noise.log

    sigma = gaussian_sigma(budget.epsilon, budget.delta)
    assert isinstance(charged.event, GaussianEvent)
    assert charged.event.noise_multiplier == pytest.approx(sigma, rel=ANALYTIC)
    assert gaussian_delta(charged.event.noise_multiplier, budget.epsilon) <= budget.delta * (1 + 1e-10)

    n, p = fitted.problem.psi.shape
    ridge, tol = fitted.ridge, fitted.problem.tolerance
    exact = (
        2 * B * S / (ridge * n) * worst_turn(B / math.sqrt(ridge))
        if squared
        else 2 * B * fitted.threshold / (ridge * n)
    )
    multiplier = charged.event.noise_multiplier
    assert drawn.size == p
    # Nothing solved for: the scale follows from the multiplier charged, to rounding.
    assert drawn.scale == pytest.approx(on_a_grid(exact + tol / ridge, multiplier, p), rel=1e-12)
    assert head.noise_scale == drawn.scale

    before = rounded(fitted.theta.numpy(), grid_step(drawn.scale))
    np.testing.assert_array_equal(head.output.numpy(), before + drawn.values.numpy())


@pytest.mark.parametrize("queries", [1, 8])
@pytest.mark.parametrize("budget", [*BUDGETS, PrivacyBudget(20.0, 1e-3)], ids=str)
@pytest.mark.parametrize(("make", "bounds"), STAGES)
def test_smooth_sensitivity_draws_what_it_charges_for(make, bounds, budget, queries):
    """sd = kappa Sigma(D), Sigma from numpy's singular values, kappa by noncentral chi-squares. The solver's stop and
    the rounding are 1e-8 and 1e-10 of it, hence the tolerance below them."""
    fitted, noise, (B, S) = make(), Recorder(), bounds
    answers = SmoothSensitivity().answer(fitted, QUERIES[:queries], budget, noted(noise, noise.charge))
    assert kinds(noise.log) == [Charged, Drawn]
    charged, drawn = noise.log
    assert charged.event == ApproximateEvent(budget.epsilon, budget.delta)

    problem, ridge = fitted.squared().problem, fitted.ridge
    psi, s, J = problem.psi.numpy(), problem.s.numpy(), fitted.features(QUERIES[:queries]).numpy()
    n, p = psi.shape
    v = problem.w.numpy()[:, None] * psi
    A = ridge * np.eye(p) + v.T @ v / n
    eta, shift = B**2 / (n * ridge), 2 * B * S / n * worst_turn(B / math.sqrt(ridge))
    size = np.linalg.svd(J, compute_uv=False)[0]
    extra = size * problem.tolerance / ridge + math.sqrt(min(queries, p)) * STEP
    local = np.linalg.svd(J @ np.linalg.inv(A), compute_uv=False)[0] * shift + extra
    worst = size * shift / ridge + extra
    epsilon, delta = charged.event.epsilon, charged.event.delta
    axes = min(queries, p)
    xi = SmoothNoise(epsilon, delta, axes, eta, n).smoothness
    Sigma = worst * (min(local, worst) / worst) ** min(1.0, xi / math.log(1 + eta))
    assert 0 < xi <= math.log(1 + epsilon / axes) / 2
    assert drawn.size == axes
    assert drawn.step == STEP
    kappa = drawn.scale / Sigma
    assert exact_delta(epsilon, axes, xi, 1 / kappa) <= delta
    assert exact_delta(epsilon, axes, xi, (1 + 1e-5) / kappa) >= delta * (1 - 1e-6) or kappa**-2 > 2 * epsilon * 0.99

    before = J @ np.linalg.solve(A, v.T @ s / n)
    noise = np.linalg.qr(J)[0] @ drawn.values.numpy() if queries > p else drawn.values.numpy()
    off = answers.output.numpy() - noise - before
    assert np.abs(off).max() <= size * problem.tolerance / (2 * ridge) + STEP


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS[:2], ids=str)
def test_influence_draws_what_it_charges_for(budget):
    """sd = gamma 5 sqrt(2 ln n ln(2/delta)) / (epsilon n); tests/heads holds gamma against dense searches."""
    fitted, noise = stage().squared(), Recorder()
    mechanism = InfluencePerturbation(starts=64)
    answers = mechanism.answer(fitted, QUERIES, budget, noted(noise, noise.charge))
    assert kinds(noise.log) == [Charged, Drawn]
    charged, drawn = noise.log
    assert charged.event == ApproximateEvent(budget.epsilon, budget.delta)
    n, gamma = fitted.block.s.shape[0], mechanism.gross_error_sensitivity(fitted, QUERIES)
    multiplier = 5 * math.sqrt(2 * math.log(n) * math.log(2 / budget.delta)) / (budget.epsilon * n)
    assert (drawn.size, drawn.step) == (8, STEP)
    assert drawn.scale == pytest.approx(gamma * multiplier, rel=1e-6)
    # Half a step of rounding, and the last bits of sums as large as the noise.
    assert (answers.output - drawn.values - fitted.features(QUERIES) @ fitted.theta).abs().max().item() <= STEP


@pytest.fixture(scope="module")
def study():
    return Dataset1(n=500, queries=10, seed=3).load()


@pytest.mark.slow
def test_the_threshold_is_selected_at_the_epsilon_charged(study, monkeypatch):
    """Scores -|#{|s| <= t} - q n| on the geometric grid from S / 1000 to S, epsilon the share of the budget;
    then, in the same log, the release: no noise before its charge."""
    noise, charge = Recorder(), Ledger.charge

    def logged(self, block, label, event, *args, **kwargs):
        entry = charge(self, block, label, event, *args, **kwargs)
        noise.log.append(Charged((block, event)))
        return entry

    monkeypatch.setattr(Ledger, "charge", logged)
    quick = NuisanceConfig(width=6, batch_size=50, epochs=1)
    model = RLearner(
        study.domain,
        PrivacyBudget(2.0, 1e-5),
        nuisance=quick,
        second_stage=LinearSecondStage(ridge=0.05),
        noise=noise,
    )
    model.fit(study.records.x, study.records.a, study.records.y)
    assert kinds(noise.log) == [Charged, Charged, Selected]
    (_, paid, selected) = noise.log
    assert paid.event == ("nuisance", PureEvent(2.0 * 0.05))
    # The event as a privacy promise: epsilon at sensitivity 1, the most that one record moves a count.
    assert selected.epsilon / selected.sensitivity == pytest.approx(paid.event[1].epsilon, rel=1e-12)
    assert selected.sensitivity == 1.0

    first, _ = public_split(study.records.n, 0.5, 0)
    x, a, y = (part[first] for part in (study.records.x, study.records.a, study.records.y))
    with torch.no_grad():
        _, mu0, mu1 = model.nuisances_.predict(x)
    s = (y - torch.where(a == 1, mu1, mu0)).abs().numpy()
    R = study.domain.outcome_range
    grid = np.geomspace(R / 1000, R, 200)
    # a and y enter s - w g0 in another order of sums; no |s| lies within rounding of the grid.
    assert np.abs(s[:, None] / grid - 1).min() > 1e-12
    expected = -np.abs((s[:, None] <= grid).sum(0) - 0.9 * len(s))
    # Counts are integers; the target q n is rounded to a multiple of 2^-20.
    np.testing.assert_allclose(selected.scores.numpy(), expected, rtol=0, atol=2.0**-20)
    assert model.threshold_ == pytest.approx(grid[selected.index], rel=1e-12)

    start = len(noise.log)
    model.release_function("objective", PrivacyBudget(1.0, 4e-6))
    assert kinds(noise.log[start:]) == [Charged, Drawn, Drawn]
    assert noise.log[start].event == ("second_stage", ApproximateEvent(1.0, 4e-6))
