"""Average effects by a known propensity: closed forms, sensitivities by search, law of the noise, coverage, attack."""

import math

import pytest
import torch

from torchdpcate import Domain, NoiseSource, PrivacyBudget, TableSchema
from torchdpcate.causal.estimand import ESTIMANDS, make_estimand
from torchdpcate.estimators.average.known_propensity import CentredSums, DesignFacts, DesignPlan, contrast
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate
from torchdpcate.fit.stacked_records import Batch, StackedRecords
from torchdpcate.release.estimate import half_width

PURE = PrivacyBudget(1.0, 0.0)
RANGES = [(0.5, 0.5), (0.3, 0.3), (0.2, 0.6), (0.1, 0.9)]


def trial(runs: int, n: int, low: float, high: float, seed: int, mean=0.4, deviation=0.12) -> StackedRecords:
    """Trials in two strata with these propensities, and an effect of 0.1 in the first and 0.2 in the second."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(runs, n, 1, generator=generator, dtype=torch.float64)
    second = x[..., 0] >= 0.5
    e = torch.tensor([low, high], dtype=torch.float64)[second.long()]
    z = (torch.rand(runs, n, generator=generator) < e).double()
    error = deviation * torch.randn(runs, n, generator=generator, dtype=torch.float64)
    y = (mean + (0.1 + 0.1 * second) * (z - 0.5) + error).clamp(0, 1)
    return StackedRecords(Batch(x, e[..., None], z, y))


def planned(n: int, estimand: str, low: float, high: float, epsilon: float) -> DesignPlan:
    strata = Domain([0.0], [1.0], 0.0, 1.0, propensity={"x0": {0: low, 1: high}}, two_levels=[True])
    return DesignPlan(n, TableSchema.of(strata), make_estimand(estimand, 0.1), PrivacyBudget(epsilon, 0.0))


def truth(estimand: str, low: float, high: float) -> float:
    tilt = make_estimand(estimand, low).tilt(torch.tensor([low, high], dtype=torch.float64))
    return ((0.1 * tilt[0] + 0.2 * tilt[1]) / tilt.sum()).item()


def width(facts: DesignFacts, centre: torch.Tensor) -> float:
    """By how much one record moves the contrast."""
    return 2 * facts.terms(centre).half.item()


@pytest.mark.parametrize("estimand", ESTIMANDS)
@pytest.mark.parametrize("ends", RANGES)
def test_no_pair_of_records_moves_a_sum_farther_than_is_paid_for(estimand, ends):
    facts, pairs = DesignFacts(100, make_estimand(estimand, 0.1), *ends), 20_000
    generator = torch.Generator().manual_seed(0)
    e = ends[0] + (ends[1] - ends[0]) * torch.rand(pairs, generator=generator, dtype=torch.float64)
    z, y = (torch.rand(2, pairs, generator=generator) < 0.5).double()  # outcomes at either end are the worst
    batch = Batch(e[:, None], e[:, None], z, y)
    for c in (0.0, 0.25, 0.5, 0.9):
        centre = torch.tensor([c], dtype=torch.float64)
        terms, moved = contrast(facts, centre, batch)[0], width(facts, centre)
        assert terms.max() - terms.min() <= moved
        assert terms.max() - terms.min() >= 0.98 * moved
        h = facts.estimand.tilt(e)
        assert h.max() - h.min() <= facts.tilts[1] - facts.tilts[0] + 1e-12
        for tau in (-1.0, 0.3):
            reach = facts.residual_bound(centre, torch.tensor([tau], dtype=torch.float64)).item()
            assert (terms - tau * h).abs().max().item() <= reach
    assert CentredSums(facts, 1.0).sums("centre", {}).moved.item() == pytest.approx(1)


def test_sensitivities_of_a_fair_coin():
    facts = DesignFacts(1000, make_estimand("ATE", 0.1), 0.5, 0.5)
    assert [width(facts, torch.tensor([c]).double()) for c in (0.5, 0.25)] == pytest.approx([2.0, 3.0])
    assert facts.public_size
    assert not DesignFacts(1000, make_estimand("ATT", 0.1), 0.2, 0.6).public_size


def test_the_centre_is_where_noise_and_sampling_are_least():
    facts, epsilon = DesignFacts(300, make_estimand("ATE", 0.1), 0.5, 0.5), 0.5
    grid = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    for mean in (0.0, 0.1, 0.45, 0.5, 0.8, 1.0):
        variance = 2 * (4 * torch.maximum(grid, 1 - grid) / epsilon) ** 2 + 300 * 4 * (mean - grid) ** 2
        total = torch.tensor([300 * mean], dtype=torch.float64)
        assert facts.centre(total, epsilon).item() == pytest.approx(grid[variance.argmin()].item(), abs=1e-4)


def exact(records: StackedRecords, facts: DesignFacts) -> NoisyEstimate:
    return CentredSums(facts, 1.0).without_noise(records.total)


def test_without_noise_it_is_the_centred_weighted_contrast():
    records = trial(1, 500, 0.2, 0.6, 1)
    batch, e = records.batch, records.batch.psi[0, :, 0]
    z, y = batch.z[0], batch.y[0]
    found = exact(records, DesignFacts(500, make_estimand("ATE", 0.1), 0.2, 0.6))
    expected = ((z / e - (1 - z) / (1 - e)) * (y - y.mean())).mean()
    assert found.estimate.item() == pytest.approx(expected.item(), rel=1e-9)
    # everybody alike: all estimands have one estimate
    same = trial(1, 500, 0.3, 0.3, 2)
    alike = [exact(same, DesignFacts(500, make_estimand(name, 0.1), 0.3, 0.3)) for name in ESTIMANDS]
    assert [one.estimate.item() for one in alike] == pytest.approx([alike[0].estimate.item()] * len(alike), rel=1e-9)


def test_where_the_size_is_public_contrast_and_squares_are_one_event():
    """5,000 runs, as above; nine bounds in ten are not below the deviations of the terms from their mean."""
    runs, plan = 5_000, planned(200, "ATE", 0.2, 0.6, 4.0)
    records, facts, epsilons = trial(1, 200, 0.2, 0.6, 3, mean=0.3), plan.facts, plan.readout({}).epsilons
    assert sum(epsilons.values()) == pytest.approx(4.0)
    found = plan.run(records, NoiseSource.system(), runs)
    centre = facts.centre(found.released["centre"], epsilons["sums"])
    terms, within = contrast(facts, centre, records.batch), facts.terms(centre)
    width = within.high - within.low
    assert (found.laplace[:, 0] * 200 / (width / epsilons["sums"])).tolist() == pytest.approx([1] * runs, rel=1e-5)
    errors = (found.released["difference"] - terms.sum(1)).abs() / (width / epsilons["sums"])
    assert errors.mean().item() == pytest.approx(1, rel=0.1)
    exact = (terms - within.middle[:, None]).square().sum(1)
    errors = (found.released["spread"] - exact).abs() / (width.square() / epsilons["sums"])
    assert errors.mean().item() == pytest.approx(1, rel=0.1)
    truth = (terms - terms.mean(1, keepdim=True)).square().sum(1)
    above = ((found.gaussian * 200).square() >= truth).double().mean().item()
    assert 0.9 - 6 * math.sqrt(0.09 / runs) < above < 0.93


@pytest.mark.slow
@pytest.mark.first(1)
@pytest.mark.parametrize(("n", "epsilon"), [(500, 0.5), (5000, 1.0)])
@pytest.mark.parametrize("ends", [(0.5, 0.5), (0.2, 0.6)])
def test_intervals_hold_the_effect_and_the_estimate_is_unbiased(ends, n, epsilon):
    """400 data sets. A coverage of .95 gives 358 or fewer of 400 less often than once in 10^6 runs."""
    plan = planned(n, "ATT", *ends, epsilon)
    found = plan.run(trial(400, n, *ends, 4), NoiseSource.system())
    error = found.estimate - truth("ATT", *ends)
    assert ((error.abs() <= half_width(0.95, found.gaussian, found.laplace)).sum().item()) > 358
    assert abs(error.mean().item()) < 6 * error.std().item() / math.sqrt(400)
