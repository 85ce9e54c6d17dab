"""Every family by records with weights: a record of none changes nothing, streams agree, what cannot is one line."""

import pytest
import torch

from tests.estimators.test_streams import BUDGET, CELLS, HIGH, LOW, POLICIES, PURE, Batches, N, drawn, shown
from tests.registered import (
    AverageEffect,
    ComposedAverageEffect,
    CovariateBalancingEffect,
    DRLearner,
    EffectRule,
    KnownPropensityEffect,
    OutcomeWeightedLearner,
    PolicySelector,
    RLearner,
    SubgroupEffects,
)
from torchdpcate import Domain, NoiseSource, PrivacyBudget
from torchdpcate.composition.linear_fit import NoisyNewton
from torchdpcate.composition.settings import AdaptiveSecondStage, Additive
from torchdpcate.data.records import CausalData
from torchdpcate.data.streams import CachedStream
from torchdpcate.errors import InputError
from torchdpcate.heads.recipes import LinearSecondStage

WEIGHTS = {"weights": {"name": "w", "high": 2, "mean": 1}}
OBSERVED = Domain(LOW, HIGH, -2.0, 4.0, overlap=0.1, better="higher", **WEIGHTS)
TRIAL = Domain(LOW, HIGH, -2.0, 4.0, propensity=0.5, better="higher", **WEIGHTS)
KEPT = (torch.arange(N) % 2 == 0).double()
BY_SUMS = AdaptiveSecondStage(nuisance=Additive(NoisyNewton()))
FAMILIES = {
    "r": lambda **s: RLearner(OBSERVED, BUDGET, **s),
    "r, pure": lambda **s: RLearner(OBSERVED, PURE, **s),
    "r, intervals": lambda **s: RLearner(TRIAL, BUDGET, **s),
    "dr": lambda **s: DRLearner(OBSERVED, BUDGET, **s),
    "rule, pure": lambda **s: EffectRule(OBSERVED, PURE, **s),
    "average, composed": lambda **s: ComposedAverageEffect(OBSERVED, BUDGET, **s),
    "average, trial": lambda **s: KnownPropensityEffect(TRIAL, PURE, **s),
    "subgroups, scores": lambda **s: SubgroupEffects(OBSERVED, BUDGET, subgroups=CELLS, **s),
    "subgroups, trial": lambda **s: SubgroupEffects(TRIAL, PURE, subgroups=CELLS, **s),
    "policies": lambda **s: PolicySelector(OBSERVED, BUDGET, policies=POLICIES, **s),
    "policies, trial": lambda **s: PolicySelector(TRIAL, PURE, policies=POLICIES, **s),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_record_of_no_weight_holds_changes_nothing_and_a_stream_is_memory(name, tmp_path):
    records = drawn()
    other = CausalData(*(torch.where(KEPT[:, None] > 0, records.x, 1 - records.x), records.a, records.y))
    other.y[KEPT == 0], other.a[KEPT == 0] = 4.0, 1 - other.a[KEPT == 0]

    def made():
        return FAMILIES[name](noise=NoiseSource.fixed(3))

    expected = shown(made().fit(records.x, records.a, records.y, weight=2 * KEPT))
    assert torch.equal(shown(made().fit(other.x, other.a, other.y, weight=2 * KEPT)), expected)
    records = records.with_weight(KEPT).with_propensity(None).subset(NoiseSource.fixed(3).permutation(N))
    learner = made()
    with CachedStream(Batches(learner.domain, records, N), tmp_path, N) as one:
        assert torch.equal(shown(learner.fit_stream(one)), expected)


HORIZON = {"time": "t", "event": "d", "horizon": 2.0, "censoring": {"floor": 0.4}}
FOLLOWED = Domain(LOW, HIGH, 0.0, 2.0, overlap=0.1, censoring=HORIZON, better="higher")
CENSORED = {
    "r": lambda **s: RLearner(FOLLOWED, BUDGET, **s),
    "r, pure": lambda **s: RLearner(FOLLOWED, PURE, **s),
    "dr": lambda **s: DRLearner(FOLLOWED, BUDGET, **s),
    "average": lambda **s: AverageEffect(FOLLOWED, BUDGET, **s),
    "subgroups": lambda **s: SubgroupEffects(FOLLOWED, BUDGET, subgroups=CELLS, **s),
}


def followed() -> CausalData:
    """Records with time and event, of which many end before the horizon without the event."""
    records = drawn()
    both = torch.stack([(records.y + 2).clamp(0, 3), (records.x[:, 2] < 0.6).double()], 1)
    horizon = FOLLOWED.censoring
    both = horizon.within(both)
    return CausalData(records.x, records.a, horizon.outcome(both), follow_up=both)


@pytest.mark.parametrize("name", CENSORED)
def test_what_a_censored_record_holds_beside_its_follow_up_changes_nothing(name, tmp_path):
    records = followed()
    unknown = ~FOLLOWED.censoring.observed(records.follow_up)
    other = CausalData(records.x.clone(), records.a.clone(), records.y, follow_up=records.follow_up)
    other.x[unknown], other.a[unknown] = 1 - other.x[unknown], 1 - other.a[unknown]
    assert 0.05 < unknown.double().mean() < 0.5

    def made():
        return CENSORED[name](noise=NoiseSource.fixed(3))

    expected = shown(made().fit(records.x, records.a, records.follow_up))
    assert torch.equal(shown(made().fit(other.x, other.a, other.follow_up)), expected)
    stream = Batches(FOLLOWED, records.subset(NoiseSource.fixed(3).permutation(N)), N)
    with CachedStream(stream, tmp_path, N) as one:
        assert torch.equal(shown(made().fit_stream(one)), expected)


REFUSED = {
    "blocks": RLearner(OBSERVED, BUDGET, second_stage=LinearSecondStage()),
    "balancing": CovariateBalancingEffect(OBSERVED, PURE),
    "no estimator": AverageEffect(OBSERVED, PURE),
    "weighted rule": OutcomeWeightedLearner(OBSERVED, PURE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_no_weights_is_one_line_before_a_record_is_read(name):
    records, learner = drawn(), REFUSED[name]
    with pytest.raises(InputError, match=r"^weights: .*records may have weights in task=cate") as refusal:
        learner.fit(records.x, records.a, records.y, weight=torch.ones(N))
    assert "\n" not in str(refusal.value)
    assert not hasattr(learner, "ledger_")
    with pytest.raises(InputError, match=r"^weights: "):
        learner.expected_noise(N)
    stream = Batches(OBSERVED, records, 300)
    with pytest.raises(InputError, match=r"^weights: "):
        learner.fit_stream(stream)
    assert stream.readings == 0


def test_a_stream_without_the_weights_of_its_domain_is_refused():
    with pytest.raises(InputError, match="records have no weights"):
        RLearner(OBSERVED, BUDGET).fit_stream(Batches(OBSERVED, drawn(), 300))
    with pytest.raises(InputError, match="records have no weights"):
        KnownPropensityEffect(TRIAL, PURE).fit_stream(Batches(TRIAL, drawn(), 300)).release()


def binary(weights: dict) -> tuple[Domain, CausalData, torch.Tensor]:
    records = drawn()
    y = (records.y > 0.3).double()
    domain = Domain(LOW, HIGH, 0.0, 1.0, propensity=0.5, outcome_kind="binary", **weights)
    return domain, CausalData(records.x, records.a, y), records.x


def test_without_noise_weights_of_nought_and_one_are_the_thinned_table():
    half = {"weights": {"name": "w", "high": 1, "mean": 0.5}}
    domain, records, x = binary(half)
    weighted = RLearner(domain, None).fit(records.x, records.a, records.y, weight=KEPT)
    part = records.subset(KEPT > 0)
    thinned = RLearner(binary({})[0], None, second_stage=BY_SUMS).fit(part.x, part.a, part.y)
    torch.testing.assert_close(
        torch.from_numpy(weighted.nonprivate_effect(x)), torch.from_numpy(thinned.nonprivate_effect(x))
    )


def test_without_noise_a_constant_effect_is_that_of_weighted_least_squares():
    """Of a fair coin: the weighted difference of the arms' means, that of repeated records too."""
    records = drawn()
    times = 1 + (torch.arange(N) % 3)
    w, a, y = times.double() / 1.5, records.a, records.y
    exact = (w * a * y).sum() / (w * a).sum() - (w * (1 - a) * y).sum() / (w * (1 - a)).sum()
    found = KnownPropensityEffect(TRIAL, None).fit(records.x, a, y, weight=w).nonprivate_estimate()
    repeated = records.with_propensity(None).subset(torch.arange(N).repeat_interleave(times))
    plain = KnownPropensityEffect(Domain(LOW, HIGH, -2.0, 4.0, propensity=0.5), None)
    same = plain.fit(repeated.x, repeated.a, repeated.y).nonprivate_estimate()
    assert found.value == pytest.approx(same.value, abs=1e-3)
    assert found.value == pytest.approx(float(exact), abs=0.02)


def test_a_released_weight_and_effect_are_those_of_the_weighted_records():
    records = drawn()
    learner = RLearner(TRIAL, PrivacyBudget(200.0, 1e-5))
    release = learner.fit(records.x, records.a, records.y, weight=2 * records.x[:, 0]).release_function()
    assert release.weight == pytest.approx(float(records.x[:, 0].mean()), abs=0.01)
    effect = records.x[:, 0] - 0.4
    expected = float((records.x[:, 0] * effect).sum() / records.x[:, 0].sum())
    low, high = release.average()
    assert low < expected < high
    assert release.privacy.bounds["weights"].startswith("a record counts w / 2 times")
