import json
import math
import os
import shutil
import sqlite3
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy import ledger_file
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.budget import LEAST_DELTA, PrivacyBudget
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, GaussianEvent, PureEvent
from torchdpcate.privacy.filters import FilterCost, SumFilter
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.ledger_file import Book, Entry
from torchdpcate.privacy.mechanisms import GaussianMechanism

DELTA = 1e-5
RATE = 128 / 1350
BLOCKS = {"nuisance": PrivacyBudget(1.0, DELTA), "second": PrivacyBudget(2.0, DELTA)}
STEP = DPSGDEvent(10.3, RATE)  # 211 of these fit


@pytest.fixture
def path(tmp_path):
    return tmp_path / "curator" / "ledger.sqlite"


def lines(path):
    """The entries as another program finds them in the file, the changes of one entry in their order."""
    with closing(sqlite3.connect(path)) as database:
        return [json.loads(line) for (line,) in database.execute("SELECT line FROM ledger ORDER BY revision")][1:]


def afresh():
    """Forget what this process has read: as another process would."""
    ledger_file._known.clear()


def test_a_block_composes_sequentially_and_blocks_in_parallel():
    ledger = Ledger(BLOCKS)
    ledger.open_plan()
    assert ledger.charge("nuisance", "training", STEP, count=211) == 0
    assert ledger.charge("second", "head", PureEvent(1.5)) == 1
    assert ledger.charge("second", "more", GaussianEvent(20.0)) == 2
    spent = ledger.spent()
    assert spent["nuisance"]["epsilon"] == compose([(STEP, 211)], DELTA)
    assert spent["second"]["epsilon"] == compose([(PureEvent(1.5), 1), (GaussianEvent(20.0), 1)], DELTA)
    assert spent["total"]["epsilon"] == max(spent["nuisance"]["epsilon"], spent["second"]["epsilon"])
    assert spent["total"]["delta"] == DELTA
    assert ledger.spent("second") == spent["second"]


@pytest.mark.parametrize(
    "event",
    [GaussianMechanism(BLOCKS["nuisance"], 0.3).event, PureEvent(1.0), ApproximateEvent(1.0, DELTA)],
)
def test_what_is_calibrated_to_a_budget_fits_it_exactly(event):
    ledger = Ledger(BLOCKS)
    ledger.charge("nuisance", "all", event)
    assert ledger.spent("nuisance")["epsilon"] == pytest.approx(1.0, rel=1e-9)
    with pytest.raises(BudgetError):
        ledger.charge("nuisance", "more", PureEvent(1e-3))


def test_overspending_is_refused_and_says_what_is_left():
    ledger = Ledger(BLOCKS)
    ledger.charge("second", "first", ApproximateEvent(1.25, 4e-6))
    before = ledger.to_json()
    with pytest.raises(BudgetError, match=r"'second'.* epsilon = 0\.75, delta = 6e-06 is left"):
        ledger.charge("second", "too much", PureEvent(1.0))
    assert ledger.to_json() == before
    left = ledger.remaining("second")
    assert (left.epsilon, left.delta) == (0.75, pytest.approx(6e-6))
    ledger.charge("second", "the rest", ApproximateEvent(0.75, 6e-6))
    with pytest.raises(BudgetError, match="is left"):
        ledger.charge("second", "a bit", PureEvent(0.01))


def test_pure_blocks_take_pure_charges_alone():
    ledger = Ledger({"all": PrivacyBudget(1.0, 0.0)})
    with pytest.raises(BudgetError, match="epsilon = inf"):
        ledger.charge("all", "gaussian", GaussianEvent(1000.0))
    ledger.charge("all", "laplace", PureEvent(0.5), count=2)
    assert ledger.spent("all") == {"epsilon": 1.0, "delta": 0.0, "naive_epsilon": 1.0, "level": "certified"}


def test_a_heuristic_entry_takes_all_numbers_away_from_block_and_total():
    ledger = Ledger(BLOCKS)
    ledger.charge("nuisance", "training", STEP, level=Level.CONDITIONAL)
    ledger.charge("second", "theorem 1", GaussianEvent(10.0), level=Level.HEURISTIC)
    spent = ledger.spent()
    assert spent["nuisance"]["epsilon"] > 0
    assert spent["nuisance"]["level"] == "conditional"
    nothing = {"epsilon": None, "delta": None, "naive_epsilon": None, "level": "heuristic"}
    assert spent["second"] == spent["total"] == ledger.spent("second") == nothing


