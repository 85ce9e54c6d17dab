"""How far one replaced training record moves learned utilities: what a reader never sees and a curator should know."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "figure": ("spillover_figure",),
        "likelihood": ("log_likelihood_ratio",),
        "report": ("Diagnostics", "Found", "LearnerSpill", "SpilloverReport"),
        "search": ("spillover_audit",),
    },
)
