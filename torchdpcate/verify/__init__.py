"""Verification of release files, and the cards made from them."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "card": ("make_card", "sign_release", "write_card"),
        "deployments": ("read_facts",),
        "file": ("verify_release",),
    },
)
