"""Which target is worth asking: planned noise of a number, of subgroups, of a rule and of a function."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torchdpcate.data.covariates import Categorical
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.planned import ASKED
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.privacy.budget import PrivacyBudget

_OF_RANGE, _OF_CONSTANT = (0.02, 0.1), (0.5, 0.999)  # shares up to which a target serves for all, and large, effects


@dataclass(frozen=True)
class Target:
    """What could be asked of the records.

    Attributes:
        name: In words.
        task: Task of the command line that asks for it.
        noise: Planned noise; None where it cannot be had.
        why_not: Why it cannot; empty otherwise.
        relative: Of a rule, its expected regret over that of the best constant one; None of others.
    """

    name: str
    task: str
    noise: PlannedNoise | None
    why_not: str = ""
    relative: float | None = None

    @property
    def verdict(self) -> str:
        """Whether it is worth asking, by the noise as a share of the outcome's range: 2 and 10 per cent.

        A rule is by half the regret of treating all alike, and less than that of it.
        """
        if self.noise is None:
            return "not to be had"
        if not self.noise.known:
            return "not known"
        if self.relative is not None:
            share, (few, many) = self.relative, _OF_CONSTANT
        else:
            share, (few, many) = self.noise.value / self.noise.outcome_range, _OF_RANGE
        return "yes" if share <= few else "for large effects" if share <= many else "no"


def planned_targets(
    schema: TableSchema, n: int, budget: PrivacyBudget, residual_scale: float | None = None
) -> list[Target]:
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
    from torchdpcate.estimators.average.automatic import AverageEffect
    from torchdpcate.estimators.cate.learner import RLearner
    from torchdpcate.estimators.subgroups.learner import SubgroupEffects

    name, cuts = _partition(schema)

    def function() -> PlannedNoise:
        return RLearner(schema, budget).expected_noise(n, residual_scale=residual_scale)

    return [
        _target("one average effect", "average_effect", lambda: AverageEffect(schema, budget).expected_noise(n)),
        _target(
            f"effects in subgroups, such as by {name}",
            "subgroups",
            lambda: SubgroupEffects(schema, budget, subgroups=[cuts]).expected_noise(n),
        ),
        _rule(schema, n, budget),
        _function(_target("the effect as a function", "cate", function)),
    ]


def _rule(schema: TableSchema, n: int, budget: PrivacyBudget) -> Target:
    from torchdpcate.estimators.rules.effect_rule import EffectRule

    learner = EffectRule(schema, budget)
    target = _target("a treatment rule", "rule", lambda: learner.expected_noise(n))
    return replace(target, relative=learner.relative_regret(n))


def _function(target: Target) -> Target:
    """Return the target with what the plan asks for: it may be a constant."""
    asked = [remark.removeprefix(ASKED) for remark in target.noise.remarks] if target.noise else []
    return replace(target, name=f"{target.name} ({asked[0]})") if asked else target


def _partition(schema: TableSchema) -> tuple[str, dict[str, Any]]:
    """Return a partition by one covariate, public, with its name: its categories, or quarters of its bounds."""
    for covariate in schema.covariates:
        if isinstance(covariate, Categorical):
            return f"{covariate.name}, {len(covariate.categories)} levels", {covariate.name: True}
    first = schema.covariates[0]
    (column,) = first.columns
    cuts = [column.low + k / 4 * (column.high - column.low) for k in (1, 2, 3)]
    return f"{first.name} in quarters", {first.name: cuts}


def _target(name: str, task: str, noise: Callable[[], PlannedNoise]) -> Target:
    try:
        return Target(name, task, noise())
    except InputError as error:
        return Target(name, task, None, " ".join(str(error).split()))
