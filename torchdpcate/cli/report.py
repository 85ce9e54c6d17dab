"""``torchdpcate report``: the runs of a folder as tables, side by side, and as figures. The curator's."""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from torchdpcate._files import atomic_path, write_text
from torchdpcate.cli.comparison import PROBLEM, compare, error_table, markdown, method_of, problem_of
from torchdpcate.cli.settings import CHOICES, CURVES_FILE
from torchdpcate.errors import InputError
from torchdpcate.evaluation import EffectCurves, budget_figure, curves_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ESTIMATES = {
    "pehe": "release",
    "pehe_plug_in": "plug-in",
    "pehe_nonprivate": "non-private",
    "pehe_constant": "constant effect",
    "pehe_zero": "zero effect",
}
_WORDS, _COUNTS, _ERRORS = ("mechanism", "level"), ("seed", "n"), tuple(ESTIMATES)
_NAMES = ("data", "learner", "release", *CHOICES)  # summaries of older runs lack some
_SHOWN = ["run", *_COUNTS, *_WORDS, "requested_epsilon", *_ERRORS, "seconds"]
_FEW = 20  # runs that are printed one by one
_LARGEST = 1e100  # beyond it, no number of a run


def report(folder: str) -> None:
    """Print the runs and how they compare, write ``report.csv`` and ``report.md``, draw what a sweep varied.

    Args:
        folder: A run folder, or a folder of run folders.

    Raises:
        InputError: No summary anywhere under the folder, or a damaged one; damaged curves of a run that is drawn.
    """
    root = Path(folder)
    paths = sorted(root.glob("**/summary.json"))
    if not paths:
        raise InputError(f"folder = {folder}: no summary.json in it; give the folder of a finished run or sweep")
    runs = pd.DataFrame([{"folder": path.parent, **_summary(path)} for path in paths])
    runs["varied"] = _varied(runs["settings"])
    runs["method"] = method_of(runs)
    runs = runs.sort_values(["method", "requested_epsilon", "seed"], kind="stable", ignore_index=True)
    table, figures = compare(runs), _figures(runs)
    with atomic_path(root / "report.csv") as temporary:
        settings = runs["settings"].map(lambda given: " ".join(f"{key}={value}" for key, value in given.items()))
        runs.drop(columns=["folder", "varied", "method"]).assign(settings=settings).to_csv(temporary, index=False)
    write_text(root / "report.md", _page(runs, table))
    _print(runs, table)
    for name, figure in figures.items():
        save_figure(figure, root / name)
        print(f"figure: {root / name}")


