"""The task ``average_effect``: from records to a released average effect with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from hydra.utils import instantiate

from torchdpcate.causal.estimand import ESTIMANDS
from torchdpcate.cli.run import say_warning, warnings_said
from torchdpcate.cli.task import Figures, Measure, TaskSpec
from torchdpcate.cli.tasks.lines import FOREST_FILE, OfLines, with_task, write_balance
from torchdpcate.data.study import StreamedStudy, Study, record_average
from torchdpcate.errors import NumericalError
from torchdpcate.evaluation.balance_figure import CURATOR_ONLY, balance_figure
from torchdpcate.pages.figures import plot_lines
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.average_effect import AverageEffectRelease, BalanceTable
from torchdpcate.release.averages import AVERAGE
from torchdpcate.release.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchdpcate.data.streams import RecordStream
    from torchdpcate.estimators.average.learner import AverageEffectLearner

_LEVEL = 0.95
_LINES = "torchdpcate.estimators.average.lines.AverageEffect"
NONPRIVATE = "non-private"
"""The estimate that the curator sees beside the release, and that is not released."""
_SAMPLE = "public_sample"


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
        """See ``TaskSpec``: ``LineAverages`` or ``ArmLines``; of clusters, or arms at delta = 0, ``ArmAverages``."""
        from torchdpcate.cli.tasks.subgroups import ArmAverages, ArmLines

        schema, by_lines = self.study.schema, self.config.effect._target_ == _LINES
        if not schema.compared and schema.cluster is None:
            return LineAverages.of(self) if by_lines else self
        if by_lines and schema.cluster is None and self.config.privacy.delta > 0:
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
        release, truth = self.release, true_average(self.study, self.release.estimand)
        value, ends = release.main.value, release.lines()[["low", "high"]].to_numpy()[0].tolist()
        nonprivate = None if self._nonprivate is None else self._nonprivate.value
        found: dict[str, Any] = {
            "estimate": value,
            "estimate_nonprivate": nonprivate,
            "error": None if truth is None else abs(value - truth),
            "error_nonprivate": None if truth is None or nonprivate is None else abs(nonprivate - truth),
            "truth": truth,
            **dict.fromkeys(("low", "high", "width", "covered")),
        }
        if not math.isnan(ends[0]):
            low, high = ends
            found |= {"low": low, "high": high, "width": high - low}
            found["covered"] = None if truth is None else int(low <= truth <= high)
        planned = self.learner.planned_error(self.study.records.n)
        found["planned_error"] = None if planned is None else planned.total
        return found

    def write(self, summary: Mapping[str, Any]) -> Figures:
        """Write the curator's table; return the balance of covariates, and the interval beside what is not private."""
        balance, figures = self._balance, dict[str, Callable[[], "Figure"]]()
        if balance is not None:
            with self.attempt("curator/balance.csv"):
                write_balance(balance, self.folder / "curator")
            mark = CURATOR_ONLY if self.release.balance is None else self.release.privacy.claim
            figures["balance.png"] = partial(balance_figure, self.release.balance, nonprivate=balance, claim=mark)
        exact, truth = self._nonprivate, summary.get("truth")
        nonprivate, known = (None if value is None else np.array([value]) for value in (exact and exact.value, truth))
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


class LineAverages(OfLines, Averages):  # type: ignore[misc]
    """``task=average_effect`` by one composition."""

    @classmethod
    def of(cls, task: TaskSpec) -> LineAverages:
        """Return the task with what another was given."""
        return with_task(cls(task.name), task)

    def choices(self) -> dict[str, str | None]:
        """Return the choices of groups, and the estimand."""
        return TaskSpec.choices(self) | {"estimand": self.learner.estimand}

    def results(self) -> dict[str, Any]:
        """Return the estimate with its interval, and errors where the truth is known."""
        line, lines, exact = self.learner.line, self._lines, self._exact
        value, (low, high) = lines.estimate(line), lines.interval(line, _LEVEL)
        if line == AVERAGE:
            value, (low, high) = self.release.average_effect, self.release.average(_LEVEL).tolist()
        truth = true_average(self.study, self.learner.estimand)
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
