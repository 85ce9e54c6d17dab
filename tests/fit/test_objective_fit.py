"""Objective perturbation of stage one: the note's numbers, the identity of balance, its claim by exact densities."""

import math
from itertools import pairwise

import pytest
import torch

from tests.composition.cases import Batches
from tests.fit.cases import LINE, LINE_DOMAIN, calibrate_objective, on_a_line
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.data.records import CausalData
from torchdpcate.fit.linear_fits import ObjectiveFit, ridge_of
from torchdpcate.fit.losses import BalancingLoss, CrossEntropy, Logistic
from torchdpcate.fit.minimise import linear_predictor
from torchdpcate.fit.private_fit import WeightBounds, logistic_jacobian
from torchdpcate.fit.stacked_records import Batch, StackedRecords, StreamedRecords, arm, outcome
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.noise import NoiseSource

PLAIN = PrivacyBudget(1 / 0.99, 0.0)  # 1 % of which pays for the solver's stop
ATE, LOGISTIC = BalancingLoss(make_estimand("ATE", 0.1)), Logistic()
LOSSES = [BalancingLoss(make_estimand(e, 0.1)) for e in ("ATE", "ATT", "ATC", "ATO")] + [Logistic(), CrossEntropy()]

# section 7 of the note
X = [(0.6, 0.2), (-0.4, 0.5), (0.1, -0.7), (0.9, -0.1), (-0.8, -0.3), (0.3, 0.4), (-0.2, -0.6), (0.5, 0.8)]
PHI = torch.tensor([(1.0, *x) for x in X], dtype=torch.float64)
Z = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0], dtype=torch.float64)
EIGHT = StackedRecords(Batch(PHI[:, 1:], PHI, Z, torch.tensor([1, 0, 0.5, 1, 0.25, 1, 0, 0.75]).double()))


@pytest.mark.parametrize(
    ("loss", "ridge", "scale"),
    [
        (ATE, 36.59840607, 33.33333333),
        (LOGISTIC, 3.08958099, 2.848346854 / math.sqrt(2)),  # the note's 3.32756132 takes both suprema apart
    ],
)
def test_ridge_and_scale_are_those_of_the_note(loss, ridge, scale):
    """In the scale of phi: C^2 = 2 times the ridge; C times the scale, which is the same as over the largest entry."""
    fit = ObjectiveFit().prepare(loss, 5000, LINE, PLAIN)
    assert 2 * fit.ridge == pytest.approx(ridge, rel=1e-9)
    assert math.sqrt(2) * fit.public["perturbation_scale"] == pytest.approx(scale, rel=1e-9)
    assert fit.event == PureEvent(PLAIN.epsilon)
    assert fit.public["fitter"] == "objective"
    spent = logistic_jacobian(1.0, 1.0, fit.ridge) if loss is LOGISTIC else 1 - fit.public["share"]
    assert fit.public["epsilon_jacobian"] == pytest.approx(spent, rel=1e-12)


@pytest.mark.parametrize(
    ("loss", "ridge", "theta"),
    [
        (ATE, 36.59840607, (-0.11690397, 0.17607364, -0.18941124)),
        (LOGISTIC, 3.08958099, (-1.08857312, 1.20170292, -0.97534936)),
    ],
)
def test_perturbed_minimisers_are_those_of_the_note(loss, ridge, theta):
    linear_term = torch.tensor([[5.0, -3.0, 2.0]], dtype=torch.float64)
    found = EIGHT.minimise(loss, arm, ridge, linear_term, 1e-11)[0]
    torch.testing.assert_close(found, torch.tensor(theta, dtype=torch.float64), rtol=0, atol=6e-9)


@pytest.mark.parametrize(("kind", "ratio"), [("gamma", 2.449490), ("box", 3.741657)])
def test_the_noise_in_an_entry_is_that_of_the_note(kind, ratio):
    bounds = WeightBounds.per_record(1.0)
    facts = {"slope": 1.0, "bounds": bounds, "curvature": 0.25, "gamma": 3.0, "size": 5}
    objective = calibrate_objective(PLAIN, kind=kind, **facts)
    assert objective.spread.deviation / objective.scale == pytest.approx(ratio, abs=5e-7)
    gaussian = calibrate_objective(PrivacyBudget(1.0, 1e-6), kind="gaussian", **facts)
    assert gaussian.spread.deviation == gaussian.scale


@pytest.mark.parametrize("estimand", ["ATE", "ATT", "ATC", "ATO"])
def test_the_imbalance_is_noise_and_shrinkage(estimand):
    """Sum of +-w phi = V + gamma theta at the minimiser, whatever the weights; here half of all scores are clipped."""
    loss = BalancingLoss(make_estimand(estimand, 0.3))
    linear_terms = 20 * torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theta = EIGHT.minimise(loss, arm, 2.0, linear_terms, 1e-11)
    g = linear_predictor(PHI, theta)
    assert 0 < (g.abs() > loss.estimand.score_bound).double().mean() < 1
    # the loss of the ATO is not clipped, and neither are the weights of its identity
    weights = torch.sigmoid(-(2 * Z - 1) * g) if estimand == "ATO" else loss.estimand.weights(g, Z)
    torch.testing.assert_close((weights * (2 * Z - 1)) @ PHI, linear_terms + 2 * theta, rtol=0, atol=1e-9)


