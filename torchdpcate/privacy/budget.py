"""The privacy budget: the pair (epsilon, delta) that a mechanism or a block of records may spend."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchdpcate.errors import InputError

LEAST_DELTA = 1e-30
"""Least delta above 0; what noise and accounts neglect is far below it (docs/guarantees/common.md)."""

_ROUNDING = 1e-9  # of an epsilon that is split


@dataclass(frozen=True)
class PrivacyBudget:
    r"""A budget for differential privacy under replace-one adjacency, n public.

    .. math:: P(M(D) \in S) \le e^{\epsilon} P(M(D') \in S) + \delta

    for all D, D' of the same size that differ in one record (Dwork & Roth 2014, definition 2.4).

    Attributes:
        epsilon: Positive and finite.
        delta: 0, which means pure differential privacy, or in [1e-30, 1).

    Raises:
        InputError: If ``epsilon`` or ``delta`` is outside its range.

    Example:
        >>> PrivacyBudget(1.0, 1e-5)
        PrivacyBudget(epsilon=1.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", some_delta("delta", self.delta))

    def to_dict(self) -> dict[str, float]:
        """Plain dictionary with the keys ``epsilon`` and ``delta``."""
        return {"epsilon": self.epsilon, "delta": self.delta}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "PrivacyBudget":
        """Inverse of ``to_dict``.

        Raises:
            InputError: If a key is missing or a value is outside its range.
        """
        try:
            return cls(values["epsilon"], values["delta"])
        except (KeyError, TypeError) as error:
            raise InputError(f"budget = {values!r}: needs the keys epsilon and delta") from error


def split_epsilon(epsilon: float, shares: Mapping[str, float]) -> dict[str, float]:
    """Return the epsilon of each part by its share of all of them; rounded so that they never add up to more.

    Example:
        >>> {part: round(own, 6) for part, own in split_epsilon(1.0, {"sum": 3, "squares": 1}).items()}
        {'sum': 0.75, 'squares': 0.25}
    """
    shared = sum(shares.values()) * (1 + _ROUNDING)
    return {part: epsilon * share / shared for part, share in shares.items()}


def number(name: str, value: Any) -> float:
    """The value as a finite float; an ``InputError`` names the argument otherwise."""
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} = {value!r}: give a number") from error
    if not math.isfinite(result):
        raise InputError(f"{name} = {result}: give a finite number")
    return result


def as_number(value: Any) -> float:
    """Return a finite number of a file, and nothing that merely looks like one.

    Raises:
        TypeError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def positive(name: str, value: Any) -> float:
    """The value as a positive finite float; an ``InputError`` names the argument otherwise."""
    result = number(name, value)
    if result <= 0:
        raise InputError(f"{name} = {result:g}: give a number above 0")
    return result


def probability(name: str, value: Any, *, above_zero: bool = False, why: str = "") -> float:
    """The value as a float in [0, 1), or in (0, 1); an ``InputError`` names the argument otherwise."""
    result = number(name, value)
    if not 0 <= result < 1 or (above_zero and result == 0):
        interval = "(0, 1)" if above_zero else "[0, 1)"
        raise InputError(f"{name} = {result:g}: give a number in {interval}{'; ' + why if why else ''}")
    return result


def some_delta(name: str, value: Any, *, above_zero: bool = False, why: str = "") -> float:
    """Return the value as a ``probability`` that is 0 or at least ``LEAST_DELTA``."""
    result = probability(name, value, above_zero=above_zero, why=why)
    if 0 < result < LEAST_DELTA:
        raise InputError(f"{name} = {result:g}: give 0, or at least {LEAST_DELTA:g}; less is not proved")
    return result


def integer(name: str, value: Any, *, least: int) -> int:
    """The value as an integer of at least ``least``; an ``InputError`` names the argument otherwise."""
    result = number(name, value)
    if result != int(result) or result < least:
        raise InputError(f"{name} = {value!r}: give an integer of at least {least}")
    return int(result)
