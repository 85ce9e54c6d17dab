"""Compositions of pure events, delta = 0: plan, noise, perturbed objectives, what is charged and released."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from tests.composition.cases import rows
from tests.sessions import noted
from torchdpcate import RLearner
from torchdpcate.composition.builder import composed_plan
from torchdpcate.composition.linear_fit import FitPlan, HuberFit, LinearFit, LogisticFit
from torchdpcate.composition.priors import EmpiricalBayes
from torchdpcate.composition.pure_fits import (
    LARGEST,
    PerturbedObjectiveSolver,
    cut_weights,
    least_ridge,
    objective_noise,
)
from torchdpcate.composition.settings import AdaptiveSecondStage, Additive, WideAndDeep
from torchdpcate.composition.steps import EpsilonShares, NoisySteps, Statistic
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.private_fit import logistic_jacobian
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import GaussianEvent, PureEvent
from torchdpcate.privacy.mechanisms import KNormMechanism, LaplaceMechanism
from torchdpcate.privacy.noise import NoiseSource

ONE = PrivacyBudget(1.0, 0.0)
DOMAIN = Domain([0.0] * 3, [1.0] * 3, -2.0, 3.0, overlap=0.2, better="higher")


def plan_of(p: int, ridge: float, step: str = "effect") -> FitPlan:
    return FitPlan(step, torch.ones(p).double(), torch.full((p,), ridge).double(), 1, 0, 0.2, 0.25)


def fit_of(kind: type[LinearFit], n: int, p: int, seed: int = 0, slope: float = 1.0) -> LinearFit:
    """Return a fit of random records, some of them with long predictors."""
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(n, p, generator=generator, dtype=torch.float64)
    g = g * torch.rand(n, 1, generator=generator, dtype=torch.float64) * 4
    targets = 2 * torch.randn(n, generator=generator, dtype=torch.float64)
    targets = (targets > 0).double() if kind is LogisticFit else targets
    return kind(g, 1 / g.norm(dim=1), targets, slope)


def test_shares_of_epsilon_add_up():
    shares = EpsilonShares(2.0, {"a": 0.3, "b": 0.7})
    event = shares.event("b", 0.5, 4)
    assert isinstance(event, PureEvent)
    assert event.epsilon == pytest.approx(2 * 0.7 * 0.5 / 4, rel=1e-8)
    assert 4 * shares.cost(event) == pytest.approx(shares.due("b") / 2, rel=1e-8)
    assert shares.event("a").epsilon + shares.event("b").epsilon <= 2.0
    with pytest.raises(TypeError):
        shares.cost(GaussianEvent(1.0))


@pytest.mark.parametrize(("size", "mechanism"), [(1, LaplaceMechanism), (5, KNormMechanism)])
def test_a_pure_step_adds_k_norm_noise_of_its_sensitivity(size, mechanism, monkeypatch):
    drawn = []
    monkeypatch.setattr(mechanism, "_noise", lambda self, like, scale, noise: drawn.append(scale) or like * 0)
    steps = NoisySteps(noted(NoiseSource.system(), lambda *_: None), EpsilonShares(0.5, {"moments": 0.4}))
    steps.total("moments", rows(torch.zeros(1, size)), Threefold())
    assert drawn == [pytest.approx(3.0 / 0.2, rel=1e-4)]  # sensitivity over epsilon
    deviation = math.sqrt(2.0) if size == 1 else math.sqrt(size + 1)
    assert steps.scale("moments", 3.0, size) == pytest.approx(deviation * 3.0 / 0.2)


def test_a_plan_divides_epsilon_and_pays_for_no_known_propensity():
    for known in (False, True):
        for n, q in ((100, 1), (1_500, 6), (16_000, 40)):
            plan = composed_plan(n, ONE, q, known_propensity=known)
            assert math.fsum(plan.shares.shares.values()) == pytest.approx(1)
            assert math.fsum(plan.shares.event(step).epsilon for step in plan.shares.shares) <= 1.0
            assert ("propensity" in plan.shares.shares) == (not known)


class Threefold(Statistic):
    """A sum of covariates that a record moves by three."""

    def moved(self):
        return 3.0, 0, 0.0

    def __call__(self, batch):
        return batch.x.sum(0)


# -- perturbed objectives


class Fixed(type(NoiseSource.system())):
    """Noise that is a given linear term, and none to hide the solver's stop."""

    def __init__(self, b: Tensor) -> None:
        self.b, self.left = b, 1

    def k_norm(self, size: int, dimension: int, scale: float, order: float = 2.0, step=None) -> Tensor:
        self.left -= 1
        return self.b[None] if self.left == 0 else torch.zeros(size, dimension, dtype=torch.float64)


