"""What all learners of average effects share: reading batch by batch."""

from collections.abc import Iterator

import pytest
import torch

from tests.estimators.average.confounded import DOMAIN, arrays
from tests.registered import CovariateBalancingEffect
from torchdpcate import Domain, NoiseSource, PrivacyBudget, TableSchema
from torchdpcate.causal.estimand import ESTIMANDS, Estimand
from torchdpcate.data.records import CausalData
from torchdpcate.data.streams import RecordStream
from torchdpcate.errors import InputError
from torchdpcate.papers.confounded import Confounded
from torchdpcate.verify.file import verify_release

N = 1_003


class Batches(RecordStream):
    """Records of the confounded design, 100 at a time; counts how often they are read."""

    def __init__(self, domain: Domain | TableSchema = DOMAIN) -> None:
        self.schema, self.n, self.readings = TableSchema.of(domain), N, 0
        self.records = CausalData(*arrays(N, 6))
        self.later: CausalData | None = None  # what is read from the second reading on

    def __iter__(self) -> Iterator[CausalData]:
        records = self.records if self.readings == 0 or self.later is None else self.later
        self.readings += 1
        for start in range(0, N, 100):
            yield records.subset(slice(start, start + 100))


def balancing() -> CovariateBalancingEffect:
    return CovariateBalancingEffect(DOMAIN, PrivacyBudget(2.0, 0.0), noise=NoiseSource.fixed(3))


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("x", 1e4, "covariate"),
        ("x", float("nan"), "missing"),
        ("a", 7.0, "treatment"),
        ("y", 2.0, "outcome"),
        ("y", float("nan"), "missing"),
    ],
)
def test_one_record_outside_its_bounds_is_refused_before_anything_is_spent(part, value, named):
    stream, learner = Batches(), balancing()
    getattr(stream.records, part)[500] = value
    with pytest.raises(InputError, match=named):
        learner.fit_stream(stream)
    assert not hasattr(learner, "ledger_")


def test_a_stream_that_miscounts_or_lacks_an_arm_is_refused():
    stream = Batches()
    stream.n = 10 * N
    with pytest.raises(InputError, match="1003 records"):
        balancing().fit_stream(stream)
    stream = Batches()
    stream.records.a[:] = 1.0
    with pytest.raises(InputError, match="no record"):
        balancing().fit_stream(stream)


def test_what_is_read_otherwise_later_moves_no_sum_beyond_its_sensitivity():
    """Records are moved into the domain at each reading: a stream that changes cannot make a term too large."""
    stream, learner = Batches(), balancing()
    x, a, y = (part.clone() for part in (stream.records.x, stream.records.a, stream.records.y))
    y[0], a[0] = 1e9, 1e9
    stream.later = CausalData(x, a, y)
    numbers = learner.fit_stream(stream).release().numbers
    assert max(map(abs, numbers.values())) < 3 * N


BUDGET = PrivacyBudget(400.0, 1e-5)


class HalfOverlap(Estimand):
    """h = sqrt(e (1 - e)), half way between ATE and ATO."""

    name = "HALF"
    powers = (-0.5, -0.5)


@pytest.fixture(autouse=True)
def _added(monkeypatch):
    monkeypatch.setitem(ESTIMANDS, HalfOverlap.name, HalfOverlap)


def test_it_is_estimated_released_and_verified(tmp_path):
    records = Confounded().draw(20_000, torch.Generator().manual_seed(0))
    learner = CovariateBalancingEffect(DOMAIN, BUDGET, estimand="HALF")
    release = learner.fit(records.x, records.a, records.y).release()
    assert (release.estimand, release.privacy.level) == ("HALF", "conditional")  # whose bounds are not proved
    assert abs(release.estimate - Confounded().average_effect("HALF")) < 0.03
    assert verify_release(release.save(tmp_path / "release.safetensors"))
