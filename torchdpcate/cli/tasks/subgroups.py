"""The task ``subgroups``: from records to released effects in subgroups, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from torchdpcate._files import PRIVATE, write_text
from torchdpcate.cli.run import say_warning, warnings_said
from torchdpcate.cli.task import Figures, Measure, TaskSpec, choices
from torchdpcate.cli.tasks.averages import FOREST_FILE, OfLines, with_task
from torchdpcate.data.study import Study
from torchdpcate.data.subgroups import EVERYBODY, Subgroups
from torchdpcate.errors import InputError
from torchdpcate.estimators.subgroups.plan import RANDOMISED, SubgroupPlan
from torchdpcate.pages.figures import plot_lines
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.lines import Lines
from torchdpcate.release.subgroups import LEVEL, SubgroupRelease

if TYPE_CHECKING:
    import pandas as pd

    from torchdpcate.estimators.average.lines import AverageEffect
    from torchdpcate.estimators.subgroups.learner import SubgroupEffects


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
        if (
            self.config.privacy.delta == 0
            or len(schema.actions) > 2
            or schema.cluster is not None
            or schema.domain.is_rate
            or given == RANDOMISED
        ):
            return self
        return LineSubgroups.of(self)

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
        rows, values = lines.table(LEVEL)[["line", "estimate", "low", "high", "records"]], lines.estimates.numpy()
        inside, at_once = (lines.interval(LEVEL, together).numpy() for together in (False, True))
        found: dict[str, Any] = {
            "cells": rows.rename(columns={"line": "cell"}).to_dict("records"),
            "cells_count": len(values),
            "partitions": self._cells.config(),
            "estimate_least": float(values.min()),
            "estimate_most": float(values.max()),
            "noise": _root_mean_square(lines.noise.numpy()),
            "noise_planned": self._noise_planned,
            "width": float((inside[:, 1] - inside[:, 0]).mean()),
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
        """Write the curator's plan, and return their plot."""
        curator = self.folder / "curator"
        with self.attempt("curator/plan.txt"):
            write_text(curator / "plan.txt", self.learner.plan_.table().to_string(index=False) + "\n", PRIVATE)
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
    """``task=average_effect`` of more than two arms, or of clusters: effects of everybody, in tables of subgroups."""

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
                has = f"{len(schema.actions)} arms" if schema.compared else "an exposure or clusters"
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
        return lines.only([lines.names.index(label) for label in labels])

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
