"""What is guaranteed: its level, the conditions that it rests on, and the sentence that says so."""

import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget

_LIBRARY = Path(__file__).parents[1]


class Level(StrEnum):
    """How far a privacy claim is proved.

    ``CERTIFIED``: a proof covers what the code computes, with public constants. ``CONDITIONAL``: it holds if
    named conditions hold. ``HEURISTIC``: no proof, for research only.
    """

    CERTIFIED = "certified"
    CONDITIONAL = "conditional"
    HEURISTIC = "heuristic"

    @classmethod
    def of(cls, value: Any) -> "Level":
        """The level of that name.

        Raises:
            InputError: If there is none.
        """
        try:
            return cls(value)
        except ValueError as error:
            raise InputError(f"level = {value!r}: choose from {', '.join(cls)}") from error


def weakest(levels: Iterable[Level]) -> Level:
    """Return the level of what rests on claims of all these levels; certified if there are none.

    Example:
        >>> weakest([Level.CERTIFIED, Level.HEURISTIC, Level.CONDITIONAL]).value
        'heuristic'
    """
    return max(levels, key=list(Level).index, default=Level.CERTIFIED)


@dataclass(frozen=True)
class Condition:
    """A condition that a guarantee rests on.

    Attributes:
        name: Short name, such as ``"C1"``.
        text: What must hold, in words.
        holds: True or False as checked; None where the code could not check it.
    """

    name: str
    text: str
    holds: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionary, for a file."""
        return {"name": self.name, "text": self.text, "holds": self.holds}


@dataclass(frozen=True)
class Guarantee:
    """A privacy claim with its level, under replace-one adjacency.

    A heuristic holds no budget: one that is passed is dropped, so that no claim can be made of it.

    Attributes:
        level: How far the claim is proved.
        budget: The (epsilon, delta) claimed; None for a heuristic.
        conditions: What a conditional claim rests on.
        source: Where the proof or formula comes from, or why there is none.

    Raises:
        InputError: If a certified or conditional guarantee has no budget, or a certified one has conditions
            that are not known to hold.

    Example:
        >>> Guarantee(Level.CERTIFIED, PrivacyBudget(1.0, 1e-5)).claim
        'certified: (epsilon, delta) = (1, 1e-05) differential privacy, replace-one adjacency, n public'
        >>> Guarantee(Level.HEURISTIC, None).claim
        'heuristic: no privacy guarantee; for research only'
    """

    level: Level
    budget: PrivacyBudget | None
    conditions: tuple[Condition, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", Level.of(self.level))
        object.__setattr__(self, "conditions", tuple(self.conditions))
        if self.level is Level.HEURISTIC:
            object.__setattr__(self, "budget", None)
        elif self.budget is None:
            raise InputError(f"budget = None: a {self.level} guarantee needs a PrivacyBudget")
        if self.level is Level.CERTIFIED and any(not c.holds for c in self.conditions):
            raise InputError("level = certified: a condition is open or fails; use Level.CONDITIONAL")

    @property
    def failing(self) -> tuple[Condition, ...]:
        """The conditions known not to hold."""
        return tuple(c for c in self.conditions if c.holds is False)

    @property
    def holds_claim(self) -> bool:
        """Whether an (epsilon, delta) may be claimed: not heuristic, and no condition known to fail."""
        return self.level is not Level.HEURISTIC and not self.failing

    @property
    def claim(self) -> str:
        """One sentence for the reader; names epsilon only where ``holds_claim``."""
        if self.level is Level.HEURISTIC:
            return "heuristic: no privacy guarantee; for research only" + (f" ({self.source})" if self.source else "")
        if self.failing:
            failed = "; ".join(f"{c.name} ({c.text})" for c in self.failing)
            return f"{self.level}: no privacy guarantee, because a condition fails: {failed}"
        assert self.budget is not None
        text = (
            f"{self.level}: (epsilon, delta) = ({self.budget.epsilon:g}, {self.budget.delta:g}) "
            "differential privacy, replace-one adjacency, n public"
        )
        if self.level is Level.CONDITIONAL:
            named = "; ".join(f"{c.name} ({c.text}) {_checked(c)}" for c in self.conditions)
            text += f", if {named or 'its conditions hold (none was named)'}"
        return text

    def resting_on(self, conditions: Iterable[Condition]) -> "Guarantee":
        """Return this guarantee with further conditions; what was certified is conditional if one of them is open.

        Example:
            >>> open_one = Condition("feature map", "rows see one record")
            >>> Guarantee(Level.CERTIFIED, PrivacyBudget(1.0, 0.0)).resting_on([open_one]).level.value
            'conditional'
        """
        further = tuple(condition for condition in conditions if condition not in self.conditions)
        certain = self.level is not Level.CERTIFIED or all(condition.holds for condition in further)
        return replace(self, level=self.level if certain else Level.CONDITIONAL, conditions=self.conditions + further)

    def marked(self, private: bool) -> "Guarantee":
        """This guarantee as it stands with the noise used; none at all if the noise had a fixed seed.

        Args:
            private: ``NoiseSource.private`` of the source that made the noise.
        """
        if private:
            return self
        return replace(self, level=Level.HEURISTIC, budget=None, source="NOT PRIVATE: the noise had a fixed seed")


def of_library(value: object) -> bool:
    """Return whether a value's own class, not one above it, is the library's: proofs are of its code alone.

    A class that is given in place of a value is meant itself. A value with a method of its own is not the library's.

    Example:
        >>> of_library(PrivacyBudget(1.0, 0.0)), of_library([])
        (True, False)
    """
    return is_library_class(_class_of(value)) and not own_methods(value)


def own_methods(value: object) -> tuple[str, ...]:
    """Return the names of methods of a value's class that were replaced on the value itself.

    Example:
        >>> budget = PrivacyBudget(1.0, 0.0)
        >>> vars(budget)["to_dict"] = dict
        >>> own_methods(budget), of_library(budget)
        (('to_dict',), False)
    """
    kind, held = type(value), {} if isinstance(value, type) else getattr(value, "__dict__", {})
    settings = getattr(kind, "__dataclass_fields__", {})  # one may be a function, with a function as its default
    replaced = (name for name, method in held.items() if callable(method) and name not in settings)
    return tuple(name for name in replaced if inspect.isroutine(getattr(kind, name, None)))


def _class_of(value: object) -> type:
    return value if isinstance(value, type) else type(value)


def is_library_class(cls: type) -> bool:
    """Return whether a class is the library's."""
    module = sys.modules.get(cls.__module__)
    # a name is soon given: the class must stand under it, in a file of the library
    file, found = getattr(module, "__file__", None), module
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    named = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
    return named and found is cls and file is not None and Path(file).is_relative_to(_LIBRARY)


def user_code(role: str, value: object) -> tuple[Condition, ...]:
    """Return the condition that a user's class in place of one of the library's brings; none for the library's own.

    Args:
        role: What stands there, for instance ``weights``.
        value: What the user gave; None takes the library's.

    Example:
        >>> user_code("weights", None)
        ()
    """
    if value is None or of_library(value):
        return ()
    replaced = ", ".join(own_methods(value)) if is_library_class(_class_of(value)) else ""
    strange = f"whose {replaced} was replaced" if replaced else "which is no class of the library"
    text = f"{role} = {_class_of(value).__name__}, {strange}, keeps what those promise; not tried"
    return (Condition(role, text),)


def _checked(condition: Condition) -> str:
    return "[checked]" if condition.holds else "[not checked]"
