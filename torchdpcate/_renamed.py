"""Old names of the public API: they keep working for this version, with one line of warning."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Named = TypeVar("Named", bound=type)
Called = TypeVar("Called", bound=Callable[..., Any])


def warn_renamed(old: str, new: str) -> None:
    """Say that a name is an old one.

    Args:
        old: The name that was used.
        new: What takes its place.
    """
    warnings.warn(f"{old} is now {new}; the old name will be refused by the next version", FutureWarning, stacklevel=3)


def renamed_arguments(**names: str) -> Callable[[Called], Called]:
    """Let a function know earlier names of its arguments.

    Args:
        names: New names by the old ones.

    Example:
        >>> half = renamed_arguments(share="fraction")(lambda fraction: fraction / 2)
        >>> with warnings.catch_warnings(record=True):
        ...     half(share=0.5)
        0.25
    """

    def of(function: Called) -> Called:
        @wraps(function)
        def by_old_names(*args: Any, **settings: Any) -> Any:
            for old in names.keys() & settings.keys():
                warn_renamed(old, names[old])
                settings[names[old]] = settings.pop(old)
            return function(*args, **settings)

        return by_old_names  # type: ignore[return-value]

    return of


def renamed(**names: str) -> Callable[[Named], Named]:
    """Let a class know earlier names of its arguments, attributes and methods.

    Args:
        names: New names by the old ones.

    Example:
        >>> @renamed(share="budget_fraction")
        ... class Part:
        ...     def __init__(self, budget_fraction=0.1):
        ...         self.budget_fraction = budget_fraction
        >>> with warnings.catch_warnings(record=True):
        ...     Part(share=0.2).budget_fraction, Part().share
        (0.2, 0.1)
    """

    def of(cls: Named) -> Named:
        cls.__init__ = renamed_arguments(**names)(cls.__init__)  # type: ignore[misc]
        for old, new in names.items():
            if not hasattr(cls, old):
                setattr(cls, old, _alias(old, new))
        return cls

    return of


def _alias(old: str, new: str) -> property:
    def get(self: Any) -> Any:
        warn_renamed(f"{type(self).__name__}.{old}", new)
        return getattr(self, new)

    return property(get)
