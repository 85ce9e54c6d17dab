"""What a released average effect states in numbers, and what its mechanism says of itself to those who check it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand, make_estimand
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.mechanism import Stated
from torchdpcate.privacy.budget import as_number
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import Event, PureEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.registry import Registry
from torchdpcate.release.average_effect import CHOICE, AverageEffectRelease
from torchdpcate.release.blocks import Block
from torchdpcate.release.holds_if import HOLDS_IF, UNSTATED

EFFECT_ESTIMATORS = Registry("effect/estimator")
"""Effect estimators on weighted records, by name."""
AVERAGE_MECHANISMS = Registry("effect/mechanism")
"""Other mechanisms that release average effects, by name."""

RECORDS, NUISANCE = "records", "nuisance"
"""The block that is released from, and one that trains nuisances alone."""

FITTED = {"weights": Purpose.WEIGHTS, "outcome_model": Purpose.OUTCOME_MODEL}
"""What is fitted privately before the release, and what it is charged as."""

CHOSEN_BY, PLANNED_ERROR = CHOICE
AUTO = "auto"
"""What chose it."""

ON_WEIGHTS = (
    *("loss", "basis", "noise_per_record", "slope_bound"),
    *(f"epsilon_{part}" for part in ("stage_one", "outcome_model", "balance", "difference_in_means")),
)
"""Public constants of estimates on weights that were fitted before."""


class ContradictionError(ValueError):
    """Public constants that contradict each other; the text says how."""


@dataclass(frozen=True, eq=False)
class Entry:
    """What was charged once.

    Attributes:
        charge: What for.
        event: What happened, once.
        count: How often.
        level: How far the claim is proved.
        block: The block of records that paid.
    """

    charge: Charge
    event: Event
    count: int
    level: Level
    block: Block


@dataclass(frozen=True, eq=False)
class StatedEffect:
    """A released average effect that claims something, with its estimand.

    Attributes:
        release: The release, as read from its file.
        estimand: Estimand and overlap, as its statement has them.
    """

    release: AverageEffectRelease
    estimand: Estimand

    @classmethod
    def of(cls, release: AverageEffectRelease) -> "StatedEffect":
        """Return what this release states.

        Raises:
            TypeError: Its overlap is no number.
            InputError: Its overlap is out of range.
        """
        return cls(release, make_estimand(release.estimand, as_number(release.privacy.public["eta"])))

    @property
    def public(self) -> Mapping[str, Any]:
        """Public constants of the statement."""
        return self.release.privacy.public

    @property
    def n(self) -> int:
        """Number of records that are released from."""
        return next(block.n for block in self.release.privacy.blocks if block.name == RECORDS)

    @property
    def balancing(self) -> bool:
        """Whether the weights are fitted by the balancing loss."""
        return self.public.get("loss") == "balancing"

    def number(self, name: str) -> float:
        """Return a public constant.

        Raises:
            KeyError: There is none of that name.
            TypeError: It is no number.
        """
        return as_number(self.public[name])

    def sums(self) -> dict[str, Tensor]:
        """Return the released numbers by name, one run each, [1]."""
        return {name: torch.tensor([as_number(x)], dtype=torch.float64) for name, x in self.release.numbers.items()}

    @property
    def entries(self) -> list[Entry]:
        """Everything that was charged, block by block."""
        return [
            Entry(paid.charge, paid.event, paid.count, paid.level, block)
            for block in self.release.privacy.blocks
            for paid in block.charges
            if paid.event is not None and paid.count is not None
        ]

    def charged(self, purpose: Purpose) -> list[Entry]:
        """Return what was charged for a purpose before the release."""
        return [entry for entry in self.entries if entry.charge.purpose is purpose]

    def own(self, part: str, piece: str | None = "") -> list[Entry]:
        """Return what was charged for a part of the release itself.

        Args:
            part: The part.
            piece: Which number of it; None for all of them.
        """
        charge = Charge(Purpose.RELEASE, self.release.privacy.mechanism, part)
        found = (entry for entry in self.entries if replace(entry.charge, piece="") == charge)
        return [entry for entry in found if piece is None or entry.charge.piece == piece]

    def epsilon(self, part: str, piece: str = "") -> float:
        """Return the epsilon charged for a part of the release itself, or for a number of it.

        Raises:
            ValueError: Nothing was charged for it, or not a pure epsilon.
        """
        paid = self.own(part, piece)
        if not paid or not all(isinstance(entry.event, PureEvent) for entry in paid):
            raise ValueError(f"{part} was not charged at a pure epsilon")
        return sum(entry.event.epsilon * entry.count for entry in paid if isinstance(entry.event, PureEvent))


@dataclass(frozen=True, eq=False)
class Recomputed:
    """What a released average effect must be, by its numbers, its public constants and its charges.

    Attributes:
        estimate: What follows from its numbers, one run.
        constants: Least and largest value of public constants.
        reaches: Of its numbers, the largest absolute value without noise, and the scale of the noise.
        gaussian: Least and largest Gaussian deviation of the estimate's error; None where it is the estimate's own.
    """

    estimate: NoisyEstimate
    constants: Mapping[str, tuple[float, float]]
    reaches: Mapping[str, tuple[float, float]]
    gaussian: tuple[float, float] | None = None


def exactly(constants: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return constants that may have no other value, as ``Recomputed`` has them."""
    return {name: (value, value) for name, value in constants.items()}


