"""Many processes on one ledger: together they never overspend, no charge is lost, and nobody waits for ever."""

import json
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests.faults.guards import SECONDS
from tests.faults.killing import server
from tests.faults.trainee import LEDGER
from torchdpcate.errors import BudgetError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.ledger import Ledger

PROCESSES, FIT = 6, 40
BLOCKS = {"one": PrivacyBudget(1.0, 0.0), "two": PrivacyBudget(1.0, 0.0)}


@pytest.fixture(scope="module")
def context():
    with server() as context:
        yield context


def together(context: ForkServerContext, work: Callable[[Path, int], None], folder: Path, processes: int) -> None:
    """Run ``work(folder, i)`` in each of so many processes at once; all must end well."""
    running = [context.Process(target=work, args=(folder, i), daemon=True) for i in range(processes)]
    for process in running:
        process.start()
    for process in running:
        process.join(SECONDS)
    assert [process.exitcode for process in running] == [0] * processes


def spend(folder: Path, number: int) -> None:
    """Charge both blocks until nothing is left; write down each charge that was accepted."""
    ledger, accepted = Ledger(BLOCKS, folder / LEDGER), []
    for block in BLOCKS:
        try:
            while True:
                label = f"{number}.{len(accepted)}"
                accepted.append((ledger.charge(block, label, PureEvent(1 / FIT)), block, label))
        except BudgetError:
            pass
    (folder / f"{number}.json").write_text(json.dumps(accepted))


def test_all_that_was_accepted_is_in_the_ledger_and_no_more(context, tmp_path):
    together(context, spend, tmp_path, PROCESSES)
    entries = {entry.id: entry for entry in Ledger.load(tmp_path / LEDGER).entries}
    accepted = [line for i in range(PROCESSES) for line in json.loads((tmp_path / f"{i}.json").read_text())]
    assert len(accepted) == len(entries) == 2 * FIT
    assert {number: (entry.block, entry.label) for number, entry in entries.items()} == {
        number: (block, label) for number, block, label in accepted
    }
    spent = Ledger.load(tmp_path / LEDGER).spent()
    assert all(spent[block]["epsilon"] <= BLOCKS[block].epsilon for block in BLOCKS)


def cleaned(folder: Path, number: int) -> None:
    """Spend, or remove all other files that are there meanwhile, as a cleaner of locks does."""
    ledger, accepted = Ledger({"one": BLOCKS["one"]}, folder / LEDGER), []
    for count in range(FIT):
        for path in () if number else folder.glob(f"{LEDGER}?*"):
            path.unlink(missing_ok=True)
        with suppress(BudgetError, OSError):  # which sqlite may say of what was removed while it was in use
            accepted.append((ledger.charge("one", f"{number}.{count}", PureEvent(1 / FIT)), f"{number}.{count}"))
    (folder / f"{number}.json").write_text(json.dumps(accepted))


def test_no_file_beside_the_ledger_keeps_processes_apart(context, tmp_path):
    """A lock in a file of its own was removed: 2.1 of 2 were granted, and 1.7 were in the ledger."""
    together(context, cleaned, tmp_path, 4)
    accepted = [line for i in range(4) for line in json.loads((tmp_path / f"{i}.json").read_text())]
    entries = [[entry.id, entry.label] for entry in Ledger.load(tmp_path / LEDGER).entries]
    assert FIT // 2 < len(accepted) <= len(entries) <= FIT
    assert all(line in entries for line in accepted)