@pytest.mark.parametrize(("kind", "slope"), [(HuberFit, 1.0), (LogisticFit, 1.0), (LogisticFit, 0.7)])
def test_the_answer_minimises_the_sum_with_its_linear_term_and_every_ridge(kind, slope):
    fit, p = fit_of(kind, 200, 3, slope=slope), 3
    plan = FitPlan("effect", torch.ones(p).double(), torch.tensor([30.0, 90.0, 400.0]).double(), 1, 0, 0.2, 0.25)
    b = torch.tensor([4.0, -9.0, 2.0], dtype=torch.float64)
    paid = []
    steps = NoisySteps(noted(Fixed(b), lambda *what: paid.append(what)), EpsilonShares(1.0, {"effect": 0.5}))
    theta = PerturbedObjectiveSolver().solve(fit, plan, steps)
    weights = cut_weights(fit.predictors, fit.weights)

    def value(t: np.ndarray) -> float:
        t = torch.from_numpy(t)
        return float(weights @ fit.losses(fit.predictors @ t) + (plan.ridge * t) @ t / 2 + b @ t)

    assert theta.numpy() == pytest.approx(minimize(value, np.zeros(p), tol=1e-12).x, abs=1e-4)
    assert [event.epsilon for _, event, _, count in paid for _ in range(count)] == [pytest.approx(0.5)]


@pytest.mark.first(3)
@pytest.mark.parametrize(("kind", "slope"), [(HuberFit, 1.0), (LogisticFit, 1.0), (LogisticFit, 0.7)])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_no_neighbours_are_told_apart_by_more_than_epsilon(kind, slope, p):
    """The exact log ratio of the densities of the minimiser at any point, over pairs of records and points.

    Of theta under F + b'theta with p(b) = exp(-|b|/s): ln p = -|F'(theta)|/s + ln det F''(theta).
    """
    epsilon, ridge = 0.8, 12.0
    plan, others = plan_of(p, ridge), fit_of(kind, 30, p, seed=9, slope=slope)
    noise = objective_noise(others, plan, PureEvent(epsilon))

    def law(record: LinearFit, theta: Tensor) -> float:
        gradient, hessian = ridge * theta, ridge * torch.eye(p).double()
        for fit in (others, record):
            cut = kind(fit.predictors, cut_weights(fit.predictors, fit.weights), fit.targets, fit.slope)
            gradient, hessian = gradient + cut.gradient(theta), hessian + cut.hessian(theta)
        return float(-gradient.norm() / noise.scale + torch.linalg.slogdet(hessian).logabsdet)

    worst = 0.0
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        theta = torch.randn(p, generator=generator, dtype=torch.float64) * 10.0 ** float(seed % 4 - 2)
        pair = [law(fit_of(kind, 1, p, seed=10 * seed + k, slope=slope), theta) for k in (0, 1)]
        worst = max(worst, abs(pair[0] - pair[1]))
    # the worst of both at once: gradients that point against each other, far out, and one of them without curvature
    assert 0.3 * epsilon < worst <= epsilon * 0.99
    huber, logistic = math.log1p(LARGEST / ridge), logistic_jacobian(0.99 * epsilon, LARGEST, ridge, slope)
    assert noise.jacobian == pytest.approx(huber if kind is HuberFit else logistic)
    assert 1 / noise.scale == pytest.approx((0.99 * epsilon - noise.jacobian) / (2 * slope))


