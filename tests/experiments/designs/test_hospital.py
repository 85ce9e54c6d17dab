"""Random laws like a hospital's tables: their facts, truth, confounding and seeds."""

import math

import pytest
import torch

from experiments.designs.hospital import Hospital

N = 40_000
SDS = 6.0  # two-sided normal tail 2e-9
OUTCOMES = ("score", "death", "cost")
EFFECTS = ("constant", "subgroup", "threshold", "smooth")
FEW = {"columns": 12}


def mean_outcome(source, x, a):
    return source._outcome.mean(source._law.traits(x), a)


def drawn(source: Hospital, n: int = N, seed: int = 0):
    return source.draw(n, torch.Generator().manual_seed(seed))


def close(sample: torch.Tensor, other: torch.Tensor | float = 0.0) -> bool:
    """Whether the mean of differences is within standard errors of 0."""
    apart = sample - other
    return abs(float(apart.mean())) <= SDS * float(apart.std()) / math.sqrt(len(apart)) + 1e-9


@pytest.mark.first(1)
@pytest.mark.parametrize("law", range(3))
def test_covariates_are_those_of_a_hospital(law):
    source = Hospital(law=law)
    x, patients = drawn(source).x, source._law.patients
    source.domain().check_covariates(x)
    assert (x.shape[1], len(source.schema().columns)) == (106, 40)
    vitals, labs, conditions, codes = x.split([5, 20, 9, 72], 1)
    assert 40 < float(vitals[:, 0].mean()) < 75

    in_use = labs.quantile(0.9, dim=0) / patients.lab_high
    assert float(in_use.min()) < 0.1
    assert bool(((in_use > 0.02) & (in_use < 0.55)).all())
    assert bool((labs.mean(0) > labs.median(0).values).all())  # skewed

    apart = (conditions.mean(0) - patients.prevalence) / (patients.prevalence / N).sqrt()
    assert float(apart.abs().max()) < SDS
    assert 0.02 <= float(patients.prevalence.min()) < float(patients.prevalence.max()) <= 0.3

    assert bool((codes.reshape(N, 6, 12).sum(2) == 1).all())
    frequency = codes.mean(0)
    assert float((frequency - patients.frequency.flatten()).abs().max()) < SDS * 0.5 / math.sqrt(N)
    assert (
        float(torch.corrcoef(labs[:, patients._lognormal].clamp(min=1e-9).log().T).abs().fill_diagonal_(0).max()) > 0.1
    )


@pytest.mark.first(2)
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("effect", EFFECTS)
def test_the_effect_is_that_of_both_outcomes(outcome, effect):
    source = Hospital(outcome, effect, law=5, **FEW)
    x = drawn(source, 100_000).x
    traits, generator = source._law.traits(x), torch.Generator().manual_seed(1)
    treated, control = (source._outcome.draw(traits, a, generator) for a in (1.0, 0.0))
    assert close(treated - control, source.effect(x))
    assert close(treated, mean_outcome(source, x, 1.0))
    assert close(control, mean_outcome(source, x, 0.0))
    strong = source.effect(x).abs() >= source.effect(x).abs().quantile(0.9)
    assert close((treated - control)[strong], source.effect(x)[strong])
    for y in (treated, control):
        source.domain().check_outcome(y)


@pytest.mark.first(2)
@pytest.mark.parametrize("treated", [0.01, 0.1, 0.5, 0.8])
def test_treatments_follow_the_propensity(treated):
    source = Hospital(treated=treated, law=1, **FEW)
    records, overlap = drawn(source), source.domain().overlap
    e = source.propensity(records.x)
    assert overlap == pytest.approx(min(0.05, treated / 10, (1 - treated) / 10))
    assert close(records.a, e)
    for few in (e < e.quantile(0.25), e > e.quantile(0.75)):
        assert close(records.a[few], e[few])
    assert float(e.mean()) == pytest.approx(treated, rel=0.1)
    assert overlap - 1e-12 <= float(e.min()) < float(e.max()) <= 1 - overlap + 1e-12
    assert float(((e < overlap + 1e-9) | (e > 1 - overlap - 1e-9)).double().mean()) < 0.025


@pytest.mark.first(1)
@pytest.mark.parametrize("law", range(6))
def test_deaths_are_rare_and_costs_have_zeros_and_a_tail(law):
    death, cost = (drawn(Hospital(outcome, law=law, **FEW)).y for outcome in ("death", "cost"))
    assert set(death.unique().tolist()) == {0.0, 1.0}
    assert 0.008 < float(death.mean()) < 0.06
    assert Hospital("death").domain().outcome_kind == "binary"

    high = Hospital("cost", law=law, **FEW).domain().outcome_high
    assert 0.18 < float((cost == 0).double().mean()) < 0.52
    assert 0.0 < float((cost == high).double().mean()) < 0.001
    assert 0.75 < float(cost[cost > 0].log().std()) < 1.3
