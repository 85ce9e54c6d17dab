"""Packages whose names are imported when they are first used, so that importing one of them costs little."""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from torchdpcate._docstrings import described

_IMPORT = re.compile(r"^from \w+\.([\w.]+) import (\w+) as \2$", re.MULTILINE)


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
        return described(getattr(import_module(f".{homes[name]}", package), name))

    return find, lambda: sorted(homes), sorted(homes)


def stub_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``exports`` of the names that the stub beside a package's file imports, one a line, for type checkers.

    Args:
        package: Its name.
        file: Its ``__init__.py``.
    """
    modules: dict[str, list[str]] = {}
    for module, name in _IMPORT.findall(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")):
        modules.setdefault(module, []).append(name)
    return exports(package, modules)
