"""Average effects and effects in subgroups as lines of one composition, for the command line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdpcate._files import PRIVATE, atomic_path, write_text
from torchdpcate._text import spreadsheet_cell
from torchdpcate.cli.curator import ARMS_FILE
from torchdpcate.cli.run import say_warning
from torchdpcate.cli.task import Figures, TaskSpec
from torchdpcate.data.words import arm, labels_of
from torchdpcate.evaluation.balance_figure import balance_figure
from torchdpcate.evaluation.curator_figures import kept_figure, overlap_figure
from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION
from torchdpcate.release.averages import Averages
from torchdpcate.release.composed import ComposedRelease

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchdpcate.estimators.average.lines import AverageEffect
    from torchdpcate.release.average_effect import BalanceTable

FOREST_FILE = "forest.png"


class OfLines(TaskSpec):
    """What tasks have in common whose release is one composition's."""

    learner: AverageEffect
    release: ComposedRelease  # type: ignore[assignment]

    @property
    def mechanism_name(self) -> str:
        return "composed"

    def size(self) -> int:
        return TaskSpec.size(self)

    def fit(self) -> None:
        TaskSpec.fit(self)

    def _fit_stream(self, stream: Any) -> None:
        TaskSpec._fit_stream(self, stream)

    def released(self) -> ComposedRelease:
        """Return what the fit has paid for."""
        return self.learner.release()

    def write(self, summary: Mapping[str, Any]) -> Figures:
        """Write how treated and controls compare, which is the curator's."""
        return write_arms(self)

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return nothing: findings say what was found."""
        return []

    @property
    def _lines(self) -> Averages:
        return self.release.required_averages

    @property
    def _exact(self) -> Averages | None:
        """The same lines without privacy, where they are asked for; the curator's."""
        return None if self.nonprivate is None else self.nonprivate.nonprivate_lines()


def write_arms(task: TaskSpec) -> Figures:
    """Write the balance of a composition's covariates, warn of propensities beyond the overlap, and return figures.

    Args:
        task: Whose learner is a composition's, or one that knows nothing of this.
    """
    balance, figures = task.learner.nonprivate_balance(), dict[str, Callable[[], "Figure"]]()
    if balance is None:
        return figures
    schema, curator = task.study.schema, task.folder / "curator"
    balance = replace(balance, names=labels_of(schema, balance.names))
    with task.attempt("curator/balance.csv"):
        write_balance(balance, curator)
    figures["balance.png"] = lambda: balance_figure(None, nonprivate=balance)
    with task.attempt("how treated and controls compare"):
        found = task.learner.nonprivate_comparability()
        facts = {"stated": found.overlap}
        if found.overlap is not None:
            facts |= {"beyond": found.beyond, "at_clip": found.at_clip, "kept": found.kept}
            own, arms = (found.propensity, found.treated), [arm(schema, label) for label in schema.actions]
            figures["overlap.png"] = lambda: overlap_figure(*own, found.overlap, arms=arms)
            figures["kept.png"] = lambda: kept_figure(found.propensity, found.used, found.overlap)
        write_text(curator / ARMS_FILE, json.dumps(facts, indent=2) + "\n", PRIVATE)
        for words in found.words():
            say_warning(f"{NOT_FOR_PUBLICATION}: {words}")
    return figures


def write_balance(balance: BalanceTable, folder: Path) -> None:
    """Write ``balance.csv``, the balance without noise, into the curator's folder."""
    columns = balance.columns()
    with (
        atomic_path(folder / "balance.csv", PRIVATE) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(("feature", *columns))
        names = map(spreadsheet_cell, balance.names)
        writer.writerows(zip(names, *columns.values(), strict=True))


def with_task(found: Any, task: TaskSpec) -> Any:
    """Return a task with the settings, the study and the folder of another."""
    found.config, found.study, found.folder = task.config, task.study, getattr(task, "folder", Path())
    return found
