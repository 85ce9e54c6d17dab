"""A plan: what a release asks of the records, said once; whatever else is said of it follows.

A ``Plan`` is made of public facts alone. Its ``queries`` say what is learnt from the records, each by a ``Law``: what
it costs and how it is drawn. From these follow

- what is charged, and drawn (``Plan.ask``);
- the statement (``Plan.public``);
- verification: the plan is made anew from the public facts in a file, and says what in it is not its own
  (``Plan.problems``);
- the audit's game on two data sets (``Plan.game``).

A mechanism is a subclass: its settings, its ``queries``, and what it makes of their answers (``conclude``). A
sensitivity stands in ``queries`` and nowhere else.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.laws import CLOSE, AddedNoise, Choice, Law
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game
from torchdpcate.release.blocks import Block, StatedCharge
from torchdpcate.release.statement import (
    IMPUTED,
    MISSING_ESTIMATED,
    MISSING_RANDOMISED,
    MISSING_VALUES,
    STATED_AS,
)

if TYPE_CHECKING:
    from torchdpcate.data.schema import TableSchema
    from torchdpcate.release.file import Release
    from torchdpcate.release.statement import PrivacyStatement

Made = TypeVar("Made", bound="Release")
UNFIT = (InputError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What public facts that are not those of one release make a plan raise that is made of them."""
RECORDS = "records"
"""The one block of a plan that looks at all records at once."""
_LEVELS = list(Level)
_FAR_BUDGET = 1e6  # of what a block cost over what a plan was to cost


@dataclass(frozen=True, eq=False)
class Query:
    """One use of the records.

    Attributes:
        charge: What it is charged for.
        law: How numbers leave the records.
        level: Of its claim.
        blocks: Names of the blocks that are charged: each of them holds records that it looks at.
        prefix: What the names of its public constants begin with, in statements; None where the plan states them.
    """

    charge: Charge
    law: Law
    level: Level = Level.CERTIFIED
    blocks: tuple[str, ...] = (RECORDS,)
    prefix: str | None = ""

    def level_problems(self, name: str, charges: Sequence[StatedCharge]) -> Iterator[str]:
        """Return where charges for it, by its name, are called stronger than it is."""
        for stated in charges:
            if _LEVELS.index(stated.level) < _LEVELS.index(self.level):
                yield f"{name} is {self.level} at most, but its charge is called {stated.level}"

    def covers(self, charge: Charge) -> bool:
        """Whether a charge is for it."""
        return self.charge == (charge.whole if self.law.in_parts else charge)

    def constants(self) -> dict[str, Any]:
        """Return the public constants of its law, by their names in statements."""
        if self.prefix is None:
            return {}
        return {f"{self.prefix}{name}": value for name, value in self.law.constants().items()}

    def ask(self, session: FitSession, *exact: Any) -> Tensor:
        """Charge it, draw its answer once, and return that, float64 [p].

        Args:
            session: Pays, and draws the noise.
            exact: What its law requests.
        """
        return self.ask_runs(session, 1, *exact)[0]

    def ask_runs(self, session: FitSession, runs: int, *exact: Any) -> Tensor:
        """Return independent answers, float64 [runs, p], charged once together; a simulation requests more than one."""
        session.pay(self.law.event, self.level, self.law.count, charge=self.charge)
        answers = self.law.draw(session.noise, runs, *exact)
        return answers if self.law.hands_out else session.noise.released(answers)


