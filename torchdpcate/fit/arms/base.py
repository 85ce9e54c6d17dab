"""What a selector asks of nuisances, by name: functions of K arms, and what one record does at most to their scores."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.score import score_spread
from torchdpcate.data.domain import Domain
from torchdpcate.data.propensity import KnownPropensity
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.guarantee import Condition, Level
from torchdpcate.privacy.session import FitSession
from torchdpcate.registry import Registry

_ROUNDING = 1e-12  # of decimals such as 1/3


@dataclass(frozen=True)
class SelectionFacts:
    """Public facts of one selection.

    Attributes:
        domain: Public bounds.
        actions: Labels of the K actions, in the order of their positions.
        overlap: zeta, the least propensity, at most 1 / K.
        n: Number of records.
    """

    domain: Domain
    actions: tuple[int, ...]
    overlap: float
    n: int

    @property
    def arms(self) -> int:
        """K."""
        return len(self.actions)

    @property
    def known(self) -> KnownPropensity | None:
        """The propensity that the domain knows.

        Raises:
            InputError: It is that of another number of arms, or below the overlap.
        """
        known = self.domain.known_propensity
        if known is None:
            return None
        if len(known.of_arms) != self.arms:
            raise InputError(f"propensity tells of {len(known.of_arms)} arms; there are {self.arms} actions")
        least = known.of_arms.min().item()
        if least < self.overlap - _ROUNDING:
            raise InputError(f"propensity is {least:g} at least, below overlap = {self.overlap:g}; lower the overlap")
        return known

    def propensity_range(self) -> Tensor:
        """Return what the domain says of the propensities, or the overlap alone: least and largest, [K, 2]."""
        if self.known is not None:
            return self.known.of_arms
        ends = torch.tensor([self.overlap, 1 - (self.arms - 1) * self.overlap], dtype=torch.float64)
        return ends.expand(self.arms, 2)

    def outcome_range(self) -> Tensor:
        """Return what the domain alone says of the outcome models: least and largest, [K, 2]."""
        ends = torch.tensor([self.domain.outcome_low, self.domain.outcome_high], dtype=torch.float64)
        return ends.expand(self.arms, 2)


class FittedNuisances(ABC):
    """Propensities and outcome models of K arms, as functions of the covariates."""

    @abstractmethod
    def propensity(self, x: Tensor) -> Tensor:
        """Return P(arm | x), float64 [n, K], rows that add up to one and are at least the overlap."""

    @abstractmethod
    def outcome(self, x: Tensor) -> Tensor:
        """Return the mean outcome per arm, float64 [n, K], within the outcome's bounds."""

    def of(self, records: CausalData) -> Tensor:
        """Return P(arm) of records, [n, K]."""
        return self.propensity(records.x)


@dataclass(frozen=True, eq=False)
class WithKnown(FittedNuisances):
    """Outcome models beside a propensity that the domain knows.

    Attributes:
        models: Where the outcome models come from.
        known: The propensity.
    """

    models: FittedNuisances
    known: KnownPropensity

    def propensity(self, x: Tensor) -> Tensor:
        """See ``FittedNuisances.propensity``; where it is known of records alone, the middle of its bounds."""
        middle = self.known.of_arms.mean(1).to(x.device).expand(len(x), -1)
        return middle if self.known.column is not None else self.known.arms_of(CausalData(x, x[:, 0], x[:, 0]))

    def outcome(self, x: Tensor) -> Tensor:
        return self.models.outcome(x)

    def of(self, records: CausalData) -> Tensor:
        """Return P(arm) of records, which may carry their own."""
        return self.known.arms_of(records)


@dataclass(frozen=True, eq=False)
class GuaranteedNuisances:
    r"""Nuisances, and what one replaced record can do to the sums of scores that are made of them.

    Attributes:
        nuisances: The functions.
        range_sensitivity: Public bound of Delta_BR: by how much one replaced record moves the utilities of two policies
            apart, in outcome units; infinite where nothing bounds it.
        public: Public constants, for the statement.
        conditions: What else it rests on, where that cannot be proved.
        clip: How far an outcome counts at most beside its outcome model, in outcome units; infinite: as far as it is.
    """

    nuisances: FittedNuisances
    range_sensitivity: float
    public: dict[str, Any]
    conditions: tuple[Condition, ...] = ()
    clip: float = math.inf


