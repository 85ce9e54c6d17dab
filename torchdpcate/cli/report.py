"""``torchdpcate report``: the runs of a folder as a table, a csv file and a figure. The curator's."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from torchdpcate._files import atomic_path
from torchdpcate.errors import InputError
from torchdpcate.evaluation import budget_figure, save_figure

ESTIMATES = {
    "pehe": "release",
    "pehe_plug_in": "plug-in (free)",
    "pehe_nonprivate": "non-private",
    "pehe_constant": "constant effect",
    "pehe_zero": "zero effect",
}
_WORDS, _COUNTS, _NUMBERS = ("mechanism", "level"), ("seed", "n"), (*ESTIMATES, "seconds")
_SHOWN = ["run", *_COUNTS, *_WORDS, "requested_epsilon", *_NUMBERS]


def report(folder: str) -> None:
    """Print and write ``report.csv``; draw error against budget where a sweep varied it.

    Args:
        folder: A run folder, or a folder of run folders.

    Raises:
        InputError: No summary anywhere under the folder, or a damaged one.
    """
    root = Path(folder)
    runs = pd.DataFrame([_summary(path) for path in sorted(root.glob("**/summary.json"))])
    if runs.empty:
        raise InputError(f"folder = {folder}: no summary.json in it; give the folder of a finished run or sweep")
    runs = runs[[name for name in _SHOWN if name in runs]].sort_values(["requested_epsilon", "seed"])
    table = Table(*runs.columns)
    for row in runs.itertuples(index=False):
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row))
    Console(markup=False, emoji=False).print(table)  # square brackets in a folder's name are no markup
    with atomic_path(root / "report.csv") as temporary:
        runs.to_csv(temporary, index=False)
    errors = [name for name in ESTIMATES if name in runs]
    if runs["requested_epsilon"].nunique() > 1 and errors:
        figure = budget_figure(
            runs.rename(columns={"requested_epsilon": "epsilon", **ESTIMATES}).melt(
                "epsilon", [ESTIMATES[name] for name in errors], "estimate", "pehe"
            )
        )
        save_figure(figure, root / "error_against_budget.png")
        print(f"figure: {root / 'error_against_budget.png'}")


def _summary(path: Path) -> dict[str, Any]:
    """Return what is shown of a run, each value of the type that `train` writes."""
    try:
        if not os.path.isfile(path):  # reading a pipe would wait for ever
            raise OSError
        summary = json.loads(path.read_text(encoding="utf-8"))
        row = {
            "run": _folder_name(path.parent),
            "requested_epsilon": _number(summary["requested"]["epsilon"]),
            **{name: _whole(summary[name]) for name in _COUNTS},
            **{name: _word(summary[name]) for name in _WORDS},
            **{name: _number(summary[name]) for name in _NUMBERS if name in summary},
        }
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError):
        raise InputError(f"{path}: not a summary of a run, or damaged; remove it or run again") from None
    return row


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ValueError
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError
    return value


def _word(value: Any) -> str:
    if not (isinstance(value, str) and value.isprintable() and len(value) < 100):
        raise ValueError
    return value


def _folder_name(folder: Path) -> str:
    """Return the folder's name as text, whatever its bytes and the locale."""
    return os.fsencode(folder.absolute().name).decode("utf-8", "backslashreplace")
