import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.special import expit

from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.events import (
    ApproximateEvent,
    BoundedRangeEvent,
    DPSGDEvent,
    GaussianEvent,
    PureEvent,
    event_from_dict,
)

EVENTS = [DPSGDEvent(4.0, 0.1), GaussianEvent(6.0), PureEvent(0.5), BoundedRangeEvent(0.5), ApproximateEvent(0.5, 1e-6)]
LIBRARY = [
    (DPSGDEvent(4.0, 0.1), dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(4.0))),
    (GaussianEvent(6.0), dp_accounting.GaussianDpEvent(12.0)),
    (PureEvent(0.5), dp_accounting.RandomizedResponseDpEvent(2 * float(expit(-0.5)), 2)),
]


@pytest.mark.parametrize("event", EVENTS)
def test_round_trip(event):
    assert event_from_dict(event.to_dict()) == event


@pytest.mark.parametrize(("event", "theirs"), LIBRARY)
def test_the_library_event_costs_the_same_in_replace_one_mode(event, theirs):
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE).compose(theirs)
    # a lone pure event comes out at its own epsilon, its loss distribution spends the delta too
    assert compose([(event, 1)], 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    if isinstance(event, GaussianEvent):
        assert accountant.get_epsilon(1e-5) == pytest.approx(0.594498, abs=5e-7)
