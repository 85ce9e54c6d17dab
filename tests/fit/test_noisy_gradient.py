"""The noisy gradient of stage one: exact composition, the law of what it releases, and where it ends."""

import math

import pytest
import torch

from tests.fit.cases import LINE, on_a_line
from tests.sums import given
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.fit.linear_fits import NoisyGradient
from torchdpcate.fit.losses import BalancingLoss, Logistic
from torchdpcate.fit.stacked_records import Batch, StackedRecords, arm
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource

ATE, LINEAR = BalancingLoss(make_estimand("ATE", 0.1)), BalancingLoss(make_estimand("ATE", 0.5))
BUDGET = PrivacyBudget(1.0, 1e-6)


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
    sample, steps, length, ridge, runs = on_a_line(30), 7, 1e-4, 40.0, 4_000
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
def test_the_claimed_imbalance_is_that_of_the_draws():
    """By averaged noise alone, where it is small. 400 numbers: 5 / sqrt(800), and 0.1 for an end that is not the limit.

    Without the noise it would be 0, and without averaging 10 times as large.
    """
    sample, budget = on_a_line(2_000), PrivacyBudget(6.0, 1e-6)
    fit = NoisyGradient(150, momentum=0.8).prepare(Logistic(), 2_000, LINE, budget)
    theta = fit.draw(sample, arm, NoiseSource.fixed(0), 200)
    left = (sample.slopes(Logistic(), arm, theta)[1] + fit.ridge * theta) / LINE.largest_entry
    assert left.square().mean().sqrt().item() / fit.imbalance == pytest.approx(1, abs=0.1 + 5 / math.sqrt(800))
    one = 2 * math.sqrt(150 / 100) * analytic_gaussian_sigma(6.0, 1e-6) * math.sqrt(2)
    assert fit.imbalance == pytest.approx(one, rel=1e-3)  # as of one draw, whatever the number of steps


def test_data_sets_together_and_batches_apart_give_the_same():
    sample, fit = on_a_line(500), NoisyGradient(20).prepare(ATE, 500, LINE, BUDGET)
    alone = fit.draw(sample, arm, NoiseSource.fixed(4), 3)
    copies = StackedRecords(Batch(*(part.expand(3, *part.shape) for part in sample.batch)))
    torch.testing.assert_close(fit.draw(copies, arm, NoiseSource.fixed(4), 3), alone)

    class Halves(StackedRecords):
        def batches(self):
            yield Batch(*(part[:200] for part in self.batch))
            yield Batch(*(part[200:] for part in self.batch))

    torch.testing.assert_close(fit.draw(Halves(sample.batch), arm, NoiseSource.fixed(4), 3), alone)


@pytest.mark.parametrize("pieces", [1, 3])
def test_gradients_are_the_same_bit_by_bit_in_any_order_of_the_records(pieces, monkeypatch):
    sample, order, seen = on_a_line(5_000), torch.randperm(5_000), given(monkeypatch)
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
