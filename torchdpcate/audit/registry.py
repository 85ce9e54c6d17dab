"""Every mechanism of the package with its worst-case neighbours."""

from importlib import import_module

from torchdpcate.errors import InputError
from torchdpcate.privacy.worst_case import WORST_CASES, WorstCase

_ROOMS = (
    "torchdpcate.privacy",
    "torchdpcate.privacy.selection",
    "torchdpcate.privacy.selection_mechanisms",
    "torchdpcate.erm",
    "torchdpcate.nuisance.worst_case",
    "torchdpcate.nuisance.screening",
    "torchdpcate.nuisance.convex",
    "torchdpcate.audit.one_run",
    "torchdpcate.release",
    "torchdpcate.policy",
    "torchdpcate.policy.spill_pair",
    "torchdpcate.policy.tuning",
    "torchdpcate.policy.worst_case",
    "torchdpcate.policy.selection.worst_case",
    "torchdpcate.policy.selection.stable_pair",
    "torchdpcate.effects.worst_case",
    "torchdpcate.effects.worst_case_stage_one",
    "torchdpcate.effects.worst_case_gradient",
    "torchdpcate.effects.worst_case_user_basis",
    "torchdpcate.effects.worst_case_peers",
    "torchdpcate.audit.adaptive",
    "torchdpcate.audit.pipelines",
)
"""Rooms that declare worst cases where they are imported; a new one adds its line."""


def registry() -> dict[str, WorstCase]:
    """Return every declared worst case by name, in the order of the rooms.

    Example:
        >>> "objective" in registry()
        True
    """
    for room in _ROOMS:
        import_module(room)
    return dict(WORST_CASES)


def find(name: str) -> WorstCase:
    """Return the worst case of this name.

    Raises:
        InputError: There is none; the message lists those there are.
    """
    cases = registry()
    if name not in cases:
        raise InputError(f"mechanism = {name}: no such audit; choose one of {', '.join(cases)}")
    return cases[name]
