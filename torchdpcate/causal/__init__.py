"""Causal estimation: scores, estimands, weights of average effects."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "estimand": ("ATC", "ATE", "ATO", "ATT", "ESTIMANDS", "Estimand", "make_estimand"),
        "score": ("DRScore", "RScore", "RegressionScore", "ScoreBounds", "dr_scores", "project_to_floor"),
    },
)
