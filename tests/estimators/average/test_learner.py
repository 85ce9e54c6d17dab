"""What all learners of average effects share: reading batch by batch."""

from collections.abc import Iterator

import pytest
import torch

from tests.composition.cases import Batches
from tests.estimators.average.confounded import DOMAIN, arrays
from tests.registered import CovariateBalancingEffect
from torchdpcate import NoiseSource, PrivacyBudget
from torchdpcate.causal.estimand import ESTIMANDS, Estimand
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.papers.confounded import Confounded
from torchdpcate.verify.file import verify_release

N = 1_003


class Changing(Batches):
    """Records of the confounded design, of which others may be read from the second reading on."""

    later: CausalData | None = None

    def __init__(self) -> None:
        super().__init__(DOMAIN, CausalData(*arrays(N, 6)), 100)

    def __iter__(self) -> Iterator[CausalData]:
        if self.readings and self.later is not None:
            self.records = self.later
        return super().__iter__()


def balancing() -> CovariateBalancingEffect:
    return CovariateBalancingEffect(DOMAIN, PrivacyBudget(2.0, 0.0), noise=NoiseSource.fixed(3))


BAD = [("x", 1e4, "covariate"), ("x", float("nan"), "missing"), ("a", 7.0, "treatment"), ("y", 2.0, "outcome")]


@pytest.mark.parametrize(("part", "value", "named"), BAD)
def test_one_record_outside_its_bounds_is_refused_before_anything_is_spent(part, value, named):
    stream, learner = Changing(), balancing()
    getattr(stream.records, part)[500] = value
    with pytest.raises(InputError, match=named):
        learner.fit_stream(stream)
    assert not hasattr(learner, "ledger_")


def test_a_stream_that_miscounts_or_lacks_an_arm_is_refused():
    stream = Changing()
    stream.lost = 100
    with pytest.raises(InputError, match="903 records"):
        balancing().fit_stream(stream)
    stream = Changing()
    stream.records.a[:] = 1.0
    with pytest.raises(InputError, match="no record"):
        balancing().fit_stream(stream)


def test_what_is_read_otherwise_later_moves_no_sum_beyond_its_sensitivity():
    """Records are moved into the domain at each reading: a stream that changes cannot make a term too large."""
    stream, learner = Changing(), balancing()
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
