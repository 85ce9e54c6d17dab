"""Nuisances that are public numbers: one record moves one score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.score import score_spread
from torchdpcate.data.propensity import KnownPropensity, StratumPropensity, known_propensity
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import FittedNuisances, GuaranteedNuisances, ScoreNuisances, SelectionFacts
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
        propensity: P(A = second action) of a trial with two arms, or one number an arm; None takes what the domain
            knows, else 1 / K for each.
        outcome: The outcome models: one number for all arms, or one an arm; None takes the middle of the bounds.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> facts = SelectionFacts(Domain([0.0], [1.0], 0.0, 1.0), (0, 1), overlap=0.1, n=100)
        >>> FixedNuisances(0.5).fit(None, facts).range_sensitivity
        2.0
    """

    guarantee: ClassVar[str] = "fixed"

    propensity: Numbers = None
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
        known = self._known(facts)
        named = known.covariate if isinstance(known, StratumPropensity) else known.column
        return GuaranteedNuisances(
            PublicNumbers(propensity[:, 0], outcome[:, 0]),
            2 * score_spread(facts.domain, propensity, outcome),
            public={"propensity": named or propensity[:, 0].tolist(), "outcome": outcome[:, 0].tolist()},
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

    def _ranges(self, facts: SelectionFacts) -> tuple[Tensor, Tensor]:
        """Return the intervals of propensities and outcome models, [K, 2] each."""
        return self._known(facts).of_arms, constant_outcome(self.outcome, facts)[:, None].expand(-1, 2)

    def _known(self, facts: SelectionFacts) -> KnownPropensity:
        known, given, arms = facts.known, self.propensity, facts.arms
        if known is not None:
            if given not in (None, known.entry()):
                raise InputError(
                    f"propensity = {given}: the domain says propensity: {known.entry()}; leave one of them out"
                )
            return known
        if isinstance(given, str):
            raise InputError(f"propensity = {given}: is no number; write propensity: into the domain")
        known = known_propensity([1 / arms] * arms if given is None else given, (), {}, facts.overlap)
        assert known is not None
        if len(known.of_arms) != arms:
            raise InputError(f"propensity = {given}: there are {arms} actions; give a number for each")
        return known


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
