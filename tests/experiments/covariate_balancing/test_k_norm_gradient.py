"""The K-norm gradient mechanism: what it costs, what it refuses, what it draws."""

import math

import pytest
import torch

from experiments.covariate_balancing import k_norm_gradient as worst_case_gradient
from experiments.covariate_balancing.gradient_sampler import CurvedBalancingLoss, GradientSampler, cell_loss
from experiments.covariate_balancing.k_norm_gradient import KNormGradient, gradient_sensitivity, solver_cover
from tests.estimators.average import eight
from tests.estimators.average.confounded import FEATURES
from torchdpcate import NoiseSource, PrivacyBudget
from torchdpcate.audit.attack import audit
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.fit.losses import BalancingLoss
from torchdpcate.fit.stacked_records import arm
from torchdpcate.privacy.worst_case import WorstCase

ATE = BalancingLoss(make_estimand("ATE", 0.1))
ONE = PrivacyBudget(1.0, 0.0)
CASE = WorstCase("k_norm_gradient", KNormGradient, "Neyman-Pearson", "a record apart", worst_case_gradient._gradient)


def test_log_density_of_the_note():
    """Of phi = sqrt(2) psi on the ball: Delta = 28.28427125."""
    delta = math.sqrt(2) * gradient_sensitivity(ATE, 1.0, 2)
    assert delta == pytest.approx(28.28427125, abs=1e-8)
    theta = torch.stack([eight.THETA, torch.zeros(3, dtype=torch.float64)])
    sizes = eight.RECORDS.slopes(ATE, arm, theta)[1].norm(dim=1)
    assert (-(sizes[0] - sizes[1]) / (2 * delta)).item() == pytest.approx(-0.06297076, abs=1e-8)


def moved(loss, region, order, tries, generator):
    """How far replacing one record moves the gradient: corners and points of the domain, both arms, theta anywhere."""
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 4)
    x = torch.cat([corners, 2 * torch.rand(40, 4, generator=generator, dtype=torch.float64) - 1])
    psi, t = FEATURES(x).repeat(2, 1), torch.ones(2 * len(x)).double()
    t[: len(x)] = -1
    theta = torch.randn(tries, 5, generator=generator, dtype=torch.float64)
    theta = theta / region.norm(theta)[:, None] * region.radius  # at the edge, where weights are largest
    theta[:2] = torch.eye(5).double()[0] * region.radius
    theta[0] *= -1
    pulls = loss(theta @ psi.T, t).first[:, :, None] * psi
    return max(torch.cdist(p, p, p=order).amax().item() for p in pulls)


@pytest.mark.parametrize("estimand", ["ATE", "ATT", "ATC"])
@pytest.mark.parametrize("order", [2, math.inf])
def test_no_record_moves_the_gradient_by_more_than_its_sensitivity(estimand, order):
    loss = CurvedBalancingLoss(make_estimand(estimand, 0.1))
    fit = KNormGradient(order)
    region = sampler_of(loss).region
    delta = gradient_sensitivity(loss, FEATURES.largest_entry, order)
    worst = moved(loss, region, order, 200, torch.Generator().manual_seed(1))
    assert worst <= delta * (1 + 1e-12)
    # attained in the largest entry; the intercept, which does not turn, takes a little of the length
    assert worst == pytest.approx(delta * (1 if order == math.inf else math.sqrt(4 / 5)), rel=1e-9)
    assert fit.order == order


def sampler_of(loss, n=5_000, order=math.inf, ridge=1.0, epsilon=0.99):
    from experiments.covariate_balancing.gradient_sampler import L1Set

    scale = 2 * gradient_sensitivity(loss, FEATURES.largest_entry, order) / epsilon
    region = L1Set(loss.estimand.score_bound / FEATURES.largest_entry)
    return GradientSampler(loss, ridge, region, scale, order, 1e-9 * loss.slope)


@pytest.mark.parametrize("order", [2, math.inf])
def test_the_solvers_share_pays_for_stop_and_grid(order):
    """All terms of the bound add up to what they may cost, with the noise's scale that is drawn."""
    of, n, p, share = sampler_of(CurvedBalancingLoss(ATE.estimand), order=order), 5_000, 5, 0.01
    cover = solver_cover(of, n, p, share)
    r, radius = of.tolerance / of.ridge, of.region.radius
    a = r * math.sqrt(p) / radius
    x = (1 + a) / (1 - a) - 1
    spent = 4 * cell_loss(p, order) + 4 * p * r + 2 * p * math.log(1 + x)
    spent += 2 * x * radius * (9 * n + of.ridge) / of.scale + (4 * r + 2 * x * radius) / cover.scale
    assert spent == pytest.approx(share, rel=1e-6)
    # the output's own rounding, twice for numerator and normaliser, is in the released scale
    scale = cover.released_scale(p)
    step = NoiseSource.grid(scale)
    rounding = 2 * math.sqrt(p) * step / scale
    assert spent - (4 * r + 2 * x * radius) * (1 / cover.scale - 1 / scale) + rounding <= share * (1 + 1e-12)


@pytest.mark.slow
def test_the_evidence_is_the_log_likelihood_ratio():
    """Up to a constant: E_0 exp(L) E_1 exp(-L) = 1, to five standard errors; other datasets' means are far from it."""
    game, noise, runs = worst_case_gradient._gradient(ONE), NoiseSource.fixed(5), 4_000
    ratios = [game.evidence(game.draw(dataset, runs, noise)) for dataset in (0, 1)]
    means, spreads = zip(
        *((part.mean().item(), part.std().item()) for part in (ratios[0].exp(), (-ratios[1]).exp())), strict=True
    )
    error = 5 * math.hypot(*(s / m for s, m in zip(spreads, means, strict=True))) / math.sqrt(runs)
    assert abs(means[0] * means[1] - 1) < error < 0.05
    assert ratios[1].exp().mean() * (-ratios[0]).exp().mean() - 1 > error


def test_the_pair_spends_most_of_the_claim_and_never_more():
    """By exact densities on a grid of the set: at epsilon = 1 the worst loss is 0.75 of at most 0.99."""
    fit = worst_case_gradient._FITTER.prepare(worst_case_gradient._LOSS, 33, worst_case_gradient._FEATURES, ONE)
    radius = fit.public["radius"]
    line = torch.linspace(-radius, radius, 201, dtype=torch.float64)
    theta = torch.cartesian_prod(line, line)
    theta = theta[theta.abs().sum(1) <= radius]
    logs = [worst_case_gradient._log_density(theta, w, fit.ridge, fit.public["gradient_scale"]) for w in (0, 1)]
    loss = (logs[1].log_softmax(0) - logs[0].log_softmax(0)).abs().amax().item()
    assert 0.7 < loss < 0.99
    halved = [2 * part for part in logs]  # as if the constant that makes it a density were free
    assert (halved[1].log_softmax(0) - halved[0].log_softmax(0)).abs().amax().item() > 1.3


@pytest.mark.slow
def test_an_honest_audit_is_not_refuted():
    result = audit(CASE, PrivacyBudget(1.0, 1e-5), trials=15_000, noise=NoiseSource.fixed(1))
    assert not result.refuted
    assert result.bound > 0.3
