"""How a training ends that cannot go on: signals, full disks, places that cannot be written."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.helpers import EACH, QUICK, TABLE, one_line
from torchdpcate.cli.main import main
from torchdpcate.privacy.charge import DP_SGD, THRESHOLD
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.ledger_file import is_begun

pytestmark = pytest.mark.faults

LONG = ["nuisance.batch_size=10", "nuisance.epochs=2000", "trainer.progress=false"]
LONG += ["second_stage=linear", "second_stage.ridge=0.02"]
_MAIN = [sys.executable, "-m", "torchdpcate", "train"]
_FIT = """
import sys, torch
from torchdpcate import Domain, LinearSecondStage, NuisanceConfig, PrivacyBudget, RLearner
n = 400
x, a = torch.rand(n, 1, dtype=torch.float64), torch.arange(n) % 2
learner = RLearner(Domain([0.0], [1.0], 0.0, 1.0), PrivacyBudget(1.0, 1e-5), ledger_path=sys.argv[1],
                   nuisance=NuisanceConfig(batch_size=10, epochs=2000), second_stage=LinearSecondStage())
learner.fit(x, a, x[:, 0])
print("fitted")
"""


def started(process: subprocess.Popen, ledger: Path) -> None:
    """Wait until DP-SGD is under way."""
    deadline = time.monotonic() + 600  # of a machine that is busy with other things
    while time.monotonic() < deadline and not (is_begun(ledger) and Ledger.load(ledger).entries):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.2)
    time.sleep(1.0)


def check_ledger(path: Path) -> None:
    """What was charged stays charged, and nothing is reserved any more."""
    (entry,) = Ledger.load(path).entries
    assert 0 < entry.count < 2000 * 20
    assert entry.planned == entry.count


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"])
def test_a_signal_in_dp_sgd_is_one_line_and_its_exit_code(here, number, code):
    process = subprocess.Popen(
        [*_MAIN, *TABLE, *LONG, "run_dir=r"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    ledger = here / "r" / "curator" / "ledger.sqlite"
    started(process, ledger)
    process.send_signal(number)
    output, error = process.communicate(timeout=60)
    assert process.returncode == code, error
    assert len(error.strip().splitlines()) == 1, error
    assert "the run folder's ledger counts what was spent" in error
    assert [line[:5] for line in output.splitlines()] == ["plan:"]
    check_ledger(ledger)
    names = {str(path.relative_to(here / "r")) for path in (here / "r").rglob("*")}
    assert names == {"curator", "curator/ledger.sqlite", "curator/records.sha256"}


def test_a_signal_in_a_fit_of_the_curators_own_code_ends_it(tmp_path):
    """Lightning would end the training early, and the fit would go on with it."""
    ledger = tmp_path / "ledger.sqlite"
    words = [sys.executable, "-c", _FIT, str(ledger)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started(process, ledger)
    process.send_signal(signal.SIGTERM)
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output) == (143, ""), error
    check_ledger(ledger)


CHARGED = {
    "cate": [DP_SGD.words, THRESHOLD.words],
    "online": [DP_SGD.words, THRESHOLD.words],
    "queries": [DP_SGD.words],
}
"""Labels of what is paid for before a release is."""
TASKS = {**EACH, "queries": [*EACH["cate"], "release=queries", "mechanism=smooth_sensitivity", "queries.count=5"]}


AT_ONCE = ("composed", "subgroups", "rule", "policy")
"""Tasks whose fit pays for the release: its size is known when it is paid for."""


@pytest.mark.parametrize(
    ("task", "call"), [*((task, 0) for task in TASKS), *((task, 1) for task in TASKS if task not in AT_ONCE)]
)
def test_a_release_that_cannot_be_written_is_not_paid(task, call, here, capsys, monkeypatch):
    """The space is requested before anything is charged, and again before the release is, when its size is known."""
    charged = CHARGED.get(task, []) if call else []
    real, calls = os.posix_fallocate, []

    def full(*given):
        calls.append(given)
        if len(calls) > call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*given)

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert main(["train", *TASKS[task], "force=true", "run_dir=r"]) == 2
    complaint = capsys.readouterr().err.splitlines()[-1]  # a plan or a fit may have warned
    assert "No space left on device" in complaint
    assert not (here / "r" / "release").exists()
    ledger = here / "r" / "curator" / "ledger.sqlite"
    labels = [entry.label for entry in Ledger.load(ledger).entries] if ledger.exists() else []
    assert not [label for label in labels if label.startswith("release")]
    assert len(labels) >= len(charged)
    assert call or not labels
    if not labels:
        assert not (here / "r").exists()


def test_the_release_fits_into_what_was_held_for_it(here, monkeypatch):
    """Of every task, as it is by default; of a release with as many queries as it likes, too."""
    sizes = []
    real = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda file, at, size: (sizes.append(size), real(file, at, size)))
    monkeypatch.setattr("torchdpcate.cli.run._ROOM", 300_000)
    many = [*EACH["cate"], "release=queries", "mechanism=objective", "queries.count=40000"]
    for number, words in enumerate([*TASKS.values(), many]):
        sizes.clear()
        run = here / str(number)
        assert main(["train", *words, "force=true", f"run_dir={run}"]) == 0
        written = sum(path.stat().st_size for path in (run / "release").iterdir())
        assert written < sizes[0], words


PLACES = {
    "a device": "/dev/full/x",
    "a file": "file",
    "below a file": "file/x",
    "a system's folder": "/proc/x",
    "a name too long": "x" * 300,
}


@pytest.mark.parametrize("sweep", [[], ["-m", "seed=0,1"]], ids=["one run", "sweep"])
@pytest.mark.parametrize("place", PLACES)
def test_a_run_folder_that_cannot_be_made_is_one_line(place, sweep, here, capsys):
    Path("file").write_text("mine")
    before = {path.name for path in here.iterdir()}
    assert main(["train", *sweep, *TABLE, *QUICK, f"run_dir={PLACES[place]}"]) == 2
    error = one_line(capsys)
    assert "internal error" not in error
    assert {path.name for path in here.iterdir()} == before
    assert Path("file").read_text() == "mine"
