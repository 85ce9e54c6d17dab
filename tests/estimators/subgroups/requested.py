"""Effects in subgroups with a law of noise, or sums, that their plan would not take."""

from dataclasses import replace

from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.estimators.subgroups.plan import SubgroupPlan


def requested(law: str | None = None, released: str | None = None) -> type[SubgroupEffects]:
    """Return the learner with this law and these sums in its plan; None leaves them to it."""

    class Requested(SubgroupEffects):
        def plan(self, n: int) -> SubgroupPlan:
            found = super().plan(n)
            return replace(found, law=law or found.law, released=released or found.released)

    Requested.__module__, Requested.__name__ = SubgroupEffects.__module__, SubgroupEffects.__name__
    return Requested
