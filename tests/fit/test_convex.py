import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from tests.sessions import of_ledger
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import BudgetError, NumericalError
from torchdpcate.fit import convex
from torchdpcate.fit.convex import ConvexNuisanceConfig, joint_corners, joint_objective
from torchdpcate.fit.nuisance_kinds import ConvexNuisances
from torchdpcate.privacy.accounting import gaussian_curve
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import JOINT, MEDIAN
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import FixedNoise, NoiseSource

BUDGET = PrivacyBudget(1.0, 1e-5)
DOMAIN = Domain([0.0] * 3, [1.0] * 3, outcome_low=-2.0, outcome_high=2.0, overlap=0.05)
SHARES = {"share": 0.2, "jacobian_share": 0.3}


def generated(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, generator=generator, dtype=torch.float64)
    a = (torch.rand(n, generator=generator, dtype=torch.float64) < 0.3 + 0.4 * x[:, 1]).double()
    y = 3 * x[:, 0] ** 2 * a - x[:, 2] + 0.4 * torch.rand(n, generator=generator, dtype=torch.float64) - 0.2
    return CausalData(x, a, y)


def test_constants_by_hand():
    joint = joint_objective(1350, 15, 1.0, BUDGET, **SHARES)
    epsilon, delta = 0.99 - joint.objective_noise.jacobian, 0.99e-5

    def single(length, sigma):
        r = length / sigma
        return norm.cdf(r / 2 - epsilon / r) - math.exp(epsilon) * norm.cdf(-r / 2 - epsilon / r)

    squared = [(2, 20), (4, 17), (2, 16), (2, 4), (4, 1)]  # alpha = tau = 1: q and q + 16, q = 0, 1, 1, 4
    sigma = brentq(lambda s: sum(c * single(math.sqrt(v), s) for c, v in squared) - delta, 1, 99)
    assert joint.objective_noise.scale == pytest.approx(sigma, rel=1e-8)
    assert joint.objective_noise.scale == pytest.approx(24.961932, rel=1e-7)
    alpha, (first, second) = joint.alpha, joint.ridges
    assert alpha**2 / (alpha**2 + 4) == pytest.approx(0.2)
    assert joint.objective_noise.jacobian == pytest.approx(0.297)
    assert (1 + alpha / 4 / (2 * first)) * (1 + 2 / (2 * second)) == pytest.approx(
        math.exp(joint.objective_noise.jacobian)
    )


def test_large_samples_keep_a_least_ridge_and_give_back_what_it_saves():
    joint = joint_objective(10**7, 15, 1.0, BUDGET, **SHARES)
    assert joint.ridges == (1000.0, 1000.0)
    assert joint.objective_noise.jacobian < 0.002


def problem(generator, n):
    """Features of three constants of propensity and outcomes, [n, 1] each, treatment and targets."""
    psi = 2 * torch.rand(n, 1, generator=generator, dtype=torch.float64) - 1
    s = 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    return psi, (torch.rand(n, generator=generator) < 0.5).double(), s


def linear_term(theta, psi, a, s, joint):
    """b_D(theta) and ln det of minus its Jacobian, theta [k, 3]."""
    u = theta[:, 0, None] * psi[:, 0]
    p = torch.sigmoid(u)
    r = s - torch.where(a == 1, theta[:, 2, None], theta[:, 1, None]) * psi[:, 0]
    tau, (first, second) = joint.threshold, joint.ridges
    b, curvature = [joint.alpha * ((a - p) * psi[:, 0]).sum(1)], [joint.alpha * (p * (1 - p) * psi[:, 0] ** 2).sum(1)]
    for arm in (0, 1):
        own = (a == arm).double() * psi[:, 0]
        b.append((2 * r.clamp(-tau, tau) * own).sum(1))
        curvature.append(2 * ((r.abs() <= tau) * own**2).sum(1))
    ridges = torch.tensor([first, second, second], dtype=torch.float64)
    return torch.stack(b, 1) - 2 * ridges * theta, (torch.stack(curvature, 1) + 2 * ridges).log().sum(1)


def vertices(psi, a, joint):
    """The ends between which one record's gradient lies, [4, 3]."""
    ends = []
    for c in (0.0, joint.alpha * (2 * a - 1)):
        for d in (-2 * joint.threshold, 2 * joint.threshold):
            ends.append([c * psi, d * psi * (1 - a), d * psi * a])
    return torch.tensor(ends, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(4))
