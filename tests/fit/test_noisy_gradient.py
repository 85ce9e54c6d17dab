"""The noisy gradient of stage one: exact composition, the law of what it releases, and where it ends."""

import math

import pytest
import torch

from tests.sums import given
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import Fourier, on_domain
from torchdpcate.fit.linear_fits import NoisyGradient, ObjectiveFit, length_of
from torchdpcate.fit.losses import BalancingLoss, CrossEntropy, Logistic
from torchdpcate.fit.stacked_records import Batch, StackedRecords, arm, outcome
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource

DOMAIN = Domain([0.0], [1.0], 0.0, 1.0)
LINE = on_domain(None, DOMAIN)
ATE, LINEAR = BalancingLoss(make_estimand("ATE", 0.1)), BalancingLoss(make_estimand("ATE", 0.5))
BUDGET = PrivacyBudget(1.0, 1e-6)


def records(n=500, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, dtype=torch.float64, generator=generator)
    z = (torch.rand(n, generator=generator) < torch.sigmoid(2 * x[:, 0] - 0.5)).double()
    return StackedRecords(Batch(x, LINE(x), z, torch.rand(n, dtype=torch.float64, generator=generator)))


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.5, 8.057618), (2.0, 2.230476)])
@pytest.mark.parametrize("steps", [3, 100, 1_000])
def test_all_steps_compose_to_one_gaussian_mechanism(epsilon, sigma, steps):
    budget = PrivacyBudget(epsilon, 1e-6)
    fit = NoisyGradient(steps).prepare(ATE, 500, LINE, budget)
    assert fit.event.noise_multiplier / math.sqrt(steps) == pytest.approx(sigma, abs=5e-7)
    assert (fit.count, fit.level, fit.public["fitter"]) == (steps, Level.CERTIFIED, "noisy_gradient")
    assert compose([(fit.event, fit.count)], 1e-6) == pytest.approx(epsilon, rel=1e-6)
    # sigma = 2 W C sqrt(T) sigma_AG in the scale of phi = sqrt 2 psi
    expected = 2 * 10 * math.sqrt(2) * math.sqrt(steps) * sigma
    assert math.sqrt(2) * fit.public["gradient_scale"] == pytest.approx(expected, rel=1e-3)  # rounding to the grid
    assert math.sqrt(2) * fit.public["gradient_scale"] >= expected * (1 - 1e-6)


@pytest.mark.parametrize("estimand", ["ATE", "ATT", "ATC", "ATO"])
def test_no_record_pulls_by_more_than_the_sensitivity_says(estimand):
    """And some by nearly as much: 2 W, and 2 for the ATO."""
    loss = BalancingLoss(make_estimand(estimand, 0.1))
    theta = torch.tensor([[0.0, t] for t in (-50.0, -3.0, 0.0, 3.0, 50.0)], dtype=torch.float64)
    ends = LINE(torch.tensor([[0.0], [0.0], [1.0], [1.0]])).expand(5, 4, 2)
    slopes = loss((ends @ theta[:, :, None])[:, :, 0], torch.tensor([1.0, -1.0, 1.0, -1.0]))
    pulls = slopes.first[:, :, None] * ends
    moved = (pulls[:, :, None] - pulls[:, None]).norm(dim=-1)
    mechanism = NoisyGradient(3).prepare(loss, 10, LINE, BUDGET)
    sensitivity = mechanism.public["gradient_scale"] / mechanism.event.noise_multiplier
    assert moved.max() <= sensitivity
    assert moved.max() >= 0.5 * sensitivity


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_the_law_of_the_mean_iterate_where_gradients_are_constant(momentum):
    """By hand: each noise N_j and the constant pull enter the mean linearly. 4000 runs, five standard errors."""
    sample, steps, length, ridge, runs = records(30), 7, 1e-4, 40.0, 4_000
    fit = NoisyGradient(steps, length, momentum, ridge).prepare(LINEAR, 30, LINE, BUDGET)
    theta = fit.draw(sample, arm, NoiseSource.fixed(0), runs)
    pull = -2 * (2 * sample.batch.z - 1) @ sample.batch.psi
    weights = torch.zeros(steps + 1, dtype=torch.float64)  # of each noise, and of the pull, in the mean
    for j in range(steps + 1):
        place = speed = mean = 0.0
        for k in range(steps):
            speed = momentum * speed + (1.0 if j in (k, steps) else 0.0) + ridge * place
            place -= length * speed
            mean += place if k >= steps // 3 else 0.0
        weights[j] = mean / (steps - steps // 3)
    scale = fit.public["gradient_scale"] * weights[:-1].norm()
    assert ((theta.mean(0) - weights[-1] * pull).abs() < 5 * scale / math.sqrt(runs)).all()
    assert ((theta.var(0) / scale**2 - 1).abs() < 5 * math.sqrt(2 / runs)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "target"),
    [(ATE, arm), (Logistic(), arm), (CrossEntropy(), outcome)],
    ids=["ATE", "logistic", "cross-entropy"],
)
def test_with_a_large_budget_it_ends_at_the_minimiser(loss, target):
    sample = records()
    fit = NoisyGradient(3_000, ridge=1.0).prepare(loss, 500, LINE, PrivacyBudget(1e7, 1e-6))
    exact = sample.minimise(loss, target, 1.0, torch.zeros(1, 2), 1e-8)
    theta = fit.draw(sample, target, NoiseSource.fixed(0), 2)
    torch.testing.assert_close(theta, exact.expand(2, 2), rtol=0, atol=0.02)


