"""Random laws like a hospital's tables: their facts, truth, confounding and seeds."""

import math

import pytest
import torch

from experiments.designs.hospital import Hospital
from torchdpcate.data.covariates import Categorical
from torchdpcate.errors import InputError

N = 40_000
SDS = 6.0  # two-sided normal tail 2e-9
OUTCOMES = ("score", "death", "cost")
EFFECTS = ("constant", "subgroup", "threshold", "smooth")
FEW = {"columns": 12}


def mean_outcome(source, x, a):
    return source._outcome.mean(source._law.traits(x), a)


def drawn(source: Hospital, n: int = N, seed: int = 0):
    return source.draw(n, torch.Generator().manual_seed(seed))


def naive(records) -> float:
    treated = records.a == 1
    return float(records.y[treated].mean() - records.y[~treated].mean())


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


def test_few_and_many_covariates():
    kinds = [type(c) for c in Hospital(columns=5).schema().covariates]
    assert (len(kinds), kinds.count(Categorical)) == (5, 2)
    assert Hospital(columns=45).domain().dimension == 45 + 66


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


@pytest.mark.first(1)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_average_effect_is_the_mean_over_patients(outcome):
    source = Hospital(outcome, "smooth", law=2, **FEW)
    records = drawn(source, 100_000)
    effect, e = source.effect(records.x), source.propensity(records.x)
    assert close(effect, source.average_effect("ATE"))
    assert close(e * (effect - source.average_effect("ATT")))
    assert close(e * (1 - e) * (effect - source.average_effect("ATO")))
    assert math.sqrt(float(effect.var()) / 200_000) < 0.002 * float(records.y.std())
    with pytest.raises(InputError):
        source.average_effect("mean")


@pytest.mark.first(2)
@pytest.mark.parametrize("law", range(12))
def test_the_subgroup_is_about_a_tenth(law):
    source = Hospital(law=law)
    assert 0.05 < float((source.effect(drawn(source, 10_000).x) > 0).double().mean()) < 0.16


@pytest.mark.slow
@pytest.mark.first(1)
@pytest.mark.parametrize("law", range(6))
def test_a_cohort_is_confounded_and_a_trial_is_not(law):
    cohort, trial = Hospital(law=law), Hospital(law=law, trial=True)
    records = drawn(cohort)
    sd = float(records.y.std())
    assert 0.85 < sd < 1.15
    assert 7.0 < cohort.domain().outcome_range / sd < 15.0
    assert 0.4 < (naive(records) - cohort.average_effect("ATE")) / sd < 1.2
    error = 2.0 / math.sqrt(N)  # of a difference of halves, in standard deviations
    assert abs(naive(drawn(trial)) - trial.average_effect("ATE")) < 5.0 * error * sd


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


def test_a_trial_has_a_known_propensity():
    source = Hospital(trial=True, treated=0.3, n=2_000, **FEW)
    study = source.load()
    assert study.schema.to_dict()["propensity"] == 0.3
    assert float(source.propensity(study.records.x).std()) < 1e-12
    assert Hospital().domain().known_propensity is None


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


def test_mean_costs_are_those_of_costs_cut_at_the_bound():
    source = Hospital("cost", "smooth", law=1, **FEW)
    x = drawn(source, 5_000).x
    traits, outcome = source._law.traits(x), source._outcome
    z = torch.linspace(-9.0, 9.0, 20_001, dtype=torch.float64)
    density = torch.exp(-(z**2) / 2.0) * (z[1] - z[0]) / math.sqrt(2.0 * math.pi)
    worst = traits.baseline.argsort()[-50:]
    for a in (0.0, 1.0):
        costs = torch.exp(outcome._logarithm(traits, a)[worst, None] + outcome._sd * z)
        some = outcome._any(traits)[worst]
        cut, whole = (some * (c * density).sum(1) for c in (costs.clamp(max=outcome.high), costs))
        assert torch.allclose(mean_outcome(source, x, a)[worst], cut, rtol=1e-6)
        assert bool((cut < 0.999 * whole).all())


@pytest.mark.slow
def test_the_noise_of_a_score_is_skewed_and_uneven():
    source = Hospital("score", "constant", law=0)
    records = drawn(source, 100_000)
    noise = records.y - mean_outcome(source, records.x, records.a)
    assert close(noise)
    spread = source._law.traits(records.x).spread
    assert float(noise[spread > 1.2].std() / noise[spread < 0.8].std()) > 1.4
    assert 0.6 < float((noise / noise.std()).pow(3).mean()) < 2.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"outcome": "weight"}, "choose one of score, death, cost"),
        ({"effect": "none"}, "choose one of constant, subgroup, threshold, smooth"),
        ({"treated": 0.001}, r"from 0\.005 to 0\.995"),
        ({"columns": 4}, "from 5 to 400"),
        ({"columns": True}, "from 5 to 400"),
        ({"law": -1}, "data.law is -1"),
        ({"overlap": 0.3}, r"0\.25, or less"),
        ({"overlap": 0.0}, r"0\.25, or less"),
    ],
)
def test_other_arguments_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        Hospital(**given)