def test_a_binary_outcome_s_least_ridge_costs_less_than_apart():
    """Slope and curvature of one logistic record share epsilon: a fifth for determinants apart, 3 % together."""
    fit, epsilon = fit_of(LogisticFit, 10, 2), 0.8
    noise = objective_noise(fit, plan_of(2, least_ridge(epsilon, 0.25)), PureEvent(epsilon))
    assert noise.jacobian / epsilon == pytest.approx(0.034, abs=2e-3)
    assert noise.scale == pytest.approx(0.83 * 2 / (0.8 * 0.99 * epsilon), rel=0.01)


def test_the_worst_pair_reaches_epsilon():
    """One coefficient: a record that pulls down just inside its clip, against one that pulls up with no curvature."""
    epsilon, ridge, theta = 0.8, 12.0, torch.tensor([5.0]).double()
    g = torch.full((1, 1), LARGEST).double()  # its weight 1/|g| leaves w g^2 = LARGEST
    scores = g[0] * theta
    fits = [HuberFit(g, 1 / g[:, 0], scores + offset, 1.0) for offset in (1 - 1e-9, -9)]
    noise = objective_noise(fits[0], plan_of(1, ridge), PureEvent(epsilon))
    laws = [
        float(-(ridge * theta + fit.gradient(theta)).norm() / noise.scale + (ridge + fit.hessian(theta)).log()[0, 0])
        for fit in fits
    ]
    assert laws[0] - laws[1] == pytest.approx(0.99 * epsilon, rel=1e-6)
    assert laws[0] - laws[1] <= 0.99 * epsilon


def test_fits_and_events_of_another_kind_are_refused():
    class Other(HuberFit):
        pass

    fit = fit_of(HuberFit, 5, 1)
    with pytest.raises(InputError, match="neither"):
        objective_noise(Other(fit.predictors, fit.weights, fit.targets, 1.0), plan_of(1, 9.0), PureEvent(1.0))
    with pytest.raises(InputError, match="pure event"):
        objective_noise(fit, plan_of(1, 9.0), GaussianEvent(1.0))
    with pytest.raises(InputError, match="ridge"):
        objective_noise(fit, plan_of(1, 0.1), PureEvent(1.0))


# -- fits


def records(n: int, q: int = 3, seed: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, q, generator=generator, dtype=torch.float64)
    a = (torch.rand(n, generator=generator) < 0.3 + 0.4 * x[:, 0]).double()
    y = x[:, 0] + a * (2 * x[:, 0] - 1) + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, a, y.clamp(-2, 3)


def test_the_effect_is_found():
    x, a, y = records(4_000)
    noise = NoiseSource.fixed(1)
    release = RLearner(DOMAIN, PrivacyBudget(4.0, 0.0), noise=noise).fit(x, a, y).release_function()
    constant = RLearner(DOMAIN, PrivacyBudget(4.0, 0.0), second_stage=AdaptiveSecondStage(True), noise=noise)
    constant = constant.fit(x, a, y).release_function()
    truth = 2 * x[:, 0] - 1
    error = float((release.effect_tensor(x) - truth).square().mean().sqrt())
    assert error < 0.25
    assert error < 0.6 * float((constant.effect_tensor(x) - truth).square().mean().sqrt())


def test_what_has_no_pure_version_is_refused_before_anything_is_spent():
    x, a, y = records(100)
    trial = Domain([0.0] * 3, [1.0] * 3, -2.0, 3.0, propensity=0.5, better="higher")
    for domain, settings in ((DOMAIN, {"nuisance": WideAndDeep()}), (trial, {"intervals": True})):
        learner = RLearner(domain, ONE, second_stage=AdaptiveSecondStage(**settings))
        with pytest.raises(InputError, match=r"delta"):
            learner.fit(x, a, y)
        assert not hasattr(learner, "ledger_")
    assert isinstance(AdaptiveSecondStage().learnt_by(ONE)[1], Additive)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("t", "mean"),
    [
        ((1.0, -0.5, 0.2), (0.50101118, -0.13995869, 0.04641532)),  # composed_estimator, section 2.8
        ((0.1, -0.05, 0.2), (0.00265359, -0.00131143, 0.00556593)),
    ],
)
def test_numbers_of_the_note(t, mean):
    found = EmpiricalBayes(0.5).mean(vector(*t), torch.full((3,), 0.1).double(), torch.ones(3).double())
    assert torch.allclose(found, vector(*mean), atol=1e-8)
