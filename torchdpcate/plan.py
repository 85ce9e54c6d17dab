"""A plan: what a release asks of the records, said once; whatever else is said of it follows.

A ``Plan`` is made of public facts alone. Its ``queries`` say what is learnt from the records, each by a ``Law``: what
it costs, how it is drawn, and what its answer must look like. From these follow

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import AdditiveMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.noisy_numbers import far_problems, grid_problems
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Evidence, Game, gaussian_evidence, k_norm_evidence
from torchdpcate.release.blocks import Block, StatedCharge
from torchdpcate.release.holds_if import HOLDS_IF

if TYPE_CHECKING:
    from torchdpcate.erm.private_fit import PreparedFit
    from torchdpcate.release.release import Release
    from torchdpcate.release.statement import PrivacyStatement

CLOSE = 1e-7
"""How well what a file states must agree with its plan, relatively: some scales and costs are found by a search."""
_FAR_BUDGET = 1e6  # of what a block cost over what a plan was to cost


class Law(ABC):
    """One way in which numbers leave the records; the subclasses below are all that there are.

    Attributes:
        event: What it costs, ``count`` times.
        in_parts: Whether its parts are charged by their names.
    """

    count: int = 1
    in_parts: ClassVar[bool] = False

    @property
    @abstractmethod
    def event(self) -> Event:
        """What one run costs, ``count`` times."""

    @abstractmethod
    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """Return independent runs, float64 [runs, p].

        Args:
            noise: Where the noise comes from.
            runs: How many.
            exact: What is computed from the records, the curator's.
        """

    @abstractmethod
    def constants(self) -> dict[str, Any]:
        """Return its public constants by name."""

    @abstractmethod
    def answer_problems(self, name: str, answer: Tensor) -> Iterator[str]:
        """Return what in released numbers, as a file has them, is none of this law's answers."""

    def charge_problems(self, name: str, charges: Sequence[StatedCharge]) -> Iterator[str]:
        """Return what is wrong with the charges that a file states for it."""
        if len(charges) != 1 or charges[0].count != self.count:
            yield f"{name}: its charges are not the one that its plan makes"
        elif not same_event(charges[0].event, self.event):
            yield f"{name}: what was charged is not what its plan costs"


@dataclass(frozen=True, eq=False)
class AddedNoise(Law):
    """Numbers with noise added: of one scale, on its grid.

    Attributes:
        mechanism: Law of the noise, with the sensitivity of all numbers together.
        size: How many numbers there are.
        bound: Largest of them without noise.
    """

    mechanism: AdditiveMechanism
    size: int
    bound: float

    @property
    def event(self) -> Event:
        """See ``Law``."""
        return self.mechanism.event

    @property
    def scale(self) -> float:
        """Scale of the noise in each number."""
        return self.mechanism.released_scale(self.size)

    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """See ``Law``; of the exact numbers, in any shape of this size."""
        (numbers,) = exact
        return self.mechanism.add_noise(numbers.reshape(1, -1).expand(runs, -1), noise)

    def constants(self) -> dict[str, Any]:
        """See ``Law``."""
        return {"sensitivity": self.mechanism.sensitivity, "scale": self.scale}

    def answer_problems(self, name: str, answer: Tensor) -> Iterator[str]:
        """See ``Law``: as many numbers, on the grid of the noise, within what records and noise can make."""
        if answer.numel() != self.size:
            yield f"{name} is {answer.numel()} numbers, where its plan asks for {self.size}"
            return
        yield from grid_problems(name, answer, self.scale)
        yield from far_problems(name, answer, self.bound, self.scale)

    def evidence(self, one: Tensor, other: Tensor) -> Evidence:
        """Return the exact log-likelihood ratio of the answers on two data sets, whose exact numbers are given."""
        one, other = one.flatten(), other.flatten()
        if self.mechanism.norm == 2 and hasattr(self.event, "noise_multiplier"):
            return gaussian_evidence((one, other), (self.scale, self.scale))
        shifted = k_norm_evidence(other - one, self.scale, self.mechanism.norm)
        return lambda shown: shifted(shown - one)


