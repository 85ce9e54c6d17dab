"""What a release shows of itself: one drawing function a kind, which releases, runs and reports share."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "averages": ("plot_average", "released_rows"),
        "decisions": ("plot_decisions",),
        "effect_points": ("FigurePoints",),
        "effects": ("effect_panel", "plot_answers", "plot_effect"),
        "rules": ("plot_rule",),
        "subgroups": ("plot_subgroups",),
    },
)
