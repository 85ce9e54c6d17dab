"""Accounts: who pays what, and that nothing is spent twice."""

import pytest

from torchdpcate.errors import BudgetError, InputError
from torchdpcate.estimators.session import Account
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource

BUDGET = PrivacyBudget(1.0, 0.0)


def account(path=None, noise=None):
    return Account.open({"first": 3, "second": 4}, BUDGET, noise or NoiseSource.system(), path)


def test_every_block_has_the_whole_budget_and_pays_for_itself():
    opened = account()
    opened.till(["first"], "a")(PureEvent(0.25))
    assert opened.left(["second"]).epsilon == pytest.approx(1.0)
    assert opened.left(["first", "second"]).epsilon == pytest.approx(0.75)
    assert opened.ledger.spent()["total"]["epsilon"] == pytest.approx(0.25)


def test_a_run_gets_what_is_left_and_its_entries_are_known():
    opened = account()
    opened.till(["first"], "a")(PureEvent(0.25))

    def run(budget, charge, noise):
        charge(PureEvent(budget.epsilon), Level.CERTIFIED, 1)
        return budget

    budget, own = opened.spend(run, ["first", "second"], "b")
    assert budget.epsilon == pytest.approx(0.75)
    assert {entry.block for entry in opened.ledger.entries if entry.id in own} == {"first", "second"}
    with pytest.raises(InputError, match="nothing to speak of is left"):
        opened.spend(run, ["first"], "c")
    with pytest.raises(BudgetError):
        opened.spend(run, ["first"], "c", BUDGET)


def test_a_ledger_file_is_never_shared(tmp_path):
    account(tmp_path / "ledger.json").till(["first"], "a")(PureEvent(0.25))
    with pytest.raises(InputError, match="exists already"):
        account(tmp_path / "ledger.json")


def test_the_statement_is_of_this_account():
    opened = account(noise=NoiseSource.fixed(1))
    statement = opened.statement(
        Guarantee(Level.CERTIFIED, BUDGET), set(), mechanism="m", formula="f", public={"k": 1}, bounds_origin="o"
    )
    assert (statement.n, statement.private_noise, statement.epsilon) == (7, False, None)
