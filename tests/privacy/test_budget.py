import math

import pytest

from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import dp_sgd_noise_multiplier
from torchdpcate.privacy.budget import LEAST_DELTA, PrivacyBudget
from torchdpcate.privacy.events import ApproximateEvent, GaussianEvent, PureEvent, event_from_dict
from torchdpcate.privacy.filters import FilterCost, SumFilter, cost_from
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.shared_ledger import SharedLedger
from torchdpcate.privacy.unit import PrivacyUnit
from torchdpcate.release.blocks import is_delta


def test_budget_is_frozen_equal_by_value_and_round_trips():
    budget = PrivacyBudget(1, 0)
    assert budget == PrivacyBudget(1.0, 0.0)
    assert PrivacyBudget.from_dict(budget.to_dict()) == budget
    with pytest.raises(AttributeError):
        budget.epsilon = 2.0


TOO_SMALL = (5e-324, 1e-100, 1e-38, math.nextafter(LEAST_DELTA, 0.0))


@pytest.mark.parametrize("delta", TOO_SMALL)
@pytest.mark.parametrize(
    "take",
    [
        lambda delta, folder: PrivacyBudget(1.0, delta),
        lambda delta, folder: PrivacyBudget.from_dict({"epsilon": 1.0, "delta": delta}),
        lambda delta, folder: ApproximateEvent(1.0, delta),
        lambda delta, folder: event_from_dict({"kind": "approximate", "epsilon": 1.0, "delta": delta}),
        lambda delta, folder: cost_from({"epsilon": 1.0, "delta": delta}),
        lambda delta, folder: dp_sgd_noise_multiplier(1.0, delta, 0.1, 10),
        lambda delta, folder: SharedLedger(folder / "shared.sqlite", "records", PrivacyBudget(1.0, delta)),
    ],
    ids=["budget", "file", "event", "event of a file", "cost of a file", "dp-sgd", "shared ledger"],
)
def test_a_delta_below_what_noise_keeps_is_refused_in_one_line(delta, take, tmp_path):
    with pytest.raises(InputError, match=r"delta = .*give 0, or at least 1e-30") as refused:
        take(delta, tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("delta", TOO_SMALL)
def test_a_release_states_no_such_delta(delta):
    assert not is_delta(delta)
    assert is_delta(LEAST_DELTA)
    assert is_delta(0.0)
    assert is_delta(None)


def test_persons_whose_records_are_left_less_delta_are_told_so():
    with pytest.raises(InputError, match=r"4 records of a person leave delta = 1.*e-31 by record"):
        PrivacyUnit.person("id", 4).record_budget(PrivacyBudget(1.0, 1e-30))


@pytest.mark.parametrize("delta", [LEAST_DELTA, 3e-30, 1e-27])
@pytest.mark.parametrize("filter", ["sums", "gaussian"])
@pytest.mark.parametrize("first", [PureEvent(0.25), GaussianEvent(40.0)])
def test_what_is_left_of_the_least_deltas_is_a_budget_again(delta, filter, first):
    ledger = Ledger({"all": PrivacyBudget(1.0, delta)}, filter=filter)
    ledger.charge("all", "first", first)
    while (left := ledger.remaining("all")) is not None and left.epsilon > 0.1:
        assert left.delta == 0 or left.delta >= LEAST_DELTA
        ledger.charge("all", "later", PureEvent(min(left.epsilon, 0.2)))


def test_a_gaussian_charge_of_the_sum_filter_counts_the_least_delta_or_none():
    rule = SumFilter()
    cost = rule.cost(GaussianEvent(1e4), 1, FilterCost(1.0, 1.5e-30))
    assert cost is not None
    assert LEAST_DELTA <= cost.delta <= 1.5e-30
    assert rule.covers(cost, GaussianEvent(1e4), 1)
    assert rule.events(cost)
    assert rule.cost(GaussianEvent(1e4), 1, FilterCost(1.0, 0.9e-30)) is None