def states(*constants: str, fits: tuple[str, ...] = ()) -> Stated:
    """Return what statements of an average effect may say.

    Args:
        constants: Names of public constants beside learner, estimand, eta and what the estimate rests on.
        fits: What was fitted privately before, of ``FITTED``.
    """
    may, needs = frozenset((*CHOICE, *constants)), frozenset(("learner", "estimand", "eta", HOLDS_IF))
    return Stated(Level.CERTIFIED, (AverageEffectRelease.kind,), needs, may, conditions=None, fits=fits)


class AverageMechanism(ABC):
    """What releases an average effect: how verification sees it.

    Attributes:
        name: What statements call it.
        formula: Its noise scales in words, with their source.
        numbers: Numbers that its releases hold, with the part of the budget that paid for each.
        states: What its statements may say.
        rests_on: Which models must follow the truth for estimate and interval, in words, beside that nothing else
            confounds and that treated and controls overlap; the full warning where a class does not say it.
        on_weights: Whether it works on released weights, beside which a balance table and a difference in means may be.
        on_nuisances: Whether a block of its own trains nuisances.
        intervals: Whether an interval that counts sampling is known.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    numbers: ClassVar[Mapping[str, str]]
    states: ClassVar[Stated]
    rests_on: ClassVar[str] = UNSTATED
    on_weights: ClassVar[bool] = False
    on_nuisances: ClassVar[bool] = False
    intervals: ClassVar[bool] = True

    @classmethod
    def numbers_of(cls, estimand: Estimand) -> Mapping[str, str | None]:
        """Return the numbers of a release for this estimand, with what paid for each; None for one that is public."""
        return cls.numbers

    @classmethod
    def numbers_in(cls, stated: StatedEffect) -> Mapping[str, str | None]:
        """Return the numbers of a release with these public facts; see ``numbers_of``.

        Raises:
            ContradictionError: Constants that contradict each other.
        """
        return cls.numbers_of(stated.estimand)

    @classmethod
    def holds_if(cls, public: Mapping[str, Any]) -> str:
        """Return what it rests on where it has the public constants of this statement: ``rests_on``."""
        return cls.rests_on

    @classmethod
    @abstractmethod
    def work_out(cls, stated: StatedEffect) -> Recomputed:
        """Return what a release must be, by the functions that make releases.

        Args:
            stated: A release by this mechanism; every value in it may be forged.

        Raises:
            ContradictionError: Constants that contradict each other.
        """

    @classmethod
    def recompute(cls, release: AverageEffectRelease) -> Iterator[str]:
        """Return what of a release does not follow from its public facts; see ``estimators.mechanism``."""
        from torchdpcate.estimators.average.recompute import problems  # which knows the mechanisms

        yield from problems(cls, release)
