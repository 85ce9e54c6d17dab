"""``torchdpcate plan``: the noise to expect of a run, by the words of ``train`` and public facts; no record is read."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from torchdpcate._files import PUBLIC, write_text
from torchdpcate.cli.run import OF_EFFECTS, configure, refusal, unit_line, warnings_said
from torchdpcate.cli.tables import columns, facts
from torchdpcate.cli.task import TaskSpec, data_source
from torchdpcate.cli.tasks.averages import way_of_averages
from torchdpcate.data._arrays import listed
from torchdpcate.data.covariates import Categorical
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import EVERYBODY
from torchdpcate.data.words import outcome_axis, outcome_unit
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.planned_noise import (
    ASKED,
    PlannedNoise,
    least_epsilon,
    least_records,
    shown,
    stated_deviation,
    verdict,
    worth_asking,
)
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.evaluation.curator_figures import SeenAnswers
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.unit import RECORD, PrivacyUnit

_SAMPLING = "sampling"  # part of a planned noise that counts it
_OF_CONSTANT = (0.5, 0.999)  # regrets of a rule over that of the best constant one, as ``verdict`` has limits


@dataclass(frozen=True)
class PlannedTarget:
    """What could be requested of the records.

    Attributes:
        schema: Columns and public bounds.
        name: In words.
        task: Task of the command line that requests it.
        noise: Planned noise; None where it cannot be had.
        why_not: Why it cannot; empty otherwise.
        relative: Of a rule, its expected regret over that of the best constant one; None of others.
    """

    schema: TableSchema
    name: str
    task: str
    noise: PlannedNoise | None
    why_not: str = ""
    relative: float | None = None

    @property
    def verdict(self) -> str:
        """Whether it is worth asking, see ``worth_asking``; a rule is by half the regret of treating all alike."""
        if self.noise is None:
            return "not to be had"
        if not self.noise.known:
            return "not known"
        if self.noise.inconclusive:
            return "no: without an interval"
        if self.relative is not None:
            return verdict(self.relative, _OF_CONSTANT)
        return worth_asking(self.noise.value, self.schema, self.noise.relative)

    @property
    def share(self) -> str:
        """The noise as a share of the outcome's standard deviation where it is stated, else of its range, in words."""
        if self.noise is None or not math.isfinite(self.noise.value):
            return "-"
        whole, of = self.schema.effect_scale
        share = self.noise.value / whole
        return f"{share:.1%} of the range" if of == "range" else f"{share:.2g} standard deviations"


def planned_targets(
    schema: TableSchema, n: int, budget: PrivacyBudget, residual_scale: float | None = None
) -> list[PlannedTarget]:
    """Return the planned noise of every kind of target, by the defaults of its family.

    Args:
        schema: Columns and public bounds, of two arms.
        n: Number of records.
        budget: Privacy budget.
        residual_scale: As of ``CATELearner.expected_noise``, for the effect as a function.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> domain = Domain([0.0] * 3, [1.0] * 3, 0.0, 1.0)
        >>> found = planned_targets(TableSchema.from_domain(domain), 4000, PrivacyBudget(1.0, 1e-5))
        >>> [target.task for target in found]
        ['average_effect', 'subgroups', 'rule', 'cate']
    """

    def average(cells: Any) -> PlannedNoise:
        if schema.assignment is not None or schema.domain.is_rate:
            return SubgroupEffects(schema, budget, subgroups=cells or EVERYBODY).expected_noise(n)
        return way_of_averages(schema, budget, n, cells)[0](schema, budget).expected_noise(n)

    name, cuts = _partition(schema)

    def function() -> PlannedNoise:
        return RLearner(schema, budget).expected_noise(n, residual_scale=residual_scale)

    return [
        _target(schema, "one average effect", "average_effect", lambda: average(None)),
        _target(schema, f"effects in subgroups, such as by {name}", "subgroups", lambda: average([cuts])),
        _rule(schema, n, budget),
        _function(_target(schema, "the effect as a function", "cate", function)),
    ]


