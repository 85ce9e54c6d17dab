"""The tasks ``average_effect`` and ``subgroups``: from records to released averages, each with its interval."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from torchdpcate._files import PRIVATE, write_text
from torchdpcate._text import spreadsheet_cell
from torchdpcate.causal.estimand import ESTIMANDS
from torchdpcate.cli.curator import ARMS_FILE
from torchdpcate.cli.run import say_warning, warnings_said
from torchdpcate.cli.task import Figures, Measure, TaskSpec, choices
from torchdpcate.data.study import StreamedStudy, Study, record_average
from torchdpcate.data.subgroups import EVERYBODY, Subgroups
from torchdpcate.data.words import arm, labels_of
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.estimators.planned_noise import planned_deviation, shown
from torchdpcate.estimators.subgroups.plan import RANDOMISED, SubgroupPlan
from torchdpcate.evaluation.balance_figure import CURATOR_ONLY, balance_figure
from torchdpcate.evaluation.curator_figures import kept_figure, overlap_figure
from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION
from torchdpcate.pages.figures import plot_lines
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.average_effect import AverageEffectRelease, BalanceTable
from torchdpcate.release.averages import Averages as Released
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.estimate import Estimate
from torchdpcate.release.lines import LEVEL, Lines
from torchdpcate.release.subgroups import SubgroupRelease

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from torchdpcate.data.schema import TableSchema
    from torchdpcate.data.streams import RecordStream
    from torchdpcate.estimators.average.learner import AverageEffectLearner
    from torchdpcate.estimators.average.lines import AverageEffect
    from torchdpcate.estimators.subgroups.learner import SubgroupEffects

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


def way_of_averages(
    schema: TableSchema, budget: PrivacyBudget, n: int | None, cells: Any = None, estimand: str = "ATE"
) -> tuple[partial[Any], str]:
    r"""Return the learner of averages of least planned error, by public facts, and in words why.

    Lines of a composition adjust for covariates, of which a quarter of the outcome's variance is expected. In a trial
    noisy sums of outcomes, which do not, have far less noise where records are few; they are pure.

    Args:
        schema: Columns and public bounds, of two arms and independent records.
        budget: Of a record.
        n: Number of records; None where it is not known, which gives lines.
        cells: Public partitions, or None.
        estimand: Whom the average is about.
    """
    from torchdpcate.estimators.average.known_propensity import KnownPropensityEffect
    from torchdpcate.estimators.average.lines import AverageEffect
    from torchdpcate.estimators.subgroups.learner import SubgroupEffects

    domain = schema.domain
    lines: partial[Any] = partial(AverageEffect, estimand=estimand, subgroups=cells)
    if domain.known_propensity is None or n is None or (estimand != "ATE" and domain.censoring is not None):
        return lines, ""
    scale = None if domain.outcome_kind == "binary" else _LEFT * planned_deviation(schema)
    lines_error = lines(schema, budget).expected_noise(n, residual_scale=scale).value if budget.delta else math.inf
    ways, errors = {"lines of one composition": lines}, {"lines of one composition": lines_error}
    if estimand == "ATE":
        ways["differences in means"] = partial[Any](SubgroupEffects, subgroups=EVERYBODY if cells is None else cells)
    if cells is None and domain.censoring is None and estimand in ESTIMANDS:
        ways["centred outcomes by the known propensity"] = partial[Any](KnownPropensityEffect, estimand=estimand)
    errors |= {name: way(schema, budget).expected_noise(n).value for name, way in [*ways.items()][1:]}
    order = sorted(errors, key=errors.__getitem__)
    said = ", ".join(f"{name} {shown(errors[name])}" for name in order if math.isfinite(errors[name]))
    return ways[order[0]], f"{order[0]}; planned standard errors: {said or 'none is known'}"


_LEFT = math.sqrt(0.75)  # of the outcome's deviation, by covariates


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
        """See ``TaskSpec``: lines of a composition; of designs and rates, or a trial by a horizon of arms, cells' sums.

        The latter are half as wide for the 929 patients and three arms of ``survival::colon``, epsilon = 1.
        """
        schema, by_lines = self.study.schema, self.config.effect._target_ == _LINES
        if not schema.compared and schema.assignment is None and not schema.domain.is_rate:
            return self._of_two_arms() if by_lines else self
        sums = schema.domain.censoring is not None and schema.domain.known_propensity is not None
        sums |= schema.domain.is_rate
        if by_lines and schema.assignment is None and self.config.privacy.delta > 0 and not sums:
            return ArmLines.of(self)
        return ArmAverages.of(self)

    def _of_two_arms(self) -> TaskSpec:
        """Return the task that goes the way of least planned error."""
        estimand, budget = str(self.config.effect.estimand), budget_of(self)
        way, why = way_of_averages(self.study.schema, budget, self.study.n, estimand=estimand)
        task: Any = {"SubgroupEffects": ArmAverages, "AverageEffect": LineAverages}.get(way.func.__name__)
        if task is None:
            self.config.effect._target_ = f"{way.func.__module__}.{way.func.__name__}"
        found = self if task is None else task.of(self)
        found.taken = why
        return found

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
        return tuple(self.release.lines(LEVEL)[["estimate", "low", "high"]].to_numpy()[0].tolist())

    @property
    def _exact_value(self) -> float | None:
        return None if self._nonprivate is None else self._nonprivate.value

    @property
    def _planned_error(self) -> float:
        return self.learner.expected_noise(self.n).value

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
    import pandas as pd

    table = pd.DataFrame(balance.columns(), index=list(map(spreadsheet_cell, balance.names)))
    write_text(folder / "balance.csv", table.to_csv(index_label="feature"), PRIVATE)


def budget_of(task: TaskSpec) -> PrivacyBudget:
    """Return what a record may cost in a task that is configured."""
    privacy = task.config.privacy
    return task.study.unit.record_budget(PrivacyBudget(privacy.epsilon, privacy.delta))


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
        low, high = lines.ends(LEVEL)[place].tolist()
        return float(lines.estimates[place]), low, high

    @property
    def _exact_value(self) -> float | None:
        return None if self._exact is None else self._exact.estimate(self.learner.line)


class SubgroupTask(TaskSpec):
    """Effects in subgroups, compared by their errors and their intervals."""

    heading = "Effects in subgroups side by side"
    note = "Means over cells and runs; without a known truth error and coverage are dashes."
    settings = ("law", "released", "weights")
    measures = (
        Measure(
            key="noise",
            title="noise",
            note="Standard deviation of the privacy noise, root mean square over the cells: mean ± standard error over "
            "runs. Planned: by public facts, before any record was read.",
            references={"noise_planned": "planned"},
        ),
        Measure(
            key="rmse",
            title="error",
            note="Root mean squared error over the cells: mean ± standard error over runs.",
            references={"rmse_nonprivate": "non-private"},
        ),
        Measure(
            key="width",
            title="interval width",
            note="Mean over the cells of the 95 % interval: mean ± standard error over runs.",
            references={"width_nonprivate": "non-private"},
        ),
        Measure(
            key="covered",
            title="coverage",
            note="Share of cells whose 95 % interval holds the truth.",
            drawn=False,
        ),
    )
    numbers = ("estimate_least", "estimate_most", "covered_at_once", "dominated", "cells_count")
    study: Study
    learner: SubgroupEffects
    release: SubgroupRelease

    def suited(self) -> TaskSpec:
        """See ``TaskSpec``: with a delta, of two arms and independent records, ``LineSubgroups``."""
        schema, given = self.study.schema, self.config.subgroup_effects.propensity
        if len(schema.actions) > 2 or schema.assignment is not None or schema.domain.is_rate or given == RANDOMISED:
            return self
        way, why = way_of_averages(schema, budget_of(self), self.study.n, self.given)
        sums = way.func.__name__ == "SubgroupEffects" or self.config.privacy.delta == 0
        found = self if sums else LineSubgroups.of(self)
        found.taken = why
        return found

    @property
    def given(self) -> Any:
        """The partitions that were given.

        Raises:
            InputError: None were.
        """
        given = OmegaConf.to_container(self.config)["subgroups"]  # type: ignore[index,call-overload]
        if given is None:
            raise InputError(
                "subgroups is missing: give public cuts, as subgroups=[{sex: true}, {age: [40, 60]}], or "
                "subgroups=everybody"
            )
        return given

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> SubgroupEffects:
        """Return the learner of effects in subgroups; see the class above."""
        make = instantiate(self.config.subgroup_effects)
        # a partial: as keywords of instantiate, our dataclasses would be taken for configuration
        return make(domain=self.study.schema, budget=budget, subgroups=self.given, **rest)

    @property
    def mechanism_name(self) -> str:
        return SubgroupPlan.name

    def size(self) -> int:
        """Return more numbers than the release holds."""
        return 64 * self.learner.plan(self.study.records.n).strata.size

    def fit(self) -> None:
        """Fit the learner on the records; its warnings are shown."""
        with warnings_said():
            super().fit()

    def choices(self) -> dict[str, str | None]:
        """Return what the plan chose."""
        plan = self.learner.plan_
        return {"law": plan.law, "released": plan.released, "weights": plan.weighting.way}

    def results(self) -> dict[str, Any]:
        """Return the cells with their intervals, and errors where the truth is known."""
        lines, truth, (exact, width) = self._shown, self._truth, self._exact_cells
        values = lines.estimates.numpy()
        inside, at_once = (lines.interval(LEVEL, together).numpy() for together in (False, True))
        found: dict[str, Any] = {
            "cells": [{"cell": row.pop("line"), **row} for row in lines.rows(LEVEL)],
            "cells_count": len(values),
            "partitions": self._cells.config(),
            "estimate_least": float(values.min()),
            "estimate_most": float(values.max()),
            "noise": _root_mean_square(lines.noise.numpy()),
            "noise_planned": self._noise_planned,
            "width": mean if math.isfinite(mean := float(np.diff(inside).mean())) else None,
            "width_nonprivate": width,
            "dominated": sum(lines.dominated),
        }
        found |= dict.fromkeys(("rmse", "rmse_nonprivate", "covered", "covered_at_once"))
        if truth is None:
            return found
        there = ~np.isnan(truth)
        held, all_held = (((ends[:, 0] <= truth) & (truth <= ends[:, 1]))[there] for ends in (inside, at_once))
        return found | {
            "rmse": _root_mean_square((values - truth)[there]),
            "rmse_nonprivate": None if exact is None else _root_mean_square((exact - truth)[there]),
            "covered": float(held.mean()),
            "covered_at_once": int(all_held.all()),
        }

    @property
    def _shown(self) -> Lines:
        """The lines of the cells."""
        return self.release.required_lines

    @cached_property
    def _exact_cells(self) -> tuple[np.ndarray | None, float | None]:
        """Estimates without noise, [lines], and the mean width of their intervals; None where they are not known."""
        exact = self.learner.nonprivate_effects()
        return exact.estimate.numpy(), 2 * float(exact.half_width(LEVEL).mean())

    @property
    def _noise_planned(self) -> float:
        """Noise to expect of a cell, root mean square over the cells."""
        return _root_mean_square(self.learner.plan_.cell_noise.numpy())

    def write(self, summary: Mapping[str, Any]) -> Figures:
        """Return the plot of the cells beside what is not released."""
        return {FOREST_FILE: lambda: plot_lines(self.release, nonprivate=self._exact_cells[0], truth=self._truth)}

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return the cells; warn where intervals say nothing."""
        dominated = self._shown.dominated
        if any(dominated):
            say_warning(
                f"in {sum(dominated)} of {len(dominated)} cells noise dominates the count of an arm: their "
                "intervals are the full range. Fewer cells, more records or a larger privacy.epsilon would help"
            )
        return lines_of(self._shown.table(LEVEL))

    @property
    def _cells(self) -> Subgroups:
        return self.learner.subgroups_

    @cached_property
    def _truth(self) -> np.ndarray | None:
        """The true mean effect over the records of each cell, [cells]; NaN where a cell has none."""
        if self.study.truth is None:
            return None
        effect = self.study.truth(self.study.records.x)
        if effect is None:
            return None
        cells = self._cells
        at, zero = cells.positions(self.study.records.x), torch.zeros(cells.size, dtype=torch.float64)
        spread = effect.double()[:, None].expand(at.shape)
        total, count = (zero.index_add(0, at.flatten(), part.flatten()) for part in (spread, torch.ones_like(spread)))
        return (total / count).numpy()