class ScoreSource(ABC):
    """Where a selector's scores come from: public settings alone, chosen without looking at the records.

    Attributes:
        guarantee: The name of what bounds the range sensitivity: a key of ``GUARANTEES``.
        level: How far their range sensitivity is proved.
        states: Public constants that statements have of them, where ``followed`` does not say so.
    """

    guarantee: ClassVar[str]
    level: ClassVar[Level] = Level.CERTIFIED
    states: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def followed(cls, stated: Mapping[str, Any], facts: SelectionFacts) -> tuple[dict[str, Any], float | None]:
        """Return its constants as they follow from those that a statement has, and the range sensitivity from them.

        Args:
            stated: Settings and released numbers among other constants; every value may be forged.
            facts: Public facts.

        Returns:
            What it states, made anew as far as it follows; and Delta_BR before scores are rounded, None where it
            follows from nothing that is stated.

        Raises:
            InputError: They are none of its own; so does any other error that plain values raise.
        """
        return {name: stated[name] for name in cls.states if name in stated}, None

    @classmethod
    def costs(cls, stated: Mapping[str, Any], facts: SelectionFacts) -> Mapping[Charge, Event]:
        """Return what nuisances of one event cost, by its charge; see ``followed``."""
        return {}

    @property
    def needs_all_records(self) -> str | None:
        return None

    def planned_range(self, facts: SelectionFacts, budget: PrivacyBudget) -> float:
        """Return the range sensitivity that plans expect: what the domain and the overlap alone allow.

        Args:
            facts: Public facts.
            budget: Of all that is spent.
        """
        return 2 * score_spread(facts.domain, facts.propensity_range(), facts.outcome_range())

    def planned_epsilon(self, facts: SelectionFacts, budget: PrivacyBudget) -> float:
        """Return what the choice has of epsilon: all of it, unless nuisances cost something.

        Args:
            facts: Public facts.
            budget: Of all that is spent.
        """
        return budget.epsilon

    def check(self, facts: SelectionFacts, budget: PrivacyBudget | None) -> None:
        """Refuse, before anything is spent, what could not be fitted.

        Args:
            facts: Public facts.
            budget: Of all that is spent; None fits without privacy.

        Raises:
            InputError: An overlap outside (0, 1 / K], no record, or settings that do not fit.
        """
        most, arms = 1 / facts.arms, facts.arms
        if not 0 < facts.overlap <= most:
            raise InputError(
                f"overlap zeta = {facts.overlap:g}: K = {arms} propensities add up to one; give one above 0 and at "
                f"most 1 / K = {most:.4g}"
            )
        if facts.n < 1:
            raise InputError("records: there are none; give at least one")


class ScoreNuisances(ScoreSource):
    """Scores by nuisances that are functions of the covariates; see ``ScoreSource``."""

    @abstractmethod
    def fit(
        self, records: CausalData | None, facts: SelectionFacts, *, session: FitSession | None = None
    ) -> GuaranteedNuisances:
        """Return nuisances with their range sensitivity, paying for them where they cost something.

        Args:
            records: Those that score; actions as positions 0 to K - 1.
            facts: Public facts.
            session: Pays, and draws the noise; None fits without privacy.

        Raises:
            InputError: See ``check``.
            BudgetError: The records cannot pay.
        """


GUARANTEES = Registry(
    "nuisance_guarantee",
    classes={
        "auto": "torchdpcate.estimators.selection.composed.AutoScores",
        "centred": "torchdpcate.fit.arms.private.CentredNuisances",
        "composed": "torchdpcate.estimators.selection.composed.ComposedScores",
        "fixed": "torchdpcate.fit.arms.fixed.FixedNuisances",
    },
)
"""Where nuisances may come from, by the name of what bounds one record's influence on the utilities."""

DEFAULT = "auto"


def make_nuisances(nuisance: Any, guarantee: str | None) -> ScoreSource:
    """Return the nuisances of a selector, whose guarantee is the one that was requested.

    Args:
        nuisance: ``ScoreSource``; None for the guarantee's default.
        guarantee: A key of ``GUARANTEES``; None takes the nuisances' own, or ``auto``.

    Raises:
        InputError: An unknown guarantee, one that these nuisances do not have, or learned nuisances without any.

    Example:
        >>> make_nuisances(None, "fixed").guarantee
        'fixed'
    """
    given = None if guarantee is None else GUARANTEES.find(guarantee)
    if nuisance is None:
        return (given or GUARANTEES[DEFAULT])()
    if not isinstance(nuisance, ScoreSource) or nuisance.guarantee not in GUARANTEES:
        raise InputError(
            f"nuisance = {type(nuisance).__name__}: has no guarantee, and double robustness is none: one replaced "
            "record moves the scores of all records, not one\nuse nuisance_guarantee=composed, or nuisances that do "
            "not come from these records (nuisance_guarantee=centred or fixed)"
        )
    if guarantee not in (None, nuisance.guarantee):
        raise InputError(
            f"nuisance_guarantee = {guarantee}: {type(nuisance).__name__} has the guarantee {nuisance.guarantee}; ask "
            "for that one, or leave nuisance out"
        )
    return nuisance
