"""Packages whose names are imported when they are first used, so that importing one of them costs little."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def exports(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Args:
        package: Its name.
        modules: Public names by the module that defines them, as in a relative import: ``budget`` of this package,
            ``.papers`` of the one above.

    Example:
        >>> find, _, names = exports("torchdpcate.privacy", {"budget": ("PrivacyBudget",)})
        >>> names, find("PrivacyBudget").__name__
        (['PrivacyBudget'], 'PrivacyBudget')
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{homes[name]}", package), name)

    return find, lambda: sorted(homes), sorted(homes)
