"""The version, which tags of the repository make when the package is built."""

from functools import cache


@cache
def version() -> str:
    """Return the installed version; of a tree that was never installed, ``0+unknown``."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torchdpcate")
    except PackageNotFoundError:
        return "0+unknown"
