import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy.accounting import compose, event_mu
from torchdpcate.privacy.budget import LEAST_DELTA, PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, GaussianEvent, PureEvent
from torchdpcate.privacy.filters import (
    FilterCost,
    GaussianFilter,
    SumFilter,
    cost_from,
    filter_from,
    make_filter,
    stated_cost,
)
from torchdpcate.privacy.ledger import Ledger

BUDGET = PrivacyBudget(1.0, 1e-5)
FIRST = GaussianEvent(analytic_gaussian_sigma(0.5, 5e-6))


def ledger(filter="sums", *later):
    opened = Ledger({"block": BUDGET}, filter=filter)
    opened.charge("block", "first", FIRST)
    for event in later:
        opened.charge("block", "later", event)
    return opened


def test_a_pure_event_has_the_mu_of_its_advantage():
    found = [event_mu(PureEvent(epsilon)) for epsilon in (0.03, 0.1, 1.0)]
    assert found == pytest.approx([0.0375988190, 0.1253090122, 1.2320353853], abs=2e-10)


def test_the_gaussian_filter_of_an_untouched_block():
    whole = GaussianFilter().reserve([], BUDGET)
    assert (whole.size, 1 / whole.size) == pytest.approx((0.2680511232, 3.7306316348), abs=2e-10)


def test_what_a_gaussian_leaves_a_gaussian_filter():
    assert FIRST.noise_multiplier == pytest.approx(7.3511489379, abs=2e-10)
    assert event_mu(FIRST) == pytest.approx(0.1360331573, abs=2e-10)
    left = GaussianFilter().reserve([(FIRST, 1)], BUDGET)
    assert left.size == pytest.approx(0.2309683631, abs=2e-10)
    opened = ledger("gaussian")
    assert opened.remaining("block").epsilon == pytest.approx(0.1843980151, rel=5e-9)
    for accepted in (GaussianEvent(4.3295972944), PureEvent(0.1843980150)):
        ledger("gaussian", accepted)
    for refused in (GaussianEvent(4.3295972930), PureEvent(0.1843980152), PureEvent(0.5398)):
        with pytest.raises(BudgetError, match="is left"):
            opened.charge("block", "later", refused)
    with pytest.raises(BudgetError):
        opened.charge("block", "later", ApproximateEvent(0.001, 1e-5))


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(4.3295972941),
        PureEvent(0.5398),
        ApproximateEvent(0.001, 9.999e-6),
        ApproximateEvent(0.3, 9.997e-6),
    ],
)
def test_the_branches_of_the_known_attack_are_not_all_accepted(event):
    """Each fits an accountant; by default those that need more than the reserved pair do not."""
    assert compose([(FIRST, 1), (event, 1)], BUDGET.delta) <= 1.0001
    with pytest.raises(BudgetError):
        ledger("sums", event)


def test_sums_take_what_is_left_whatever_is_made_of_it():
    left = ledger().remaining("block")
    assert (left.epsilon, left.delta) == (pytest.approx(0.51578, abs=1e-5), 5e-6)
    for event in (
        ApproximateEvent(left.epsilon, left.delta),
        PureEvent(left.epsilon),
        GaussianEvent(analytic_gaussian_sigma(left.epsilon, left.delta)),
    ):
        spent = ledger("sums", event).spent("block")
        assert spent["epsilon"] <= 1.0
        assert spent["epsilon"] > 0.999 or isinstance(event, PureEvent)


def test_a_gaussian_charge_counts_equal_shares_of_epsilon_and_delta():
    left = FilterCost(0.8, 1e-5)
    for share in (0.05, 0.4, 1.0):
        event = GaussianEvent(analytic_gaussian_sigma(share * 0.8, share * 1e-5))
        cost = SumFilter().cost(event, 1, left)
        assert cost == pytest.approx((share * 0.8, share * 1e-5), rel=1e-8)
        assert compose([(event, 1)], cost.delta) <= cost.size
    steps = SumFilter().cost(DPSGDEvent(40.0, 0.1), 100, left)
    assert compose([(DPSGDEvent(40.0, 0.1), 100)], steps.delta) <= steps.size < 0.8


