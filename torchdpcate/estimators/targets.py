"""What could be requested of the records, and which of it is worth asking by its planned noise."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torchdpcate.data.covariates import Categorical
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import EVERYBODY
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.planned_noise import ASKED, PlannedNoise, verdict, worth_asking
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.privacy.budget import PrivacyBudget

_OF_CONSTANT = (0.5, 0.999)  # regrets of a rule over that of the best constant one, as ``verdict`` has limits


@dataclass(frozen=True)
class PlannedTarget:
    """What could be requested of the records.

    Attributes:
        name: In words.
        task: Task of the command line that requests it.
        noise: Planned noise; None where it cannot be had.
        why_not: Why it cannot; empty otherwise.
        relative: Of a rule, its expected regret over that of the best constant one; None of others.
        sd: The outcome's standard deviation as stated; None where nothing is.
    """

    name: str
    task: str
    noise: PlannedNoise | None
    why_not: str = ""
    relative: float | None = None
    sd: float | None = None

    @property
    def verdict(self) -> str:
        """Whether it is worth asking, see ``worth_asking``; a rule is by half the regret of treating all alike."""
        if self.noise is None:
            return "not to be had"
        if not self.noise.known:
            return "not known"
        if self.relative is not None:
            return verdict(self.relative, _OF_CONSTANT)
        return worth_asking(self.noise.value, self.noise.outcome_range, self.sd)

    @property
    def share(self) -> str:
        """The noise as a share of the outcome's standard deviation where it is stated, else of its range, in words."""
        if self.noise is None or not math.isfinite(self.noise.value):
            return "-"
        if self.sd is None:
            return f"{self.noise.value / self.noise.outcome_range:.1%} of the range"
        return f"{self.noise.value / self.sd:.2g} standard deviations"


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
        >>> from torchdpcate.data import Domain
        >>> domain = Domain([0.0] * 3, [1.0] * 3, 0.0, 1.0)
        >>> found = planned_targets(TableSchema.from_domain(domain), 4000, PrivacyBudget(1.0, 1e-5))
        >>> [target.task for target in found]
        ['average_effect', 'subgroups', 'rule', 'cate']
    """

    def average(cells: Any) -> PlannedNoise:
        if schema.cluster is None and budget.delta > 0:
            return AverageEffect(schema, budget, subgroups=cells).expected_noise(n)
        return SubgroupEffects(schema, budget, subgroups=cells or EVERYBODY).expected_noise(n)

    name, cuts = _partition(schema)

    def function() -> PlannedNoise:
        return RLearner(schema, budget).expected_noise(n, residual_scale=residual_scale)

    found = [
        _target("one average effect", "average_effect", lambda: average(None)),
        _target(
            f"effects in subgroups, such as by {name}",
            "subgroups",
            lambda: average([cuts]),
        ),
        _rule(schema, n, budget),
        _function(_target("the effect as a function", "cate", function)),
    ]
    return [replace(target, sd=schema.domain.outcome_sd) for target in found]


def _rule(schema: TableSchema, n: int, budget: PrivacyBudget) -> PlannedTarget:
    learner = EffectRule(schema, budget)
    target = _target("a treatment rule", "rule", lambda: learner.expected_noise(n))
    return replace(target, relative=learner.relative_regret(n))


def _function(target: PlannedTarget) -> PlannedTarget:
    """Return the target with what the plan requests: it may be a constant."""
    requested = [remark.removeprefix(ASKED) for remark in target.noise.remarks] if target.noise else []
    return replace(target, name=f"{target.name} ({requested[0]})") if requested else target


def _partition(schema: TableSchema) -> tuple[str, dict[str, Any]]:
    """Return a partition by one covariate, public, with its name: its categories, or quarters of its bounds."""
    for covariate in schema.covariates:
        if isinstance(covariate, Categorical):
            return f"{covariate.name}, {len(covariate.levels)} levels", {covariate.name: True}
    first = schema.covariates[0]
    column, *_ = first.columns
    cuts = [column.low + k / 4 * (column.high - column.low) for k in (1, 2, 3)]
    return f"{first.name} in quarters", {first.name: cuts}


def _target(name: str, task: str, noise: Callable[[], PlannedNoise]) -> PlannedTarget:
    try:
        return PlannedTarget(name, task, noise())
    except InputError as error:
        return PlannedTarget(name, task, None, " ".join(str(error).split()))
