"""Function noise in batch: its scale, its law, its charge, and what it refuses."""

import math

import pytest
import torch

from tests.release.helpers import DOMAIN, QUERIES, Charges, block, stage
from tests.sessions import noted
from torchdpcate.audit.attack import audit
from torchdpcate.audit.report import find
from torchdpcate.errors import NumericalError
from torchdpcate.estimators.cate.mechanisms.base import public_step
from torchdpcate.estimators.cate.mechanisms.perturbation import GaussianProcess, _root
from torchdpcate.estimators.cate.mechanisms.worst_pairs import NEAR, linear_stage
from torchdpcate.estimators.cate.online.path import JITTER
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.heads.kernel import KernelStage
from torchdpcate.heads.kernel_system import ResidualLoss
from torchdpcate.heads.linear import huber_sensitivity
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource

BUDGET = PrivacyBudget(1.0, 1e-5)


def kernel_stage(threshold: float = 0.5) -> KernelStage:
    return KernelStage(block(), UnitKernel(0.7, DOMAIN), 0.02, ResidualLoss(threshold))


def prepared(fitted=None, queries=QUERIES):
    return GaussianProcess().prepare(kernel_stage() if fitted is None else fitted, queries, BUDGET)


def test_the_scale_of_the_theory_note():
    # dp_cate, section 6: .497 at n = 1350, ridge .01, B = .9, tau = 1, (1, 1e-5)
    assert huber_sensitivity(0.9, 1.0, 0.01, 1350) * analytic_gaussian_sigma(1, 1e-5) == pytest.approx(0.497417551)
    for fitted in (stage(), kernel_stage()):
        public = prepared(fitted).public
        expected = huber_sensitivity(0.9, 0.5, 0.02, 400)
        assert public["sensitivity"] == pytest.approx(expected, rel=1e-7)
        assert public["sensitivity"] >= expected
        assert public["noise_scale"] == pytest.approx(public["sensitivity"] * analytic_gaussian_sigma(1, 1e-5))


@pytest.mark.slow
@pytest.mark.parametrize("fitted", [stage(), kernel_stage()], ids=["linear", "kernel"])
def test_moments_of_20000_draws(fitted):
    """Means and covariances of answers at 8 queries, against f and r^2 (K + jitter): 44 entries within 6 standard
    errors, which chance misses with a probability of 9e-8."""
    ready, runs = prepared(fitted), 20_000
    r = ready.public["noise_scale"]
    draws = (ready.draw(NoiseSource.system(), runs) - fitted.correction(QUERIES)) / r
    K = fitted.covariance(QUERIES, QUERIES) + JITTER * torch.eye(8, dtype=torch.float64)
    variance = K.diagonal()
    assert bool((draws.mean(0).abs() < 6 * (variance / runs).sqrt()).all())
    error = ((variance[:, None] * variance + K**2) / runs).sqrt()
    assert bool(((draws.T @ draws / runs - K).abs() < 6 * error).all())
    torch.testing.assert_close(ready.noise_scales, r * variance.sqrt())


def test_a_query_asked_twice_gets_one_answer_and_minus_zero_is_zero():
    queries = torch.tensor([[0.3, 0.0], [0.9, 0.5], [0.3, -0.0], [0.3, 0.0]], dtype=torch.float64)
    ready = prepared(queries=queries)
    answers = ready.draw(NoiseSource.system(), 50)
    assert torch.equal(answers[:, [0, 0]], answers[:, [2, 3]])
    assert (answers[:, 0] != answers[:, 1]).all()
    assert ready.noise_scales.shape == (4,)


def test_it_charges_one_gaussian_event_before_it_draws():
    charges = Charges()

    class Watched(type(NoiseSource.system())):
        def gaussian(self, size, scale, step=None):
            assert charges.made
            return super().gaussian(size, scale, step)

    answers = GaussianProcess().answer(kernel_stage(), QUERIES, BUDGET, noted(Watched(), charges))
    assert [made[:2] for made in charges.made] == [(GaussianEvent(analytic_gaussian_sigma(1, 1e-5)), Level.CERTIFIED)]
    assert answers.guarantee.level is Level.CERTIFIED
    assert answers.noise_scales is not None


def test_answers_lie_on_the_public_grid():
    steps = prepared().draw(NoiseSource.system(), 1)[0] / public_step(DOMAIN)
    assert torch.equal(steps, steps.round())
    assert (steps % 1024 != 0).any()


def test_a_matrix_that_is_no_covariance_is_refused():
    with pytest.raises(NumericalError, match="2 queries is not positive definite"):
        _root(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


@pytest.mark.parametrize("name", ["gaussian_process", "online"])
def test_the_attack_comes_near_the_claim_and_not_above(name):
    result = audit(find(name), BUDGET, noise=NoiseSource.fixed(1), trials=300_000)
    assert 0.9 <= result.bound <= 1.0
    assert not result.refuted


def test_low_bits_do_not_tell_the_worlds_apart():
    """Mixed noise lives on a lattice; answers finer than it would give f modulo its step away (Mironov 2012)."""
    stages = [linear_stage((NEAR, y), n=100, ridge=0.1, threshold=0.01) for y in (-0.5, 0.5)]
    query = torch.tensor([[NEAR]], dtype=torch.float64)
    lattices = []
    for fitted in stages:
        ready = GaussianProcess().prepare(fitted, query, BUDGET)
        scale = ready.law.scale
        spread = math.sqrt(fitted.covariance(query, query).item() + JITTER)
        outputs, f = ready.draw(NoiseSource.system(), 2_000)[:, 0], fitted.correction(query).item()
        for coarse in (2.0**-20, 2.0**-21):  # the lattices of numbers drawn on a grid of their own scale
            residue = torch.remainder((outputs - f) / (scale * spread * coarse), 1.0)
            # uniform within 0.14: 2,000 draws miss that less than once in 10^30 runs; on the lattice all are 0 or 1
            lattices.append((residue - 0.5).abs().mean().item())
    assert all(abs(mean - 0.25) < 0.05 for mean in lattices)