charged = st.one_of(
    st.builds(PureEvent, st.floats(1e-3, 0.6)),
    st.builds(ApproximateEvent, st.floats(1e-3, 0.6), st.just(0.0) | st.floats(LEAST_DELTA, 1e-5)),
    st.builds(GaussianEvent, st.floats(3.0, 100.0)),
)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["sums", "gaussian"]), st.lists(charged, max_size=6))
def test_whatever_is_accepted_the_block_is_within_its_budget_and_what_is_left_fits(filter, events):
    opened = ledger(filter)
    for event in events:
        with contextlib.suppress(BudgetError):
            opened.charge("block", "later", event)
    entries = opened.entries
    costs = [entry.cost for entry in entries[1:]]
    assert entries[0].fixed
    assert None not in costs
    reserve = opened.filter.reserve([(FIRST, 1)], BUDGET)
    assert opened.filter.fits(reserve, costs)
    assert opened.filter.compose([(FIRST, 1)], [reserve], BUDGET.delta) <= BUDGET.epsilon
    assert opened.spent("block")["epsilon"] <= BUDGET.epsilon
    for gaussian in (False, True):
        left = opened.remaining("block", gaussian)
        if left is None:
            continue
        sigma = analytic_gaussian_sigma(left.epsilon, left.delta) if left.delta else None
        made = [] if sigma is None else [GaussianEvent(sigma)]
        made += [] if gaussian else [PureEvent(left.epsilon), ApproximateEvent(left.epsilon, left.delta)]
        for event in made:
            total = [*costs, opened.filter.cost(event, 1, opened.filter.left(reserve, costs))]
            assert opened.filter.fits(reserve, total), event


def test_the_reserve_is_that_of_the_fixed_charges_whatever_comes_later():
    opened = ledger("sums", PureEvent(0.1), ApproximateEvent(0.1, 1e-6))
    reserve = SumFilter().reserve([(FIRST, 1)], BUDGET)
    left = opened.remaining("block")
    assert (left.epsilon, left.delta) == pytest.approx((reserve.size - 0.2, reserve.delta - 1e-6))
    with pytest.raises(BudgetError):
        opened.charge("block", "more", ApproximateEvent(0.01, left.delta * 1.01))


@pytest.mark.parametrize("parts", [3, 7, 40, 49])
def test_equal_shares_of_a_budget_are_the_whole_budget(parts):
    opened = Ledger({"block": PrivacyBudget(1.0, 0.0)})
    for _ in range(parts):
        opened.charge("block", "part", PureEvent(1 / parts))
    assert opened.spent("block")["epsilon"] == pytest.approx(1.0, rel=1e-12)
    assert opened.spent("block")["epsilon"] <= 1.0
    with pytest.raises(BudgetError):
        opened.charge("block", "more", PureEvent(1e-9))


def test_subsampled_steps_have_no_mu():
    with pytest.raises(BudgetError):
        ledger("gaussian", DPSGDEvent(400.0, 0.01))


def test_a_gaussian_filter_needs_delta():
    with pytest.raises(InputError, match="filter"):
        Ledger({"block": PrivacyBudget(1.0, 0.0)}, filter="gaussian")


def test_filters_and_costs_have_names():
    for filter in (SumFilter(), GaussianFilter(True)):
        assert filter_from(filter.config()) == filter
        cost = FilterCost(0.25, 1e-7)
        own, read = cost_from(filter.cost_to_dict(cost))
        assert (type(own), read) == (type(filter), cost)
    for call in (
        lambda: make_filter("least"),
        lambda: filter_from({"kind": "sums", "delta": 0.1}),
        lambda: filter_from({}),
        lambda: cost_from({"epsilon": 0.1}),
        lambda: cost_from({"epsilon": -0.1, "delta": 0.0}),
        lambda: cost_from({"mu": math.inf, "delta": 0.0}),
    ):
        with pytest.raises(InputError):
            call()


def test_a_stated_cost_below_its_events_is_refused():
    later = (PureEvent(0.3), 2, cost_from({"epsilon": 0.6, "delta": 0.0}))
    first = (FIRST, 1, None)
    stated = stated_cost([first, later], 1e-5)[0]
    assert stated == compose([(FIRST, 1), (PureEvent(0.6), 1)], 1e-5)
    gaussian = (GaussianEvent(8.0), 4, cost_from({"mu": 0.25, "delta": 0.0}))
    assert stated_cost([first, gaussian], 1e-5)[0] == compose([(FIRST, 1), (GaussianEvent(4.0), 1)], 1e-5)
    for charge, stated in (
        (later, {"epsilon": 0.59, "delta": 0.0}),
        (later, {"mu": 0.1, "delta": 0.0}),
        (gaussian, {"mu": 0.24, "delta": 0.0}),
        (gaussian, {"epsilon": 5.0, "delta": 0.0}),
    ):
        with pytest.raises(InputError, match="counts less"):
            stated_cost([first, (*charge[:2], cost_from(stated))], 1e-5)
    with pytest.raises(InputError, match="two filters"):
        stated_cost([later, gaussian], 1e-5)
