"""Conditional average treatment effects: the R- and the DR-learner."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "learner": (
            "CATELearner",
            "DRLearner",
            "RLearner",
        ),
        "mechanisms.base": ("MECHANISMS",),
        "splits": (
            "CrossFit",
            "DisjointSplit",
            "Split",
        ),
    },
)
