"""A full disk: nothing acknowledged is lost, nothing half written is left, and the command says so in one line.

Two ways to fill it: a limit on the size of any file, at which every writer gets an error wherever it has come to, C++
and Rust included; and each call to the operating system failing in turn, as a disk may at any of them.
"""

import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.cli.helpers import add
from tests.faults import trainee
from tests.faults.guards import SECONDS
from tests.faults.killing import journal, problems, server
from tests.faults.trainee import JOURNAL, LEDGER, Journal
from tests.release.helpers import DOMAIN
from tests.release.test_file import function_release
from torchdpcate._chain import Chain
from torchdpcate._files import state_folder, write_text
from torchdpcate.cli.main import main
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.ledger import Ledger

BLOCKS = {"all": PrivacyBudget(1.0, 0.0)}


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """Let no file grow beyond ``size`` bytes: writing on fails as on a full disk (EFBIG for ENOSPC)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


CHANGES = {
    "charge": lambda ledger: ledger.charge("all", "new", PureEvent(0.1)),
    "advance": lambda ledger: ledger.advance(0, 7),
    "settle": lambda ledger: ledger.settle(0, 5),
    "reopen": lambda ledger: ledger.reopen(0, 15),
}


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    (tmp_path / "curator").mkdir()
    ledger = Ledger(BLOCKS, tmp_path / "curator" / LEDGER)
    ledger.charge("all", "run", PureEvent(0.01), count=5, planned=20)
    return ledger


@pytest.mark.parametrize("change", CHANGES)
def test_a_ledger_on_a_full_disk_stays_as_it_was(ledger, change):
    folder = ledger.path.parent
    before = contents(folder)
    for size in range(0, len(before[LEDGER]), 512):
        with full_after(size), pytest.raises(OSError, match=LEDGER):
            CHANGES[change](ledger)
        assert contents(folder) == before
    CHANGES[change](ledger)
    assert contents(folder) != before


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_whose_revision_is_not_noted_wastes_and_never_hides(ledger, change, monkeypatch):
    """It is in the file, unacknowledged; nothing keeps the next one."""
    (mark,) = (state_folder() / "ledgers").iterdir()
    before, noted = ledger.entries, mark.read_text()

    def fail(_: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(path: Path, *given: Any, honest: Callable[..., Any] = Path.open, **named: Any) -> Any:
        file = honest(path, *given, **named)
        file.write = fail
        return file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        with pytest.raises(OSError, match="No space"):
            CHANGES[change](ledger)
    assert mark.read_text() == noted
    assert ledger.entries != before
    ledger.charge("all", "the next", PureEvent(0.1))


@pytest.mark.parametrize("name", ["text", "release"])
def test_a_file_is_whole_or_as_it_was(tmp_path, name):
    path = tmp_path / "file"
    release = function_release()
    write = {"text": lambda: write_text(path, "new" * 500), "release": lambda: release.save(path, overwrite=True)}[name]
    write()
    whole = path.read_bytes()
    path.write_text("old")
    for size in {0, 1, 7, 8, *range(100, len(whole), len(whole) // 12), len(whole) - 1}:
        with full_after(size), pytest.raises(Exception, match=r"too large|I/O"):
            write()
        assert contents(tmp_path) == {"file": b"old"}
    write()
    assert len(path.read_bytes()) == len(whole)


def complaint(capsys, words: list[str], size: int) -> str:
    """Run a command on a full disk: one line and an exit code other than 0."""
    with full_after(size):
        code = main(words)
    captured = capsys.readouterr()
    assert code in (1, 2), captured.out
    assert len(captured.err.strip().splitlines()) == 1, captured.err
    assert captured.err.startswith("torchdpcate: ")
    return captured.err


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_predict_writes_all_or_nothing(tmp_path, capsys, ending):
    function_release().save(tmp_path / "r")
    points = pd.DataFrame(DOMAIN.grid(2000).numpy(), columns=list(DOMAIN.names))
    points.to_parquet(tmp_path / "in.parquet")
    output = tmp_path / f"out.{ending}"
    words = ["predict", str(tmp_path / "r"), str(tmp_path / "in.parquet"), "-o", str(output)]
    assert main(words) == 0
    size = output.stat().st_size
    output.write_text("what was there before")
    capsys.readouterr()
    before = contents(tmp_path)
    words.append("--overwrite")
    for limit in {0, 5, 500, size // 3, size // 2, size - 100, size - 1}:
        assert "cannot be written" in complaint(capsys, words, limit)
        assert contents(tmp_path) == before
    assert main(words) == 0
    assert output.stat().st_size == size


def test_report_writes_each_file_whole_or_not_at_all(tmp_path, capsys):
    for name, epsilon in (("a", 1.0), ("b", 2.0)):
        add(tmp_path, name, epsilon)
    files = ("report.csv", "report.html")
    assert main(["report", str(tmp_path)]) == 0
    folder = tmp_path / "curator"
    sizes = [(folder / name).stat().st_size for name in files]
    capsys.readouterr()
    for limit in (0, sizes[0] - 1, sizes[1] // 2, sizes[1] - 1):
        for name in files:
            (folder / name).unlink(missing_ok=True)
        complaint(capsys, ["report", str(tmp_path)], limit)
        whole = [name for name, size in zip(files, accumulate(sizes, max), strict=True) if size <= limit]
        assert {path.name for path in folder.iterdir()} == set(whole)


@contextmanager
def small_pages(chain: Chain, make: bool = False, honest: Callable[..., Any] = Chain.database) -> Iterator[Any]:
    """Open a ledger's file, which grows by little at a time if it is new."""
    with honest(chain, make) as database:
        database.execute("PRAGMA page_size = 512")
        yield database


def short_of_space(folder: Path, size: int) -> None:
    """Train and release on a disk on which no file may grow beyond ``size``."""
    Chain.database = small_pages  # type: ignore[method-assign]
    sys.dont_write_bytecode = True  # half of it would be left
    log = Journal(folder / JOURNAL)
    trainee.journal_steps(log)
    try:
        with full_after(size):
            trainee.train(folder, log)
    except OSError:
        log.write("full")
    except Exception as error:  # safetensors' own
        log.write("full" if "too large" in str(error) or "I/O" in str(error) else repr(error))


def test_a_training_that_runs_out_of_space_has_paid_for_all_it_used(tmp_path):
    """From a disk that has no room for the ledger, by a little more each time, to one that holds everything."""
    ends = []
    with server() as context:
        for size in (0, 200, 2048, 3700, 5200, 5700, 6200, 1 << 20):
            folder = tmp_path / str(size)
            folder.mkdir()
            process = context.Process(target=short_of_space, args=(folder, size))
            process.start()
            process.join(SECONDS)
            assert process.exitcode == 0
            assert problems(folder) == [], size
            lines = [line for line in journal(folder) if line != "full"]
            ends.append(lines[-1] if lines else "")
    assert ends[0] == ends[1] == ""
    assert ends[-1] == "saved second.safetensors"
    assert len(set(ends)) >= 4, ends


def test_train_on_a_full_disk_says_so_in_one_line(tmp_path, capsys):
    words = ["train", "data=dataset1", "data.n=300", "queries.count=5", "nuisance.batch_size=50", "nuisance.epochs=1"]
    words += ["second_stage=linear", "second_stage.ridge=0.2", "trainer.progress=false", f"run_dir={tmp_path / 'r'}"]
    complaint(capsys, words, 1500)
    assert not (tmp_path / "r").exists()  # refused before anything was spent
