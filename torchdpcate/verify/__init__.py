"""Verification of release files, and the cards made from them."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "card": ("card_html", "sign_release", "write_card"),
        "file": ("verify_release",),
    },
)
