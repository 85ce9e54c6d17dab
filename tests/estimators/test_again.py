"""Fitting again spends again: a fitted learner refuses, and another one on the same records says so once."""

import warnings

import pandas as pd
import pytest
import torch

from tests.composition.cases import Batches
from tests.estimators.families import BUDGET, OBSERVED, A, X, Y, made
from torchdpcate.data import checked as used_records
from torchdpcate.data.checked import fingerprint
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError, PrivacyWarning
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.shared_ledger import SharedLedger


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test knows the records of another one."""
    monkeypatch.setattr(used_records, "_used", {})


def told(fit) -> list[str]:
    """What a fit says of privacy."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return [str(warning.message) for warning in caught if warning.category is PrivacyWarning]


def average(x=X, a=A, y=Y, **settings):
    return made("balancing", **settings).fit(x, a, y)


def stream(y=Y) -> Batches:
    return Batches(OBSERVED, CausalData(X, A.double(), y), 100)


def test_nor_by_a_stream() -> None:
    learner = made("balancing").fit_stream(stream())
    for again in (lambda: learner.fit(X, A, Y), lambda: learner.fit_stream(stream())):
        with pytest.raises(InputError, match="is fitted"):
            again()


def test_a_fit_that_failed_after_it_had_paid_is_not_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = made("effect")
    learn = type(learner)._learn

    def fail(self, records):
        learn(self, records)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(learner), "_learn", fail)
    with pytest.raises(KeyboardInterrupt):
        learner.fit(X, A, Y)
    monkeypatch.undo()
    with pytest.raises(InputError, match="fit: this RLearner has paid for a fit"):
        learner.fit(X, A, Y)


def test_a_fit_that_was_refused_or_is_without_privacy_is_made_anew() -> None:
    learner = made("balancing")
    with pytest.raises(InputError):
        learner.fit(X, A, 100 * Y)
    assert learner.fit(X=X, A=A, Y=Y).release()
    plain = average(budget=None)
    assert not told(lambda: plain.fit(X, A, Y))


def test_a_second_learner_on_the_same_records_says_so_once() -> None:
    frame = pd.DataFrame(X.numpy(), columns=["age", "height"])
    order = torch.randperm(600, generator=torch.Generator().manual_seed(1)).numpy()
    assert not told(lambda: average(frame))
    (said,) = told(lambda: made("two stages").fit(frame.iloc[order], A[order], Y[order]))
    assert "these records" in said
    assert "budget.shared" in said
    assert "\n" not in said
    assert not told(lambda: average(X.numpy()))
    other = Y.clone()
    other[599] = -other[599]  # one record that differs makes other records
    assert not told(lambda: average(y=other))


def test_a_stream_is_known_by_its_first_records() -> None:
    assert not told(lambda: made("balancing").fit_stream(stream()))
    assert not told(lambda: made("balancing").fit_stream(stream(-Y)))
    assert len(told(lambda: made("balancing").fit_stream(stream()))) == 1


def test_what_protects_nobody_says_nothing() -> None:
    unprotected = {"noise": NoiseSource.fixed(1)}, {"budget": None}
    for settings in unprotected:
        assert not told(lambda settings=settings: average(**settings))
    assert not told(average)
    for settings in unprotected:
        assert not told(lambda settings=settings: average(**settings))
    assert told(average)


def test_a_shared_ledger_adds_up_and_says_nothing(tmp_path) -> None:
    shared = SharedLedger(tmp_path / "shared.sqlite", fingerprint(X, A, Y), PrivacyBudget(30.0, 1e-4))
    for _ in range(2):
        assert not told(lambda: average(ledger_path=shared.run()))
    assert len(shared.runs) == 2
    assert told(average)  # beside that ledger


def test_what_is_kept_is_bounded_and_tells_nothing_of_the_records(monkeypatch) -> None:
    many = range(used_records._MOST + 10)
    for digest in many:
        assert not used_records.used_again(digest)
    assert len(used_records._used) == used_records._MOST
    assert used_records.used_again(many[-1])
    assert not used_records.used_again(many[-1])  # said once
    records = CausalData(X, A.double(), Y)
    one = used_records.keyed_digest(records)
    monkeypatch.setattr(used_records, "_key", b"another process")
    assert used_records.keyed_digest(records) != one


def test_a_digest_takes_any_order_and_precision() -> None:
    order = torch.arange(599, -1, -1)
    records = CausalData(X, A.double(), Y)
    same = CausalData(X[order].float().double(), A[order].double(), Y[order])
    assert used_records.keyed_digest(records) == used_records.keyed_digest(same)
    binary = CausalData((X > 0.5).double(), A.double(), (Y > 0).double())
    found = {used_records.keyed_digest(binary)}
    for row in range(600):
        y = binary.y.clone()
        y[row] = 1 - y[row]
        found.add(used_records.keyed_digest(CausalData(binary.x, binary.a, y)))
    kinds = {(*x.tolist(), a.item(), y.item()) for x, a, y in zip(binary.x, binary.a, binary.y, strict=True)}
    assert len(found) == 1 + len(kinds)  # one of each kind of record that one is turned into


MISTAKES = {
    r"budget = 1\.0: give a PrivacyBudget": lambda: made("effect", budget=1.0),
    r"budget = 1\.0: give": lambda: made("effect").set_params(budget=1.0).fit(X, A, Y),
    r"delta = 0\.1: .*less than 1/n, such as 1e-05": lambda: made("effect", budget=PrivacyBudget(1.0, 0.1)),
    r"fit\(X, A, Y\)": lambda: made("effect").fit(Y, A, X=X),  # EconML's order
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_told_at_once_in_one_line(message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        MISTAKES[message]()
    assert "\n" not in str(caught.value)


def test_a_delta_above_one_over_n_is_told() -> None:
    (said,) = told(lambda: average(budget=PrivacyBudget(1.0, 0.005)))
    assert "delta = 0.005 is above 1/n = 0.0017" in said
    assert not told(lambda: average(y=Y * 0.5, budget=PrivacyBudget(1.0, 0.001)))
    assert not told(lambda: average(y=Y * 0.25, budget=BUDGET))