def test_without_private_noise_nothing_is_certified(path):
    ledger = Ledger(BLOCKS, path, private=False)
    assert ledger.spent("nuisance")["level"] == "certified"
    ledger.charge("nuisance", "threshold", PureEvent(0.2))
    nothing = {"epsilon": None, "delta": None, "naive_epsilon": None, "level": "heuristic"}
    for account in (ledger, Ledger.load(path)):
        spent = account.spent()
        assert spent["nuisance"] == spent["total"] == account.spent("nuisance") == nothing
        assert spent["second"]["epsilon"] == 0.0
    assert ledger.remaining("nuisance").epsilon == 0.8  # still counted, and refused, as if it were private
    with pytest.raises(BudgetError):
        ledger.charge("nuisance", "more", PureEvent(0.9))


charged = st.one_of(
    st.builds(PureEvent, st.floats(1e-3, 1.5)),
    st.builds(ApproximateEvent, st.floats(1e-3, 1.0), st.just(0.0) | st.floats(LEAST_DELTA, DELTA)),
    st.builds(GaussianEvent, st.floats(1.5, 100.0)),
    st.just(DPSGDEvent(20.0, RATE)),
)


def test_a_planned_run_is_reserved_advanced_and_settled():
    ledger = Ledger(BLOCKS)
    run = ledger.charge("nuisance", "training", STEP, count=0, planned=211)
    with pytest.raises(BudgetError):
        ledger.charge("nuisance", "more", PureEvent(0.5))  # the plan is reserved
    assert ledger.spent("nuisance")["epsilon"] == 0.0
    ledger.advance(run, 100)
    assert ledger.spent("nuisance")["epsilon"] == compose([(STEP, 100)], DELTA)
    for count in (99, 212):
        with pytest.raises(InputError, match=f"count = {count}"):
            ledger.advance(run, count)
    ledger.settle(run, 97)
    assert (ledger.entry(run).count, ledger.entry(run).planned) == (97, 97)
    with pytest.raises(InputError, match="reopen"):
        ledger.settle(run, 98)
    assert ledger.spent("nuisance")["epsilon"] == compose([(STEP, 97)], DELTA)
    with pytest.raises(BudgetError):
        ledger.charge("nuisance", "more", PureEvent(0.3))  # who stops by what was seen may not spend it otherwise


def test_a_settled_entry_of_no_steps_costs_nothing():
    ledger = Ledger(BLOCKS)
    run = ledger.charge("nuisance", "training", STEP, count=0, planned=211)
    ledger.settle(run, 0)
    assert ledger.remaining("nuisance") == BLOCKS["nuisance"]


def test_a_resumed_run_pays_for_the_steps_it_repeats(path):
    ledger = Ledger(BLOCKS, path)
    run = ledger.charge("nuisance", "training", STEP, count=0, planned=150)
    ledger.advance(run, 60)
    ledger.settle(run, 60)
    ledger = Ledger.load(path)  # after a crash; the checkpoint is of step 50, so 10 steps are made again
    with pytest.raises(BudgetError, match="charged for 150"):
        ledger.reopen(run, planned=60 + 100)
    ledger.reopen(run, planned=150)
    ledger.advance(run, 150)
    ledger.settle(run, 150)
    assert Ledger.load(path).entry(run).count == 150
    with pytest.raises(BudgetError):
        ledger.reopen(run, planned=5000)
    assert ledger.entry(run).planned == 150
    with pytest.raises(InputError, match="planned"):
        ledger.reopen(run, planned=100)


def test_reload_is_equal_and_strict_json(path):
    ledger = Ledger(BLOCKS, path, private=False)
    ledger.charge("nuisance", "training", STEP, count=3, planned=211)
    ledger.charge("second", "head", ApproximateEvent(0.5, 1e-6), level=Level.CONDITIONAL)
    again = Ledger.load(path)
    assert again.to_json() == ledger.to_json()
    assert again.entries == ledger.entries
    assert again.blocks == BLOCKS
    assert not again.private
    assert again.path == path
    refuse = pytest.fail
    content = json.loads(ledger.to_json(), parse_constant=refuse)
    assert content["private"] is False
    assert content["entries"][0] == {
        "id": 0,
        "block": "nuisance",
        "charge": {"purpose": "other", "text": "training"},
        "count": 3,
        "planned": 211,
        "event": STEP.to_dict(),
        "level": "certified",
        "reserved": 211,
        "used": 0,
        "cost": None,
    }


