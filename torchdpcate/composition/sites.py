"""Several sites, one plan: each adds its noise to sums of its own records, and all go on from the total of these."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from torchdpcate.composition.rows import InMemory, Rows
from torchdpcate.composition.steps import NoisySteps, StepEvent
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import integer

_MOST = 1e15  # of a total
_STARTED = set[tuple[str, int]]()  # sites by name, with the digest of their records, that have begun in this process
Facts = Mapping[str, Any]
"""What a site says of its plan before anything is paid: public facts in plain types, by name."""


class Link(Protocol):
    """What carries a site's messages to all sites; it sees noisy sums, and the public facts of the plan."""

    def agree(self, facts: Facts) -> None:
        """Return once all sites have said the same facts.

        Raises:
            InputError: They differ, or a site does not answer.
        """

    def total(self, step: str, values: Tensor) -> Tensor:
        """Return the total of all sites' numbers, float64 [p].

        Args:
            step: Which step they belong to.
            values: This site's, with its noise, float64 [p].

        Raises:
            InputError: A site is at another step, or does not answer.
        """

    def finish(self, release: Path) -> None:
        """Take the file of the release, which is public and the same at all sites.

        Args:
            release: The file.
        """


@dataclass(frozen=True, eq=False)
class Site:
    r"""One of K sites that run the same composition, each on its own records and from its own ledger.

    At each step a site pays, draws the whole noise of what it paid, and sends the noisy sum; all sites go on from the
    total. A record of n of all sites moves the sums of its own site alone, so that nobody, the coordinator and the
    other sites included, learns more of it than the budget says. The noise in a total has :math:`\sqrt K` times the
    standard deviation of one site's: the result is that of a composition of all n records with :math:`\mu / \sqrt K`.

    A start that fails has sent sums all the same, and another sends a second set of them, charged again. A ledger over
    all starts (``SharedLedger``) refuses one beyond its total; without it a second start is refused.

    Guarantee:
        Certified: each record has its own site's (epsilon, delta) by start; a person with records at k sites pays at
        each.

    Args:
        name: Of this site.
        sizes: Number of records of each site by name, public.
        link: Carries the messages.
        again: Whether a second start on the same records is meant, where no shared ledger counts both.

    Raises:
        InputError: Fewer than two sites, sizes that are no positive integers, or a name that is none of theirs.

    Example:
        >>> meeting = Meeting(["north", "south"])
        >>> site = Site("north", {"north": 600, "south": 400}, meeting.link("north"))
        >>> site.total_of(600)
        1000
    """

    name: str
    sizes: Mapping[str, int]
    link: Link
    again: bool = False

    def __post_init__(self) -> None:
        if len(self.sizes) < 2:
            raise InputError(f"sites: there is {len(self.sizes)}; give two or more, with the number of records of each")
        for name, size in self.sizes.items():
            integer(f"sites.{name}", size, least=1)
        if self.name not in self.sizes:
            raise InputError(f"site = {self.name}: is none of the sites; give the name of one of them")

    def total_of(self, n: int) -> int:
        """Return the number of records of all sites.

        Args:
            n: Number of this site's records.

        Raises:
            InputError: It is not what the site said.
        """
        if n != self.sizes[self.name]:
            raise InputError(
                f"site = {self.name}: has {n} records, and said {self.sizes[self.name]} to all sites; give the records "
                "that were counted, or agree on new sizes at all sites"
            )
        return sum(self.sizes.values())

    def begin(self, facts: Facts, records: int, counted: bool) -> None:
        """Agree with all sites on the plan, and note the start; nothing is paid yet.

        Args:
            facts: Of the plan.
            records: By what this site's records are known in this process (``keyed_digest``).
            counted: Whether a ledger over all starts counts this one.

        Raises:
            InputError: Facts that differ between sites, or a second start that is not meant.
        """
        start = self.name, records
        if start in _STARTED and not (counted or self.again):
            raise InputError(
                f"site = {self.name}: these records have sent noisy sums before; another start sends a second set of "
                "them, and is charged again: give ledger_path=SharedLedger(...).run(), which counts both, or again=True"
            )
        self.link.agree({"sizes": dict(self.sizes), **facts})
        _STARTED.add(start)

    def rows(self, rows: Rows) -> Rows:
        """Return this site's records as the composition of all sees them.

        Raises:
            InputError: A stream.
        """
        if not isinstance(rows, InMemory):
            raise InputError("stream: a site holds its records in memory; use fit(X, A, Y) (data.stream=false)")
        return SiteRecords(rows.records, self.total_of(rows.n))


@dataclass(frozen=True, eq=False)
class SiteRecords(InMemory):
    """Records of one site in memory: totals are of these, and n is of all sites.

    Attributes:
        every: Number of records of all sites.
    """

    every: int

    @property
    def n(self) -> int:  # type: ignore[override]
        return self.every