@pytest.mark.parametrize("loss", [ATE, LOGISTIC], ids=repr)
def test_the_claimed_imbalance_is_that_of_the_draws(loss):
    """Over 2000 runs; fourth moments are below 9 sd^4, so a relative error of 0.32 is five of its standard errors."""
    sample = on_a_line(200)
    fit = ObjectiveFit().prepare(loss, 200, LINE, PrivacyBudget(1.0, 1e-6))
    theta = fit.draw(sample, arm, NoiseSource.fixed(0), 2_000)
    assert theta.shape == (2_000, 2)
    left = (sample.slopes(loss, arm, theta)[1] + fit.ridge * theta) / LINE.largest_entry
    variance = left.square().mean(0) / fit.imbalance**2
    assert ((variance - 1).abs() < 0.32).all()
    assert (left.mean(0).abs() < 5 * fit.imbalance / math.sqrt(2_000)).all()


def test_the_solvers_noise_counts_where_there_are_many_records():
    """H xi along the intercept of an even design: n / p of curvature 1, over the largest entry 1 / sqrt(p)."""
    fits = [ObjectiveFit().prepare(ATE, n, LINE, PLAIN) for n in (1, 5_000, 10**12)]
    assert fits[0].imbalance == pytest.approx(math.sqrt(4) * 20 / 0.6)
    assert fits[1].imbalance == pytest.approx(fits[0].imbalance, rel=1e-4)
    xi = NoiseSource.fixed(0).k_norm(20_000, 2, fits[2].public["solver_scale"])[:, 0]
    # five standard errors of a Gamma's variance
    assert fits[2].imbalance == pytest.approx((1e12 / 2 * math.sqrt(2) * xi).std().item(), rel=0.05)


@pytest.mark.parametrize(("loss", "target"), [(ATE, arm), (CrossEntropy(), outcome)])
def test_a_stream_gives_the_same_fit(loss, target):
    sample = on_a_line(200)
    own = sample.batch
    stream = Batches(LINE_DOMAIN, CausalData(own.x, own.z, own.y), 37)
    streamed = StreamedRecords(stream, LINE, LINE_DOMAIN)
    fit = ObjectiveFit().prepare(loss, 200, LINE, PLAIN)
    thetas = [fit.draw(source, target, NoiseSource.fixed(3), 4) for source in (sample, streamed)]
    torch.testing.assert_close(*thetas, rtol=0, atol=1e-5)


def log_density(theta, psi, target, loss, fit):
    """Of the exact minimiser at theta [runs, p] on records psi [n, p], up to a constant; written out anew."""
    u = theta @ psi.T
    slopes = loss(u, target)
    b = slopes.first @ psi + fit.ridge * theta
    H = torch.einsum("rn,ni,nj->rij", slopes.second, psi, psi) + fit.ridge * torch.eye(psi.shape[1])
    length = torch.linalg.vector_norm(b, math.inf, dim=1)
    return torch.logdet(H) - length / fit.public["perturbation_scale"]


def worst_log_ratio(loss, fit, apart=1.0, tries=30):
    """Largest |log ratio| over random small data sets, pairs of records at the domain's ends, and theta."""
    generator, worst = torch.Generator().manual_seed(0), 0.0
    for _ in range(tries):
        n = int(torch.randint(1, 5, (1,), generator=generator))
        psi = LINE((torch.rand(n + 1, 1, generator=generator) < 0.5).double())
        label = (torch.rand(n + 1, generator=generator) < 0.5).double()
        target = label if loss == CrossEntropy() else 2 * label - 1
        theta = apart * torch.randn(2_000, 2, dtype=torch.float64, generator=generator)
        before, after = (log_density(theta, psi[own], target[own], loss, fit) for own in (slice(1, None), slice(n)))
        worst = max(worst, (after - before).abs().max().item())
    return worst


@pytest.mark.first(2)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_no_neighbour_loses_more_than_the_claim_and_some_nearly_that(loss):
    fit = ObjectiveFit().prepare(loss, 5, LINE, PLAIN)
    worst = worst_log_ratio(loss, fit, apart=4.0)
    assert 0.3 < worst <= 1 + 1e-9


@pytest.mark.parametrize("loss", [ATE, LOGISTIC], ids=repr)
def test_with_a_hundredth_of_the_ridge_the_claim_fails(loss):
    fit = ObjectiveFit().prepare(loss, 5, LINE, PLAIN)
    object.__setattr__(fit, "ridge", fit.ridge / 100)
    assert worst_log_ratio(loss, fit, apart=4.0) > 1.5


def test_more_budget_buys_less_ridge_and_noise_without_overflow():
    assert ridge_of(9.0, 1e6) == pytest.approx(9e-3)
    assert ridge_of(9.0, 1e-12) == pytest.approx(9e12, rel=1e-3)
    fits = [ObjectiveFit().prepare(ATE, 100, LINE, PrivacyBudget(e, 0.0)) for e in (0.01, 1.0, 10.0, 1e4)]
    for more, less in pairwise(fits):
        assert more.ridge >= less.ridge
        assert more.imbalance > less.imbalance
