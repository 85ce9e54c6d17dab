"""Private treatment effects: from a table of records to a release that is safe to publish.

Names are imported when they are first used, so that ``import torchdpcate`` costs little; ``__init__.pyi`` lists them.
"""

from typing import Any

from torchdpcate._lazy import stub_exports

_find, __dir__, __all__ = stub_exports(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from torchdpcate._version import version

        return version()
    return _find(name)
