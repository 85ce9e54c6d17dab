"""Records with weights, beside ``test_streams``: without noise they are thinned tables; what takes none is one line."""

import pytest
import torch

from tests.composition.cases import Batches
from tests.estimators.families import made
from tests.estimators.test_streams import DOMAINS, HIGH, KEPT, LOW, PURE, N, drawn
from torchdpcate import Domain, PrivacyBudget
from torchdpcate.composition.linear_fit import NoisyNewton
from torchdpcate.composition.settings import AdaptiveSecondStage, Additive
from torchdpcate.errors import InputError

OBSERVED, TRIAL = DOMAINS["weights"], DOMAINS["weights of a trial"]


@pytest.mark.parametrize("name", ["two blocks", "balancing", "weighted rule"])
def test_what_takes_no_weights_is_one_line_before_a_record_is_read(name):
    records, learner = drawn(), made(name, OBSERVED, PURE)
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
    for name in ("effect", "average of a trial"):
        with pytest.raises(InputError, match="records have no weights"):
            made(name, TRIAL).fit_stream(Batches(TRIAL, drawn(), 300)).release()


def test_without_noise_weights_of_nought_and_one_are_the_thinned_table():
    records = drawn()
    y, facts = (records.y > 0.3).double(), {"propensity": 0.5, "outcome_kind": "binary"}
    half = Domain(LOW, HIGH, 0.0, 1.0, **facts, weights={"name": "w", "high": 1, "mean": 0.5})
    weighted = made("effect", half, None).fit(records.x, records.a, y, weight=KEPT)
    by_sums = AdaptiveSecondStage(nuisance=Additive(NoisyNewton()))
    thinned = made("effect", Domain(LOW, HIGH, 0.0, 1.0, **facts), None, second_stage=by_sums)
    thinned.fit(records.x[KEPT > 0], records.a[KEPT > 0], y[KEPT > 0])
    found, expected = (torch.from_numpy(each.nonprivate_effect(records.x)) for each in (weighted, thinned))
    torch.testing.assert_close(found, expected)


def test_without_noise_a_constant_effect_is_that_of_weighted_least_squares():
    """Of a fair coin: the weighted difference of the arms' means, that of repeated records too."""
    records = drawn()
    times = 1 + (torch.arange(N) % 3)
    w, a, y = times.double() / 1.5, records.a, records.y
    exact = (w * a * y).sum() / (w * a).sum() - (w * (1 - a) * y).sum() / (w * (1 - a)).sum()
    found = made("average of a trial", TRIAL, None).fit(records.x, a, y, weight=w).nonprivate_estimate()
    repeated = records.subset(torch.arange(N).repeat_interleave(times))
    plain = made("average of a trial", DOMAINS["trial"], None).fit(repeated.x, repeated.a, repeated.y)
    assert found.value == pytest.approx(plain.nonprivate_estimate().value, abs=1e-3)
    assert found.value == pytest.approx(float(exact), abs=0.02)


def test_a_released_weight_and_effect_are_those_of_the_weighted_records():
    records = drawn()
    learner = made("effect", TRIAL, PrivacyBudget(200.0, 1e-5))
    release = learner.fit(records.x, records.a, records.y, weight=2 * records.x[:, 0]).release_function()
    assert release.weight == pytest.approx(float(records.x[:, 0].mean()), abs=0.01)
    effect = records.x[:, 0] - 0.4
    expected = float((records.x[:, 0] * effect).sum() / records.x[:, 0].sum())
    low, high = release.average()
    assert low < expected < high
    assert release.privacy.bounds["weights"].startswith("a record counts w / 2 times")
