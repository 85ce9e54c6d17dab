"""Which target is worth asking: planned noise of a number, of subgroups, of a rule and of a function."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.privacy.budget import PrivacyBudget

GROUPS = 4
"""Subgroups that are planned for: cells of one size, which pay one price together (parallel composition)."""
_MANY, _LARGE = 0.02, 0.1  # of the outcome's range


@dataclass(frozen=True)
class Target:
    """What could be asked of the records.

    Attributes:
        name: In words.
        task: Task of the command line that asks for it.
        noise: Planned noise; None where it cannot be had.
        why_not: Why it cannot; empty otherwise.
    """

    name: str
    task: str
    noise: PlannedNoise | None
    why_not: str = ""

    @property
    def verdict(self) -> str:
        """Whether it is worth asking, by the noise as a share of the outcome's range: 2 and 10 per cent."""
        if self.noise is None:
            return "not to be had"
        if not self.noise.known:
            return "not known"
        share = self.noise.value / self.noise.outcome_range
        return "yes" if share <= _MANY else "for large effects" if share <= _LARGE else "no"


def planned_targets(schema: TableSchema, n: int, budget: PrivacyBudget) -> list[Target]:
    """Return the planned noise of every kind of target, by the defaults of its family.

    Args:
        schema: Columns and public bounds, of two arms.
        n: Number of records.
        budget: Privacy budget.

    Example:
        >>> from torchdpcate.data import Domain
        >>> domain = Domain([0.0] * 3, [1.0] * 3, 0.0, 1.0)
        >>> found = planned_targets(TableSchema.from_domain(domain), 4000, PrivacyBudget(1.0, 1e-5))
        >>> [target.task for target in found]
        ['average_effect', 'subgroups', 'two_stage_rule', 'cate']
    """
    from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect
    from torchdpcate.estimators.cate.learner import RLearner
    from torchdpcate.estimators.rules.owl import OutcomeWeightedLearner
    from torchdpcate.estimators.rules.two_stage import TwoStageRule

    known = schema.domain.known_propensity is not None

    def average(n: int) -> PlannedNoise:
        return CovariateBalancingEffect(schema, budget).expected_noise(n)

    def groups() -> PlannedNoise:
        return replace(average(max(n // GROUPS, 1)), n=n, of=f"the average effect in one of {GROUPS} equal subgroups")

    def rule() -> PlannedNoise:
        learner: PrivateEstimator = OutcomeWeightedLearner(schema, budget) if known else TwoStageRule(schema, budget)
        return learner.expected_noise(n)

    return [
        _target("one average effect", "average_effect", lambda: average(n)),
        _target(f"effects in {GROUPS} subgroups of equal size", "subgroups", groups),
        _target("a treatment rule", "owl" if known else "two_stage_rule", rule),
        _target("the effect as a function", "cate", lambda: RLearner(schema, budget).expected_noise(n)),
    ]


def _target(name: str, task: str, noise: Callable[[], PlannedNoise]) -> Target:
    try:
        found = noise()
    except InputError as error:
        return Target(name, task, None, " ".join(str(error).split()))
    return Target(name, task, found if not math.isnan(found.value) else replace(found))