class ArmAverages(SubgroupTask):
    """``task=average_effect`` of more arms, clusters or pairs: effects of everybody, in tables of subgroups."""

    @classmethod
    def of(cls, task: TaskSpec) -> ArmAverages:
        """Return the task with what another was given.

        Args:
            task: Of average effects, with its study.

        Raises:
            InputError: An estimator or an estimand of two arms.
        """
        effect = choices(task.config, ["effect"])["effect"]
        given = {"effect": (effect, "auto"), "effect.estimand": (task.config.effect.get("estimand", "ATE"), "ATE")}
        for name, (value, known) in given.items():
            if value != known:
                schema = task.study.schema
                has = f"{len(schema.actions)} arms" if schema.compared else "clusters, pairs or an exposure"
                raise InputError(
                    f"{name} = {value}: is of two arms and independent records, and the domain has {has}; "
                    f"{name}={known} takes them"
                )
        return with_task(cls("subgroups"), task)

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> SubgroupEffects:
        """Return the learner of each arm's average effect."""
        from torchdpcate.estimators.subgroups.learner import SubgroupEffects

        return SubgroupEffects(self.study.schema, budget, subgroups=EVERYBODY, **rest)


class LineSubgroups(OfLines, SubgroupTask):  # type: ignore[misc]
    """``task=subgroups`` by one composition: a line for each cell of public cuts."""

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> AverageEffect:  # type: ignore[override]
        """Return the learner of the cells' lines."""
        from torchdpcate.estimators.average.lines import AverageEffect

        return AverageEffect(self.study.schema, budget, subgroups=self.given, **rest)

    def choices(self) -> dict[str, str | None]:
        """Return that the law is Gaussian, of scores of each cell."""
        return {"law": "gaussian", "released": "separate", "weights": "composed"}

    @property
    def _shown(self) -> Lines:
        lines = self.release.required_lines
        labels = lines.names if self.release.arms else self._cells.labels
        return lines.only([0 if label == EVERYBODY else lines.names.index(label) for label in labels])

    @property
    def _exact_cells(self) -> tuple[np.ndarray | None, float | None]:  # type: ignore[override]
        if self._exact is None:
            return None, None
        names = self._exact.names if self.release.arms else self._cells.labels
        found = [(self._exact.estimate(name), *self._exact.interval(name, LEVEL)) for name in names]
        return np.array(found)[:, 0], float(np.diff(found)[:, 1].mean())

    @property
    def _noise_planned(self) -> float:
        """Noise to expect of a cell, root mean square over the cells: in proportion to the cells of its partition."""
        sizes = [partition.size for partition in self._cells.partitions for _ in range(partition.size)]
        finest = self.learner.expected_noise(self.n).parts["noise"]
        return finest * _root_mean_square(np.array(sizes) / max(sizes))

    @property
    def _cells(self) -> Any:
        return self.learner.cells


class ArmLines(LineSubgroups):
    """``task=average_effect`` of more than two arms by one composition: a line for each arm against the reference."""

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> AverageEffect:  # type: ignore[override]
        """Return the learner of each arm's average."""
        return instantiate(self.config.effect)(domain=self.study.schema, budget=budget, **rest)

    @property
    def _cells(self) -> Subgroups:
        return Subgroups.of(EVERYBODY, self.study.schema)

    @property
    def _noise_planned(self) -> float:
        return self.learner.expected_noise(self.n).parts["noise"]

    @cached_property
    def _truth(self) -> None:
        """Not known of more than two arms."""


def lines_of(rows: pd.DataFrame) -> list[str]:
    """Return a line for each cell: its name, the estimate and its interval."""
    longest = max(map(len, rows["line"]))
    return [
        f"{cell:<{longest}}  {estimate:10.4g}  {LEVEL:.0%} interval [{low:.4g}, {high:.4g}]"
        for cell, estimate, low, high in zip(rows["line"], rows["estimate"], rows["low"], rows["high"], strict=True)
    ]


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else float("nan")
