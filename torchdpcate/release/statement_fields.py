"""Whether the fields of a privacy statement, read from a file, are of their kind."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from torchdpcate._text import is_plain
from torchdpcate.errors import InputError
from torchdpcate.privacy.events import event_from_dict
from torchdpcate.privacy.filters import cost_from
from torchdpcate.privacy.guarantee import Level

Check = Callable[[Any], bool]


def check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse a statement whose fields cannot be what their names say; unknown ones are not looked at.

    Raises:
        InputError: Names the field.

    Example:
        >>> check_fields({"n": "many"})
        Traceback (most recent call last):
        torchdpcate.errors.InputError: privacy statement: 'n' is 'many', not of its kind
    """
    if not isinstance(fields, Mapping):
        raise InputError(f"privacy statement: {_shortened(fields)} has no fields")
    _check(fields, _STATEMENT, "privacy statement")
    if (fields.get("epsilon") is None) != (fields.get("delta") is None):
        raise InputError("privacy statement: of epsilon and delta one is there without the other")
    for block in fields.get("blocks", ()):
        _check(block, _BLOCK, "block of the privacy statement")
        for charge in block["charges"]:
            _check(charge, _CHARGE, "charge of the privacy statement")
            if "event" in charge:
                event_from_dict(charge["event"])
            if "later" in charge:
                cost_from(charge["later"])
    for condition in fields.get("conditions", ()):
        _check(condition, _CONDITION, "condition of the privacy statement")


def _check(fields: Mapping[str, Any], checks: Mapping[str, Check], what: str) -> None:
    for name, value in fields.items():
        if name in checks and not checks[name](value):
            raise InputError(f"{what}: {name!r} is {_shortened(value)}, not of its kind")


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_words(value: Any) -> bool:
    """Whether it is text in one line, with nothing in it that a terminal would obey."""
    return isinstance(value, str) and is_plain(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_cost(value: Any) -> bool:
    return value is None or (_is_number(value) and value >= 0)


def _is_delta(value: Any) -> bool:
    return _is_cost(value) and (value is None or value < 1)


def _is_level(value: Any) -> bool:
    return isinstance(value, str) and value in list(Level)


def _is_list_of_words(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_words, value))


def _is_facts(value: Any) -> bool:
    """Whether it maps names to words, numbers, truth values, nothing, or lists of these."""
    if not (isinstance(value, dict) and all(map(_is_words, value))):
        return False
    flat = [v for entry in value.values() for v in (entry if isinstance(entry, list) else [entry])]
    return all(v is None or isinstance(v, bool) or _is_number(v) or _is_words(v) for v in flat)


def _is_words_by_name(value: Any) -> bool:
    return isinstance(value, dict) and _is_list_of_words([*value, *value.values()])


def _has(*names: str) -> Check:
    """A list of mappings that have these keys."""

    def check(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(v, dict) and v.keys() >= set(names) for v in value)

    return check


_STATEMENT: dict[str, Check] = {
    "mechanism": _is_words,
    "formula": _is_words,
    "level": _is_level,
    "claim": _is_words,
    "epsilon": _is_cost,
    "delta": _is_delta,
    "n": _is_count,
    "blocks": _has("name", "n", "charges"),
    "conditions": _has("name", "text", "holds"),
    "public": _is_facts,
    "private_noise": lambda value: isinstance(value, bool),
    "adjacency": _is_words,
    "unit": _is_words,
    "assumptions": _is_list_of_words,
    "not_protected": _is_list_of_words,
    "versions": _is_words_by_name,
    "accountant": _is_words_by_name,
    "bounds_origin": _is_words,
    "tuning": lambda value: value == {} or (_is_facts(value) and {"runs", "text"} <= value.keys()),
}
_BLOCK: dict[str, Check] = {
    "name": _is_words,
    "n": _is_count,
    "charges": _has("purpose", "level"),
    "epsilon": _is_cost,
    "delta": _is_delta,
    "naive_epsilon": _is_cost,
    "level": _is_level,
}
_CHARGE: dict[str, Check] = {
    **dict.fromkeys(("purpose", "mechanism", "part", "piece", "text"), _is_words),
    "level": _is_level,
    "event": lambda value: isinstance(value, dict),
    "count": _is_count,
    "later": lambda value: isinstance(value, dict),
}
_CONDITION: dict[str, Check] = {
    "name": _is_words,
    "text": _is_words,
    "holds": lambda value: value is None or isinstance(value, bool),
}
