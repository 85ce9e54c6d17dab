"""The mechanisms by their names."""

from collections.abc import Mapping

from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.mechanisms.base import Mechanism
from torchdpcate.registry import Registry

MECHANISMS: Mapping[str, type[Mechanism]] = Registry("mechanism", "torchdpcate.estimators.cate")
"""Mechanisms by the name that ``release_queries`` and ``release_function`` take."""


def make_mechanism(mechanism: "str | Mechanism") -> Mechanism:
    """Return the mechanism of this name, or the mechanism itself.

    Raises:
        InputError: No mechanism of this name.
    """
    if isinstance(mechanism, Mechanism):
        return mechanism
    if mechanism not in MECHANISMS:
        raise InputError(f"mechanism = {mechanism}: choose one of {', '.join(sorted(MECHANISMS))}")
    return MECHANISMS[mechanism]()
