"""How far one record moves what each step of a composition requests: worst pairs, and searches for worse ones."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.composition.cases import Given, batch
from tests.sessions import noted
from torchdpcate.composition import summaries
from torchdpcate.composition.builder import composed_plan
from torchdpcate.composition.linear_fit import HuberFit, LogisticFit
from torchdpcate.composition.regressions import PropensityFits
from torchdpcate.composition.rows import InMemory
from torchdpcate.composition.steps import NoisySteps, Shares, Statistic
from torchdpcate.fit.weighted_basis import WeightedBasis, all_features
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

ONE = torch.ones(1, dtype=torch.float64)


class Asked(NoisySteps):
    """Steps that hand out what was requested without noise, and note it with its sensitivity."""

    def total(self, step: str, rows: InMemory, statistic: Statistic, part: float = 1.0) -> Tensor:
        values = rows.total(statistic)
        self.session.note(step, values.clone(), self.sensitivity(statistic, rows.n))
        return values


def requested(run) -> tuple[Tensor, float]:
    """What a step requests, and the sensitivity that it answers for."""
    found = []
    session = noted(NoiseSource.system(), lambda step, values, sensitivity: found.append((values, sensitivity)))
    shares = Shares(1.0, {"moments": 0.2, "curvatures": 0.2})
    run(Asked(session, shares))
    return found[0]


def uniform(*shape: int, seed: int = 0, most: float = 1.0) -> Tensor:
    """Numbers in [-most, most], a third of them at an end."""
    generator = torch.Generator().manual_seed(seed)
    return most * (3 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1.5).clamp(-1, 1)


def moved(run, one: Tensor, other: Tensor) -> float:
    """Distance of what is requested of two records, over the sensitivity."""
    (here, sensitivity), (there, _) = (
        requested(lambda steps, r=record: run(r[None], steps)) for record in (one, other)
    )
    return float((here - there).norm()) / sensitivity


def moments(u: Tensor, steps: NoisySteps) -> None:
    summaries.private_standardisation(InMemory(batch(u)), summaries.Moments(), steps)


def curvatures(rows: Tensor, steps: NoisySteps) -> None:
    """Of two features as they are."""
    planned = torch.full((rows.shape[1],), 0.3, dtype=torch.float64)
    summaries.private_curvatures(InMemory(batch(rows, ONE)), Given(norm=0.5), planned, "curvatures", steps)


WORST = {  # two records that reach the sensitivity
    "moments": (moments, ONE.expand(3), -ONE.expand(3)),
    "curvatures": (curvatures, torch.tensor([9.0, 0.0]).double(), torch.tensor([0.0, 9.0]).double()),
}


@pytest.mark.parametrize("step", WORST)
def test_the_worst_pair_reaches_the_sensitivity_and_no_pair_passes_it(step):
    run, one, other = WORST[step]
    assert moved(run, one, other) == pytest.approx(1.0, rel=1e-9)
    assert moved(run, one, other) <= 1
    for seed in range(100):
        pair = uniform(2, len(one), seed=seed, most=1.0 if step == "moments" else 3.0)
        assert moved(run, *pair) <= 1


def test_squares_cost_nothing_beside_the_means_up_to_a_golden_weight():
    """The larger weight c of second moments with d^2/4 + c d^2 (2 - d)^2 <= 1 on [0, 2]."""
    d = np.linspace(1e-6, 2 - 1e-6, 200_001)
    largest = ((1 - d**2 / 4) / (d**2 * (2 - d) ** 2)).min()
    assert largest == pytest.approx((11 + 5 * math.sqrt(5)) / 32, rel=1e-9)
    assert largest == pytest.approx(0.6931, abs=1e-4)
    assert largest >= summaries._SQUARES


@pytest.mark.parametrize("seed", range(2))
def test_no_gradient_of_a_record_is_longer_than_its_slope(seed):
    generator = torch.Generator().manual_seed(seed)
    features = all_features([False, True, False], "12xsc")
    feature_weights = torch.rand(1 + len(features), generator=generator, dtype=torch.float64) + 0.01
    psi = WeightedBasis(features, feature_weights / feature_weights.sum())(uniform(300, 3, seed=seed, most=3.0))
    a = (torch.rand(300, generator=generator) < 0.5).double()
    pi = (0.05 + 0.9 * torch.rand(300, generator=generator, dtype=torch.float64)).clamp(0.1, 0.9)
    theta, targets = 10 * uniform(psi.shape[1], seed=seed), 5 * uniform(300, seed=seed)
    outcome, effect = 1 / psi.norm(dim=1), 1 / (psi.norm(dim=1) * torch.maximum(pi, 1 - pi))
    fits = {
        "outcome": HuberFit(psi, outcome, targets, 0.7),
        "propensity": LogisticFit(psi, outcome, a, 1.0),
        "effect": HuberFit(psi * (a - pi)[:, None], effect, targets, 0.7),
    }
    for name, fit in fits.items():
        pulls = fit.weights * fit.pulls(fit.predictors @ theta)
        lengths = (fit.predictors * pulls[:, None]).norm(dim=1)
        assert lengths.max() <= fit.slope * (1 + 1e-12)
        assert lengths.max() > 0.95 * fit.slope, name  # of records whose residual is clipped, all have it


@pytest.mark.parametrize("overlap", [0.05, 0.3])
def test_a_propensity_within_its_overlap_moves_by_less_and_by_no_less_than_that(overlap):
    """Over records at corners and all directions of theta: 2 (1 - overlap), as against 2 of any probability."""
    plan = composed_plan(4_000, PrivacyBudget(1.0, 1e-5), 2, overlap=overlap)
    basis = WeightedBasis(all_features([False] * 2, "12x"), torch.full((6,), 1 / 6).double())
    propensity = PropensityFits(plan.slope("propensity"), basis)
    z = torch.cartesian_prod(*[torch.linspace(-3, 3, 5).double()] * 2)
    a = torch.arange(2.0).double().repeat_interleave(len(z))
    z = z.repeat(2, 1)
    fit, generator, farthest = propensity(batch(z, a=a)), torch.Generator().manual_seed(0), 0.0
    assert fit.slope == 1 - overlap
    for size in (0.1, 1.0, 10.0, 1e3):
        for _ in range(100):
            theta = size * torch.randn(6, generator=generator, dtype=torch.float64)
            each = fit.predictors * (fit.weights * fit.pulls(fit.predictors @ theta))[:, None]
            farthest = max(farthest, float(torch.cdist(each, each).max()))
    assert 0.97 < farthest / (2 * (1 - overlap)) <= 1 + 1e-12


def test_a_record_of_the_rarer_arm_has_the_whole_sensitivity():
    """Where |a - pi| is max(pi, 1 - pi); one of the other arm has less."""
    pi = torch.tensor([0.2, 0.2]).double()
    a, psi = torch.tensor([1.0, 0.0]).double(), torch.tensor([[0.6, 0.8], [0.6, 0.8]]).double()
    weights = 1 / (psi.norm(dim=1) * torch.maximum(pi, 1 - pi))
    fit = HuberFit(psi * (a - pi)[:, None], weights, torch.full((2,), 9.0).double(), 1.0)
    pulls = fit.weights * fit.pulls(torch.zeros(2).double())
    lengths = (fit.predictors * pulls[:, None]).norm(dim=1)
    assert lengths.tolist() == pytest.approx([1.0, 0.25])


def test_the_noise_of_a_gradient_covers_the_rounding_of_its_grid():
    """Sensitivity and sqrt(p) grid steps are never more than the noise over the multiplier that was charged."""
    for multiplier in (0.3, 20.0, 1e4):
        for p in (1, 500):
            scales = []

            class Noise(type(NoiseSource.system())):
                def fine_gaussian(self, size, scale, scales=scales):
                    scales.append(scale)
                    return torch.zeros(size, dtype=torch.float64)

            steps = NoisySteps(noted(Noise(), lambda *_: None), Shares(1.0, {"effect": 1.0}))
            event = type(steps.shares.event("effect"))(multiplier)
            steps.noisy_gradient(torch.zeros(p), 2.0, event)
            rounded = 2.0 + math.sqrt(p) * NoiseSource.fine_grid(scales[0])
            assert scales[0] >= multiplier * rounded
            assert scales[0] == pytest.approx(2 * multiplier, rel=1e-6)