@pytest.mark.slow
def test_the_claimed_imbalance_is_that_of_the_draws():
    """By averaged noise alone, where it is small. 400 numbers: 5 / sqrt(800), and 0.1 for an end that is not the limit.

    Without the noise it would be 0, and without averaging 10 times as large.
    """
    sample, budget = records(2_000), PrivacyBudget(6.0, 1e-6)
    fit = NoisyGradient(150, momentum=0.8).prepare(Logistic(), 2_000, LINE, budget)
    theta = fit.draw(sample, arm, NoiseSource.fixed(0), 200)
    left = (sample.slopes(Logistic(), arm, theta)[1] + fit.ridge * theta) / LINE.largest_entry
    assert left.square().mean().sqrt().item() / fit.imbalance == pytest.approx(1, abs=0.1 + 5 / math.sqrt(800))
    one = 2 * math.sqrt(150 / 100) * analytic_gaussian_sigma(6.0, 1e-6) * math.sqrt(2)
    assert fit.imbalance == pytest.approx(one, rel=1e-3)  # as of one draw, whatever the number of steps


@pytest.mark.parametrize(("loss", "never", "always"), [(ATE, 20, 60), (Logistic(), 30, 80)])
def test_beyond_some_thirty_features_it_leaves_less_imbalance_than_the_pure_objective_noise(loss, never, always):
    """Section 3.1 of the note, at delta = 1e-6 and epsilon = 0.3: no better up to d = 20 (40), better beyond."""
    for size, better in ((never, False), (always, True)):
        features = on_domain(None, Domain([0.0] * (size - 1), [1.0] * (size - 1), 0.0, 1.0))
        budget = PrivacyBudget(0.3, 1e-6)
        fits = [fitter.prepare(loss, 5000, features, budget) for fitter in (NoisyGradient(), ObjectiveFit())]
        assert (fits[0].imbalance < fits[1].imbalance) == better


def test_data_sets_together_and_batches_apart_give_the_same():
    sample, fit = records(), NoisyGradient(20).prepare(ATE, 500, LINE, BUDGET)
    alone = fit.draw(sample, arm, NoiseSource.fixed(4), 3)
    copies = StackedRecords(Batch(*(part.expand(3, *part.shape) for part in sample.batch)))
    torch.testing.assert_close(fit.draw(copies, arm, NoiseSource.fixed(4), 3), alone)

    class Halves(StackedRecords):
        def batches(self):
            yield Batch(*(part[:200] for part in self.batch))
            yield Batch(*(part[200:] for part in self.batch))

    torch.testing.assert_close(fit.draw(Halves(sample.batch), arm, NoiseSource.fixed(4), 3), alone)


def test_the_step_follows_public_facts():
    """Not too long for the curvature, nor for the noise; on few records of many features far shorter."""
    assert length_of(500.0, 2, 1.0, 0.9) == pytest.approx(1e-3)
    assert length_of(500.0, 10, 100.0, 0.9) == pytest.approx(0.1 * 500 / 30 / 1e4)
    wide = on_domain(Fourier(pairs=20), DOMAIN)
    fits = [NoisyGradient().prepare(ATE, 500, features, BUDGET) for features in (LINE, wide)]
    assert fits[0].public["length"] > fits[1].public["length"]
    assert [fit.count for fit in fits] == [600, 600]
    assert NoisyGradient(5, 1e-4, 0.5, 2.0).prepare(ATE, 500, LINE, BUDGET).public == {
        "fitter": "noisy_gradient",
        "steps": 5,
        "length": 1e-4,
        "momentum": 0.5,
        "ridge": 2.0,
        "gradient_scale": pytest.approx(20 * math.sqrt(5) * analytic_gaussian_sigma(1.0, 1e-6), rel=1e-3),
    }


def test_settings_and_budgets_that_cannot_be_released_are_refused():
    with pytest.raises(InputError, match=r"delta = 0: fitter = noisy_gradient needs .* or fitter = objective"):
        NoisyGradient().prepare(ATE, 500, LINE, PrivacyBudget(1.0, 0.0))
    for bad in (2, 0, 2.5, 1_000_000):
        with pytest.raises(InputError, match="steps"):
            NoisyGradient(bad)
    for name, value in (("length", 0.0), ("length", math.nan), ("ridge", -1.0), ("momentum", 1.0)):
        with pytest.raises(InputError, match=name):
            NoisyGradient(**{name: value})
    with pytest.raises(InputError, match=r"length = 1: with ridge = 2 give at most 0.5, or steps diverge"):
        NoisyGradient(length=1.0, ridge=2.0).prepare(ATE, 500, LINE, BUDGET)
    with pytest.raises(InputError, match=r"noise of .* is too much for its grid, or these are too many numbers"):
        NoisyGradient(100_000).prepare(ATE, 500, LINE, PrivacyBudget(1e-3, 1e-6))
    assert isinstance(NoisyGradient().prepare(ATE, 500, LINE, BUDGET).event, GaussianEvent)


@pytest.mark.parametrize("pieces", [1, 3])
def test_gradients_are_the_same_bit_by_bit_in_any_order_of_the_records(pieces, monkeypatch):
    sample, order, seen = records(5_000), torch.randperm(5_000), given(monkeypatch)
    turned = Batch(*(part[order] for part in sample.batch))

    class Pieces(StackedRecords):
        def batches(self):
            yield from (
                Batch(*parts) for parts in zip(*(part.tensor_split(pieces) for part in self.batch), strict=True)
            )

    fit = NoisyGradient(3).prepare(ATE, 5_000, LINE, BUDGET)
    for one in (sample, Pieces(turned)):
        fit.draw(one, arm, NoiseSource.fixed(0), 2)
    assert torch.equal(seen[0], seen[3])  # the first ones, where no score is rounded
