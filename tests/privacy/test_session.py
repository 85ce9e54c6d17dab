from dataclasses import replace

import pytest

from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import OUTCOME, THRESHOLD, Charge, Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.statement import make_statement

BUDGET = PrivacyBudget(1.0, 0.0)


def opened(path=None, noise=None, budget=BUDGET) -> FitSession:
    return FitSession.open({"first": 3, "second": 4}, budget, noise or NoiseSource.system(), path)


def test_every_block_has_the_whole_budget_and_pays_for_itself():
    session = opened()
    session.charging(["first"], THRESHOLD).pay(PureEvent(0.25))
    assert session.left(["second"]).epsilon == pytest.approx(1.0)
    assert session.left(["first", "second"]).epsilon == pytest.approx(0.75)
    assert session.ledger.spent()["total"]["epsilon"] == pytest.approx(0.25)


def test_a_run_gets_what_is_left_and_its_entries_are_known():
    session = opened()
    session.charging(["first"], THRESHOLD).pay(PureEvent(0.25))

    def run(budget, own):
        own.pay(PureEvent(budget.epsilon))
        return budget

    budget, own = session.spend(run, ["first", "second"], OUTCOME)
    assert budget.epsilon == pytest.approx(0.75)
    assert {(entry.block, entry.charge) for entry in session.ledger.entries if entry.id in own} == {
        ("first", OUTCOME),
        ("second", OUTCOME),
    }
    with pytest.raises(InputError, match="nothing to speak of is left"):
        session.spend(run, ["first"], OUTCOME)
    with pytest.raises(BudgetError):
        session.spend(run, ["first"], OUTCOME, BUDGET)


def test_a_session_without_a_budget_charges_nothing(tmp_path):
    session = opened(tmp_path / "ledger.sqlite", budget=None)
    scope = session.charging(["first"], THRESHOLD)
    scope.pay(PureEvent(5.0))
    scope.part("a").pay(PureEvent(5.0), part="b")
    session.close()
    assert session.ledger is None
    assert not scope.entries
    assert not list(tmp_path.iterdir())


def test_parts_and_their_pieces_are_charged_by_name_and_belong_to_the_scope():
    scope = opened().charging(["first"], Charge(Purpose.RELEASE, "m"))
    scope.pay(PureEvent(0.1), part="difference")
    scope.part("balance").pay(PureEvent(0.1), part="sums")
    entries = scope.ledger.entries
    assert scope.entries == {0, 1}
    assert [e.charge for e in entries] == [
        Charge(Purpose.RELEASE, "m", "difference"),
        Charge(Purpose.RELEASE, "m", "balance", "sums"),
    ]


def test_nothing_is_certified_in_a_conditional_scope():
    scope = opened().charging(["first"], THRESHOLD, conditional=True)
    scope.pay(PureEvent(0.1))
    scope.pay(PureEvent(0.1), Level.HEURISTIC)
    assert [e.level for e in scope.ledger.entries] == [Level.CONDITIONAL, Level.HEURISTIC]


def test_nothing_is_drawn_that_nobody_pays_for():
    """Errors, not assertions, which ``python -O`` leaves out."""
    session = opened()
    for unpaid in (session, session.charging([], THRESHOLD), replace(session, blocks=("first",))):
        with pytest.raises(InputError, match="no block is charged"):
            unpaid.pay(PureEvent(0.1))
    with pytest.raises(InputError, match="one block trains"):
        _ = session.charging(["first", "second"], THRESHOLD).block
    free = FitSession(NoiseSource.system())
    with pytest.raises(InputError, match="has nothing to spend"):
        free.left(["first"])
    guarantee = Guarantee(Level.CERTIFIED, BUDGET)
    with pytest.raises(InputError, match="has no statement"):
        make_statement(free, guarantee, own=set(), mechanism="m", formula="f", public={})


def test_a_release_is_no_stronger_than_its_own_charges():
    scope = opened().charging(["first"], THRESHOLD, conditional=True)
    scope.pay(PureEvent(0.1))
    guarantee = Guarantee(Level.CERTIFIED, BUDGET)
    statement = make_statement(scope, guarantee, own=scope.entries, mechanism="m", formula="f", public={})
    assert statement.level == "conditional"