def _page(runs: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return the tables as a page to read."""
    errors = error_table(runs)
    parts = ["Curator only: holds errors of non-private estimates."]
    if errors is not None:
        parts += ["# Error against budget", "PEHE: mean ± standard error over runs.", markdown(errors)]
    parts += ["# Methods side by side", "Noise is the mean public scale of the answers; what is secret is a dash."]
    return "\n\n".join([*parts, markdown(table)]) + "\n"


def _print(runs: pd.DataFrame, table: pd.DataFrame) -> None:
    if len(runs) <= _FEW:
        shown = runs[[name for name in _SHOWN if name in runs]]
        _print_table(shown.map(lambda value: f"{value:.4g}" if isinstance(value, float) else str(value)))
    if len(runs) > 1:
        _print_table(table)


def _print_table(texts: pd.DataFrame) -> None:
    """Print a table of texts, wider than the terminal rather than cut."""
    table = Table(*texts.columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for row in texts.itertuples(index=False):
        table.add_row(*row)
    console = Console(markup=False, emoji=False)  # square brackets in a folder's name are no markup
    needed = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    console.width = max(console.width, needed)
    console.print(table)


def _figures(runs: pd.DataFrame) -> dict[str, "Figure"]:
    """Return the figures by the names of their files."""
    figures = {}
    known = [name for name in _ERRORS if name in runs and name != "pehe_zero"]
    if runs["requested_epsilon"].nunique() > 1 and known:
        figures["error_against_budget.png"] = budget_figure(_errors(runs, known))
    for (data, n), chosen in runs.groupby(PROBLEM):
        first = chosen[chosen["seed"] == chosen["seed"].min()]
        curves = _curves(first)
        if sum(map(len, curves.values())) > 1:
            name = re.sub(r"[^\w.-]+", "_", str(data))
            title = f"{problem_of(first).iloc[0]}, seed {first['seed'].iloc[0]}"
            figures[f"effect_{name}_n{n}.png"] = curves_figure(curves, title)
    return figures


def _errors(runs: pd.DataFrame, known: list[str]) -> pd.DataFrame:
    """Return one row a run and estimate, in the order in which they are drawn."""
    if (runs["mechanism"] == "plug_in").any():
        known = [name for name in known if name != "pehe_plug_in"]
    common = pd.DataFrame({"epsilon": runs["requested_epsilon"], "panel": problem_of(runs)})
    parts = [
        common.assign(estimate=runs["method"] if name == "pehe" else ESTIMATES[name], pehe=runs[name]) for name in known
    ]
    return pd.concat(parts).sort_values("panel", kind="stable")


def _curves(runs: pd.DataFrame) -> dict[float, dict[str, EffectCurves]]:
    """Return the curves of runs on one data set by budget and method, all along the first one's covariate."""
    curves: dict[float, dict[str, EffectCurves]] = {}
    covariate = None
    for folder, epsilon, method in zip(runs["folder"], runs["requested_epsilon"], runs["method"], strict=True):
        path = folder / "curator" / CURVES_FILE
        if not os.path.lexists(path):
            continue  # a query release, or an older run
        found = EffectCurves.load(path)
        covariate = covariate or found.covariate
        if found.covariate == covariate:
            curves.setdefault(epsilon, {}).setdefault(method, found)
    return curves


def _varied(settings: pd.Series) -> pd.Series:
    """Return each run's settings that others do not share, as text."""
    keys = sorted({key for given in settings for key in given})
    varying = [key for key in keys if len({given.get(key) for given in settings}) > 1]
    return settings.map(lambda given: " ".join(f"{key}={given[key]}" for key in varying if key in given))


def _summary(path: Path) -> dict[str, Any]:
    """Return what is shown of a run, each value of the type that `train` writes."""
    try:
        if not os.path.isfile(path):  # reading a pipe would wait for ever
            raise OSError
        summary = json.loads(path.read_text(encoding="utf-8"))
        spent, noise = summary["spent"]["total"]["epsilon"], summary.get("noise")
        settings = {_text(key): _text(value) for key, value in summary["requested"].get("settings", {}).items()}
        row = {
            "run": _folder_name(path.parent),
            **{name: "-" if summary.get(name) is None else _word(summary[name]) for name in _NAMES},
            **{name: _word(summary[name]) for name in _WORDS},
            "settings": settings,
            **{name: _whole(summary[name]) for name in _COUNTS},
            "requested_epsilon": _number(summary["requested"]["epsilon"]),
            "spent_epsilon": None if spent is None else _number(spent),
            "noise": None if noise is None else _number(noise),
            **{name: _number(summary[name]) for name in (*_ERRORS, "seconds") if name in summary},
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, OSError):
        raise InputError(f"{path}: not a summary of a run, or damaged; remove it or run again") from None
    return row


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
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


def _text(value: Any) -> str:
    """Return what a user may have written, fit for a terminal."""
    if not isinstance(value, str):
        raise ValueError
    return "".join(letter if letter.isprintable() else "?" for letter in value[:1000])


def _folder_name(folder: Path) -> str:
    """Return the folder's name as text, whatever its bytes and the locale."""
    return os.fsencode(folder.absolute().name).decode("utf-8", "backslashreplace")
