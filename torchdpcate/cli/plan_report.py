"""What a plan says: expected noise here and at other n and epsilon, what a precision takes, and other targets."""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torchdpcate.cli.run import refusal, unit_line
from torchdpcate.cli.task import TaskSpec
from torchdpcate.errors import InputError
from torchdpcate.estimators.planned_noise import PlannedNoise, least_epsilon, least_records, shown
from torchdpcate.estimators.targets import Target, planned_targets
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.unit import RECORD, PrivacyUnit

_RECORDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)  # of the table, in n
_EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)  # in epsilon


@dataclass(frozen=True, eq=False)
class PlanReport:
    """A plan of one task.

    Attributes:
        task: Name of the task.
        data: Name of the data.
        mechanism: Name of the release's mechanism.
        noise: Planned noise here.
        table: Noise in outcome units, infinite where nothing could be released, by n, by epsilon.
        precision: What is wanted, in outcome units: as given, else the outcome's range.
        given: Whether it was given.
        least_n: Least number of records for it; None where none is enough.
        least_epsilon: Least epsilon for it.
        targets: Other targets at this n and epsilon; empty for more than two arms.
        unit: Who is protected.
    """

    task: str
    data: str
    mechanism: str
    noise: PlannedNoise
    table: dict[float, dict[int, float]]
    precision: float
    given: bool
    least_n: int | None
    least_epsilon: float | None
    targets: list[Target]
    unit: PrivacyUnit = RECORD

    @classmethod
    def of(cls, task: TaskSpec, budget: PrivacyBudget, precision: float | None) -> "PlanReport":
        """Plan a task that was configured and checked, on public facts.

        Args:
            task: With ``study``, ``learner`` and ``config``.
            budget: Privacy budget.
            precision: Wanted noise in outcome units; None takes the outcome's range.
        """
        here, n, unit = task.planned_noise(task.learner, task.n, budget), task.n, task.study.unit

        @cache
        def value(n: int, epsilon: float) -> float:
            try:
                return task.noise_of(task.learner_of(PrivacyBudget(epsilon, budget.delta)), n).value
            except InputError:
                return math.inf

        table: dict[float, dict[int, float]] = {}
        records = sorted({max(2, _rounded(factor * n)) if factor != 1 else n for factor in _RECORDS})
        if here.known:
            table = {
                epsilon: {many: value(many, epsilon) for many in records}
                for epsilon in (float(f"{factor * budget.epsilon:.6g}") for factor in _EPSILONS)
            }
        wanted = here.outcome_range if precision is None else precision
        return cls(
            task.name,
            task.study.name,
            task.mechanism_name,
            here,
            table,
            wanted,
            precision is not None,
            least_records(lambda n: value(n, budget.epsilon), wanted, n) if here.known else None,
            least_epsilon(lambda epsilon: value(n, epsilon), wanted, budget.epsilon) if here.known else None,
            planned_targets(task.study.schema, n, unit.record_budget(budget), task.residual_scale)
            if len(task.study.schema.actions) == 2
            else [],
            unit,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain types, fit for JSON: what is not known, or without bound, is None."""
        return {
            "task": self.task,
            "data": self.data,
            "mechanism": self.mechanism,
            **({"unit": self.unit.to_dict()} if self.unit.is_person else {}),
            **self.noise.to_dict(),
            "precision": self.precision,
            "least_n": self.least_n,
            "least_epsilon": self.least_epsilon,
            "table": [
                {"n": n, "epsilon": epsilon, "expected_noise": value if math.isfinite(value) else None}
                for epsilon, row in self.table.items()
                for n, value in row.items()
            ],
            "targets": [
                {
                    "target": target.name,
                    "task": target.task,
                    "expected_noise": None if target.noise is None else target.noise.to_dict()["expected_noise"],
                    "worth_asking": target.verdict,
                    "why_not": target.why_not,
                }
                for target in self.targets
            ],
        }

    def figure(self) -> dict[str, Any]:
        """Return what ``plan_figure`` draws."""
        noise = self.noise
        return {
            "noise": self.table,
            "outcome_range": noise.outcome_range,
            "here": (noise.n, noise.budget.epsilon, noise.value),
            "of": noise.of,
            "precision": self.precision if self.given else None,
            "title": f"{self.task} by {self.mechanism} on {self.data}, delta = {noise.budget.delta:.3g}",
        }

    def show(self, folder: Path | None) -> None:
        """Print the plan.

        Args:
            folder: Where its files were written; None if nowhere.
        """
        console, noise = Console(markup=False, emoji=False), self.noise
        console.print(self._facts(folder))
        if self.table:
            console.print(self._grid())
        if self.targets:
            console.print(self._others())
        for title, lines in (("assumed", noise.assumes), ("not counted", noise.left_out), ("note", noise.remarks)):
            for line in lines:
                print(f"{title}: {line}")
        if noise.feasible is False:
            print(f"train would refuse: {refusal(noise)}")

    def _facts(self, folder: Path | None) -> Table:
        noise = self.noise
        table = Table(show_header=False, title="torchdpcate: plan (no record was read)", title_justify="left")
        table.add_row("what", f"{self.task} by {self.mechanism} on {self.data}")
        table.add_row("records, epsilon, delta", f"{noise.n:,}, {noise.budget.epsilon:g}, {noise.budget.delta:g}")
        if self.unit.is_person:
            table.add_row("unit", unit_line(self.unit, noise.n, noise.budget))
        table.add_row("noise of", noise.of)
        table.add_row("expected noise", shown(noise.value) + " (outcome units)" * math.isfinite(noise.value))
        if len(noise.parts) > 1:
            table.add_row("made of", ", ".join(f"{name} {shown(part)}" for name, part in noise.parts.items()))
        table.add_row("outcome's range", shown(noise.outcome_range, 4))
        table.add_row("feasible", {True: "yes", False: "no", None: "not known"}[noise.feasible])
        wanted = f"for noise of {shown(self.precision, 4)}" + ("" if self.given else " (the outcome's range)")
        table.add_row(f"least n {wanted}", "not by n alone" if self.least_n is None else f"{self.least_n:,}")
        least = "not by epsilon alone" if self.least_epsilon is None else f"{self.least_epsilon:.3g}"
        table.add_row(f"least epsilon {wanted}", least)
        table.add_row("guarantee", noise.level.value)
        if folder is not None:
            table.add_row("files", f"{folder / 'plan.json'}, {folder / 'plan.png'}")
        return table

    def _grid(self) -> Table:
        title = "expected noise by n and epsilon (outcome units)"
        table = Table(title=title, title_justify="left")
        table.add_column("epsilon", justify="right")
        for n in next(iter(self.table.values())):
            table.add_column(_records(n), justify="right")
        for epsilon, row in self.table.items():
            table.add_row(f"{epsilon:g}", *(shown(value, 2) if math.isfinite(value) else "-" for value in row.values()))
        return table

    def _others(self) -> Table:
        table = Table(title="which target is worth asking, by the defaults of its task", title_justify="left")
        for heading in ("target", "expected noise", "share of range", "worth asking"):
            table.add_column(heading, justify="left" if heading in ("target", "worth asking") else "right")
        for target in self.targets:
            noise = target.noise
            value = "-" if noise is None else shown(noise.value)
            finite = noise is not None and math.isfinite(noise.value)
            share = f"{noise.value / noise.outcome_range:.1%}" if noise is not None and finite else "-"
            verdict = target.verdict if noise is not None else f"{target.verdict}: {target.why_not}"
            table.add_row(f"{target.name} (task={target.task})", value, share, verdict)
        return table


def _records(n: int) -> str:
    """Return a number of records in few letters."""
    return f"{n / 1e6:.4g}M" if n >= 10**6 else f"{n:,}"


def _rounded(n: float) -> int:
    """Return n rounded to two digits."""
    return int(float(f"{n:.2g}"))
