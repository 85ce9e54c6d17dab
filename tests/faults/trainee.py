"""A small training that writes down each use of noise before it happens, and can be killed at any point of its way.

Run in a process of its own: it changes what it imports.
"""

import os
import pathlib
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchdpcate
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.fit.dp_sgd_plan import StepAccount
from torchdpcate.fit.engines import _Guarded
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.papers.oprescu import Dataset1
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import SystemNoise

BUDGET = PrivacyBudget(4.0, 1e-5)
STEPS = 24
JOURNAL, LEDGER, RELEASES = "journal.txt", "ledger.sqlite", ("first.safetensors", "second.safetensors")

# Whose function calls, returns and calls into C count as points of the way: the package, and what writes its files.
_PLACES = (
    os.path.dirname(torchdpcate.__file__),
    pathlib.__file__,
    __file__,
)

_WRITERS = ("/_files.py", "/_chain.py", "/ledger_file.py", "/trainee.py")
COUNTED = ("everywhere", "in writing")


class Journal:
    """Lines on disk, each written by one call before what it tells of happens."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, line: str) -> None:
        """Append a line; it survives the process from here on."""
        os.write(self._file, f"{line}\n".encode())


class JournalNoise(SystemNoise):
    """The system's noise, of which each draw is written down first."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def gaussian(self, size: int, scale: float, step: float | None = None) -> Tensor:
        """As the base class's."""
        self._journal.write("gaussian")
        return super().gaussian(size, scale, step)

    def laplace(self, size: int, scale: float) -> Tensor:
        """As the base class's."""
        self._journal.write("laplace")
        return super().laplace(size, scale)

    def _noisy_max(self, scores: Tensor, epsilon: float, sensitivity: float) -> int:
        self._journal.write("select")
        return super()._noisy_max(scores, epsilon, sensitivity)

    def _gumbel_max(self, scores: Tensor, epsilon: float, sensitivity: float) -> int:
        self._journal.write("select")
        return super()._gumbel_max(scores, epsilon, sensitivity)


def journal_steps(journal: Journal) -> None:
    """Write down each DP-SGD step just before its noise is drawn."""

    def noted(noisy: Callable[[_Guarded, Tensor], Tensor]) -> Callable[[_Guarded, Tensor], Tensor]:
        def write_and_add(optimizer: _Guarded, total: Tensor) -> Tensor:
            journal.write("step")
            return noisy(optimizer, total)

        return write_and_add

    _Guarded.noisy = noted(_Guarded.noisy)  # type: ignore[method-assign]


def learner(folder: Path, noise: SystemNoise) -> RLearner:
    """A learner so small that one training takes a fraction of a second."""
    return RLearner(
        Dataset1(n=130).domain(),
        BUDGET,
        nuisance=NuisanceConfig(width=2, batch_size=10, epochs=4),
        second_stage=LinearSecondStage(ridge=0.3),
        trainer=partial(default_trainer, accelerator="cpu"),
        noise=noise,
        ledger_path=folder / LEDGER,
    )


def train(folder: Path, journal: Journal) -> None:
    """Fit, release half of the second stage's budget, then the rest; journal all the way."""
    study = Dataset1(n=130).load()
    model = learner(folder, JournalNoise(journal))
    model.fit(study.records.x, study.records.a, study.records.y)
    journal.write("fitted")
    half = PrivacyBudget(BUDGET.epsilon / 2, BUDGET.delta / 2)
    for name, budget in zip(RELEASES, (half, None), strict=True):
        model.release_function("output", budget).save(folder / name)
        journal.write(f"saved {name}")


class Way:
    """Counts points of the process's way, and acts at the one given.

    A point is a call, a return, or a call into C, from the package or from what writes its files. At each the kernel
    could have ended the process. Those in which a file is written are counted apart too: there are few of them, and a
    kill does most harm there.
    """

    def __init__(self, at: tuple[str, int] | None, act: Callable[[], object]) -> None:
        self.points = dict.fromkeys(COUNTED, 0)
        self._at, self._act = at, act

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        """Count a point of Python's profiler."""
        file = frame.f_code.co_filename
        if not file.startswith(_PLACES):
            return
        for name in COUNTED[: 1 + file.endswith(_WRITERS)]:
            self.points[name] += 1
            if (name, self.points[name]) == self._at:
                self._act()


def kill_this_process() -> None:
    """End at once, as by ``kill -9``: nothing is flushed, closed or cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def late_count(account: StepAccount) -> None:
    """A planted fault: the step is counted in memory, and the ledger hears of it when all is over."""
    account.spent += 1
    account.steps += 1


def live(folder: Path, kill: tuple[str, int] | None, fault: str | None, points: Any) -> None:
    """Train in this process, which is to be killed at point ``kill`` of its way; tell how many there were."""
    torch.set_num_threads(1)
    sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    if fault == "late":
        StepAccount.count = late_count  # type: ignore[method-assign]
        StepAccount._charge = _charge_nothing_yet  # type: ignore[method-assign]
    journal = Journal(folder / JOURNAL)
    journal_steps(journal)
    way = Way(kill, kill_this_process)
    sys.setprofile(way)
    train(folder, journal)
    sys.setprofile(None)
    points[:] = [way.points[name] for name in COUNTED]


def _charge_nothing_yet(account: StepAccount, ledger: Ledger, level: Level) -> None:
    counts = {"count": 0, "planned": STEPS, "level": level}
    account.entry = ledger.charge(account.block, account.charge, account.plan.event, **counts)
