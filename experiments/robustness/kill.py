"""Kill -9 in loops of 100: small trainings at points of their way, and whole runs of the command by the clock.

Usage: python experiments/robustness/kill.py [KILLS]
"""

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.faults.killing import half_written, journal, one_life, phase, problems, server, spread, underpaid

WHOLE_RUN = Path(__file__).with_name("whole_run.py")


def by_points(kills: int) -> None:
    """Kill small trainings at random points: so many spread over all of the way, and as many over its writing."""
    ends: Counter[str] = Counter()
    found = []
    with tempfile.TemporaryDirectory() as folder, server() as context:
        points = one_life(context, Path(folder) / "whole", None)
        print(f"one training: {points[0]:,} points, {points[1]:,} of them in writing")
        for kill in spread(points, kills, seed=2024):
            run = Path(folder) / f"{kill[0]} {kill[1]}"
            one_life(context, run, kill)
            ends[phase(run)] += 1
            found += problems(run)
    report("small trainings", ends, found)


def by_clock(kills: int) -> None:
    """Kill `torchdpcate train` after a random time, uniform over a run's length from when its imports are done."""
    ends: Counter[str] = Counter()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        process, begin = start(whole), time.monotonic()
        process.wait()
        length = time.monotonic() - begin
        print(f"one whole run: {length:.1f} s after its imports, {dict(Counter(journal(whole)))}")
        draw = random.Random()  # the moments need not be the same in another run: machines are not
        for i in range(kills):
            run = Path(folder) / str(i)
            process = start(run)
            try:
                process.wait(draw.uniform(0, length))
            except subprocess.TimeoutExpired:
                process.kill()
            process.wait()
            ends[journal(run)[-1]] += 1
            found += underpaid(journal(run), run / "run" / "curator" / "ledger.sqlite")
            found += half_written(run / "run" / "release" / "release.safetensors")
    report("whole runs", ends, found)


def start(folder: Path) -> subprocess.Popen:
    """Start a run of the command that keeps a journal in ``folder``; return when its imports are done."""
    folder.mkdir()
    process = subprocess.Popen([sys.executable, str(WHOLE_RUN), str(folder)], stdout=subprocess.DEVNULL)
    while not journal(folder):
        time.sleep(0.01)
    return process


def report(what: str, ends: Counter, found: list[str]) -> None:
    """Print where the kills fell and what they broke."""
    print(f"{what}: {ends.total()} kills, {len(found)} problems")
    for end, count in ends.most_common():
        print(f"  {count:4d}  {end}")
    for problem in found:
        print(f"  PROBLEM {problem}")


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    by_points(number)
    by_clock(number)
