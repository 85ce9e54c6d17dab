"""What records add to the sums of subgroups: their weights, alike or by a propensity, and their numbers by cell."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.release.cell_effects import GAUSSIAN, LAPLACE, NUMBERS, basis, powers

EQUAL, KNOWN, FITTED, COMPOSED = "equal", "known", "fitted", "composed"
"""All alike; by the propensity that the domain states; by a private logistic regression; doubly robust scores."""
RANDOMISED = "randomised"
PROPENSITIES = ("auto", RANDOMISED, KNOWN, FITTED, COMPOSED)
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
        shares: Share of each arm that a plan expects, the reference first, where there are more than two.
    """

    way: str
    low: float
    high: float
    planned: float = 0.5
    estimand: str = ATE
    shares: tuple[float, ...] = ()

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
            composes: Whether ``auto`` takes composed where the propensity is not known and ATO is not requested.

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
        if len(schema.actions) > 2:
            return cls._of_arms(given, schema)
        if given == RANDOMISED:
            return cls(EQUAL, 0.5, 0.5)
        if given == COMPOSED and estimand == ATO:
            raise InputError(f"estimand = {ATO}: propensity={COMPOSED} estimates {ATE}; take propensity={FITTED}")
        if known is not None and given not in (FITTED, COMPOSED):
            low, high = known.bounds
            requested = ATO if estimand == ATO and low < high else ATE  # one and the same where all weigh the same
            return cls(EQUAL if low == high else KNOWN, low, high, (low + high) / 2, requested)
        clip = schema.domain.overlap if overlap is None else overlap
        if not 0 < clip <= 0.5:
            raise InputError(f"overlap = {clip}: give a number in (0, 0.5]")
        if given == COMPOSED or (given == "auto" and composes and estimand != ATO):
            return cls(COMPOSED, clip, 1 - clip)
        return cls(FITTED, clip, 1 - clip, estimand=ATE if estimand == ATE else ATO)

    @classmethod
    def _of_arms(cls, given: str, schema: TableSchema) -> "Weighting":
        """Return the weighting of more than two arms, whose probabilities are the same for all records."""
        known, arms = schema.domain.known_propensity, len(schema.actions)
        if schema.domain.censoring is not None:
            raise InputError(
                f"censoring: of {arms} arms an outcome by a horizon is for task=cate (RLearner) alone, which has "
                "each arm's mean effect too; or put the records of two arms into a file of their own"
            )
        if given in (FITTED, COMPOSED) or (known is None and given != RANDOMISED):
            raise InputError(
                f"propensity = {given}: treatment {schema.treatment!r} has {arms} arms, whose averages need a trial "
                "that assigns each with one probability: state propensity: [...] in the domain, a number for each arm, "
                "or give propensity=randomised; of other records task=cate (RLearner) has effects of all arms and "
                "their means, and task=policy_selection policies; or put the records of two arms into a file of their "
                "own"
            )
        shares = (1 / arms,) * arms if known is None else tuple(known.of_arms[:, 0].tolist())
        return cls(EQUAL, 0.5, 0.5, shares=shares)

    @property
    def largest(self) -> tuple[float, float]:
        """Largest weight of a control and of a treated record before they are scaled; 1 where all weigh the same."""
        if self.way in (EQUAL, COMPOSED):
            return 1.0, 1.0
        return (self.high, 1 - self.low) if self.estimand == ATO else (1 / (1 - self.high), 1 / self.low)

    @property
    def mass(self) -> tuple[float, ...]:
        """Expected sum of the weights of each arm, controls first, for each record of a cell; of all, of scores."""
        if self.way == COMPOSED:
            return (1.0,)
        if self.way == EQUAL:
            return self.shares or (1 - self.planned, self.planned)
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
            "assumptions": self.assumption,
        }


def record_numbers(y: Tensor, weights: Tensor, law: str, domain: Domain) -> Tensor:
    """Return what each record adds to the numbers of its cells and arm, float64 [n, 3].

    Args:
        y: Outcomes [n] within the domain.
        weights: Weights [n] in [0, 1].
        law: Law of the noise, which decides the basis.
        domain: Public bounds.
    """
    u = ((y - domain.outcome_middle) / (domain.outcome_range / 2)).clamp(-1, 1)
    return weights[:, None] * (powers(u) @ basis(law).T)


def score_numbers(scores: Tensor, law: str) -> Tensor:
    """Return what each record adds to the numbers of its cells by its score in [-1, 1], float64 [n, 3].

    Args:
        scores: About their centre, over their clip, [n]; those beyond are clipped.
        law: Law of the noise, which decides the basis.
    """
    return powers(scores.clamp(-1, 1)) @ basis(law).T


def cell_sums(
    numbers: Tensor, a: Tensor | None, positions: Tensor, strata: int, n: int | None = None, arms: int = 2
) -> Tensor:
    """Return the sums over the records of each cell and arm, exact whatever the order, float64 [strata, arms, 3].

    Each number is rounded to ``sum_grid(n, 1)``, of which float64 adds multiples without error.

    Args:
        numbers: What each record adds, in [-1, 1], [n, 3].
        a: Position of each record's arm, [n]; None sums all arms together, [strata, 1, 3].
        positions: Cells of each record, one of each partition, [n, partitions].
        strata: Number of cells.
        n: Number of all records, where these are some of them; None: these are all.
        arms: Number of arms.
    """
    step = sum_grid(len(numbers) if n is None else n, 1.0)
    steps = numbers.clamp(-1, 1).div(step).round()
    arms, own = (1, 0) if a is None else (arms, a.round().long())
    total = torch.zeros(arms * strata, NUMBERS, dtype=torch.float64)
    for cells in positions.T:  # one of each partition
        total.index_add_(0, arms * cells + own, steps)
    return total.mul_(step).reshape(strata, arms, NUMBERS)


def sensitivity(law: str, partitions: int, n: int) -> float:
    r"""Return how far one replaced record moves the numbers of all cells together, rounding included.

    .. math:: \Delta_1 = 2 P + 3 P g \text{ (laplace)}, \qquad \Delta_2 = \sqrt P (2 + \sqrt 3 g) \text{ (gaussian)}

    for P partitions, each of which a record moves in one cell and arm, or in two, however many arms there are; g is the
    grid of the sums. Proof: docs/guarantees/average_effects.md.

    Args:
        law: Law of the noise.
        partitions: P.
        n: Number of records.

    Example:
        >>> round(sensitivity("laplace", 2, 1000), 9), round(sensitivity("gaussian", 4, 1000), 9)
        (4.0, 4.0)
    """
    step = sum_grid(n, 1.0)
    if law == LAPLACE:
        return partitions * (2 + NUMBERS * step)
    assert law == GAUSSIAN
    return math.sqrt(partitions) * (2 + math.sqrt(NUMBERS) * step)
