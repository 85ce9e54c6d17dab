"""Kill -9 of a training at points spread over its whole way, and what must hold of the files it leaves."""

import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests.faults import trainee
from tests.faults.guards import SECONDS, bounded
from tests.faults.trainee import COUNTED, JOURNAL, LEDGER, RELEASES
from torchdpcate.errors import TorchDPCateError
from torchdpcate.privacy.charge import DP_SGD, THRESHOLD
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.ledger_file import is_begun
from torchdpcate.release.file import load_release

# What a journal says last, and the part of the way that follows it.
PHASES = {
    "": "before any noise",
    "step": "DP-SGD",
    "select": "threshold bought, head fitted",
    "fitted": "before the release",
    "gaussian": "noise drawn, release not written",
    RELEASES[0]: "before the second release",
    RELEASES[1]: "after the end",
}


@contextmanager
def server() -> Iterator[ForkServerContext]:
    """A server that forks processes in which everything is imported and worked out already."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a process that used a GPU cannot be forked
    try:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.faults.warm"])
        yield context
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES")
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def spread(points: tuple[int, int], kills: int, seed: int) -> list[tuple[str, int]]:
    """Draw one point at random from each of ``kills`` equal parts of the way; likewise of all writing of files."""
    draw = random.Random(seed)
    return [
        (where, 1 + int((i + draw.random()) / kills * count))
        for where, count in zip(COUNTED, points, strict=True)
        for i in range(kills)
    ]


def one_life(
    context: ForkServerContext, folder: Path, kill: tuple[str, int] | None, fault: str | None = None
) -> tuple[int, int]:
    """Run a training that is killed at a point of its way; return how many points it had, none if it was killed."""
    folder.mkdir()
    points = context.Array("l", 2)
    process = context.Process(target=trainee.live, args=(folder, kill, fault, points), daemon=True)
    process.start()
    process.join(SECONDS)
    assert process.exitcode is not None, "the training hangs"
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return points[0], points[1]


def phase(folder: Path) -> str:
    """The part of the way in which a training ended, by its journal."""
    lines = journal(folder)
    return PHASES[lines[-1].removeprefix("saved ") if lines else ""]


def journal(folder: Path) -> list[str]:
    """The lines of a training's journal: uses of noise, each written before it happened."""
    path = folder / JOURNAL
    return path.read_text().splitlines() if path.exists() else []


def problems(folder: Path) -> list[str]:
    """What must not be so of the files of a training, wherever it was killed."""
    found = underpaid(journal(folder), folder / LEDGER)
    for name in RELEASES:
        found += half_written(folder / name)
    if found or not is_begun(folder / LEDGER):
        return found
    ledger = Ledger.load(folder / LEDGER)
    charged = sum(entry.count for entry in ledger.entries if entry.block == "second_stage")
    saved = sum((folder / name).exists() for name in RELEASES)
    with bounded():
        return stuck(folder, ledger) if charged >= saved else [f"{saved} releases and {charged} charges"]


def underpaid(lines: list[str], path: Path) -> list[str]:
    """Uses of noise in a journal that the ledger does not hold, or a ledger that says nothing or too much."""
    used = {name: lines.count(name) for name in ("step", "select", "gaussian", "laplace")}
    if not is_begun(path):
        return [f"no ledger, but {used} was used"] if any(used.values()) else []
    try:
        ledger = Ledger.load(path)
    except TorchDPCateError as error:
        return [f"the ledger cannot be read: {error}"]
    charged = dict.fromkeys(used, 0)
    for entry in ledger.entries:
        kind = {DP_SGD.words: "step", THRESHOLD.words: "select"}.get(entry.label, "gaussian")
        charged[kind] += entry.count
    found = [
        f"{charged[kind]} of {used[kind]} x {kind} are in the ledger" for kind in used if charged[kind] < used[kind]
    ]
    spent = ledger.spent()
    return found + [f"{name} overspent" for name, b in ledger.blocks.items() if spent[name]["epsilon"] > b.epsilon]


def half_written(release: Path) -> list[str]:
    """Why a release that is there cannot be loaded."""
    try:
        release.exists() and load_release(release)
    except TorchDPCateError as error:
        return [f"half a release: {error}"]
    return []


def stuck(folder: Path, ledger: Ledger) -> list[str]:
    """What of the files would keep a next run from going on: the lock, the ledger, or a release half written."""
    for entry in ledger.entries:
        if entry.count < entry.planned:
            ledger.settle(entry.id, entry.count)  # whoever takes up the ledger frees what was only reserved
    before = len(ledger.entries)
    ledger.charge("second_stage", "the next run", PureEvent(1e-6)) if ledger.remaining("second_stage") else None
    if len(Ledger.load(folder / LEDGER).entries) < before:
        return ["entries were lost"]
    leftover = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    strangers = set(leftover) - {JOURNAL, LEDGER, *RELEASES}
    return [f"left over: {sorted(strangers)}"] if strangers else []
