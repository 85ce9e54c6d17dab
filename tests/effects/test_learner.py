"""What all learners of average effects share: reading batch by batch."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.effects.confounded import DOMAIN, arrays
from torchdpcate import Domain, NoiseSource, PrivacyBudget, TableSchema
from torchdpcate.data import CausalData, RecordStream
from torchdpcate.effects import (
    AverageEffectLearner,
    CovariateBalancingEffect,
    DifferenceInMeansEffect,
    HorvitzThompsonEffect,
    SubsampleAggregateEffect,
)
from torchdpcate.errors import InputError

N = 1_003


class Batches(RecordStream):
    """Records of the confounded design, 100 at a time; counts how often they are read."""

    def __init__(self, domain: Domain = DOMAIN) -> None:
        self.schema, self.n, self.readings = TableSchema.of(domain), N, 0
        self.records = CausalData(*arrays(N, 6))

    def __iter__(self) -> Iterator[CausalData]:
        self.readings += 1
        for start in range(0, N, 100):
            yield self.records.subset(slice(start, start + 100))


def learners(**settings: object) -> list[AverageEffectLearner]:
    common = {"noise": NoiseSource.fixed(3), **settings}
    return [
        CovariateBalancingEffect(DOMAIN, PrivacyBudget(2.0, 0.0), eta=0.1, shares={"balance": 0.1}, **common),
        CovariateBalancingEffect(DOMAIN, PrivacyBudget(2.0, 0.0), eta=0.1, readout="outcome_table", **common),
        DifferenceInMeansEffect(DOMAIN, PrivacyBudget(2.0, 0.0), **common),
        HorvitzThompsonEffect(DOMAIN, PrivacyBudget(2.0, 0.0), eta=0.1, **common),
    ]


@pytest.mark.parametrize("which", range(4))
def test_a_stream_gives_the_release_of_the_same_records_at_once(which):
    whole = learners()[which].fit(*arrays(N, 6)).release()
    stream = Batches()
    streamed = learners()[which].fit_stream(stream).release()
    assert stream.readings > 0
    assert streamed.estimate == pytest.approx(whole.estimate, abs=1e-9)
    assert streamed.numbers == pytest.approx(whole.numbers, rel=1e-6)
    assert streamed.privacy.n == N
    if which < 3:  # sums are exact: what is released differs by what the fits' stop leaves alone
        np.testing.assert_allclose(streamed.interval(0.9), whole.interval(0.9), rtol=1e-6)


def test_a_stream_of_other_bounds_is_refused():
    with pytest.raises(InputError, match="stream"):
        learners()[0].fit_stream(Batches(Domain([-2.0] * 4, [2.0] * 4, 0.0, 1.0)))


def test_a_learner_that_needs_all_records_at_once_says_so():
    with pytest.raises(InputError, match="at once"):
        SubsampleAggregateEffect(DOMAIN, PrivacyBudget(1.0, 0.0)).fit_stream(Batches())


def test_an_unfitted_learner_releases_nothing():
    with pytest.raises(InputError, match="not fitted"):
        learners()[0].release()
    with pytest.raises(InputError, match="not fitted"):
        learners()[0].curator_estimate()
