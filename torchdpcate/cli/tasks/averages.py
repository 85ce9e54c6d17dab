"""The task ``average_effect``: from records to a released average effect with its interval."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from hydra.utils import instantiate

from torchdpcate._files import PRIVATE, atomic_path
from torchdpcate._text import spreadsheet_cell
from torchdpcate.causal.estimand import ESTIMANDS
from torchdpcate.cli.run import say_warning, warnings_said
from torchdpcate.cli.task import Figures, Measure, TaskSpec
from torchdpcate.data.study import StreamedStudy, Study, record_average
from torchdpcate.errors import NumericalError
from torchdpcate.evaluation.balance_figure import CURATOR_ONLY, balance_figure
from torchdpcate.evaluation.curator_figures import overlap_figure
from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION
from torchdpcate.pages.figures import plot_lines
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.average_effect import AverageEffectRelease, BalanceTable
from torchdpcate.release.averages import Averages as Released
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchdpcate.data.streams import RecordStream
    from torchdpcate.estimators.average.learner import AverageEffectLearner
    from torchdpcate.estimators.average.lines import AverageEffect

_LEVEL = 0.95
_Task = TypeVar("_Task", bound=TaskSpec)
FOREST_FILE = "forest.png"
_LINES = "torchdpcate.estimators.average.lines.AverageEffect"
NONPRIVATE = "non-private"
"""The estimate that the curator sees beside the release, and that is not released."""
_ENDS = ("low", "high", "width")


def true_average(study: Study | StreamedStudy, estimand: str) -> float | None:
    """Return the true effect of an estimand: the law's, or the mean over the records; None where it is not known.

    Args:
        study: The data.
        estimand: ``ATE``, ``ATT``, ``ATC`` or ``ATO``; of others none is known.
    """
    if not isinstance(study, Study) or estimand not in ESTIMANDS:
        return None
    known = None if study.average is None else study.average(estimand)
    if known is not None or study.truth is None:
        return known
    effect = study.truth(study.records.x)
    return None if effect is None else record_average(effect, study.records.a, estimand)


class Averages(TaskSpec):
    """Average effects, compared by their error and their interval."""

    heading = "Average effects side by side"
    note = "Means over runs; without a known truth error and coverage are dashes."
    settings = ("effect", "estimand", "features", "nuisance")
    summarised = ("effect.estimand",)
    measures = (
        Measure(
            "estimate",
            "estimate",
            "Mean ± standard error over runs.",
            {"estimate_nonprivate": NONPRIVATE},
            public=True,
        ),
        Measure(
            "error",
            "error",
            "Absolute error: mean ± standard error over runs.",
            {"error_nonprivate": NONPRIVATE},
        ),
        Measure("width", "interval width", "Of the 95 % interval: mean ± standard error over runs.", public=True),
        Measure("covered", "coverage", "Share of runs whose 95 % interval holds the truth.", drawn=False),
    )
    numbers = ("low", "high", "truth", "planned_error")
    also_shown: ClassVar = {
        "low": "95 % interval from",
        "high": "95 % interval to",
        "planned_error": "planned standard error",
        "truth": "unreleased: truth",
    }

    learner: AverageEffectLearner
    release: AverageEffectRelease

    def suited(self) -> TaskSpec:
        """See ``TaskSpec``: lines of a composition, or sums of cells where these are of a trial by a horizon.

        The latter are half as wide for the 929 patients and three arms of ``survival::colon``, epsilon = 1.
        """
        from torchdpcate.cli.tasks.subgroups import ArmAverages, ArmLines

        schema, by_lines = self.study.schema, self.config.effect._target_ == _LINES
        if not schema.compared and schema.cluster is None and not schema.domain.is_rate:
            return LineAverages.of(self) if by_lines else self
        sums = schema.domain.censoring is not None and schema.domain.known_propensity is not None
        sums |= schema.domain.is_rate
        if by_lines and schema.cluster is None and self.config.privacy.delta > 0 and not sums:
            return ArmLines.of(self)
        return ArmAverages.of(self)

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> AverageEffectLearner:
        """Return the learner of an average effect; see the class above."""
        # A partial: as keywords of instantiate, our dataclasses would be taken for configuration.
        return instantiate(self.config.effect)(domain=self.study.schema, budget=budget, **rest)

    def fit(self) -> None:
        """Fit the learner on the records, all at once or batch by batch; its warnings are shown."""
        with warnings_said():
            super().fit()

    def _fit_stream(self, stream: RecordStream) -> None:
        """See ``TaskSpec``; with all that requests sums over it."""
        super()._fit_stream(stream)
        table = self.study
        self.study = replace(table, records=stream)
        try:
            self.learner.release()
            with self.attempt("what is told beside the release, without noise"):  # what is paid for is not lost by it
                _ = self._nonprivate, self._balance
        finally:
            self.study = table

    def released(self) -> AverageEffectRelease:
        """Release the estimate; warnings are shown."""
        with warnings_said():
            return self.learner.release()

    @property
    def mechanism_name(self) -> str:
        return str(getattr(getattr(self.learner, "mechanism", None), "name", "auto"))

    def choices(self) -> dict[str, str | None]:
        """Return the choices of groups, and the estimand."""
        return super().choices() | {"estimand": str(self.config.effect.get("estimand", "ATE"))}

    def results(self) -> dict[str, Any]:
        """Return the estimate with its interval, what it is held against, and errors where the truth is known."""
        (value, low, high), other, truth = self._row, self._exact_value, true_average(self.study, self._estimand)
        known = not math.isnan(low)
        return {
            "estimate": value,
            "estimate_nonprivate": other,
            "error": None if truth is None else abs(value - truth),
            "error_nonprivate": None if truth is None or other is None else abs(other - truth),
            "truth": truth,
            **{name: found if known else None for name, found in zip(_ENDS, (low, high, high - low), strict=True)},
            "covered": int(low <= truth <= high) if known and truth is not None else None,
            "planned_error": self._planned_error,
        }

    @property
    def _estimand(self) -> str:
        return self.release.estimand

    @property
    def _row(self) -> tuple[float, float, float]:
        """The estimate and the ends of its interval, which are NaN where none is known."""
        return tuple(self.release.lines(_LEVEL)[["estimate", "low", "high"]].to_numpy()[0].tolist())

    @property
    def _exact_value(self) -> float | None:
        return None if self._nonprivate is None else self._nonprivate.value

    @property
    def _planned_error(self) -> float | None:
        planned = self.learner.planned_error(self.study.records.n)
        return None if planned is None else planned.total

    def write(self, summary: Mapping[str, Any]) -> Figures:
        """Write the curator's table; return the balance of covariates, and the interval beside what is not private."""
        balance, figures = self._balance, dict[str, Callable[[], "Figure"]]()
        if balance is not None:
            with self.attempt("curator/balance.csv"):
                write_balance(balance, self.folder / "curator")
            mark = CURATOR_ONLY if self.release.balance is None else self.release.privacy.claim
            figures["balance.png"] = partial(balance_figure, self.release.balance, nonprivate=balance, claim=mark)
        beside = self._exact_value, summary.get("truth")
        nonprivate, known = (None if value is None else np.array([value]) for value in beside)
        return {**figures, FOREST_FILE: lambda: plot_lines(self.release, nonprivate=nonprivate, truth=known)}

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Warn where the interval says nothing."""
        if self.release.main.noise_dominated:
            say_warning(
                "the denominator of the estimate is dominated by privacy noise, so that any effect is possible; the "
                "interval is the whole range. More records, a larger privacy.epsilon or a larger overlap would help"
            )
        return []

    @cached_property
    def _nonprivate(self) -> Estimate | None:
        """The estimate without privacy, against which the release is held; None where there is none."""
        try:
            return self.learner.nonprivate_estimate()
        except NumericalError:  # without a private fit's ridge, records of little overlap may have no balancing weights
            say_warning("the estimate without privacy could not be computed: treated and controls overlap too little")
            return None

    @cached_property
    def _balance(self) -> BalanceTable | None:
        """Imbalance before and after weighting, without noise."""
        return self.learner.nonprivate_balance() if hasattr(self.learner, "nonprivate_balance") else None


class OfLines(TaskSpec):
    """What tasks have in common whose release is one composition's."""

    learner: AverageEffect
    release: ComposedRelease  # type: ignore[assignment]

    @classmethod
    def of(cls, task: TaskSpec) -> Self:
        """Return the task with what another was given."""
        return with_task(cls(task.name), task)

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

    @property
    def _exact(self) -> Released | None:
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
    with task.attempt("curator/balance.csv"):
        write_balance(balance, task.folder / "curator")
    figures["balance.png"] = lambda: balance_figure(None, nonprivate=balance)
    with task.attempt("how treated and controls compare"):
        found = task.learner.nonprivate_comparability()
        if found.overlap is not None:
            own = found.propensity, found.treated, found.overlap
            figures["overlap.png"] = lambda: overlap_figure(*own, words=found.words())
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


def with_task(found: _Task, task: TaskSpec) -> _Task:
    """Return a task with the settings, the study and the folder of another."""
    found.config, found.study, found.folder = task.config, task.study, getattr(task, "folder", Path())  # type: ignore[assignment]
    return found


class LineAverages(OfLines, Averages):  # type: ignore[misc]
    """``task=average_effect`` by one composition."""

    def choices(self) -> dict[str, str | None]:
        """Return the choices of groups, and the estimand."""
        return TaskSpec.choices(self) | {"estimand": self.learner.estimand}

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return nothing: findings say what was found."""
        return []

    @property
    def _estimand(self) -> str:
        return self.learner.estimand

    @property
    def _row(self) -> tuple[float, float, float]:
        lines, place = self.release.required_lines, self.release.required_lines.place(self.learner.line)
        low, high = lines.ends(_LEVEL)[place].tolist()
        return float(lines.estimates[place]), low, high

    @property
    def _exact_value(self) -> float | None:
        return None if self._exact is None else self._exact.estimate(self.learner.line)

    @property
    def _planned_error(self) -> float:
        return self.learner.expected_noise(self.n).value