def test_the_file_is_written_before_the_call_returns(path):
    ledger = Ledger(BLOCKS, path)
    assert lines(path) == []
    ledger.charge("nuisance", "training", STEP, count=0, planned=211)
    assert [(line["planned"], line["count"]) for line in lines(path)] == [(211, 0)]
    ledger.advance(0, 5)
    assert [(line["planned"], line["count"]) for line in lines(path)] == [(211, 0), (211, 5)]


def test_the_file_is_one_and_its_owners(path):
    ledger = Ledger(BLOCKS, path)
    ledger.charge("nuisance", "training", PureEvent(0.5))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_ledger_that_is_held_is_refused_in_a_line(path, monkeypatch):
    ledger = Ledger(BLOCKS, path)
    monkeypatch.setattr("torchdpcate._chain._PATIENCE", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match=r"another process has held it for 0\.1 seconds; end that process"):
            ledger.charge("nuisance", "a", PureEvent(0.1))
        assert ledger.remaining("nuisance") == BLOCKS["nuisance"]  # to look at it is no charge
    assert ledger.charge("nuisance", "a", PureEvent(0.1)) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused_and_can_be_read(path):
    ledger = Ledger(BLOCKS, path)
    path.parent.chmod(0o500)
    with pytest.raises(OSError, match=path.name):
        ledger.charge("nuisance", "a", PureEvent(0.1))
    assert Ledger.load(path).entries == ()
    path.parent.chmod(0o700)


