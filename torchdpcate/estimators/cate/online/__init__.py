"""The curator's online service: one noisy function, revealed query by query."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "service": ("OnlineService", "OnlineTerms"),
    },
)
