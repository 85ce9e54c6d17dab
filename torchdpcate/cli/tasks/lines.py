"""Average effects and effects in subgroups as lines of one composition, for the command line."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdpcate._files import PRIVATE, atomic_path
from torchdpcate._text import spreadsheet_cell
from torchdpcate.cli.run import say_warning
from torchdpcate.cli.task import TaskSpec
from torchdpcate.data.study import Study
from torchdpcate.errors import NumericalError
from torchdpcate.evaluation.balance_figure import balance_figure
from torchdpcate.evaluation.curator_figures import overlap_figure
from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION, save_figure
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.lines import Lines

if TYPE_CHECKING:
    from torchdpcate.estimators.average.lines import AverageEffect
    from torchdpcate.release.average_effect import BalanceTable

_LEVEL = 0.95


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

    def write(self, summary: Mapping[str, Any]) -> None:
        """Write how treated and controls compare, which is the curator's."""
        write_arms(self)

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return nothing: findings say what was found."""
        return []

    @property
    def _lines(self) -> Lines:
        return self.release.required_lines

    @cached_property
    def _exact(self) -> Lines | None:
        """The same lines without privacy, where the truth is known, for comparison; the curator's."""
        if not isinstance(self.study, Study) or self.study.truth is None:
            return None
        try:
            numbers = self.nonprivate.nonprivate_lines()
        except NumericalError:  # a comparison must not end a run that has paid
            return None
        return numbers


def write_arms(task: TaskSpec) -> None:
    """Write the balance of a composition's covariates and its propensities without noise, and warn of what is wrong.

    Args:
        task: Whose learner is a composition's, or one that knows nothing of this.
    """
    balance, curator = task.learner.nonprivate_balance(), task.folder / "curator"
    if balance is None:
        return
    with task.attempt("curator/balance.csv"):
        write_balance(balance, curator)
    with task.attempt("curator/balance.png"):
        save_figure(balance_figure(None, nonprivate=balance), curator / "balance.png", PRIVATE)
    with task.attempt("curator/overlap.png"):
        found = task.learner.nonprivate_comparability()
        if found.overlap is not None:
            own = found.propensity, found.treated, found.overlap
            save_figure(overlap_figure(*own, words=found.words()), curator / "overlap.png", PRIVATE)
        for words in found.words():
            say_warning(f"{NOT_FOR_PUBLICATION}: {words}")


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
