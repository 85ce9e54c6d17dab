"""Checks of single public facts: numbers, names, bounds, kinds of outcomes, and where facts come from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchdpcate._text import alike, in_one_script, is_plain
from torchdpcate.errors import InputError

IN_CODE = "given in code by the curator"
"""Origin of bounds where the domain names none."""

OPEN = "???"
"""What stands in a draft for a public fact that nobody has given yet."""

OUTCOME_KINDS = ("continuous", "binary", "count")
"""What an outcome may be declared to be."""


LARGEST_BOUND = 1e18
"""Largest bound of a covariate or outcome, in size; its inverse is the least width of its bounds."""
MOST_COLUMNS = 21_201
"""Most encoded columns that covariates may have: the dimensions that public points of Sobol's sequence are known in."""


def check_count(columns: int) -> None:
    """Refuse more encoded columns of covariates than ``MOST_COLUMNS``.

    Raises:
        InputError: There are more.
    """
    if columns > MOST_COLUMNS:
        raise InputError(
            f"covariates have {columns:,} columns, with one for each of more than two levels; name at most "
            f"{MOST_COLUMNS:,}, chosen without the records"
        )


def check_filled(facts: Any) -> None:
    """Refuse the entries of a domain file in which a fact is still open.

    Args:
        facts: The entries, lists and mappings of any depth.

    Raises:
        InputError: Says which are ``???``.

    Example:
        >>> check_filled({"covariates": {"age": {"low": "???", "high": 90}}})
        Traceback (most recent call last):
        ...
        torchdpcate.errors.InputError: covariates.age.low is still ???; give the public fact, not one of the records
    """
    left = list(_open_entries(facts, ""))
    if left:
        more = f", and so {'is' if len(left) == 2 else 'are'} {_listed(left[1:])}" if left[1:] else ""
        raise InputError(f"{left[0]} is still {OPEN}{more}; give the public fact, not one of the records")


def _open_entries(facts: Any, name: str) -> Iterator[str]:
    if isinstance(facts, Mapping):
        for key, value in facts.items():
            yield from _open_entries(value, f"{name}.{key}" if name else str(key))
    elif isinstance(facts, list | tuple):
        for value in facts:
            yield from _open_entries(value, name)
    elif facts == OPEN:
        yield name


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def check_entries(entry: Any, what: str, needed: set[str], allowed: set[str]) -> Mapping[str, Any]:
    """Return a mapping that has the entries it needs and no unknown ones.

    Args:
        entry: The mapping.
        what: Name of it.
        needed: Names of entries that it has.
        allowed: Those that it may have besides.

    Raises:
        InputError: No mapping; an entry that is missing, or unknown.
    """
    if not isinstance(entry, Mapping):
        raise InputError(f"{what} is {entry!r}; it needs the entries {', '.join(sorted(needed))}")
    missing = sorted(key for key in needed if entry.get(key) is None)
    unknown = sorted(str(key) for key in entry if key not in needed | allowed)
    if missing:
        raise InputError(f"{what} has no entry {missing[0]!r}; it needs {', '.join(sorted(needed))}")
    if unknown:
        raise InputError(
            f"{what} has the unknown entry {unknown[0]!r}; known are {', '.join(sorted(needed | allowed))}"
        )
    return entry


def to_number(name: str, value: Any) -> float:
    """Return ``value`` as a finite float.

    Raises:
        InputError: It is missing, not a number, or not finite.
    """
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        raise InputError(f"{name} is beyond the largest number there is; give a finite number") from None
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; give a number") from None
    if not abs(number) < float("inf"):
        raise InputError(f"{name} is {number}; give a finite number")
    return number


def check_integer(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number.

    Raises:
        InputError: It is none, or below the least.

    Example:
        >>> check_integer("data.parts", 0)
        Traceback (most recent call last):
        ...
        torchdpcate.errors.InputError: data.parts = 0: give a positive integer
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} = {value!r}: give {'a positive integer' if least else 'an integer from 0'}")
    return value


def check_name(what: str, name: str) -> str:
    """Return the name of a column or category: it is shown on terminals and pages, and in releases.

    Raises:
        InputError: It has control characters, line ends, or characters that turn the direction of writing; it is not in
            composed form (NFC); or a word of it mixes letters of scripts that look alike, such as Latin and Cyrillic.
    """
    if not is_plain(name):
        raise InputError(f"the name of {what} is {name!r}; rename it: letters that can be shown, in one line")
    if not in_one_script(name):
        raise InputError(
            f"the name of {what} is {name!r}, {name!a}; rename it: letters of one script, in composed form (NFC)"
        )
    return name


