"""``torchdpcate report``: the runs of a folder as a table, a csv file and a figure. The curator's."""

import json
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
_SHOWN = ["run", "seed", "n", "mechanism", "level", "requested_epsilon", *ESTIMATES, "seconds"]


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
    Console().print(table)
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
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        requested = summary["requested"]["epsilon"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: not a summary of a run, or damaged; remove it or run again") from None
    return {"run": path.parent.name, "requested_epsilon": requested, **summary}
