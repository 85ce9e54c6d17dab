"""The figures of average effects: the curator's of a run, and a report's, from release numbers alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from torchdpcate._files import PRIVATE
from torchdpcate._text import file_name, plain, spreadsheet_cell
from torchdpcate.cli.curator import read_table, released_by
from torchdpcate.cli.report import PROBLEM, problem_of
from torchdpcate.cli.tasks.averages import BALANCE_FILE
from torchdpcate.estimators.average.composed import ComposedScoresPlan
from torchdpcate.evaluation.balance_figure import CURATOR_ONLY, balance_figure, interval_figure
from torchdpcate.evaluation.figures import save_figure
from torchdpcate.pages.figures import interval_row, released_rows
from torchdpcate.release.average_effect import AverageEffectRelease, BalanceTable, StandardisedBalance
from torchdpcate.release.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEVEL = 0.95
_MOST_BALANCES, _MOST_INTERVALS = 12, 40  # figures, and lines of one


def draw_intervals(
    release: AverageEffectRelease, others: Mapping[str, Estimate], truth: float | None, folder: Path
) -> None:
    """Draw ``interval.png`` into the curator's folder.

    Args:
        release: What was released.
        others: Estimates that were not, by name.
        truth: The true effect; None where it is not known.
        folder: The curator's folder.
    """
    claim, rows = release.privacy.claim, released_rows(release, "released")
    rows += [interval_row(release, name, estimate, secret=True) for name, estimate in others.items()]
    figure = interval_figure(rows, level=_LEVEL, truth=truth, claim=claim, assumptions=release.assumptions)
    save_figure(figure, folder / "interval.png", PRIVATE)


def draw_balance(release: AverageEffectRelease, balance: BalanceTable, folder: Path) -> None:
    """Draw ``balance.png`` into the curator's folder.

    Args:
        release: What was released.
        balance: Imbalance before and after weighting, without noise.
        folder: The curator's folder.
    """
    if release.balance is None:
        figure = balance_figure(balance, claim=CURATOR_ONLY)
    else:
        figure = balance_figure(release.balance, nonprivate=balance, claim=release.privacy.claim)
    save_figure(figure, folder / "balance.png", PRIVATE)


def curator_balances(runs: pd.DataFrame) -> "dict[str, Figure]":
    """Return the balance figures of runs, with the balance that was not released, by their captions.

    Args:
        runs: One row a run.

    Raises:
        InputError: A damaged ``balance.csv``.
    """
    figures: dict[str, Figure] = {}
    for name, folder in zip(runs["run"], runs["folder"], strict=True):
        table = read_table(folder / "curator" / BALANCE_FILE, "feature", ("before", "after"))
        if table is None or len(figures) >= _MOST_BALANCES:
            continue
        release = released_by(folder, AverageEffectRelease)
        released = None if release is None else release.balance
        names = table["feature"].tolist()
        if released is not None and [plain(spreadsheet_cell(one)) for one in released.names] == names:
            names = list(released.names)
        else:
            released = None
        columns = {column: table[column].tolist() for column in ("before", "after") if column in table}
        composed = release is not None and release.privacy.mechanism == ComposedScoresPlan.name
        exact = (StandardisedBalance if composed else BalanceTable)(names, **columns)
        mark = "" if len(runs) == 1 else f", run {name}"
        figures[f"Balance of the arms before and after weighting{mark}"] = balance_figure(released, nonprivate=exact)
    return figures


def report_figures(runs: pd.DataFrame) -> "dict[str, Figure]":
    """Return the figures of average effects by the names of their files; all numbers in them are released ones.

    Estimates of one problem with their intervals lie below each other; a balance figure is drawn for a run of its
    own, and of several runs for those that released the actual one.

    Args:
        runs: One row a run, with its ``method``.
    """
    paths = zip(runs["run"], runs["folder"], strict=True)
    loaded = {name: found for name, path in paths if (found := released_by(path, AverageEffectRelease))}
    known = runs[runs["run"].isin(list(loaded))]
    figures: dict[str, Figure] = {}
    for problem, chosen in known.groupby(PROBLEM):
        mark = "" if len(known.groupby(PROBLEM)) == 1 else "_{}_n{}".format(*map(file_name, problem))
        labels = zip(chosen["run"], _labels(chosen), strict=True)
        rows = [row for name, label in labels for row in released_rows(loaded[name], label)]
        claim = loaded[chosen["run"].iloc[0]].privacy.claim if len(chosen) == 1 else problem_of(chosen).iloc[0]
        rests = {loaded[name].assumptions for name in chosen["run"]}
        common = rests.pop() if len(rests) == 1 else ""
        figures[f"interval{mark}.png"] = interval_figure(
            rows[:_MOST_INTERVALS], level=_LEVEL, claim=claim, assumptions=common
        )
    balances = {name: release.balance for name, release in loaded.items() if release.balance is not None}
    if len(runs) > 1:
        actual = [name for name, balance in balances.items() if balance.before is not None]
        balances = {name: balances[name] for name in actual[:_MOST_BALANCES]}
    for name in balances:
        mark = "" if len(runs) == 1 else f"_{file_name(name)}"
        figures[f"balance{mark}.png"] = loaded[name].plot(balance=True)
    return figures


def _labels(runs: pd.DataFrame) -> list[str]:
    """Return what distinguishes each run from those beside it."""
    parts = [runs["method"].astype(str)]
    if runs["requested_epsilon"].nunique() > 1:
        parts.append(runs["requested_epsilon"].map("epsilon {:g}".format))
    if runs["seed"].nunique() > 1:
        parts.append(runs["seed"].map("seed {}".format))
    return [", ".join(words) for words in zip(*parts, strict=True)]
