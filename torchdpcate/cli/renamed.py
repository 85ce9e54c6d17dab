"""Words of ``torchdpcate train`` that earlier versions knew by another name: translated before Hydra sees them."""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torchdpcate._text import plain

OPTIONS: dict[str, str] = {
    "second_stage.purchase.share": "second_stage.private_threshold.budget_fraction",
    "second_stage.purchase": "second_stage.private_threshold",
    "effect.eta": "effect.overlap",
    "effect.least_penalty": "effect.ridge",
    "rule.gamma": "rule.ridge",
    "rule.gamma_bound": "rule.ridge_bound",
    "tune.gammas": "tune.ridges",
    "tune.block": "tune.selection_fraction",
    "weights.share": "weights.budget_fraction",
    "weights.block": "weights.block_fraction",
    "outcome.share": "outcome.budget_fraction",
    "certificate": "nuisance_guarantee",
    "certificate.guess": "nuisance_guarantee.target",
    "certificate.share": "nuisance_guarantee.budget_fraction",
    "selection.floor": "selection.overlap",
}
"""New names of settings and groups by the old ones; what lies below an old name keeps its own."""
CHOICES: dict[str, dict[str, str]] = {
    "nuisance_guarantee.target": {"bought": "private"},
    "outcome": {"bought_residual": "private_residual"},
}
"""New names of choices by the old ones, by the new name of the setting or group that takes them."""
_WORD = re.compile(r"(?P<mark>[+~]*)(?P<key>[\w./]+)(?P<rest>@[^=]*)?(?:=(?P<value>.*))?", re.DOTALL)


def new_words(words: Sequence[str]) -> list[str]:
    """Return the command-line words with every old name replaced, and say so in one warning line.

    Args:
        words: Words of ``torchdpcate train`` and of commands that read the same settings.

    Example:
        >>> new_words(["-m", "outcome=shifted,private_residual", "seed=0,1"])
        ['-m', 'outcome=shifted,private_residual', 'seed=0,1']
    """
    new = [_new_word(word) for word in words]
    changed = [f"{old} is now {word}" for old, word in zip(words, new, strict=True) if word != old]
    if changed:
        warning = f"{'; '.join(changed)}; the old name will be refused by the next version"
        print(f"torchdpcate: warning: {plain(warning)}", file=sys.stderr)
    return new


def by_any_name(values: Mapping[str, Any], name: str) -> Any:
    """Return a value by its key, or by the key that an earlier version gave it; None where there is neither.

    Example:
        >>> by_any_name({"certificate": "stability"}, "nuisance_guarantee")
        'stability'
    """
    keys = (name, *(old for old, new in OPTIONS.items() if new == name))
    return next((values[key] for key in keys if key in values), None)


def _new_word(word: str) -> str:
    parts = _WORD.fullmatch(word)
    if parts is None:
        return word
    key, value = _new_key(parts["key"]), parts["value"]
    if value is not None:
        for old, new in CHOICES.get(key, {}).items():
            value = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, value)  # also one of several that are swept over
    return f"{parts['mark']}{key}{parts['rest'] or ''}" + ("" if value is None else f"={value}")


def _new_key(key: str) -> str:
    """Return a dotted name with its longest old beginning replaced."""
    names = key.split(".")
    for length in range(len(names), 0, -1):
        found = OPTIONS.get(".".join(names[:length]))
        if found is not None:
            return ".".join([found, *names[length:]])
    return key