def test_sixteen_vertices_and_two_determinants_bound_the_loss(seed):
    generator = torch.Generator().manual_seed(seed)
    joint = joint_objective(4, 3, 0.3, BUDGET, **SHARES)
    psi, a, s = problem(generator, 5)
    psi[:2] = psi[:2].sign()
    theta = 2 * torch.randn(20_000, 3, generator=generator, dtype=torch.float64)
    (b, here), (other, there) = (linear_term(theta, psi[k], a[k], s[k], joint) for k in ([0, 2, 3, 4], [1, 2, 3, 4]))
    scale = joint.objective_noise.scale
    loss = (other.square().sum(1) - b.square().sum(1)) / (2 * scale**2) + here - there
    ends = [vertices(psi[i].item(), a[i].item(), joint) for i in (0, 1)]
    shifts = (ends[0][:, None] - ends[1]).reshape(16, 3)
    most = 2 * joint.gradient_bound
    assert shifts.norm(dim=1).max() <= most + 1e-12
    worst = torch.stack([((b - h).square() - b.square()).sum(1) / (2 * scale**2) for h in shifts]).amax(0)
    assert (loss - worst).max() <= joint.objective_noise.jacobian + 1e-9
    assert (loss - worst).max() > 0  # without epsilon_J it would be wrong


@pytest.mark.parametrize("share", [0.01, 0.2, 0.7])
def test_no_two_records_have_corners_that_cost_more_than_the_worst_ones(share):
    """Random features of both regressions in the unit ball, either arm: the sum of their sixteen points' deltas."""
    tau, alpha, left = 1.0, 2 * math.sqrt(share / (1 - share)), np.array([0.7])
    (corners,), ratio = joint_corners(share), 0.3
    assert corners.points[0] == (2.0, 1.0)
    most, generator = 2 * math.hypot(alpha, 2 * tau), torch.Generator().manual_seed(0)
    found, limit = [], corners.delta(ratio, left).item()

    def total(c, d):
        lengths = (c[:, None] + d).clamp_min(0).sqrt().flatten() / most
        return sum(gaussian_curve(ratio * length, left).item() for length in lengths.tolist() if length > 0)

    for k in range(400):
        features = torch.randn(2, 2, 2, generator=generator, dtype=torch.float64)
        features = features / features.norm(dim=2, keepdim=True)
        if k % 2:
            features = features * torch.rand(2, 2, 1, generator=generator, dtype=torch.float64)
        (p, q), (u, v) = features
        sign = 1.0 if k % 4 < 2 else -1.0  # of the second record's propensity gradient: its arm's
        c = torch.stack([(i * p - sign * j * q).square().sum() for i in (0, alpha) for j in (0, alpha)])
        pairs = [(i, j) for i in (-2 * tau, 2 * tau) for j in (-2 * tau, 2 * tau)]
        if sign > 0:
            d = torch.stack([(i * u - j * v).square().sum() for i, j in pairs])
        else:
            d = torch.stack([(i * u).square().sum() + (j * v).square().sum() for i, j in pairs])
        found.append(total(c, d))
    assert max(found) <= limit
    # one arm, opposite features of the propensity and one of the outcome attain it
    worst = total(torch.tensor([0, 1, 1, 4]).double() * alpha**2, torch.tensor([0, 0, 16, 16]).double() * tau**2)
    assert worst == pytest.approx(limit, rel=1e-9)


def test_an_arm_without_records_gets_the_objective_noise_alone():
    joint = joint_objective(3, 3, 0.3, BUDGET, **SHARES)
    psi, linear_term = torch.ones(3, 1, dtype=torch.float64), torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64)
    theta = joint.minimise((psi, psi), torch.zeros(3), torch.zeros(3, dtype=torch.float64), linear_term[None])[0]
    assert theta[2].item() == pytest.approx(-5 / (2 * joint.ridges[1]))