@dataclass(frozen=True, eq=False)
class LinearFit(Law):
    """Coefficients of a private linear fit.

    Attributes:
        fit: The fit, calibrated.
        most: Of a coefficient.
    """

    fit: "PreparedFit"
    most: float = 1e15

    @property
    def event(self) -> Event:
        """See ``Law``."""
        return self.fit.event

    @property
    def count(self) -> int:  # type: ignore[override]
        """See ``Law``."""
        return self.fit.count

    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """See ``Law``; of the records and the target of each."""
        records, target = exact
        return self.fit.draw(records, target, noise, runs)

    def constants(self) -> dict[str, Any]:
        """See ``Law``."""
        return self.fit.public

    def answer_problems(self, name: str, answer: Tensor) -> Iterator[str]:
        """See ``Law``."""
        if not float(answer.abs().amax()) <= self.most:
            yield f"{name} has coefficients that no fit gives"
        if "solver_scale" in self.fit.public:
            yield from grid_problems(name, answer, self.fit.public["solver_scale"])


@dataclass(frozen=True, eq=False)
class Steps(Law):
    """Steps of one composition, each of one or more events, by the shares of its plan.

    Attributes:
        due: What each step costs, in the measure of ``cost``.
        cost: Of an event.
        order: In which steps are paid; those that are not named here may be paid at any time.
    """

    in_parts: ClassVar[bool] = True

    due: Mapping[str, float]
    cost: Callable[[Event], float]
    order: Sequence[str] = ()

    @property
    def event(self) -> Event:
        """There is no single one: the steps pay for themselves."""
        raise NotImplementedError

    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """The steps draw for themselves."""
        raise NotImplementedError

    def constants(self) -> dict[str, Any]:
        """See ``Law``."""
        return {}

    def answer_problems(self, name: str, answer: Tensor) -> Iterator[str]:
        """See ``Law``: what follows from the steps is checked by the plan."""
        yield from ()

    def charge_problems(self, name: str, charges: Sequence[StatedCharge]) -> Iterator[str]:
        """See ``Law``: the events of each step cost its share, and the steps are in their order."""
        spent: dict[str, float] = {}
        for charge in charges:
            assert charge.event is not None
            assert charge.count is not None
            part = charge.charge.part
            spent[part] = spent.get(part, 0.0) + charge.count * self.cost(charge.event)
        if spent.keys() != self.due.keys():
            yield f"{name}: the steps that it was charged for are not those of its plan"
        if [step for step in spent if step in self.order] != [step for step in self.order if step in spent]:
            yield f"{name}: its steps were not charged in their order"
        for step in spent.keys() & self.due.keys():
            if not math.isclose(spent[step], self.due[step], rel_tol=_SHARES):
                yield f"{name}: the step {step!r} was not charged its share of the budget"


_SHARES = 1e-6  # how well shares must agree, relatively: events are a little less than their share


@dataclass(frozen=True, eq=False)
class Query:
    """One use of the records.

    Attributes:
        charge: What it is charged for.
        law: How numbers leave the records.
        level: Of its claim.
        prefix: What the names of its public constants begin with, in statements.
    """

    charge: Charge
    law: Law
    level: Level = Level.CERTIFIED
    prefix: str = ""

    def covers(self, charge: Charge) -> bool:
        """Whether a charge is for it."""
        return self.charge == (charge.whole if self.law.in_parts else charge)

    def constants(self) -> dict[str, Any]:
        """Return the public constants of its law, by their names in statements."""
        return {f"{self.prefix}{name}": value for name, value in self.law.constants().items()}


