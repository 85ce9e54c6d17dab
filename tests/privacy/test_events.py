import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

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


def accountant():
    return PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)


@pytest.mark.parametrize("event", EVENTS)
def test_round_trip(event):
    assert event_from_dict(event.to_dict()) == event


@pytest.mark.parametrize("event", [DPSGDEvent(4.0, 0.1), GaussianEvent(6.0), PureEvent(0.5)])
def test_the_library_event_costs_the_same_in_replace_one_mode(event):
    library = accountant().compose(event.to_dp_event()).get_epsilon(1e-5)
    # a lone pure event comes out at its own epsilon, its loss distribution spends the delta too
    assert compose([(event, 1)], 1e-5) == pytest.approx(library, rel=1e-3)


def test_gaussian_of_output_perturbation_matches_the_theory():
    composed = accountant().compose(dp_accounting.GaussianDpEvent(12.0)).get_epsilon(1e-5)
    assert composed == pytest.approx(0.594498, abs=5e-7)
    assert GaussianEvent(6.0).to_dp_event() == dp_accounting.GaussianDpEvent(12.0)


def test_the_library_has_no_approximate_event():
    assert not accountant().supports(ApproximateEvent(0.5, 1e-6).to_dp_event())
