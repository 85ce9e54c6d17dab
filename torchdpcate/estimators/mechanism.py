"""What every mechanism that makes releases says of itself, so that verification and audits ask it and hold no copy.

A mechanism of any family has

- ``prepare(fitted, budget)``: the mechanism on a fit, ready to run, a ``Prepared``;
- ``name``: what statements call it, and its yaml's name where it has one;
- ``states``: what statements of its releases may say, a ``Stated``;
- ``recompute(release)``: what in one of them does not follow from its public facts;
- its worst-case neighbours, declared in its class by ``@worst_case`` (``privacy.worst_case``), for audits.

``verify.known.FAMILIES`` lists the mappings of such mechanisms by name, as a rule one ``Registry`` a family. A check
shared by several mechanisms is in ``estimators.recompute``, that of one family in its package; none imports ``verify``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from torchdpcate.privacy.events import Event
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
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
            (``verify.known.COMMON_CONDITIONS``); None where its parts bring conditions of their own, under any name.
        formula: Its noise scale in words; None where that is not compared.
        other_formulas: Those of releases by other events.
    """

    highest: Level
    kinds: tuple[str, ...]
    needs: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    conditions: tuple[str, ...] | None = ()
    formula: str | None = None
    other_formulas: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Prepared:
    """A mechanism on one fit: what it costs, what is public of it, and its draws. The curator's.

    Attributes:
        event: What one run costs, ``count`` times; None for what is free.
        guarantee: Level and conditions.
        draw: (noise, runs) -> outputs [runs, p], float64 on the CPU: independent runs of the mechanism. A release
            is one run; an audit asks for many.
        public: Public constants of the mechanism.
        noise_scale: Public bound s: the mechanism's median answer at x lies within z s ||psi(x)|| of the released one
            with the two-sided normal probability of z; None where no such bound is public.
        noise_scales: Public standard deviation of each answer, [d]; None where it is secret.
        count: How often the event happens in one run.
        output: The one run that was charged, [p]; empty before ``run``.
    """

    event: Event | None
    guarantee: Guarantee
    draw: Callable[[NoiseSource, int], Tensor]
    public: dict[str, Any]
    noise_scale: float | None = None
    noise_scales: Tensor | None = None
    count: int = 1
    output: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def level(self) -> Level:
        """The level to charge at: a condition known to fail leaves nothing that a later total may rest on."""
        return self.guarantee.level if self.guarantee.holds_claim else Level.HEURISTIC

    def resting_on(self, conditions: tuple[Condition, ...]) -> "Prepared":
        """Return the same mechanism with further conditions of its guarantee."""
        return replace(self, guarantee=self.guarantee.resting_on(conditions)) if conditions else self

    def run(self, session: FitSession) -> "Prepared":
        """Return the mechanism with its output: charge, then draw once."""
        if self.event is not None:
            session.pay(self.event, self.level, self.count)
        return replace(self, output=session.noise.released(self.draw(session.noise, 1)[0]))


class ReleaseMechanism(Protocol):
    """What ``verify`` asks of a mechanism; a class with class methods, or an object, has it by its shape alone."""

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
        ``states.needs``; every value in it may be forged. An error of ``estimators.recompute.UNFIT`` means that its
        constants, charges and numbers are not those of one release, and is reported so.

        Args:
            release: As read from its file.
        """
        ...
