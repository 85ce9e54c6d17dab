"""Old names of the public API: they keep working for this version, with one line of warning."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Named = TypeVar("Named", bound=type)


def warn_renamed(old: str, new: str) -> None:
    """Say that a name is an old one.

    Args:
        old: The name that was used.
        new: What takes its place.
    """
    warnings.warn(f"{old} is now {new}; the old name will be refused by the next version", FutureWarning, stacklevel=3)


def renamed(**names: str) -> Callable[[Named], Named]:
    """Let a class know earlier names of its arguments and attributes.

    Args:
        names: New names by the old ones.

    Example:
        >>> @renamed(share="budget_fraction")
        ... class Bought:
        ...     def __init__(self, budget_fraction=0.1):
        ...         self.budget_fraction = budget_fraction
        >>> with warnings.catch_warnings(record=True):
        ...     warnings.simplefilter("always")
        ...     made = Bought(share=0.2)
        ...     made.budget_fraction, made.share
        (0.2, 0.2)
    """

    def of(cls: Named) -> Named:
        make = cls.__init__  # type: ignore[misc]

        @wraps(make)
        def make_by_old_names(self: Any, *args: Any, **settings: Any) -> None:
            for old in names.keys() & settings.keys():
                warn_renamed(f"{cls.__name__}: {old}", names[old])
                settings[names[old]] = settings.pop(old)
            make(self, *args, **settings)

        cls.__init__ = make_by_old_names  # type: ignore[misc]
        for old, new in names.items():
            if not hasattr(cls, old):
                setattr(cls, old, _alias(old, new))
        return cls

    return of


def _alias(old: str, new: str) -> property:
    def get(self: Any) -> Any:
        warn_renamed(f"{type(self).__name__}.{old}", new)
        return getattr(self, new)

    def put(self: Any, value: Any) -> None:
        warn_renamed(f"{type(self).__name__}.{old}", new)
        setattr(self, new, value)

    return property(get, put)
