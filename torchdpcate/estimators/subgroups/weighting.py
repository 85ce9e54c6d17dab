"""How records weigh in effects of subgroups: alike, or by a propensity that is known or released."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError

EQUAL, KNOWN, FITTED, COMPOSED = "equal", "known", "fitted", "composed"
"""All alike; by the propensity that the domain states; by a private logistic regression; doubly robust scores."""
PROPENSITIES = ("auto", "randomised", KNOWN, FITTED, COMPOSED)
"""What a user may say of the propensity."""
ATE, ATO = "ATE", "ATO"
"""Average effect of a cell; and that average weighted by e(x) (1 - e(x)), of those who might be in either arm."""

_HOLDS_IF = {
    EQUAL: (
        "treatment was randomised with one probability within each cell; where it was not, estimates are biased and "
        "intervals may never hold the effects"
    ),
    KNOWN: "treatment was assigned with the propensity that the domain states",
    FITTED: (
        "the log-odds of treatment are linear in the covariates with the released coefficients, whose noise the "
        "intervals do not count; where they are not, estimates are biased and intervals may never hold the effects"
    ),
    COMPOSED: (
        "the log-odds of treatment, or the mean outcomes, are combinations of the features that n and epsilon could "
        "pay for, or the domain states the propensity; scores beyond the clip cancel in each cell; and errors of both "
        "nuisances are at most (n / N)^(1/4) times as large in a cell of N records as among all n; where not, "
        "estimates are biased and intervals may never hold the effects"
    ),
}
_OVERLAPPING = 0.2  # planned mean of e (1 - e) where e is not known; 1/4 at most
_OVERLAP = "each cell's effect is averaged with the weights e(x) (1 - e(x)), e being the propensity"


@dataclass(frozen=True)
class Weighting:
    r"""Weights of records in units of the largest one, in [0, 1]: by the probability of either arm.

    .. math:: w = \frac{1 / e_a(x)}{\max 1 / e_a} \text{ (ATE)}, \qquad
        w = \frac{1 - e_a(x)}{\max 1 - e_a} \text{ (ATO)}, \qquad e_1 = e, \; e_0 = 1 - e

    Overlap weights (Li, Morgan & Zaslavsky 2018) have little noise whatever the overlap, and those of a logistic
    regression balance its covariates.

    Attributes:
        way: ``equal``, ``known``, ``fitted``, or ``composed``: records weigh the same, and their doubly robust scores
            are summed.
        low: Least propensity, public.
        high: Largest propensity, public.
        planned: Share of the treated that a plan expects.
        estimand: ``ATE``, or ``ATO``, which weights by e(x) (1 - e(x)).
    """

    way: str
    low: float
    high: float
    planned: float = 0.5
    estimand: str = ATE

    @classmethod
    def of(
        cls,
        given: str,
        schema: TableSchema,
        overlap: float | None = None,
        estimand: str = "auto",
        composes: bool = False,
    ) -> "Weighting":
        """Return the weighting for what a user says of the propensity.

        Args:
            given: ``auto``: known where the domain states it, else composed or fitted; ``randomised``: one probability
                within each cell, which need not be known; ``known``; ``fitted``; or ``composed``.
            schema: Columns and public facts.
            overlap: Public clip of a fitted propensity; None takes the domain's.
            estimand: ``ATE``, ``ATO``, or ``auto``: ATE, but of a fitted propensity ATO.
            composes: Whether ``auto`` takes composed where the propensity is not known and ATO is not asked for.

        Raises:
            InputError: No such word, a known propensity that the domain does not state, a clip outside (0, 1/2], or
                ATO of scores.
        """
        if estimand not in ("auto", ATE, ATO):
            raise InputError(f"estimand = {estimand!r}: choose auto, {ATE} or {ATO}")
        if given not in PROPENSITIES:
            raise InputError(f"propensity = {given!r}: choose one of {', '.join(PROPENSITIES)}")
        known = schema.domain.known_propensity
        if given == KNOWN and known is None:
            raise InputError("propensity = known: the domain states none; give it as propensity: in the domain yaml")
        if given == "randomised":
            return cls(EQUAL, 0.5, 0.5)
        if given == COMPOSED and estimand == ATO:
            raise InputError(f"estimand = {ATO}: propensity={COMPOSED} estimates {ATE}; take propensity={FITTED}")
        if known is not None and given not in (FITTED, COMPOSED):
            low, high = known.bounds
            asked = ATO if estimand == ATO and low < high else ATE  # one and the same where all weigh the same
            return cls(EQUAL if low == high else KNOWN, low, high, (low + high) / 2, asked)
        clip = schema.domain.overlap if overlap is None else overlap
        if not 0 < clip <= 0.5:
            raise InputError(f"overlap = {clip}: give a number in (0, 0.5]")
        if given == COMPOSED or (given == "auto" and composes and estimand != ATO):
            return cls(COMPOSED, clip, 1 - clip)
        return cls(FITTED, clip, 1 - clip, estimand=ATE if estimand == ATE else ATO)

    @property
    def largest(self) -> tuple[float, float]:
        """Largest weight of a control and of a treated record before they are scaled; 1 where all weigh the same."""
        if self.way in (EQUAL, COMPOSED):
            return 1.0, 1.0
        return (self.high, 1 - self.low) if self.estimand == ATO else (1 / (1 - self.high), 1 / self.low)

    @property
    def mass(self) -> tuple[float, ...]:
        """Expected sum of the weights of controls and of treated, for each record of a cell; of both, of scores."""
        if self.way == COMPOSED:
            return (1.0,)
        if self.way == EQUAL:
            return 1 - self.planned, self.planned
        if self.estimand == ATO:
            both = self.planned * (1 - self.planned) if self.way == KNOWN else _OVERLAPPING
            return both / self.high, both / (1 - self.low)
        return 1 - self.high, self.low

    @property
    def assumption(self) -> str:
        """What estimates rest on, in words."""
        return _HOLDS_IF[self.way] + (f"; {_OVERLAP}" if self.estimand == ATO else "")

    def weights(self, a: Tensor, propensity: Tensor | None) -> Tensor:
        """Return the weights [n] of records with treatments a [n] in {0, 1} and propensities [n]."""
        if self.way == EQUAL or propensity is None:
            return torch.ones_like(a, dtype=torch.float64)
        e = propensity.double().clamp(self.low, self.high)
        treated = a.double()
        own = treated * e + (1 - treated) * (1 - e)
        if self.estimand == ATO:
            found = (1 - own) / (treated * (1 - self.low) + (1 - treated) * self.high)
        else:
            found = (treated * self.low + (1 - treated) * (1 - self.high)) / own
        return found.clamp(0.0, 1.0)

    def public(self) -> dict[str, Any]:
        """Return the public constants, as statements have them."""
        control, treated = self.largest
        return {
            "weights": self.way,
            "estimand": self.estimand,
            "weight_control": control,
            "weight_treated": treated,
            "holds_if": self.assumption,
        }
