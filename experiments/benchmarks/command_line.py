"""CPU time and peak memory of whole processes, each as a ratio to what it is set against.

    python experiments/benchmarks/command_line.py

The default training, ``verify`` and ``predict`` of its release, and the import are set against a bare ``import torch``,
prediction of many rows against that of few. All of a comparison run in turn; user CPU time hardly depends on what else
the machine does.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PYTHON = [sys.executable, "-c"]
PROGRAM = [sys.executable, "-m", "torchdpcate"]
# as installed, packages are compiled: else every process would compile the library's modules again
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

TABLE = """
import sys, pandas as pd, torchdpcate
schema, rows = torchdpcate.load_release(sys.argv[1]).schema, int(sys.argv[2])
x = schema.grid(2**16).repeat(rows // 2**16 + 1, 1)[:rows].numpy()
pd.DataFrame(x, columns=list(schema.columns)).to_parquet(sys.argv[3], row_group_size=2**16)
"""
"""Makes a table of covariates for a release; elsewhere, for a process has the peak of memory of the one it is from."""


def measured(command: Sequence[str]) -> tuple[float, float]:
    """Run a command; return its user CPU seconds and the peak of its resident memory in MiB."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return usage.ru_utime, usage.ru_maxrss / 1024


def compare(commands: dict[str, list[str]], rounds: int) -> None:
    """Print medians of commands that run in turn, and their ratios to the first; ``ROUND`` in a word is the round's."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for k in range(-1, rounds):  # the first round compiles
        for name, command in commands.items():
            figures = measured([word.replace("ROUND", str(k)) for word in command])
            if k >= 0:
                found[name].append(figures)
    medians = {name: [statistics.median(row) for row in zip(*rows, strict=True)] for name, rows in found.items()}
    base = next(iter(medians.values()))
    for name, (seconds, memory) in medians.items():
        print(f"{name:32s} {seconds:7.2f} s {seconds / base[0]:6.2f} {memory:8.0f} MiB {memory / base[1]:6.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, many, few = folder / "run", folder / "many.parquet", folder / "few.parquet"
        small = folder / "small.parquet"
        measured([*PROGRAM, "train", f"run_dir={run}"])
        for rows, path in ((words.rows, many), (words.rows // 10, few), (100, small)):
            measured([*PYTHON, TABLE, str(run / "release" / "release.safetensors"), str(rows), str(path)])
        predict = [*PROGRAM, "predict", str(run), "-o", str(folder / "out.parquet"), "--overwrite"]
        compare(
            {
                "import torch": [*PYTHON, "import torch"],
                "import torchdpcate, torch": [*PYTHON, "import torchdpcate, torch"],
                "torchdpcate train": [*PROGRAM, "train", f"run_dir={folder / 'ROUND'}"],
                "torchdpcate verify": [*PROGRAM, "verify", str(run)],
                "torchdpcate predict, 100 rows": [*predict, str(small)],
            },
            words.rounds,
        )
        compare(
            {f"predict {words.rows // 10:,} rows": [*predict, str(few)], f"{words.rows:,}": [*predict, str(many)]},
            words.rounds,
        )


if __name__ == "__main__":
    main()
