"""Every mechanism of the package with its worst-case neighbours."""

from difflib import get_close_matches
from importlib import import_module

from torchdpcate.errors import InputError
from torchdpcate.privacy.worst_case import WORST_CASES, WorstCase
from torchdpcate.registry import modules_with


def registry() -> dict[str, WorstCase]:
    """Return every declared worst case by name, in the order of the modules' names.

    Example:
        >>> "objective" in registry()
        True
    """
    modules = modules_with(r"^ *@worst_case\(")
    for module in modules:
        import_module(module)
    place = {module: at for at, module in enumerate(modules)}  # whatever was imported earlier
    return dict(sorted(WORST_CASES.items(), key=lambda named: place.get(named[1].make.__module__, len(place))))


def find(name: str) -> WorstCase:
    """Return the worst case of this name.

    Raises:
        InputError: There is none; the message has the nearest.
    """
    cases = registry()
    if name not in cases:
        near = get_close_matches(name, cases, 3)
        found = f"the nearest is {' or '.join(near)}; " if near else ""
        raise InputError(f"mechanism = {name}: no such audit; {found}torchdpcate audit lists all {len(cases)}")
    return cases[name]
