"""Average effects and effects in subgroups as lines of one composition, for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate._files import PRIVATE
from torchdpcate.cli.task import TaskSpec
from torchdpcate.cli.tasks.averages import Averages, true_average, write_balance
from torchdpcate.cli.tasks.subgroups import SubgroupTask
from torchdpcate.data.study import Study
from torchdpcate.errors import NumericalError
from torchdpcate.evaluation.balance_figure import balance_figure
from torchdpcate.evaluation.figures import save_figure
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.lines import Lines

if TYPE_CHECKING:
    from torchdpcate.estimators.average.lines import AverageEffect

_LEVEL = 0.95


class _OfLines(TaskSpec):
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
        """Write the covariates' balance, which is the curator's."""
        balance, curator = self.learner.nonprivate_balance(), self.folder / "curator"
        if balance is None:
            return
        with self.attempt("curator/balance.csv"):
            write_balance(balance, curator)
        with self.attempt("curator/balance.png"):
            save_figure(balance_figure(None, nonprivate=balance), curator / "balance.png", PRIVATE)

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return nothing: findings say what was found."""
        return []

    @property
    def _lines(self) -> Lines:
        assert self.release.lines is not None
        return self.release.lines

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


class LineAverages(_OfLines, Averages):  # type: ignore[misc]
    """``task=average_effect`` by one composition."""

    @classmethod
    def of(cls, task: TaskSpec) -> LineAverages:
        """Return the task with what another was given."""
        return _with(cls(task.name), task)

    def choices(self) -> dict[str, str | None]:
        """Return the choices of groups, and the estimand."""
        return TaskSpec.choices(self) | {"estimand": self.learner.estimand}

    def results(self) -> dict[str, Any]:
        """Return the estimate with its interval, and errors where the truth is known."""
        line, lines, exact = self.learner.line, self._lines, self._exact
        low, high = lines.interval(line, _LEVEL)
        value, truth = lines.estimate(line), true_average(self.study, self.learner.estimand)
        other = None if exact is None else exact.estimate(line)
        found: dict[str, Any] = {
            "estimate": value,
            "estimate_nonprivate": other,
            "low": low,
            "high": high,
            "width": high - low,
            "truth": truth,
            "planned_error": self.learner.expected_noise(self.n).value,
        }
        found |= dict.fromkeys(("error", "error_nonprivate", "covered"))
        if truth is not None:
            found |= {"error": abs(value - truth), "covered": int(low <= truth <= high)}
            found["error_nonprivate"] = None if other is None else abs(other - truth)
        return found


class LineSubgroups(_OfLines, SubgroupTask):  # type: ignore[misc]
    """``task=subgroups`` by one composition: a line for each cell of public cuts."""

    @classmethod
    def of(cls, task: TaskSpec) -> LineSubgroups:
        """Return the task with what another was given."""
        return _with(cls(task.name), task)

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> AverageEffect:  # type: ignore[override]
        """Return the learner of the cells' lines."""
        from torchdpcate.estimators.average.lines import AverageEffect

        return AverageEffect(self.study.schema, budget, subgroups=self.given, **rest)

    def choices(self) -> dict[str, str | None]:
        """Return that the law is Gaussian, of scores of each cell."""
        return {"law": "gaussian", "released": "separate", "weights": "composed"}

    def results(self) -> dict[str, Any]:
        """Return the cells with their intervals, and errors where the truth is known."""
        cells, lines, exact, truth = self.learner.cells.labels, self._lines, self._exact, self._truth
        table = lines.table(_LEVEL).set_index("line").loc[cells].reset_index().rename(columns={"line": "cell"})
        values, low, high = (table[name].to_numpy() for name in ("estimate", "low", "high"))
        noise = lines.noise(cells)
        found: dict[str, Any] = {
            "cells": table.to_dict("records"),
            "cells_count": len(cells),
            "partitions": self.learner.cells.config(),
            "estimate_least": float(values.min()),
            "estimate_most": float(values.max()),
            "noise": float(np.sqrt(np.mean(noise**2))),
            "noise_planned": self.learner.expected_noise(self.n).value,
            "width": float((high - low).mean()),
            "width_nonprivate": None,
            "dominated": 0,
        }
        found |= dict.fromkeys(("rmse", "rmse_nonprivate", "covered", "covered_at_once"))
        if truth is None:
            return found
        there = ~np.isnan(truth)
        held = ((low <= truth) & (truth <= high))[there]
        found |= {"rmse": _root_mean_square((values - truth)[there]), "covered": float(held.mean())}
        found["covered_at_once"] = int(held.all())
        if exact is not None:
            others = exact.table(_LEVEL).set_index("line").loc[cells]
            found["rmse_nonprivate"] = _root_mean_square((others["estimate"].to_numpy() - truth)[there])
            found["width_nonprivate"] = float((others["high"] - others["low"]).mean())
        return found

    @property
    def _cells(self) -> Any:
        return self.learner.cells


def _with(found: Any, task: TaskSpec) -> Any:
    found.config, found.study, found.folder = task.config, task.study, getattr(task, "folder", Path())
    return found


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else float("nan")
