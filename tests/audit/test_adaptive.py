"""The adaptive game against the ledger: exact numbers of the known attack, and what the filters make of it."""

from functools import partial

import numpy as np
import pytest

from torchdpcate.audit import attack as adaptive
from torchdpcate.audit.attack import AdaptiveGame, audit, choose_by_first_loss, stop_by_loss
from torchdpcate.audit.report import find
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.events import ApproximateEvent, GaussianEvent, PureEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.worst_case import WorstCase

BUDGET = PrivacyBudget(1.0, 1e-5)
KNOWN = [
    GaussianEvent(4.3296),
    PureEvent(0.5398),
    ApproximateEvent(0.001, 1e-5),
    ApproximateEvent(0.3, 9.997e-6),
]


def test_the_known_attack_has_its_known_delta(monkeypatch):
    monkeypatch.setattr(adaptive, "largest_charges", lambda *_: KNOWN)
    delta = choose_by_first_loss(BUDGET, "sums")
    assert delta(1.0) == pytest.approx(2.653e-5, abs=5e-9)
    # the choice that is best at epsilon = 1 has 1e-5 at 1.118; choices that are best there have more
    assert delta(1.118) > 1e-5
    assert adaptive._epsilon(delta, BUDGET) > 1.118


def test_of_the_known_attack_a_filter_leaves_nothing(monkeypatch):
    first = GaussianEvent(analytic_gaussian_sigma(0.5, 5e-6))

    def accepted(budget, filter, before):
        for event in KNOWN:
            ledger = adaptive._ledger(budget, filter, [first])
            if adaptive._accepts(ledger, event):
                yield event

    monkeypatch.setattr(adaptive, "largest_charges", accepted)
    for filter in ("sums", "gaussian"):
        assert choose_by_first_loss(BUDGET, filter)(1.0) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("filter", ["sums", "gaussian"])
@pytest.mark.parametrize("strategy", [choose_by_first_loss, stop_by_loss])
def test_no_strategy_exceeds_the_budget_and_one_comes_near_it(strategy, filter):
    epsilon = adaptive._epsilon(strategy(BUDGET, filter), BUDGET)
    assert epsilon <= 1.0
    assert epsilon > (0.99 if strategy is choose_by_first_loss else 0.7)


def test_the_value_of_stopping_is_that_of_all_plans():
    """A block of five small charges: every rule of when to stop, one after the other."""
    small, epsilon = PureEvent(0.03), 0.05
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(adaptive, "largest_charges", lambda *_: [])
        patch.setattr(adaptive, "_accepts", partial(_first, [5]))
        found = stop_by_loss(BUDGET, "sums")(epsilon)
    # without a last charge it never pays to stop, so that it is the binomial law of five
    up, k = 1 / (1 + np.exp(-small.epsilon)), np.arange(6)
    chance = np.array([1, 5, 10, 10, 5, 1]) * up**k * (1 - up) ** (5 - k)
    assert found == pytest.approx(chance @ np.maximum(0, -np.expm1(epsilon - (2 * k - 5) * 0.03)), rel=1e-12)


def _first(left, ledger, event):
    left[0] -= 1
    return left[0] >= 0


@pytest.mark.slow
def test_the_audit_plays_it_and_finds_no_more_than_is_claimed():
    result = audit(find("composition"), BUDGET)
    assert 0.99 < result.bound <= result.claimed == 1.0
    assert not result.refuted
    assert result.true_rate - np.exp(result.bound) * result.false_rate == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.slow
def test_an_accountant_in_place_of_the_filter_is_refuted(monkeypatch):
    """Charges chosen by looking, composed as if they had been fixed."""
    monkeypatch.setattr(Ledger, "_is_fixed", lambda *_: True)
    case = find("composition")
    short = WorstCase(case.name, case.of, case.attack, case.pair, lambda b: AdaptiveGame(b, (choose_by_first_loss,)))
    result = audit(short, BUDGET)
    assert result.refuted
    assert result.bound > 1.118