class StatedPlan(ABC, Generic[Made]):
    """What a release of a class asks of the records, by public facts alone; a frozen dataclass.

    A release may rest on more, such as nuisances that were paid for before; see ``Plan`` for those that do not.

    Attributes:
        name: What statements call the mechanism.
        kinds: Kinds of release that it makes.
        level: Of its guarantee.
        close: How well numbers agree that follow from answers, over the largest of them.
        repeats: Whether other releases from the same fit may have been charged before it.
        free: Whether it asks nothing of the records: post-processing of what was paid for before.
        n: Number of records.
        budget: What all queries may cost together; None without privacy.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    level: ClassVar[Level] = Level.CERTIFIED
    close: ClassVar[float] = CLOSE
    repeats: ClassVar[bool] = False
    free: bool = False
    n: int
    budget: PrivacyBudget | None

    def __init_subclass__(cls, names: Iterable[str] = (), **given: Any) -> None:
        """Make the plan known by its name, or by names that its plans choose from."""
        super().__init_subclass__(**given)
        own = cls.__dict__.get("name")
        for name in (own,) if isinstance(own, str) else names:
            known = PLANS.get(name)
            if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise InputError(f"name = {name}: a plan of this name is there already ({known.__module__})")
            PLANS[name] = cls

    @cached_property
    @abstractmethod
    def queries(self) -> Mapping[str, Query]:
        """What is requested of the records, in this order, by name."""

    @property
    @abstractmethod
    def formula(self) -> str:
        """The noise in words, with its source."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the public settings that statements have beside n, bounds and the constants of the queries."""

    @classmethod
    @abstractmethod
    def restated(cls, release: Made) -> Self:
        """Return the plan that a release's public facts describe; every value in them may be forged.

        Raises:
            InputError: There is none; any other error of ``UNFIT`` means the same.
        """

    @abstractmethod
    def answers(self, release: Made) -> Mapping[str, Tensor]:
        """Return the released numbers that a release holds: answers of queries by their names, and what follows."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Records of each block, by name."""
        return {RECORDS: self.n}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What estimates and intervals rest on, in words."""
        return ()

    def public(self) -> dict[str, Any]:
        """Return what statements have: the settings, and the constants of all queries."""
        constants = {name: value for query in self.queries.values() for name, value in query.constants().items()}
        assumed, missing = self.assumptions, self._missing_values()
        if assumed and MISSING_ESTIMATED in missing:
            assumed = *assumed, MISSING_ESTIMATED
        words = {STATED_AS: "; ".join(assumed)} if assumed else {}
        return {**self.settings(), **constants, **words, **({MISSING_VALUES: missing} if missing else {})}

    def _missing_values(self) -> str:
        """Return what becomes of missing covariates, and what is assumed of them; empty where none may be."""
        schema: TableSchema | None = getattr(self, "schema", None)
        names = [] if schema is None else schema.may_miss
        if schema is None or not names:
            return ""
        assumed = MISSING_ESTIMATED if schema.domain.known_propensity is None else MISSING_RANDOMISED
        return f"of {', '.join(names)}: {IMPUTED}; {assumed}"

    def following(self, answers: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return what statements have besides: constants that follow from released numbers."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: what follows from them is made anew in another process."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}  # type: ignore[attr-defined]

    def guarantee(self) -> Guarantee:
        """Return what is claimed of a release: level and budget.

        Raises:
            InputError: The plan declares no query, so that nothing says what its release costs.
        """
        if not self.queries and not self.free and self.budget is not None and self.level is not Level.HEURISTIC:
            raise InputError(
                f"mechanism = {self.name}: its plan declares no query, so that nothing says what a release costs; give "
                f"{type(self).__name__}.queries what it asks of the records"
            )
        return Guarantee(self.level, self.budget, source=self.name)

    def ask(self, name: str, session: FitSession, *exact: Any) -> Tensor:
        """Charge a query, draw its answer once, and return it, float64 [p].

        Args:
            name: Of the query.
            session: Pays, and draws the noise.
            exact: What its law requests.
        """
        return self.queries[name].ask(session, *exact)

    def ask_runs(self, name: str, session: FitSession, runs: int, *exact: Any) -> Tensor:
        """Return independent answers of a query, float64 [runs, p], each charged once together; see ``ask``.

        Only a session that charges nothing, as of a simulation, requests more than one.
        """
        return self.queries[name].ask_runs(session, runs, *exact)

    def game(self, name: str, one: Tensor, other: Tensor, **settings: Any) -> Game:
        """Return the game of an audit on the exact numbers of two data sets, with their exact likelihood ratio.

        Args:
            name: Of a query of added noise, or of a choice.
            one: Numbers of one data set.
            other: Of its neighbour.
            settings: Further fields of ``Game``.
        """
        law = self.queries[name].law
        assert isinstance(law, AddedNoise | Choice)
        datasets = one, other
        return Game(
            draw=lambda dataset, runs, noise: law.draw(noise, runs, datasets[dataset]),
            event=law.event,
            guarantee=self.guarantee(),
            evidence=law.evidence(one, other),
            **settings,
        )

    def problems(self, release: Made) -> Iterator[str]:
        """Return what in a release that claims something is not what this plan makes, a sentence each.

        Args:
            release: As read from its file; every value in it may be forged.
        """
        yield from self.statement_problems(release)

    def statement_problems(self, release: Made) -> Iterator[str]:
        """Return what a release states or was charged that this plan does not make."""
        privacy = release.privacy
        if not self.queries and not self.free:
            yield "its plan declares no query, so that nothing says what it costs"
        public = json.loads(json.dumps(self.public() | self.following(self.answers(release))))
        yield from differences("", privacy.public, public)
        if privacy.formula != self.formula:
            yield f"its formula is not that of mechanism {privacy.mechanism!r}"
        if {block.name: block.n for block in privacy.blocks} != dict(self.sizes):
            yield "its blocks of records are not those of its plan"
            return
        for block in privacy.blocks:
            yield from self._charge_problems(block)

    def _charge_problems(self, block: Block) -> Iterator[str]:
        queries = {name: query for name, query in self.queries.items() if block.name in query.blocks}
        own: dict[str, list[StatedCharge]] = {name: [] for name in queries}
        order, places = list(queries), []
        for stated in block.charges:
            name = next((name for name, query in queries.items() if query.covers(stated.charge)), None)
            if name is not None:
                own[name].append(stated)
                places.append(order.index(name))
            elif not (self.repeats and stated.purpose is Purpose.RELEASE):
                yield f"it was charged for {stated.words!r}, which is none of its plan's queries"
        if places != sorted(places):
            yield "its charges are not in the order in which its plan makes them"
        for name, query in queries.items():
            # a fit may have been requested several releases, of which this is the last
            last = self.repeats and query.charge.purpose is Purpose.RELEASE and not query.law.in_parts
            yield from query.level_problems(name, own[name])
            yield from query.law.charge_problems(name, own[name][-1:] if last else own[name])


class Plan(StatedPlan[Made]):
    """A plan from which a release follows, given the answers of its queries."""

    @abstractmethod
    def conclude(self, answers: Mapping[str, Tensor], privacy: "PrivacyStatement") -> Made:
        """Return the release that these numbers make, by public facts alone."""

    def problems(self, release: Made) -> Iterator[str]:
        """See ``StatedPlan``; what it holds follows from its answers."""
        yield from super().problems(release)
        yield from self.conclusion_problems(release)

    def conclusion_problems(self, release: Made) -> Iterator[str]:
        """Return what in a release does not follow from its answers by this plan."""
        made = self.conclude(self.answers(release), release.privacy)
        yield from differences("facts ", release.facts(), json.loads(json.dumps(made.facts())))
        yield from _tensor_differences(release.tensors(), made.tensors(), self.close)


PLANS: dict[str, type[StatedPlan[Any]]] = {}
"""Plans by the names of their mechanisms, of the modules imported so far."""


def differences(of: str, stated: Mapping[str, Any], needed: Mapping[str, Any]) -> Iterator[str]:
    """Return where what a file states is not what its plan makes.

    Args:
        of: What the values are of, in words.
        stated: As the file has them.
        needed: As the plan makes them.
    """
    strange, missing = sorted(stated.keys() - needed.keys()), sorted(needed.keys() - stated.keys())
    if strange:
        yield f"its {of or 'public constants '}hold {', '.join(map(repr, strange))}, which its plan does not state"
    if missing:
        yield f"its {of or 'public constants '}lack {', '.join(missing)}"
    for name in sorted(stated.keys() & needed.keys()):
        if isinstance(stated[name], Mapping) and isinstance(needed[name], Mapping):
            yield from differences(f"{of or 'public constants '}{name} ", stated[name], needed[name])
        elif not _agree(stated[name], needed[name]):
            yield f"{of}{name} = {_shown(stated[name])} is stated, but its plan makes it {_shown(needed[name])}"


def requested_budget(block: Block, epsilon: Any, delta: Any) -> PrivacyBudget:
    """Return the budget that a plan was made of, as its statement has it, before anything is made of it.

    What it cost is near it, unless other releases from the same records cost more; so no plan takes long.

    Args:
        block: The records that paid.
        epsilon: As stated.
        delta: As stated.

    Raises:
        ValueError: It is far from what it cost.
    """
    budget = PrivacyBudget(as_number(epsilon), as_number(delta))
    cost, most = as_number(block.epsilon), as_number(block.delta)
    if not cost / _FAR_BUDGET <= budget.epsilon <= cost * _FAR_BUDGET:
        raise ValueError(f"requested epsilon = {budget.epsilon:g}, far from {cost:g}")
    if budget.delta and not (most == 0 or most / _FAR_BUDGET <= budget.delta):
        raise ValueError(f"requested delta = {budget.delta:g}, far from {most:g}")
    return budget


def _agree(stated: Any, needed: Any) -> bool:
    if isinstance(needed, float) and isinstance(stated, int | float) and not isinstance(stated, bool):
        return math.isclose(stated, needed, rel_tol=CLOSE)
    if isinstance(needed, list | tuple) and isinstance(stated, list):
        return len(stated) == len(needed) and all(map(_agree, stated, needed))
    return type(stated) is type(needed) and stated == needed


def _tensor_differences(stated: Mapping[str, Tensor], needed: Mapping[str, Tensor], close: float) -> Iterator[str]:
    for name in sorted(stated.keys() | needed.keys()):
        one, other = stated.get(name), needed.get(name)
        if one is None or other is None or one.shape != other.shape:
            yield f"{name} is not what its plan makes of the answers"
        elif not torch.allclose(one.double(), other.double(), rtol=close, atol=close * _largest(other)):
            yield f"{name} does not follow from the answers by its plan"


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _shown(value: Any, most: int = 80) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
