"""Conditional average treatment effects: the R- and the DR-learner."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "by_name": ("MECHANISMS", "make_mechanism"),
        "learner": ("CATELearner", "DRLearner", "RLearner"),
        "splits": ("CrossFit", "DisjointSplit", "Split"),
        "tuning": ("Tuning",),
    },
)