def check_distinct(what: str, names: Sequence[str]) -> None:
    """Refuse names that a reader would take for one another.

    Raises:
        InputError: Two are the same but for case, width, spaces, invisible characters or letters that look alike.

    Example:
        >>> check_distinct("columns", ["age", "Age"])
        Traceback (most recent call last):
        ...
        torchdpcate.errors.InputError: columns 'age' and 'Age' look alike; rename one
    """
    pair = alike(names)
    if pair is not None:
        shown = " and ".join(repr(name) if name.isascii() else f"{name!r} ({name!a})" for name in pair)
        raise InputError(f"{what} {shown} look alike; rename one")


def check_bounds(name: str, low: Any, high: Any) -> tuple[float, float]:
    """Return the bounds as floats.

    Raises:
        InputError: One is missing or not finite, they are inverted or equal, one is beyond ``LARGEST_BOUND``, or they
            are closer to each other than its inverse.
    """
    low, high = to_number(f"lower bound of {name}", low), to_number(f"upper bound of {name}", high)
    if low > high:
        raise InputError(f"bounds of {name} are inverted: low {low:g} is above high {high:g}; swap them")
    if low == high:
        raise InputError(f"bounds of {name} are both {low:g}; low must be below high (leave a constant column out)")
    if max(-low, high) > LARGEST_BOUND or (high - low) * LARGEST_BOUND < 1:
        raise InputError(
            f"bounds of {name} are [{low:g}, {high:g}]; state them in a unit in which they are at most "
            f"{LARGEST_BOUND:g} and {1 / LARGEST_BOUND:g} apart or more: what is made of them must not overflow"
        )
    return low, high


def check_kind(kind: Any, low: float, high: float) -> str:
    """Return the kind of an outcome with these bounds.

    Raises:
        InputError: An unknown kind, a binary outcome whose bounds are not 0 and 1, or a count below 0.
    """
    if kind not in OUTCOME_KINDS:
        raise InputError(f"kind of outcome is {kind!r}; choose one of {', '.join(OUTCOME_KINDS)}")
    if kind == "binary" and (low, high) != (0.0, 1.0):
        raise InputError(f"outcome is binary with bounds [{low:g}, {high:g}]; code it as 0 and 1")
    if kind == "count" and (low < 0 or low != int(low) or high != int(high)):
        raise InputError(f"outcome is a count with bounds [{low:g}, {high:g}]; give integers from 0 on")
    return kind


def check_better(better: Any) -> str | None:
    """Return which outcomes are good, ``"higher"`` or ``"lower"`` ones; None where nothing is said.

    Raises:
        InputError: Another word.
    """
    if better not in (None, "higher", "lower"):
        raise InputError(f"better of outcome is {better!r}; choose higher or lower, whichever outcomes are good")
    return better  # type: ignore[no-any-return]


def check_sd(sd: Any, low: float, high: float) -> float | None:
    """Return the standard deviation of an outcome with these bounds, as stated for plans; None where nothing is said.

    Raises:
        InputError: No number, or one that no outcome within the bounds has.
    """
    if sd is None:
        return None
    value = to_number("sd of outcome", sd)
    if not 0 < value <= (high - low) / 2:
        raise InputError(
            f"sd of outcome is {value:g}; give its standard deviation as known from outside the records, above 0 and "
            f"at most half of the range, {(high - low) / 2:g}"
        )
    return value


def check_shown(fact: str, name: str, words: Any, most: int = 60) -> str:
    """Return the label or the unit of a column, or the label of a level, as readers see it; empty if nothing is said.

    Raises:
        InputError: It is not words, longer than ``most`` letters, or see ``check_name``.
    """
    if not isinstance(words, str) or len(words) > most:
        raise InputError(f"{fact} of {name} is {words!r}; give words of at most {most} letters")
    return check_name(f"the {fact} of {name}", words.strip())


def check_origin(name: str, origin: Any) -> str:
    """Return where facts come from, as one line of words.

    Raises:
        InputError: It is not words.
    """
    if not isinstance(origin, str) or not origin.strip():
        raise InputError(f"origin of {name} is {origin!r}; say in words where its bounds come from")
    words = " ".join(origin.split())
    if not is_plain(words):
        raise InputError(f"origin of {name} is {origin!r}; write it in letters that can be shown")
    return words
