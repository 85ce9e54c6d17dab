"""What a release shows of itself: one drawing function a kind, which releases, runs and reports share."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "effect_points": ("FigurePoints",),
        "releases": (
            "effect_panel",
            "plot_answers",
            "plot_average",
            "plot_decisions",
            "plot_effect",
            "plot_rule",
            "plot_subgroups",
            "released_rows",
        ),
    },
)
