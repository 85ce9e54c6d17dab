"""What every mechanism that makes releases says of itself, so that verification and audits ask it and hold no copy.

Beside the noise that it draws, a mechanism of any family has

- ``name``: what statements call it, and its yaml's name where it has one;
- ``states``: what statements of its releases may say, a `Stated`;
- ``recompute(release)``: what in one of them does not follow from its public facts;
- its worst-case neighbours, declared in its class by ``@worst_case`` (`privacy.worst_case`), for audits.

`verify.known.FAMILIES` lists the mappings of such mechanisms by name, as a rule one `Registry` a family. A check shared
by several mechanisms stands in `estimators.recompute`, one of a single family in its package; none knows `verify`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.release import Release


@dataclass(frozen=True)
class Stated:
    """What releases by a mechanism may state; verification refuses whatever else a file says.

    Attributes:
        highest: The strongest level that any of them has.
        kinds: Kinds of release that it makes.
        needs: Public constants that each states where something is claimed.
        may: Further ones that some state.
        conditions: Names of the conditions that its own guarantee may rest on, beside those that any release may
            (`verify.known.COMMON_CONDITIONS`); None where its parts bring conditions of their own, under any name.
        formula: Its noise scale in words; None where that is not compared.
        prefixes: How further public constants may begin.
    """

    highest: Level
    kinds: tuple[str, ...]
    needs: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    conditions: tuple[str, ...] | None = ()
    formula: str | None = None
    prefixes: tuple[str, ...] = ()


class ReleaseMechanism(Protocol):
    """What `verify` asks of a mechanism; a class with class methods, or an object, has it by its shape alone."""

    @property
    def name(self) -> str:
        """What statements call it."""
        ...

    @property
    def states(self) -> Stated:
        """What statements of its releases may say."""
        ...

    def recompute(self, release: Release) -> Iterator[str]:
        """Return what of a release by this mechanism does not follow from its public facts, a sentence each.

        The release is one of ``states.kinds`` and claims something. Its statement need not have the constants of
        ``states.needs``; every value in it may be forged. An error of `estimators.recompute.UNFIT` means that its
        constants, charges and numbers are not those of one release, and is reported so.

        Args:
            release: As read from its file.
        """
        ...
