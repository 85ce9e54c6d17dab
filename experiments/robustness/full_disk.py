"""A disk that is really full: small trainings on a tmpfs that is filled up at a point of their way.

Usage, as root: unshare -m sh -c 'mount -t tmpfs -o size=1m tmpfs DIR && python experiments/robustness/full_disk.py DIR'
"""

import os
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.faults.killing import one_life, phase, problems, server, spread
from tests.faults.trainee import COUNTED, JOURNAL, Journal, Way, journal_steps, train

RUNS = 100
BALLAST = "ballast"


def fill(folder: Path) -> None:
    """Leave not a byte of the disk, but for the journal, which has its place already."""
    with (folder.parent / BALLAST).open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def train_until_full(folder: Path, at: tuple[str, int]) -> None:
    """Train in this process; at a point of its way the disk is full."""
    sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    journal = Journal(folder / JOURNAL)
    journal_steps(journal)
    sys.setprofile(Way(at, lambda: fill(folder)))
    try:
        train(folder, journal)
    except Exception as error:
        os._exit(20 if "No space" in str(error) else 1)


def main(disk: Path) -> None:
    """Print where the trainings ended, how, and what was broken."""
    ends: Counter[tuple[str, str]] = Counter()
    found = []
    with server() as context:
        whole = disk / "whole"
        points = one_life(context, whole, None)
        print(f"one training: {dict(zip(COUNTED, points, strict=True))} points")
        for at in spread(points, RUNS // 2, seed=7):
            folder = disk / f"{at[1]}"
            folder.mkdir()
            process = context.Process(target=train_until_full, args=(folder, at))
            process.start()
            process.join()
            left = [path.name for path in folder.iterdir() if path.name.startswith(".")]
            found += [f"left over: {left}"] if left else []
            (disk / BALLAST).unlink(missing_ok=True)
            end = {0: "went on: all was written", 20: "refused: no space left"}.get(
                process.exitcode, "failed otherwise"
            )
            ends[end, phase(folder)] += 1
            found += problems(folder) + (["failed otherwise"] if process.exitcode not in (0, 20) else [])
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
    print(f"{ends.total()} trainings, {len(found)} problems")
    for (end, where), count in sorted(ends.items()):
        print(f"  {count:4d}  {end} ({where})")
    for problem in found:
        print(f"  PROBLEM {problem}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
