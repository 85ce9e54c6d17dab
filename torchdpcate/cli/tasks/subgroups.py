"""The task ``subgroups``: from records to released effects in subgroups, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from torchdpcate._files import PRIVATE, write_text
from torchdpcate.cli.run import say_warning, warnings_said
from torchdpcate.cli.task import Figures, Measure, TaskSpec, choices
from torchdpcate.cli.tasks.lines import FOREST_FILE, OfLines, with_task
from torchdpcate.data.study import Study
from torchdpcate.data.subgroups import EVERYBODY, Subgroups
from torchdpcate.errors import InputError
from torchdpcate.estimators.subgroups.plan import RANDOMISED, SubgroupPlan
from torchdpcate.pages.figures import plot_lines
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.lines import SUBGROUPS
from torchdpcate.release.subgroups import LEVEL, SubgroupRelease

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from torchdpcate.estimators.average.lines import AverageEffect
    from torchdpcate.estimators.subgroups.learner import SubgroupEffects

_MOST_FIGURES = 12


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
        release, truth, exact = self.release, self._truth, self.learner.nonprivate_effects()
        plan = self.learner.plan_
        inside, at_once = release.interval(), release.interval(simultaneous=True)
        noise = release.effects.noise.numpy()
        found: dict[str, Any] = {
            "cells": release.lines().rename(columns={"line": "cell"}).to_dict("records"),
            "cells_count": release.subgroups.size,
            "partitions": release.subgroups.config(),
            "estimate_least": float(release.effects.estimate.min()),
            "estimate_most": float(release.effects.estimate.max()),
            "noise": _root_mean_square(noise),
            "noise_planned": _root_mean_square(plan.cell_noise.numpy()),
            "width": float((inside[:, 1] - inside[:, 0]).mean()),
            "width_nonprivate": 2 * float(exact.half_width(LEVEL).mean()),
            "dominated": int(release.effects.noise_dominated.sum()),
        }
        known = dict.fromkeys(("rmse", "rmse_nonprivate", "covered", "covered_at_once"))
        if truth is None:
            return found | known
        there = ~np.isnan(truth)
        held = (inside[there, 0] <= truth[there]) & (truth[there] <= inside[there, 1])
        all_held = (at_once[there, 0] <= truth[there]) & (truth[there] <= at_once[there, 1])
        return found | {
            "rmse": _root_mean_square((release.estimate - truth)[there]),
            "rmse_nonprivate": _root_mean_square((exact.estimate.numpy() - truth)[there]),
            "covered": float(held.mean()),
            "covered_at_once": int(all_held.all()),
        }

    def write(self, summary: Mapping[str, Any]) -> Figures:
        """Write the curator's plan, and return their plot."""
        curator = self.folder / "curator"
        with self.attempt("curator/plan.txt"):
            write_text(curator / "plan.txt", self.learner.plan_.table().to_string(index=False) + "\n", PRIVATE)
        return {FOREST_FILE: self._figure}

    def _figure(self) -> Figure:
        exact = self.learner.nonprivate_effects().estimate.numpy()
        return plot_lines(self.release, nonprivate=exact, truth=self._truth)

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return the cells; warn where intervals say nothing."""
        release = self.release
        dominated = int(release.effects.noise_dominated.sum())
        if dominated:
            say_warning(
                f"in {dominated} of {len(release.estimate)} cells noise dominates the count of an arm: their "
                "intervals are the full range. Fewer cells, more records or a larger privacy.epsilon would help"
            )
        return lines_of(release.lines())

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
                has = f"{len(schema.actions)} arms" if schema.compared else "clusters"
                raise InputError(
                    f"{name} = {value}: is of two arms and independent records, and the domain has {has}; "
                    f"{name}={known} takes them"
                )
        found = cls("subgroups")
        found.config, found.study, found.folder = task.config, task.study, getattr(task, "folder", Path())  # type: ignore[assignment]
        return found

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> SubgroupEffects:
        """Return the learner of each arm's average effect."""
        from torchdpcate.estimators.subgroups.learner import SubgroupEffects

        return SubgroupEffects(self.study.schema, budget, subgroups=EVERYBODY, **rest)


class LineSubgroups(OfLines, SubgroupTask):  # type: ignore[misc]
    """``task=subgroups`` by one composition: a line for each cell of public cuts."""

    @classmethod
    def of(cls, task: TaskSpec) -> LineSubgroups:
        """Return the task with what another was given."""
        return with_task(cls(task.name), task)

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> AverageEffect:  # type: ignore[override]
        """Return the learner of the cells' lines."""
        from torchdpcate.estimators.average.lines import AverageEffect

        return AverageEffect(self.study.schema, budget, subgroups=self.given, **rest)

    def choices(self) -> dict[str, str | None]:
        """Return that the law is Gaussian, of scores of each cell."""
        return {"law": "gaussian", "released": "separate", "weights": "composed"}

    def results(self) -> dict[str, Any]:
        """Return the cells with their intervals, and errors where the truth is known."""
        cells, lines, exact, truth = self._names, self._lines, self._exact, self._truth
        table = lines.table(LEVEL).set_index("line").loc[cells].reset_index().rename(columns={"line": "cell"})
        values, low, high = (table[name].to_numpy() for name in ("estimate", "low", "high"))
        noise = lines.noise(cells)
        found: dict[str, Any] = {
            "cells": table.assign(cell=self.release.arm_titles or cells).to_dict("records"),
            "cells_count": len(cells),
            **self._partitions,
            "estimate_least": float(values.min()),
            "estimate_most": float(values.max()),
            "noise": _root_mean_square(noise),
            "noise_planned": self._noise_planned,
            "width": float((high - low).mean()),
            "width_nonprivate": None,
            "dominated": 0,
        }
        found |= dict.fromkeys(("rmse", "rmse_nonprivate", "covered", "covered_at_once"))
        others = None if exact is None else exact.table(LEVEL).set_index("line").loc[cells]
        if others is not None:
            found["width_nonprivate"] = float((others["high"] - others["low"]).mean())
        if truth is None:
            return found
        there = ~np.isnan(truth)
        held = ((low <= truth) & (truth <= high))[there]
        found |= {"rmse": _root_mean_square((values - truth)[there]), "covered": float(held.mean())}
        found["covered_at_once"] = int(held.all())
        if others is not None:
            found["rmse_nonprivate"] = _root_mean_square((others["estimate"].to_numpy() - truth)[there])
        return found

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return the cells."""
        rows = self.release.lines(LEVEL)
        return lines_of(rows if self.release.arms else rows[rows["group"] == SUBGROUPS])

    @property
    def _names(self) -> list[str]:
        """Names of the lines that are shown."""
        return self.learner.cells.labels

    @property
    def _partitions(self) -> dict[str, Any]:
        return {"partitions": self.learner.cells.config()}

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
    def _names(self) -> list[str]:
        return list(self._lines.names)

    @property
    def _partitions(self) -> dict[str, Any]:
        return {}

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
