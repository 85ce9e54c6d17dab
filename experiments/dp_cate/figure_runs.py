"""Runs of ``torchdpcate train`` that a figure is made of: each is made once, and an interrupted figure continues."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from torchdpcate.cli.main import main as torchdpcate
from torchdpcate.release.file import load_release

_INTERRUPTED = 130
_NOT_OF_A_RUN = ("run_dir", "force")


def trained(folder: Path, words: Sequence[str]) -> tuple[Any, dict[str, Any]] | None:
    """Return release and summary of a run, made unless it is finished; None where nothing was released.

    What an interrupted run left is moved aside: its ledger counts what was spent.

    Args:
        folder: Of the run.
        words: Of ``torchdpcate train``, without ``run_dir``.

    Raises:
        SystemExit: The folder holds the finished run of other words.
        KeyboardInterrupt: The run was interrupted.
    """
    summary = folder / "curator" / "summary.json"
    if not summary.exists():
        if folder.is_dir():
            left = 1 + sum(path.name.startswith(f"{folder.name}.interrupted.") for path in folder.parent.iterdir())
            folder.rename(folder.with_name(f"{folder.name}.interrupted.{left}"))
        code = torchdpcate(["train", *words, f"run_dir={folder}"])
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        if code:
            return None
    found = json.loads(summary.read_text(encoding="utf-8"))
    requested = dict(word.split("=", 1) for word in words)
    if found["requested"]["words"] != {key: value for key, value in requested.items() if key not in _NOT_OF_A_RUN}:
        raise SystemExit(f"{folder}: is a finished run of other words; choose another folder of runs")
    return load_release(folder / "release" / "release.safetensors"), found


def together(rows: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all runs.

    Raises:
        SystemExit: No run released anything.
    """
    if not rows:
        raise SystemExit("no run released anything; what each said is above")
    return pd.concat(rows, ignore_index=True)


def markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown, rounded to three digits."""
    table = table.round(3)
    head = "| " + " | ".join(table.columns) + " |\n" + "| --- " * len(table.columns) + "|\n"
    return head + "".join("| " + " | ".join(map(str, row)) + " |\n" for row in table.itertuples(index=False))
