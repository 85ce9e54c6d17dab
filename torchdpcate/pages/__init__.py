"""Pages that are whole in one file: a release's for its readers, and the curator's of runs."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "effect_points": ("FigurePoints",),
        "figures": (
            "effect_panel",
            "plot_answers",
            "plot_average",
            "plot_decisions",
            "plot_effect",
            "plot_rule",
            "plot_sites",
            "plot_subgroups",
            "released_rows",
        ),
    },
)
