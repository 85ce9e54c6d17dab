"""Does a run's release hold anything of its curator's?"""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "scan": ("FALSE_ALARM", "LeakReport", "leak_report", "scan"),
    },
)
