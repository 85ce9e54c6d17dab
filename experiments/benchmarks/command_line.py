"""Wall time and peak memory of whole processes: the default training, imports, and streaming prediction.

    python experiments/benchmarks/command_line.py

Prints one row a command; the import is set against a bare ``import torch`` and the long prediction against a
short one, interleaved, as ratios.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from torchdpcate import load_release

PROGRAM = [sys.executable, "-m", "torchdpcate"]


def measured(command: list[str]) -> tuple[float, float]:
    """Run a command; return its wall seconds and the peak of its resident memory in MiB."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return seconds, usage.ru_maxrss / 1024


def compare(name: str, command: list[str], baseline_name: str, baseline: list[str], rounds: int) -> None:
    """Print medians of a command and its baseline, run in turn, and their ratios."""
    pairs = [(measured(command), measured(baseline)) for _ in range(rounds)]
    ours, theirs = ([statistics.median(pair[side][k] for pair in pairs) for k in (0, 1)] for side in (0, 1))
    for label, figures in ((name, ours), (baseline_name, theirs)):
        print(f"{label:44s} {figures[0]:7.2f} s {figures[1]:8.0f} MiB")
    print(f"{'  ratio':44s} {ours[0] / theirs[0]:7.2f}   {ours[1] / theirs[1]:8.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    words = parser.parse_args()
    python = [sys.executable, "-c"]
    compare(
        "import torchdpcate, torch",
        [*python, "import torchdpcate, torch"],
        "import torch",
        [*python, "import torch"],
        5,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i in range(words.rounds):
            seconds, memory = measured([*PROGRAM, "train", f"run_dir={folder / str(i)}"])
            print(f"{'torchdpcate train (default)':44s} {seconds:7.2f} s {memory:8.0f} MiB")
        release = folder / "0" / "release" / "release.safetensors"
        schema = load_release(release).schema
        commands = []
        for rows in (words.rows, words.rows // 10):
            path = folder / f"{rows}.parquet"
            x = schema.grid(2**16).repeat(rows // 2**16 + 1, 1)[:rows].numpy()
            pd.DataFrame(x, columns=list(schema.columns)).to_parquet(path, row_group_size=2**16)
            output = str(folder / f"out{rows}.parquet")
            commands.append([*PROGRAM, "predict", str(release), str(path), "-o", output, "--overwrite"])
        compare(
            f"predict {words.rows:,} rows", commands[0], f"predict {words.rows // 10:,} rows", commands[1], words.rounds
        )


if __name__ == "__main__":
    main()