def solved(b, psi, a, s, joint):
    """The theta [k, 3] whose linear terms are b, by bisection: each coordinate of b falls with its own theta."""
    low, high = torch.full_like(b, -1e3), torch.full_like(b, 1e3)
    for _ in range(80):
        middle = (low + high) / 2
        above = linear_term(middle, psi, a, s, joint)[0] > b
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_delta_of_the_exact_law_is_kept(seed):
    """E max(0, 1 - e^(epsilon - loss)), the exact delta of the pair, by 50,000 draws of the objective noise."""
    generator = torch.Generator().manual_seed(seed)
    delta = 0.02
    joint = joint_objective(5, 3, 0.3, PrivacyBudget(1.0, delta), **SHARES)
    psi, a, s = problem(generator, 6)
    psi[:2], s[:2], a[:2] = torch.tensor([[1.0], [1.0]]), torch.tensor([9.0, -9.0]), float(seed % 2)
    b = joint.objective_noise.scale * torch.randn(50_000, 3, generator=generator, dtype=torch.float64)
    theta = solved(b, psi[[0, 2, 3, 4, 5]], a[[0, 2, 3, 4, 5]], s[[0, 2, 3, 4, 5]], joint)
    (same, here), (other, there) = (
        linear_term(theta, psi[k], a[k], s[k], joint) for k in ([0, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    )
    assert torch.allclose(same, b, atol=1e-6)
    loss = (other.square().sum(1) - b.square().sum(1)) / (2 * joint.objective_noise.scale**2) + here - there
    excess = (1 - torch.exp(1 - loss)).clamp(min=0)
    found, error = excess.mean().item(), excess.std().item() / math.sqrt(50_000)
    assert found + 5 * error < delta
    # the claim is not empty: with the objective noise of four times epsilon it would fail
    assert (1 - torch.exp(0.25 - loss)).clamp(min=0).mean() > delta / 10


def test_the_minimiser_is_that_of_other_libraries():
    data, model = generated(2_000), ConvexNuisances(DOMAIN, degree=2)
    joint = joint_objective(data.n, 18, 0.25, None, **SHARES)
    psi = model.features(data.x)
    theta = joint.draw(psi, data.a, data.y, NoiseSource.system())[0]
    logistic = LogisticRegression(C=joint.alpha / (2 * joint.ridges[0]), fit_intercept=False, tol=1e-10, max_iter=10**4)
    logistic.fit(psi[0].numpy(), data.a.numpy())
    assert torch.allclose(theta[:4], torch.as_tensor(logistic.coef_[0]), atol=1e-5)
    for arm in (0, 1):
        free = theta[4 + 7 * arm : 11 + 7 * arm].clone().requires_grad_()
        r = (data.y - psi[1] @ free)[data.a == arm]
        loss = 2 * torch.nn.functional.huber_loss(r, 0 * r, reduction="sum", delta=0.25)
        (slope,) = torch.autograd.grad(loss + joint.ridges[1] * free.square().sum(), free)
        assert slope.norm() < 1e-4 * joint.ridges[1]


def test_what_is_spent_is_the_budget_and_stands_in_the_ledger():
    ledger, also = Ledger({"n": BUDGET}), ((PureEvent(0.3), 1), (PureEvent(0.05), 1))
    for event, _ in also:
        ledger.charge("n", "others", event)
    ConvexNuisanceConfig().fit(
        generated(300), DOMAIN, budget=BUDGET, also=also, session=of_ledger(ledger, "n", NoiseSource.system())
    )
    assert ledger.spent()["n"]["epsilon"] == pytest.approx(1.0)
    assert ledger.spent()["n"]["epsilon"] <= 1.0
    assert ledger.spent()["n"]["delta"] <= 1e-5
    assert [entry.charge for entry in ledger.entries[2:]] == [MEDIAN, JOINT]


def test_all_that_is_used_of_the_records_passes_as_paid():
    class Nothing(FixedNoise):
        def released(self, output):
            return 0 * output

    model = ConvexNuisanceConfig().fit(generated(300), DOMAIN, budget=BUDGET, session=of_ledger(None, "n", Nothing(0)))
    assert not model.outcomes.any()
    assert not model.propensity.any()


def test_nothing_is_drawn_where_the_ledger_cannot_pay(monkeypatch):
    monkeypatch.setattr(convex, "outcome_median", lambda *_: pytest.fail("drawn"))
    ledger = Ledger({"n": PrivacyBudget(0.5, 1e-5)})
    with pytest.raises(BudgetError):
        ConvexNuisanceConfig().fit(
            generated(300), DOMAIN, budget=BUDGET, session=of_ledger(ledger, "n", NoiseSource.system())
        )


def test_a_fit_that_does_not_converge_releases_nothing(monkeypatch):
    monkeypatch.setattr("torchdpcate.fit.descent._MOST_STEPS", 1)
    monkeypatch.setattr("torchdpcate.fit.descent.descend", lambda evaluate, start, *_: (start, start.norm(dim=1) + 1))
    with pytest.raises(NumericalError, match="nothing is released"):
        ConvexNuisanceConfig().fit(
            generated(300), DOMAIN, budget=BUDGET, session=of_ledger(None, "n", NoiseSource.system())
        )


@pytest.mark.parametrize("epsilon", [1e4, 1e8])
def test_a_budget_without_end_gives_the_fit_without_privacy(epsilon):
    """No number overflows: the ridges are those of a fit without privacy, and so are the coefficients."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2_000, 1, generator=generator, dtype=torch.float64)
    a = (torch.rand(2_000, generator=generator) < 0.3 + 0.4 * x[:, 0]).double()
    data, domain = CausalData(x, a, 0.2 + 0.5 * a * x[:, 0]), Domain([0.0], [1.0], 0.0, 1.0)
    fits = []
    for budget in (None, PrivacyBudget(epsilon, 1e-5)):
        recipe = ConvexNuisanceConfig(degree=1, threshold=1.0)
        found = recipe.fit(data, domain, budget=budget, session=of_ledger(None, "b", NoiseSource.system()))
        fits.append(torch.stack(list(found.predict(x))))
    torch.testing.assert_close(fits[1], fits[0], rtol=0, atol=0.02)
