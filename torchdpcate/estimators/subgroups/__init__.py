"""Effects in subgroups of public cells, with intervals."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "learner": ("SubgroupEffects",),
        "plan": ("SubgroupPlan", "plan_subgroups"),
    },
)