@dataclass(frozen=True, eq=False)
class SiteSteps(NoisySteps):
    """The steps of a composition at one site: what it paid for leaves it with its noise, and the total comes back.

    Attributes:
        link: Carries the numbers.
        paid: Steps that were paid, the last of which draws.
    """

    link: Link = field(kw_only=True)
    paid: list[str] = field(default_factory=list, kw_only=True)

    def pay(self, step: str, part: float = 1.0, count: int = 1) -> StepEvent:
        event = super().pay(step, part, count)
        self.paid.append(step)
        return event

    def noisy(self, values: Tensor, sensitivity: float, event: StepEvent) -> Tensor:
        """See ``NoisySteps``: the total of all sites."""
        return self._total(super().noisy(values, sensitivity, event))

    def noisy_gradient(self, values: Tensor, sensitivity: float, event: StepEvent) -> Tensor:
        """See ``NoisySteps``: the total of all sites."""
        return self._total(super().noisy_gradient(values, sensitivity, event))

    def _total(self, noisy: Tensor) -> Tensor:
        total = self.link.total(self.paid[-1], noisy)
        # larger numbers could overflow at some records alone, which would show in the next sum
        if total.shape != noisy.shape or not bool((total.abs() <= _MOST).all()):
            raise InputError(f"sites: the total of step {self.paid[-1]!r} is none of {noisy.numel()} noisy sums")
        return total


# -- what is done with the messages of all sites


def require_same(said: Mapping[str, Facts]) -> None:
    """Refuse plans that differ between sites.

    Args:
        said: Facts by site.

    Raises:
        InputError: Names the first difference.

    Example:
        >>> require_same({"north": {"epsilon": 1.0}, "south": {"epsilon": 1.0}})
    """
    (first, facts), *others = said.items()
    for name, other in others:
        for key in dict.fromkeys([*facts, *other]):
            if facts.get(key) != other.get(key):
                raise InputError(f"sites: {_difference(first, facts.get(key), name, other.get(key), key)}")


def _difference(first: str, one: Any, name: str, other: Any, key: str) -> str:
    """Return where two values of a fact differ first, in words."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        inner = next(key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key))
        return _difference(first, one.get(inner), name, other.get(inner), f"{key}.{inner}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        place = next(place for place in range(len(one)) if one[place] != other[place])
        return _difference(first, one[place], name, other[place], f"{key}[{place}]")
    return f"{key} is {one} at {first} and {other} at {name}; all sites need the same plan and domain"


def added_up(sent: Mapping[str, tuple[str, Tensor]]) -> Tensor:
    """Return the total of what all sites sent at one step, [p].

    Args:
        sent: Step and numbers by site.

    Raises:
        InputError: They are at different steps, or sent differently many numbers.

    Example:
        >>> import torch
        >>> one = torch.ones(2, dtype=torch.float64)
        >>> added_up({"north": ("moments", one), "south": ("moments", 2 * one)}).tolist()
        [3.0, 3.0]
    """
    (first, (step, values)), *others = sorted(sent.items())
    total = values.clone()
    for name, (other, numbers) in others:
        if (other, numbers.shape) != (step, values.shape):
            raise InputError(
                f"sites: {name} sent {numbers.numel()} numbers of step {other!r}, and {first} {values.numel()} of "
                f"{step!r}; use the same version of the library at all sites"
            )
        total += numbers
    return total


class Meeting:
    """Sites in threads of one process, for simulations and tests.

    Args:
        names: Of the sites.
        wait: Seconds after which a site that does not come ends the meeting.

    Attributes:
        seen: What a coordinator would have seen: step and numbers by site, message by message.
    """

    def __init__(self, names: "list[str] | tuple[str, ...]", wait: float = 600.0) -> None:
        self.seen: list[dict[str, Any]] = []
        self._names, self._sent, self._answer = tuple(names), dict[str, Any](), None
        self._join: Callable[[Mapping[str, Any]], Any] = require_same
        self._error: InputError | None = None
        self._barrier = threading.Barrier(len(self._names), self._meet, wait)

    def link(self, name: str) -> "MeetingLink":
        """Return the link of a site."""
        return MeetingLink(self, name)

    def leave(self) -> None:
        """End the meeting for all, as a site that stops does."""
        self._barrier.abort()

    def met(self, name: str, message: Any, join: Callable[[Mapping[str, Any]], Any]) -> Any:
        """Return what is made of all sites' messages.

        Args:
            name: Of the site.
            message: Its own.
            join: What makes it.

        Raises:
            InputError: As ``join``; or a site stopped, or did not come.
        """
        self._sent[name], self._join = message, join
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise self._error or InputError("sites: a site stopped or did not answer; nothing is released") from None
        return self._answer

    def _meet(self) -> None:
        sent = {name: self._sent[name] for name in self._names}
        self.seen.append(sent)
        try:
            self._answer = self._join(sent)
        except InputError as error:
            self._error = error
            raise threading.BrokenBarrierError from None


@dataclass(frozen=True, eq=False)
class MeetingLink:
    """A site's link to a ``Meeting``; see ``Link``."""

    meeting: Meeting
    name: str

    def agree(self, facts: Facts) -> None:
        self.meeting.met(self.name, facts, require_same)

    def total(self, step: str, values: Tensor) -> Tensor:
        found: Tensor = self.meeting.met(self.name, (step, values), added_up)
        return found.clone()

    def finish(self, release: Path) -> None:
        """See ``Link``: in one process nobody needs it."""