class Plan(ABC):
    """What one release asks of the records, by public facts alone; a frozen dataclass.

    Attributes:
        name: What statements call the mechanism.
        kinds: Kinds of release that it makes.
        level: Of its guarantee.
        n: Number of records.
        budget: What all queries may cost together; None without privacy.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    level: ClassVar[Level] = Level.CERTIFIED
    n: int
    budget: PrivacyBudget | None

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        name = cls.__dict__.get("name")
        if name is None:
            return
        known = PLANS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InputError(f"name = {name}: a plan of this name is there already ({known.__module__})")
        PLANS[name] = cls

    @cached_property
    @abstractmethod
    def queries(self) -> Mapping[str, Query]:
        """What is asked of the records, in this order, by name."""

    @property
    @abstractmethod
    def formula(self) -> str:
        """The noise in words, with its source."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the public settings that statements have beside n, bounds and the constants of the queries."""

    @classmethod
    @abstractmethod
    def restated(cls, release: "Release") -> Self:
        """Return the plan that a release's public facts describe; every value in them may be forged.

        Raises:
            InputError: There is none; any other error of ``UNFIT`` means the same.
        """

    @abstractmethod
    def answers(self, release: "Release") -> Mapping[str, Tensor]:
        """Return the released numbers that a release holds: answers of queries by their names, and what follows."""

    @abstractmethod
    def conclude(self, answers: Mapping[str, Tensor], privacy: "PrivacyStatement") -> "Release":
        """Return the release that these numbers make, by public facts alone."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Records of each block, by name."""
        return {"records": self.n}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What estimates and intervals rest on, in words."""
        return ()

    def public(self) -> dict[str, Any]:
        """Return what statements have: the settings, and the constants of all queries."""
        constants = {name: value for query in self.queries.values() for name, value in query.constants().items()}
        words = {HOLDS_IF: "; ".join(self.assumptions)} if self.assumptions else {}
        return {**self.settings(), **constants, **words}

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: what follows from them is made anew in another process."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}  # type: ignore[attr-defined]

    def guarantee(self) -> Guarantee:
        """Return what is claimed of a release: level and budget."""
        return Guarantee(self.level, self.budget, source=self.name)

    def ask(self, name: str, session: FitSession, *exact: Any) -> Tensor:
        """Charge a query, draw its answer once, and return it, float64 [p].

        Args:
            name: Of the query.
            session: Pays, and draws the noise.
            exact: What its law asks for.
        """
        query = self.queries[name]
        session.pay(query.law.event, query.level, query.law.count, charge=query.charge)
        return session.noise.released(query.law.draw(session.noise, 1, *exact)[0])

    def game(self, name: str, one: Tensor, other: Tensor, **settings: Any) -> Game:
        """Return the game of an audit on the exact numbers of two data sets, with their exact likelihood ratio.

        Args:
            name: Of a query of added noise.
            one: Numbers of one data set.
            other: Of its neighbour.
            settings: Further fields of ``Game``.
        """
        law = self.queries[name].law
        assert isinstance(law, AddedNoise)
        worlds = one, other
        return Game(
            draw=lambda world, runs, noise: law.draw(noise, runs, worlds[world]),
            event=law.event,
            guarantee=self.guarantee(),
            evidence=law.evidence(one, other),
            **settings,
        )

    def problems(self, release: "Release") -> Iterator[str]:
        """Return what in a release that claims something is not what this plan makes, a sentence each.

        Args:
            release: As read from its file; every value in it may be forged.
        """
        privacy = release.privacy
        yield from differences("", privacy.public, self.public())
        if privacy.formula != self.formula:
            yield f"its formula is not that of mechanism {self.name!r}"
        if {block.name: block.n for block in privacy.blocks} != dict(self.sizes):
            yield "its blocks of records are not those of its plan"
            return
        yield from self._charge_problems(privacy.charges)
        answers = self.answers(release)
        for name, query in self.queries.items():
            if name in answers:
                yield from query.law.answer_problems(name, answers[name])
        made = self.conclude(answers, privacy)
        yield from differences("facts ", release.facts(), json.loads(json.dumps(made.facts())))
        yield from _tensor_differences(release.tensors(), made.tensors())

    def _charge_problems(self, charges: Sequence[StatedCharge]) -> Iterator[str]:
        own: dict[str, list[StatedCharge]] = {name: [] for name in self.queries}
        order = list(own)
        places = []
        for stated in charges:
            name = next((name for name, query in self.queries.items() if query.covers(stated.charge)), None)
            if name is None:
                yield f"it was charged for {stated.words!r}, which is none of its plan's queries"
            else:
                own[name].append(stated)
                places.append(order.index(name))
        if places != sorted(places):
            yield "its charges are not in the order in which its plan makes them"
        for name, query in self.queries.items():
            yield from query.law.charge_problems(name, own[name])


PLANS: dict[str, type[Plan]] = {}
"""Plans by the names of their mechanisms, of the modules imported so far."""


def same_event(stated: Event | None, needed: Event) -> bool:
    """Return whether two events are of one kind and cost; the accountant is asked in steps of 1e-9."""
    if type(stated) is not type(needed) or stated is None:
        return False
    pairs = zip(asdict(stated).values(), asdict(needed).values(), strict=True)
    return all(math.isclose(one, other, rel_tol=CLOSE) for one, other in pairs)


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


def _tensor_differences(stated: Mapping[str, Tensor], needed: Mapping[str, Tensor]) -> Iterator[str]:
    for name in sorted(stated.keys() | needed.keys()):
        one, other = stated.get(name), needed.get(name)
        if one is None or other is None or one.shape != other.shape:
            yield f"{name} is not what its plan makes of the answers"
        elif not torch.allclose(one.double(), other.double(), rtol=CLOSE, atol=0.0):
            yield f"{name} does not follow from the answers by its plan"


def _shown(value: Any, most: int = 80) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
