"""Words that went, each with the way that answers its question: ``gone.json`` has them."""

import json
from importlib.resources import files

_WORDS = json.loads(files("torchdpcate.cli").joinpath("gone.json").read_text(encoding="utf-8"))
GONE: dict[str, str] = _WORDS["settings"]
"""By the setting, or by the setting with its value."""
OPTIONS: dict[str, str] = _WORDS["options"]
"""Options of commands."""
COMMANDS: dict[str, str] = _WORDS["commands"]
"""Commands."""


def remedy(key: str, values: list[object]) -> str | None:
    """Return what answers the question of a word that went; None of others.

    Args:
        key: The setting.
        values: Its values.

    Example:
        >>> remedy("screen.most", [3])[:23]
        'second_stage=adaptive, '
        >>> remedy("seed", [3])
    """
    names = [f"{key}={value}" for value in values]
    while key:
        names.append(key)
        key = key.rpartition(".")[0]
    return next((GONE[name] for name in names if name in GONE), None)