def test_a_state_that_cannot_be_written_is_refused_before_anything_is_made(path, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set XDG_STATE_HOME to a folder of yours that lasts"):
        Ledger(BLOCKS, path)
    assert not path.parent.exists()


def test_two_ledgers_on_one_file_cannot_overspend(path):
    first, second = Ledger(BLOCKS, path), Ledger(BLOCKS, path)
    first.charge("nuisance", "first", ApproximateEvent(0.75, 0.0))
    with pytest.raises(BudgetError, match=r"0\.25"):
        second.charge("nuisance", "second", ApproximateEvent(0.75, 0.0))
    assert second.charge("nuisance", "second", ApproximateEvent(0.25, 0.0)) == 1
    assert first.spent() == second.spent()
    with pytest.raises(BudgetError):
        first.charge("nuisance", "third", ApproximateEvent(0.01, 0.0))


def test_concurrent_charges_cannot_overspend(path):
    Ledger(BLOCKS, path)

    def charge(index):
        try:
            return Ledger.load(path).charge("nuisance", str(index), PureEvent(0.24))
        except BudgetError:
            return None

    with ThreadPoolExecutor(8) as pool:
        made = [entry for entry in pool.map(charge, range(12)) if entry is not None]
    assert sorted(made) == [0, 1, 2, 3]
    assert len(Ledger.load(path).entries) == 4


def test_a_run_again_on_its_file_goes_on_with_what_was_spent(path):
    Ledger(BLOCKS, path).charge("nuisance", "training", PureEvent(0.75))
    assert Ledger(BLOCKS, path).remaining("nuisance").epsilon == 0.25
    with pytest.raises(InputError, match="differ"):
        Ledger({"nuisance": PrivacyBudget(9.0, DELTA), "second": BLOCKS["second"]}, path)
    with pytest.raises(InputError, match="private"):
        Ledger(BLOCKS, path, private=False)


def test_a_file_that_is_none_is_refused(path):
    ledger = Ledger(BLOCKS, path)
    ledger.charge("nuisance", "training", PureEvent(0.75))
    content = path.read_bytes()
    calls = (lambda: Ledger.load(path), lambda: ledger.charge("second", "head", PureEvent(0.1)))
    for data in (
        b"not a database",
        content[: len(content) // 2],
        b"",
        content.replace(b"revision INT", b"revisiom INT"),
    ):
        path.write_bytes(data)
        afresh()
        for call in calls:
            with pytest.raises(InputError, match="ledger"):
                call()
    path.unlink()
    for call in calls:
        with pytest.raises(InputError, match="no such file; restore it"):
            call()


events = st.sampled_from(
    [
        PureEvent(0.1),
        PureEvent(0.7),
        ApproximateEvent(0.2, 3e-6),
        GaussianEvent(4.0),
        GaussianEvent(30.0),
        DPSGDEvent(10.3, RATE),
    ]
)
actions = st.tuples(
    st.sampled_from(["charge", "charge", "plan", "advance", "settle", "reopen"]),
    st.sampled_from(list(BLOCKS)),
    events,
    st.sampled_from([1, 2, 60]),
    st.integers(0, 3),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(actions, max_size=8))
def test_no_sequence_of_accepted_charges_overspends(sequence):
    ledger = Ledger(BLOCKS)
    for action, block, event, count, entry in sequence:
        calls = {
            "charge": lambda b=block, e=event, n=count: ledger.charge(b, "x", e, n),
            "plan": lambda b=block, e=event, n=count: ledger.charge(b, "x", e, 0, planned=n),
            "advance": lambda i=entry, n=count: ledger.advance(i, n),
            "settle": lambda i=entry, n=count: ledger.settle(i, n),
            "reopen": lambda i=entry, n=count: ledger.reopen(i, n),
        }
        before = ledger.to_json()
        try:
            calls[action]()
        except InputError:
            assert ledger.to_json() == before
    spent = ledger.spent()
    for name, budget in BLOCKS.items():
        mine = [e for e in ledger.entries if e.block == name]
        fixed, costs = [(e.event, e.reserved) for e in mine if e.fixed], [e.cost for e in mine if not e.fixed]
        assert SumFilter().compose(fixed, costs, budget.delta) <= budget.epsilon
        assert spent[name]["epsilon"] <= budget.epsilon
    assert spent["total"]["epsilon"] == max(spent[name]["epsilon"] for name in BLOCKS)
    assert all(math.isfinite(account["epsilon"]) for account in spent.values())


def test_pure_charges_stay_pure_where_their_sum_fits():
    ledger = Ledger({"block": PrivacyBudget(1.0, 1e-5)})
    ledger.charge("block", "first", PureEvent(0.4))
    ledger.charge("block", "second", PureEvent(0.6))
    assert ledger.spent("block") == {"epsilon": 1.0, "delta": 0.0, "naive_epsilon": 1.0, "level": "certified"}
    mixed = Ledger({"block": PrivacyBudget(1.0, 1e-5)})
    mixed.charge("block", "first", PureEvent(0.4))
    mixed.charge("block", "second", GaussianEvent(12.0))
    assert mixed.spent("block")["delta"] == 1e-5


def test_threads_cannot_overspend_a_ledger_in_memory():
    """Each charge takes long enough for another thread to come between its reading and its writing."""

    class Slow(SumFilter):
        def cost(self, event, count, left):
            time.sleep(0.01)
            return super().cost(event, count, left)

    ledger = Ledger({"block": PrivacyBudget(1.0, DELTA)}, filter=Slow())
    ledger.charge("block", "first", GaussianEvent(9.0))
    start = threading.Barrier(8)

    def charge(index):
        start.wait()
        try:
            return ledger.charge("block", str(index), PureEvent(0.2))
        except BudgetError:
            return None

    with ThreadPoolExecutor(8) as pool:
        made = [entry for entry in pool.map(charge, range(8)) if entry is not None]
    assert sorted(made) == [entry.id for entry in ledger.entries[1:]]
    assert len(made) == int(SumFilter().reserve([(GaussianEvent(9.0), 1)], PrivacyBudget(1.0, DELTA)).size / 0.2)
    assert ledger.spent("block")["epsilon"] <= 1.0


def in_a_fork(work):
    """What ``work`` returns, in words, in a forked process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = repr(work())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as file:
        return file.read()


def test_a_fork_cannot_spend_a_ledger_in_memory(path):
    ledger = Ledger(BLOCKS)
    for work in (
        lambda: ledger.charge("nuisance", "x", PureEvent(0.5)),
        lambda: ledger.remaining("nuisance"),
        lambda: ledger.entries,
    ):
        answer = in_a_fork(work)
        assert answer.startswith("InputError: ledger: is in the memory of process")
        assert "ledger_path" in answer
    kept = Ledger(BLOCKS, path)
    assert in_a_fork(lambda: kept.charge("nuisance", "x", PureEvent(0.75))) == "0"
    with pytest.raises(BudgetError):
        kept.charge("nuisance", "y", PureEvent(0.75))


@pytest.mark.slow
def test_a_fork_while_another_thread_charges_has_locks_of_its_own(path):
    """Forked in the middle of a change, sqlite would believe that the child holds the lock."""
    ledger, made, ended = Ledger({"all": PrivacyBudget(1.0, 0.0)}, path), [], threading.Event()

    def charge():
        return ledger.charge("all", "x", PureEvent(1e-3))

    def go_on():
        while not ended.is_set() and len(made) < 100:
            made.append(charge())

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        made += [int(in_a_fork(charge)) for _ in range(4)]
    finally:
        ended.set()
        thread.join()
    assert sorted(made) == [entry.id for entry in Ledger.load(path).entries]


def test_nothing_gives_back_what_was_used():
    ledger = Ledger(BLOCKS)
    used = ledger.charge("nuisance", "a", PureEvent(0.5), count=2)
    with pytest.raises(InputError, match="has used 2"):
        ledger.settle(used, 1)
    ledger.settle(used, 2)
    run = ledger.charge("second", "run", STEP, count=6, planned=200)
    ledger.advance(run, 12)
    ledger.advance(run, 18)
    with pytest.raises(InputError, match="has used 12"):
        ledger.settle(run, 11)  # the chunk before the last was taken, or the last had not begun
    ledger.settle(run, 13)
    assert ledger.entry(run).count == 13
    with pytest.raises(InputError, match="has used 13"):
        ledger.settle(run, 12)


EDITS = {
    "epsilon": "UPDATE ledger SET line = replace(line, '0.75', '1e-9')",
    "count": "UPDATE ledger SET line = replace(line, ': 2', ': 1') WHERE revision = 2",
    "order": "UPDATE ledger SET revision = CASE revision WHEN 1 THEN -2 WHEN 2 THEN -1 ELSE 0 END",
    "cut": "DELETE FROM ledger WHERE revision = 2",
    "hole": "DELETE FROM ledger WHERE revision = 1",
    "budget": "UPDATE ledger SET line = replace(line, '\"epsilon\": 1.0', '\"epsilon\": 9.0') WHERE revision = 0",
    "filter": "UPDATE ledger SET line = replace(line, '\"sums\"', '\"gaussian\"') WHERE revision = 0",
    "more": "INSERT INTO ledger SELECT 3, line, digest FROM ledger WHERE revision = 2",
    "view": "ALTER TABLE ledger RENAME TO other; CREATE VIEW ledger AS SELECT * FROM other",
    "bytes": "UPDATE ledger SET line = x'ff'",
    "number": "UPDATE ledger SET digest = 1",
    "empty": "DELETE FROM ledger",
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_refused(path, edit):
    ledger = Ledger(BLOCKS, path)
    ledger.charge("nuisance", "a", PureEvent(0.75))
    ledger.charge("second", "b", PureEvent(0.5), count=2)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(f"BEGIN; {EDITS[edit]}; UPDATE ledger SET revision = abs(revision); COMMIT"
                               if edit == "order" else EDITS[edit])  # fmt: skip
    afresh()
    for call in (lambda: Ledger.load(path), lambda: ledger.charge("nuisance", "c", PureEvent(0.1))):
        with pytest.raises(InputError, match="ledger"):
            call()


NOT_NEWEST = "is not the one that was changed last .* restore the newest"


@pytest.mark.parametrize("process", ["this", "another"])
def test_a_file_put_back_is_refused(path, process):
    ledger = Ledger(BLOCKS, path)
    empty = path.read_bytes()
    ledger.charge("nuisance", "a", PureEvent(0.75))
    newest = path.read_bytes()
    path.write_bytes(empty)
    if process == "another":
        afresh()
    for call in (
        lambda: Ledger.load(path),
        lambda: Ledger(BLOCKS, path),
        lambda: ledger.remaining("nuisance"),
        lambda: ledger.charge("nuisance", "again", PureEvent(0.75)),
    ):
        with pytest.raises(InputError, match=NOT_NEWEST):
            call()
    path.write_bytes(newest)
    assert Ledger.load(path).remaining("nuisance").epsilon == 0.25
    path.unlink()
    Ledger(BLOCKS, path)
    with pytest.raises(InputError, match="another one is in its place"):
        ledger.charge("nuisance", "b", PureEvent(0.1))


def test_of_two_copies_one_goes_on(path):
    """Also where both have as many lines."""
    ledger, copy = Ledger(BLOCKS, path), path.with_name("copy.sqlite")
    shutil.copy(path, copy)
    twin = Ledger.load(copy)
    ledger.charge("nuisance", "a", PureEvent(1.0))
    with pytest.raises(InputError, match=NOT_NEWEST):
        twin.charge("nuisance", "b", PureEvent(1.0))
    (marks,) = Path(os.environ["XDG_STATE_HOME"], "torchdpcate", "ledgers").iterdir()
    kept = marks.read_text()
    marks.write_text(kept.splitlines(keepends=True)[0])
    twin.charge("nuisance", "b", PureEvent(1.0))
    marks.write_text(kept)
    with pytest.raises(InputError, match=NOT_NEWEST):
        twin.charge("second", "c", PureEvent(1.0))
    ledger.charge("second", "c", PureEvent(1.0))


def test_a_revision_that_was_not_noted_is_no_obstacle(path):
    """Killed between the charge and its note, or moved to another machine: the file is what is known."""
    ledger = Ledger(BLOCKS, path)
    ledger.charge("nuisance", "a", PureEvent(0.5))
    (marks,) = Path(os.environ["XDG_STATE_HOME"], "torchdpcate", "ledgers").iterdir()
    noted = marks.read_text().splitlines(keepends=True)
    for text in (noted[0], "", noted[1] + noted[0], noted[0] + noted[1][:9]):
        marks.write_text(text)
        assert Ledger.load(path).remaining("nuisance").epsilon == 0.5
    marks.unlink()
    assert ledger.charge("nuisance", "b", PureEvent(0.5)) == 1
    assert marks.read_text().split()[0] == "2"


def test_a_hard_link_is_the_same_ledger(path):
    ledger, other = Ledger(BLOCKS, path), path.with_name("other.sqlite")
    os.link(path, other)
    Ledger.load(other).charge("nuisance", "a", PureEvent(0.75))
    with pytest.raises(BudgetError):
        ledger.charge("nuisance", "a", PureEvent(0.75))


@pytest.mark.parametrize("second", [PureEvent(0.5398), GaussianEvent(4.3296), ApproximateEvent(0.3, 9.997e-6)])
def test_a_file_that_no_filter_would_have_accepted_says_so(path, second):
    """Written by hand: the second charge counts more than the first one leaves."""
    first = Entry(0, "nuisance", Charge.of("a"), GaussianEvent(7.3511489379), 1, 1, Level.CERTIFIED, 1, 1)
    cost = SumFilter().cost(second, 1, FilterCost(1.0, 0.0)) or FilterCost(1.0, DELTA)
    later = Entry(1, "nuisance", Charge.of("b"), second, 1, 1, Level.CERTIFIED, 1, 1, cost)
    book = Book({"nuisance": BLOCKS["nuisance"]}, True, SumFilter())
    ledger_file.change(path, lambda book: book, lambda: book)
    for entry in (first, later):
        ledger_file.change(path, lambda book, entry=entry: book.changed(entry))
    ledger = Ledger.load(path)
    assert ledger.remaining("nuisance") is None
    spent = ledger.spent("nuisance")["epsilon"]
    assert spent is None or spent > 1.0
    with pytest.raises(BudgetError, match="nothing is left"):
        ledger.charge("nuisance", "more", PureEvent(1e-3))


def test_a_plan_covers_blocks_without_an_entry_and_this_thread_alone():
    ledger = Ledger(BLOCKS)
    ledger.charge("second", "seen", PureEvent(0.1))
    ledger.open_plan()
    with ThreadPoolExecutor(1) as pool:
        ledger.charge("nuisance", "a", PureEvent(0.1))
        pool.submit(ledger.charge, "nuisance", "b", PureEvent(0.1)).result()
    ledger.charge("nuisance", "c", PureEvent(0.1))
    ledger.charge("second", "d", PureEvent(0.1))
    ledger.close_plan()
    ledger.charge("nuisance", "e", PureEvent(0.1))
    assert [entry.fixed for entry in ledger.entries] == [True, True, False, False, False, False]


@pytest.mark.parametrize("other", ["thread", "ledger"])
def test_a_plan_ends_for_a_block_that_has_a_later_charge(tmp_path, other):
    """Charged as fixed beside later charges, which `compose` of the fixed ones alone does not see, 1.9 was spent."""
    blocks, path = {"a": PrivacyBudget(1.0, 0.0)}, tmp_path / "ledger.sqlite"
    ledger = Ledger(blocks, path)
    ledger.open_plan()
    second = Ledger(blocks, path) if other == "ledger" else ledger

    def spend():
        second.charge("a", "first", PureEvent(0.1))
        second.charge("a", "later", PureEvent(0.5))

    if other == "thread":
        thread = threading.Thread(target=spend)
        thread.start()
        thread.join()
    else:
        spend()
    with pytest.raises(BudgetError):
        ledger.charge("a", "plan", PureEvent(0.9))
    ledger.charge("a", "plan", PureEvent(0.4))
    assert [entry.fixed for entry in ledger.entries] == [True, False, False]
    assert ledger.spent("a")["epsilon"] == pytest.approx(1.0)