def _rule(schema: TableSchema, n: int, budget: PrivacyBudget) -> PlannedTarget:
    learner = EffectRule(schema, budget)
    target = _target(schema, "a treatment rule", "rule", lambda: learner.expected_noise(n))
    return target if target.noise is None else replace(target, relative=learner.relative_regret(n))


def _function(target: PlannedTarget) -> PlannedTarget:
    """Return the target with what the plan requests: it may be a constant."""
    requested = [remark.removeprefix(ASKED) for remark in target.noise.remarks] if target.noise else []
    return replace(target, name=f"{target.name} ({requested[0]})") if requested else target


def _partition(schema: TableSchema) -> tuple[str, dict[str, Any]]:
    """Return a partition by one covariate, public, with its name: its categories, or quarters of its bounds."""
    for covariate in schema.covariates:
        if isinstance(covariate, Categorical):
            return f"{covariate.label}, {len(covariate.levels)} levels", {covariate.name: True}
    first = schema.covariates[0]
    column, *_ = first.columns
    cuts = [column.low + k / 4 * (column.high - column.low) for k in (1, 2, 3)]
    return f"{first.label} in quarters", {first.name: cuts}


def _target(schema: TableSchema, name: str, task: str, noise: Callable[[], PlannedNoise]) -> PlannedTarget:
    try:
        return PlannedTarget(schema, name, task, noise())
    except InputError as error:
        return PlannedTarget(schema, name, task, None, " ".join(str(error).split()))


