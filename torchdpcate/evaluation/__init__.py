"""Metrics and figures."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "balance_figure": ("IntervalRow", "balance_figure", "interval_figure"),
        "comparison": ("budget_figure", "curves_figure"),
        "curves": ("EffectCurves",),
        "figures": ("effect_figure", "effect_panels", "rule_figure", "save_figure"),
        "metrics": ("IntervalCoverage", "MeanEffectBias", "PEHE"),
        "policies": ("policy_figure",),
        "root_error": ("pehe",),
        "rules": ("DecisionAccuracy", "PolicyValue", "decision_accuracy", "policy_value"),
    },
)
