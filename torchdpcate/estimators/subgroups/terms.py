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

EQUAL, KNOWN, COMPOSED = "equal", "known", "composed"
"""All alike; by the propensity that the domain states; doubly robust scores."""
RANDOMISED = "randomised"
PROPENSITIES = ("auto", RANDOMISED)
"""What a user may say of the propensity."""

_HOLDS_IF = {
    EQUAL: (
        "treatment was randomised with one probability within each cell; where it was not, estimates are biased and "
        "intervals may never hold the effects"
    ),
    KNOWN: "treatment was assigned with the propensity that the domain states",
    COMPOSED: (
        "the log-odds of treatment, or the mean outcomes, are combinations of the features that n and epsilon could "
        "pay for, or the domain states the propensity; scores beyond the clip cancel in each cell; and errors of both "
        "nuisances are at most (n / N)^(1/4) times as large in a cell of N records as among all n; where not, "
        "estimates are biased and intervals may never hold the effects"
    ),
}


@dataclass(frozen=True)
class Weighting:
    r"""Weights of records in units of the largest one, in [0, 1]: by the probability of either arm.

    .. math:: w = \frac{1 / e_a(x)}{\max 1 / e_a}, \qquad e_1 = e, \; e_0 = 1 - e

    Attributes:
        way: ``equal``, ``known``, or ``composed``: records weigh the same, and their doubly robust scores are summed.
        low: Least propensity, public.
        high: Largest propensity, public.
        planned: Share of the treated that a plan expects.
        shares: Share of each arm that a plan expects, the reference first, where there are more than two.
    """

    way: str
    low: float
    high: float
    planned: float = 0.5
    shares: tuple[float, ...] = ()

    @classmethod
    def of(cls, given: str, schema: TableSchema) -> "Weighting":
        """Return the weighting for what a user says of the propensity.

        Args:
            given: ``auto``: known where the domain states it, else composed; or ``randomised``: one probability within
                each cell, which need not be known.
            schema: Columns and public facts.

        Raises:
            InputError: No such word.
        """
        if given not in PROPENSITIES:
            raise InputError(f"propensity = {given!r}: choose one of {', '.join(PROPENSITIES)}")
        known = schema.domain.known_propensity
        if len(schema.actions) > 2:
            return cls._of_arms(given, schema)
        if given == RANDOMISED:
            return cls(EQUAL, 0.5, 0.5)
        if known is None or schema.domain.censoring is not None:
            return cls(COMPOSED, schema.domain.overlap, 1 - schema.domain.overlap)
        low, high = known.bounds
        return cls(EQUAL if low == high else KNOWN, low, high, (low + high) / 2)

    @classmethod
    def _of_arms(cls, given: str, schema: TableSchema) -> "Weighting":
        """Return the weighting of more than two arms, whose probabilities are the same for all records."""
        known, arms = schema.domain.known_propensity, len(schema.actions)
        if schema.domain.censoring is not None:
            raise InputError(
                f"censoring: of {arms} arms an outcome by a horizon is for task=cate (RLearner) alone, which has "
                "each arm's mean effect too; or put the records of two arms into a file of their own"
            )
        if known is None and given != RANDOMISED:
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
        return 1 / (1 - self.high), 1 / self.low

    @property
    def mass(self) -> tuple[float, ...]:
        """Expected sum of the weights of each arm, controls first, for each record of a cell; of all, of scores."""
        if self.way == COMPOSED:
            return (1.0,)
        if self.way == EQUAL:
            return self.shares or (1 - self.planned, self.planned)
        return 1 - self.high, self.low

    @property
    def assumption(self) -> str:
        """What estimates rest on, in words."""
        return _HOLDS_IF[self.way]

    def weights(self, a: Tensor, propensity: Tensor | None) -> Tensor:
        """Return the weights [n] of records with treatments a [n] in {0, 1} and propensities [n]."""
        if self.way == EQUAL or propensity is None:
            return torch.ones_like(a, dtype=torch.float64)
        e = propensity.double().clamp(self.low, self.high)
        treated = a.double()
        own = treated * e + (1 - treated) * (1 - e)
        return ((treated * self.low + (1 - treated) * (1 - self.high)) / own).clamp(0.0, 1.0)

    def public(self) -> dict[str, Any]:
        """Return the public constants, as statements have them."""
        control, treated = self.largest
        return {
            "weights": self.way,
            "estimand": "ATE",
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