_FINE = 0.1  # of a standard deviation: the precision that serves for all effects
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
        schema: Columns and public bounds, where it can be said what a reader would see; None else.
        of_effect: Whether the noise is that of an effect, and no larger errors come on top.
        missing: What missing values cost, in words; empty where none may be.
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
    targets: list[PlannedTarget]
    unit: PrivacyUnit = RECORD
    schema: TableSchema | None = None
    of_effect: bool = False
    missing: str = ""

    @classmethod
    def of(cls, task: TaskSpec, budget: PrivacyBudget, precision: float | None) -> "PlanReport":
        """Plan a task that was configured and checked, on public facts.

        Args:
            task: With ``study``, ``learner`` and ``config``.
            budget: Privacy budget.
            precision: Wanted noise in outcome units; None takes the outcome's range.
        """
        here, n, unit = task.planned_noise(task.learner, task.n, budget), task.n, task.study.unit
        remarks = (
            *here.remarks,
            *counted(task.study.schema.domain, n),
            *task.certified_ways(),
            *filter(None, [task.taken]),
        )
        here = replace(here, remarks=remarks)

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
        whole, of = task.study.schema.effect_scale
        wanted = whole * (1 if of == "range" else _FINE) if precision is None else precision
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
            planned_targets(task.study.schema, n, unit.record_budget(budget))
            if len(task.study.schema.actions) == 2
            else [],
            unit,
            schema=task.study.schema if (said := here.known and math.isfinite(here.value)) else None,
            of_effect=said and task.name in OF_EFFECTS and not here.alone,
            missing=_missing(task.study.schema),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain types, fit for JSON: what is not known, or without bound, is None."""
        return {
            "task": self.task,
            "data": self.data,
            "mechanism": self.mechanism,
            **({"unit": self.unit.to_dict()} if self.unit.is_person else {}),
            **self.noise.to_dict(),
            **({"missing_values": self.missing} if self.missing else {}),
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
            "seen": self._seen(),
            "title": f"{self.task} by {self.mechanism} on {self.data}, delta = {noise.budget.delta:.3g}",
        }

    def show(self, folder: Path | None) -> None:
        """Print the plan.

        Args:
            folder: Where its files were written; None if nowhere.
        """
        noise = self.noise
        print(facts(self._facts(folder), title="torchdpcate: plan (no record was read)"))
        if self.table:
            print(f"\nexpected noise by n and epsilon (outcome units)\n{self._grid()}")
        if self.targets:
            print(f"\nwhich target is worth asking, by the defaults of its task\n{self._others()}")
        print()
        for title, lines in (("assumed", noise.assumes), ("not counted", noise.left_out), ("note", noise.remarks)):
            for line in lines:
                print(f"{title}: {line}")
        if noise.feasible is False:
            print(f"train would refuse: {refusal(noise)}")

    def _facts(self, folder: Path | None) -> Iterator[tuple[str, object]]:
        noise = self.noise
        yield "what", f"{self.task} by {self.mechanism} on {self.data}"
        yield "records, epsilon, delta", f"{noise.n:,}, {noise.budget.epsilon:g}, {noise.budget.delta:g}"
        if self.unit.is_person:
            yield "unit", unit_line(self.unit, noise.n, noise.budget)
        yield "noise of", noise.of
        yield "expected noise", shown(noise.value) + f" ({self._unit})" * math.isfinite(noise.value)
        seen = self._seen()
        if seen is not None:
            effect, low, high = seen.half
            yield (
                "a reader would see",
                f"of a true effect of {effect}, half {seen.of_sd}, a number from {low} to {high} in 95 of 100 "
                f"releases; where there is no effect, up to {seen.none}",
            )
        if len(noise.parts) > 1:
            yield "made of", ", ".join(f"{name} {shown(part)}" for name, part in noise.parts.items())
        if self.missing:
            yield "missing values", self.missing
        yield "outcome's range", shown(noise.outcome_range, 4)
        yield "feasible", {True: "yes", False: "no", None: "not known"}[noise.feasible]
        stated = self.schema is not None and self.schema.domain.outcome_sd is not None
        default = " (sd / 10)" if stated else " (the outcome's range)"
        wanted = f"for noise of {shown(self.precision, 4)}" + ("" if self.given else default)
        yield f"least n {wanted}", "not by n alone" if self.least_n is None else f"{self.least_n:,}"
        least = "not by epsilon alone" if self.least_epsilon is None else f"{self.least_epsilon:.3g}"
        yield f"least epsilon {wanted}", least
        yield "guarantee", noise.level.value
        if folder is not None:
            yield "files", folder / "plan.json"
            yield "", folder / "plan.png"

    @property
    def _unit(self) -> str:
        return (outcome_unit(self.schema) if self.schema is not None else "") or "outcome units"

    def _seen(self) -> "SeenAnswers | None":
        """Return what a reader would see of some true effects; None of what is no effect."""
        if self.schema is None or not self.of_effect:
            return None
        sd = stated_deviation(self.schema)
        return SeenAnswers.of(
            self.noise.value,
            0 if _SAMPLING in self.noise.parts else self.noise.n,
            outcome_range=self.noise.outcome_range,
            sd=None if sd is None else sd * self.schema.domain.effect_unit,
            unit=outcome_unit(self.schema),
            label=outcome_axis(self.schema),
        )

    def _grid(self) -> str:
        headings = ["epsilon", *(_records(n) for n in next(iter(self.table.values())))]
        rows = [
            [f"{epsilon:g}", *(shown(value, 2) if math.isfinite(value) else "-" for value in row.values())]
            for epsilon, row in self.table.items()
        ]
        return columns(headings, rows, right=range(len(headings)))

    def _others(self) -> str:
        rows = []
        for target in self.targets:
            noise = target.noise
            value = "-" if noise is None else shown(noise.value)
            verdict = target.verdict if noise is not None else f"{target.verdict}: {target.why_not}"
            rows.append((f"task={target.task}", f"{target.name}: noise {value}, {target.share}; {verdict}"))
        return facts(rows)


def counted(domain: Domain, n: int) -> Iterator[str]:
    """Yield how records count where they do not all count alike, and what that costs, in words."""
    yield from (f"{subject}: {words}" for subject, words in domain.counting.items())
    if domain.expected_weight is not None and not domain.is_rate:
        yield (
            f"they count as about {domain.expected_weight * n:,.0f} records, and the sum of their weights takes about "
            "one per cent of the budget (mu^2) where a composition needs it, or the share that a ratio has for its "
            "denominator"
        )
    if domain.censoring is not None:
        found = domain.censoring.expected_weight
        yield (
            "the curve of censoring takes five per cent of the budget of a composition (mu^2; with delta = 0 ten per "
            "cent of epsilon), and thirty of that of sums in cells; "
            f"if the least of it is {found:.2g}, between the floor and one, it makes all other noise {1 / found:.3g} "
            f"times as large, and {1 / domain.censoring.floor:.3g} times if it is at the floor"
        )


def _missing(schema: TableSchema) -> str:
    """Return what missing covariates cost; empty where none may be."""
    more = schema.missing_columns
    if not more:
        return ""
    every, columns_ = schema.domain.dimension, f"{more} column{'s' if more > 1 else ''}"
    return f"of {listed(schema.may_miss)}: {columns_} more, of {every}, which the noise counts; nothing else"


def _records(n: int) -> str:
    """Return a number of records in few letters."""
    return f"{n / 1e6:.4g}M" if n >= 10**6 else f"{n:,}"


def _rounded(n: float) -> int:
    """Return n rounded to two digits."""
    return int(float(f"{n:.2g}"))


_OWN = ("n", "precision")
_METADATA = "metadata"


def plan(overrides: Sequence[str]) -> None:
    """Plan the configured task: print the noise to expect, and with ``run_dir`` write ``plan.json`` and ``plan.png``.

    Args:
        overrides: Words of ``torchdpcate train``, and ``n=NUMBER`` or ``n=metadata`` and ``precision=NUMBER``.

    Raises:
        InputError: What ``train`` would refuse, in the same words; or a number of records that is not known.
    """
    from torchdpcate.cli.train import composed

    if {"-m", "--multirun"} & set(overrides):
        raise InputError("-m: a plan has no sweeps; its table shows other n and epsilon")
    given = {word.partition("=")[0]: word.partition("=")[2] for word in overrides if word.partition("=")[0] in _OWN}
    rest = [word for word in overrides if word.partition("=")[0] not in _OWN]
    precision = _number("precision", given["precision"]) if "precision" in given else None
    composed("plan", rest, lambda config: _job(config, given.get("n"), precision))


def _job(config: DictConfig, n: str | None, precision: float | None) -> None:
    """Plan one task."""
    from torchdpcate.cli.train import run_folder  # late, as the imports of train's job

    folder = None if config.run_dir is None else run_folder(config)
    task: TaskSpec = hydra.utils.instantiate(config.task)
    task.folder = Path()  # where a plan writes nothing
    with warnings_said():
        configure(task, config)
        task.study = task.public()
    task.study = _with_records(task.study, config, n)
    task = task.suited()
    budget = PrivacyBudget(config.privacy.epsilon, config.privacy.delta)
    task.learner = task.learner_of(budget)
    task.check()
    report = PlanReport.of(task, budget, precision)
    if folder is not None:
        _write(report, folder)
    report.show(folder)


def _with_records(study: Any, config: DictConfig, n: str | None) -> Any:
    """Return the public facts with the number of records.

    Raises:
        InputError: It is not known, or not a positive integer.
    """
    if n is None:
        if study.n is None:
            raise InputError(
                "n: the number of records is not known without reading them; give n=NUMBER (or n=metadata, which "
                "reads it from the metadata of a parquet file)"
            )
        return study
    if n == _METADATA:
        source = data_source(config)
        if not hasattr(source, "stated_rows"):
            raise InputError(f"n = {n}: is for data=table alone; give n=NUMBER")
        return replace(study, n=source.stated_rows())
    number = _number("n", n)
    if number != int(number):
        raise InputError(f"n = {n}: give a positive integer")
    return replace(study, n=int(number))


def _number(name: str, text: str) -> float:
    with suppress(ValueError):
        number = float(text.replace("_", ""))
        if 0 < number < float("inf"):
            return number
    raise InputError(f"{name} = {text}: give a positive number")


def _write(report: Any, folder: Path) -> None:
    """Write the plan's files into a new folder."""
    from torchdpcate.evaluation.curator_figures import plan_figure
    from torchdpcate.evaluation.figures import save_figure

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "plan.json", json.dumps(report.to_dict(), indent=2) + "\n", PUBLIC)
    save_figure(plan_figure(**report.figure()), folder / "plan.png")
