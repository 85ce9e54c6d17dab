"""Nuisances that are public numbers: one record moves one score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.score import project_to_floor, score_spread
from torchdpcate.data.propensity import KnownPropensity, StratumPropensity
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import FittedNuisances, GuaranteedNuisances, ScoreNuisances, SelectionFacts, WithKnown
from torchdpcate.privacy.budget import PrivacyBudget, number
from torchdpcate.privacy.session import FitSession

Numbers = float | Sequence[float] | None
"""One number, one an arm, or None for the default."""


@dataclass(frozen=True)
class FixedNuisances(ScoreNuisances):
    r"""A known propensity, and public numbers for the outcome models.

    Scores stay unbiased whatever the numbers are, if the propensity is right. One record's scores of two actions lie
    at most S apart, which `score_spread` works out exactly: R, the outcome's range, for propensities of a half and
    the middle as outcome, where learned nuisances may have R / zeta. Hence a range sensitivity of 2 S.

    Guarantee:
        Certified, and free: a score is a public function of its own record. Source: theory note ``policy_learning``,
        section 6.1.

    Args:
        propensity: P(A = second action) of a trial with two arms, one number an arm, or the name of the covariate
            that holds P(A = second action | x); None takes what the domain knows, else 1 / K for each.
        outcome: The outcome models: one number for all arms, or one an arm; None takes the middle of the bounds.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> facts = SelectionFacts(Domain([0.0], [1.0], 0.0, 1.0), (0, 1), overlap=0.1, n=100)
        >>> FixedNuisances(0.5).fit(None, facts).range_sensitivity
        2.0
    """

    guarantee: ClassVar[str] = "fixed"

    propensity: Numbers | str = None
    outcome: Numbers = None

    def check(self, facts: SelectionFacts, budget: PrivacyBudget | None) -> None:
        """See ``ScoreNuisances.check``; also refuses propensities outside [zeta, 1 - zeta] and a wrong count."""
        super().check(facts, budget)
        self._ranges(facts)

    def fit(
        self, records: CausalData | None, facts: SelectionFacts, *, session: FitSession | None = None
    ) -> GuaranteedNuisances:
        """See ``ScoreNuisances.fit``; nothing is fitted and nothing spent."""
        propensity, outcome = self._ranges(facts)
        nuisances: FittedNuisances = PublicNumbers(propensity[:, 0], outcome[:, 0])
        if facts.known is None and isinstance(self.propensity, str):
            nuisances = WithKnown(nuisances, _of_covariate(self.propensity, facts))
        return GuaranteedNuisances(
            nuisances,
            2 * score_spread(facts.domain, propensity, outcome),
            public={
                "propensity": self._stated(facts, propensity),
                "outcome": outcome[:, 0].tolist(),
            },
        )

    @classmethod
    def followed(cls, stated: Mapping[str, Any], facts: SelectionFacts) -> tuple[dict[str, Any], float | None]:
        """See ``ScoreSource``: all of it follows."""
        propensity = stated["propensity"] if facts.known is None else None
        made = FixedNuisances(propensity, stated["outcome"]).fit(None, facts)
        return made.public, made.range_sensitivity

    def planned_range(self, facts: SelectionFacts, budget: PrivacyBudget) -> float:
        """Return the range sensitivity, which is known."""
        return 2 * score_spread(facts.domain, *self._ranges(facts))

    def _stated(self, facts: SelectionFacts, propensity: Tensor) -> Any:
        """Return what statements say of the propensity: numbers of the arms, or the column that tells it."""
        if isinstance(self.propensity, str):
            return self.propensity
        known = facts.known
        if isinstance(known, StratumPropensity):
            return known.covariate
        return propensity[:, 0].tolist() if known is None or known.column is None else known.column

    def _ranges(self, facts: SelectionFacts) -> tuple[Tensor, Tensor]:
        """Return the intervals of propensities and outcome models, [K, 2] each."""
        outcome = constant_outcome(self.outcome, facts)
        if facts.known is not None:
            refuse_another(self.propensity, facts)
            return facts.propensity_range(), outcome[:, None].expand(-1, 2)
        if isinstance(self.propensity, str):
            return _of_covariate(self.propensity, facts).of_arms, outcome[:, None].expand(-1, 2)
        propensity = constant_propensity(self.propensity, facts)
        return propensity[:, None].expand(-1, 2), outcome[:, None].expand(-1, 2)


def refuse_another(propensity: Any, facts: SelectionFacts) -> None:
    """Refuse a propensity beside one that the domain knows.

    Raises:
        InputError: It is given, and not the same.
    """
    known = facts.domain.known_propensity
    if propensity is not None and known is not None and propensity != known.entry():
        given = propensity if isinstance(propensity, int | float | str | list | tuple) else type(propensity).__name__
        raise InputError(f"propensity = {given}: the domain says propensity: {known.entry()}; leave one of them out")


def constant_propensity(value: Numbers, facts: SelectionFacts) -> Tensor:
    """Return the propensities [K] of one number (the second of two arms'), K numbers, or None (all equal).

    Raises:
        InputError: Not as many as arms, below the overlap, or not adding up to one.
    """
    arms = facts.arms
    if value is None:
        return torch.full((arms,), 1 / arms, dtype=torch.float64)
    if isinstance(value, int | float):
        if arms != 2:
            raise InputError(f"propensity = {value:g}: there are {arms} actions; give a number for each")
        value = (1 - number("propensity", value), float(value))
    e = _numbers("propensity", value, facts)
    # decimals such as 0.1 + 0.2 + 0.7 miss one by rounding alone
    if bool((e < facts.overlap - 1e-12).any()) or abs(e.sum().item() - 1) > 1e-9:
        raise InputError(
            f"propensity = {e.tolist()}: propensities add up to one, and none lies below the overlap zeta = "
            f"{facts.overlap:g}; correct them, or lower the overlap"
        )
    return project_to_floor(e, facts.overlap)


def constant_outcome(value: Numbers, facts: SelectionFacts) -> Tensor:
    """Return the outcome models [K] of one number, K numbers, or None (the middle of the bounds).

    Raises:
        InputError: Not as many as arms, or outside the outcome's bounds.
    """
    domain = facts.domain
    if value is None:
        value = (domain.outcome_low + domain.outcome_high) / 2
    means = _numbers("outcome", [value] * facts.arms if isinstance(value, int | float) else value, facts)
    domain.check_outcome(means, "outcome")
    return means


def _numbers(name: str, values: Sequence[float], facts: SelectionFacts) -> Tensor:
    if not hasattr(values, "__len__"):
        raise InputError(f"{name} is of type {type(values).__name__}; give numbers, one for each action")
    if len(values) != facts.arms:
        raise InputError(f"{name} has {len(values)} numbers; there are {facts.arms} actions: give one for each")
    return torch.tensor([number(name, value) for value in values], dtype=torch.float64)


@dataclass(frozen=True)
class CovariatePropensity(KnownPropensity):
    """One that a covariate holds.

    Attributes:
        position: Of the covariate.
        bounds: Least and largest propensity, public.
    """

    position: int
    bounds: tuple[float, float]

    def at(self, x: Tensor) -> Tensor:
        """Return the covariate, clipped to the bounds, [B]."""
        return x[:, self.position].double().clamp(*self.bounds)

    def select(self, columns: Sequence[int]) -> "CovariatePropensity":
        return CovariatePropensity(list(columns).index(self.position), self.bounds)

    def entry(self) -> int:
        """Return the position."""
        return self.position


def _of_covariate(name: str, facts: SelectionFacts) -> CovariatePropensity:
    """Return the propensity of the second of two actions, which a covariate holds, clipped to the overlap."""
    if facts.arms != 2:
        raise InputError(f"propensity = {name!r}: one column is for two actions; there are {facts.arms}")
    domain = facts.domain
    if name not in domain.names:
        raise InputError(f"propensity = {name!r}: no such covariate; choose one of {', '.join(domain.names)}")
    column = domain.names.index(name)
    low, high = float(domain.covariate_low[column]), float(domain.covariate_high[column])
    if not 0 <= low <= high <= 1:
        raise InputError(
            f"propensity = {name!r}: its public bounds [{low:g}, {high:g}] must lie between 0 and 1; narrow them in "
            "the domain"
        )
    least, most = facts.overlap, 1 - facts.overlap
    return CovariatePropensity(column, (min(max(low, least), most), min(max(high, least), most)))


@dataclass(frozen=True, eq=False)
class PublicNumbers(FittedNuisances):
    """Public numbers.

    Attributes:
        propensities: Of the arms, [K].
        means: Outcome models of the arms, [K].
    """

    propensities: Tensor
    means: Tensor

    def propensity(self, x: Tensor) -> Tensor:
        return self.propensities.expand(len(x), -1)

    def outcome(self, x: Tensor) -> Tensor:
        return self.means.expand(len(x), -1)
