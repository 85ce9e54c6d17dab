"""Metrics and figures."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "balance_figure": ("IntervalRow", "balance_figure", "interval_figure"),
        "comparison": ("budget_figure", "decision_accuracy", "pehe", "policy_value"),
        "curator_figures": ("policy_figure",),
        "figures": ("effect_figure", "effect_panels", "rule_figure", "save_figure"),
    },
)
