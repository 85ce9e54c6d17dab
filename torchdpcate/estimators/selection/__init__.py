"""Private selection of one public policy."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "selector": ("PolicySelector",),
    },
)
