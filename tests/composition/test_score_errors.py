"""Errors of both nuisances in the mean of clipped scores: pairs of points, what a clip adds, the solver's law."""

import pytest
import torch

from torchdpcate import Domain, NoiseSource, PrivacyBudget
from torchdpcate.composition.linear_fit import FitPlan, NewtonPoints, newton_law
from torchdpcate.composition.score_errors import ClippedArmScores
from torchdpcate.estimators.average.composed import ComposedAverageEffect

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


def _errors(share):
    g = torch.Generator().manual_seed(1)
    x = torch.rand(3_000, 3, generator=g, dtype=torch.float64)
    a = (torch.rand(3_000, generator=g, dtype=torch.float64) < share).double()
    y = x[:, 0] + 0.3 * a + 0.2 * torch.randn(3_000, generator=g, dtype=torch.float64)
    domain = Domain([0.0] * 3, [1.0] * 3, -2.0, 3.0, overlap=0.1)
    learner = ComposedAverageEffect(domain, PrivacyBudget(1.0, 1e-5), noise=NoiseSource.fixed(2)).fit(x, a, y)
    return learner.nuisances_


def test_the_product_is_the_mean_over_pairs_of_points():
    errors = _errors(0.5).errors
    whole = torch.ones(len(errors.points), dtype=torch.float64)
    clipped = ClippedArmScores(whole, whole, whole, whole)
    moves, (rows, covariance) = errors._moves(0.2, clipped, clipped), errors._propensity_errors
    pulls = moves.treated / errors._pi[:, None] + moves.control / (1 - errors._pi)[:, None]
    pairs = (rows @ covariance @ rows.T) * (pulls @ moves.covariance @ pulls.T)
    assert errors._product(moves) == pytest.approx(pairs.mean().item(), rel=1e-9)


@pytest.mark.slow
def test_a_clip_adds_where_it_takes_more_of_one_arm_than_of_the_other():
    even, rare = _errors(0.5), _errors(0.15)
    wide = [found.errors.deviation(found.centre, 100 * found.clip, 1e-6) for found in (rare, even)]
    narrow, balanced = (found.error(0.3) / none for found, none in zip((rare, even), wide, strict=True))
    assert narrow > 1.5
    assert balanced < narrow


def test_what_both_nuisances_lose_of_a_feature_is_a_bias_of_the_mean_score():
    """By the priors alone where noise takes all; of what is requested without noise nothing; nothing is random."""
    errors = _errors(0.5).errors
    plan, levels = errors.plan, errors.two_levels
    logit = plan.propensity(levels)
    prior = plan.constants.propensity_variance
    lost = errors._lost(logit.basis, logit.prior, 1e12, prior)
    assert float(lost.sum()) == pytest.approx(prior)
    retained = errors._lost(logit.basis, logit.prior, 0.0, prior)
    assert int((retained == 0).sum()) == len(logit.basis.features) + 1  # and no covariate is without a feature
    shared = plan.both_arms(levels).basis.shared
    of_pi = errors._lost(logit.basis, logit.prior, logit.noise, prior)
    arms = plan.both_arms(levels)
    of_m = errors._lost(shared, arms.prior[: len(shared.features)], arms.noise, plan.constants.outcome_variance)
    unit = max(errors.outcome.slope, 0.1)
    assert errors._confounding(0.1) == pytest.approx(0.75 * unit * float((of_pi * of_m).sqrt().sum()))
    assert errors._confounding(0.1) > 0
