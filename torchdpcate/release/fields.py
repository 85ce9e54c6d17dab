"""Checks of the fields that a file holds: each class of a privacy statement lists those of its own fields."""

from collections.abc import Callable, Mapping
from typing import Any

from torchdpcate._text import is_plain
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import LEAST_DELTA
from torchdpcate.privacy.guarantee import Level

Check = Callable[[Any], bool]

_MOST_RECORDS, _MOST_EPSILON, _LARGEST = 2**53, 1e9, 1e100  # beyond any release: what a plan is made of stays finite
_LONGEST_TEXT, _LONGEST_LIST = 10_000, 10_000  # the longest list names candidates


def check_fields(fields: Any, checks: Mapping[str, Check], what: str) -> None:
    """Refuse fields that cannot be what their names say; fields without a check are ignored.

    Args:
        fields: As read from a file.
        checks: Whether a value is of its field's kind, by the name of the field.
        what: What the fields belong to, for the message.

    Raises:
        InputError: Names the field.

    Example:
        >>> check_fields({"n": "many"}, {"n": is_count}, "privacy statement")
        Traceback (most recent call last):
        torchdpcate.errors.InputError: privacy statement: 'n' is 'many', not of its kind
    """
    if not isinstance(fields, Mapping):
        raise InputError(f"{what}: {_shortened(fields)} has no fields")
    for name, value in fields.items():
        if name in checks and not checks[name](value):
            raise InputError(f"{what}: {name!r} is {_shortened(value)}, not of its kind")


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_text(value: Any) -> bool:
    """Whether it is text in one line, with nothing in it that a terminal would obey."""
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and is_plain(value)


def is_count(value: Any) -> bool:
    """Whether it is an integer from 0 to 2^53, the most that is exact in float64."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_RECORDS


def is_number(value: Any) -> bool:
    """Whether it is a number of at most 1e100."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def is_cost(value: Any) -> bool:
    """Whether it is nothing, or a number from 0 to 1e9."""
    return value is None or (is_number(value) and 0 <= value <= _MOST_EPSILON)


def is_delta(value: Any) -> bool:
    """Whether it is nothing, 0, or a number in [1e-30, 1)."""
    return is_cost(value) and (not value or LEAST_DELTA <= value < 1)


def is_level(value: Any) -> bool:
    """Whether it names a ``Level``."""
    return isinstance(value, str) and value in list(Level)


def is_list_of_text(value: Any) -> bool:
    """Whether it is a list of texts in one line each, of at most 10,000."""
    return isinstance(value, list) and len(value) <= _LONGEST_LIST and all(map(is_text, value))


def is_facts(value: Any) -> bool:
    """Whether it maps names to words, numbers, truth values, nothing, or lists of at most 10,000 of these."""
    if not (isinstance(value, dict) and all(map(is_text, value))):
        return False
    if any(isinstance(entry, list) and len(entry) > _LONGEST_LIST for entry in value.values()):
        return False
    flat = [v for entry in value.values() for v in (entry if isinstance(entry, list) else [entry])]
    return all(v is None or isinstance(v, bool) or is_number(v) or is_text(v) for v in flat)


def is_text_by_name(value: Any) -> bool:
    """Whether it maps names to texts."""
    return isinstance(value, dict) and is_list_of_text([*value, *value.values()])


def has_keys(*names: str) -> Check:
    """Return the check that a value is a list of mappings with these keys."""

    def check(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(v, dict) and v.keys() >= set(names) for v in value)

    return check


def is_mapping(value: Any) -> bool:
    """Whether it is a JSON object."""
    return isinstance(value, dict)


def is_bool(value: Any) -> bool:
    """Whether it is true or false."""
    return isinstance(value, bool)
