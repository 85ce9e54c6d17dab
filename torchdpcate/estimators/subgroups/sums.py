"""The sums that effects in subgroups follow from: exact in floating point, by cell and arm, or of scores by cell."""

import math

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.release.cell_effects import GAUSSIAN, LAPLACE, NUMBERS, basis, powers


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


def cell_sums(numbers: Tensor, a: Tensor | None, positions: Tensor, strata: int) -> Tensor:
    """Return the sums over the records of each cell and arm, exact whatever the order, float64 [strata, arms, 3].

    Each number is rounded to ``sum_grid(n, 1)``, of which float64 adds multiples without error.

    Args:
        numbers: What each record adds, in [-1, 1], [n, 3].
        a: Treatment in {0, 1}, [n]; None sums both arms together, [strata, 1, 3].
        positions: Cells of each record, one of each partition, [n, partitions].
        strata: Number of cells.
    """
    step = sum_grid(len(numbers), 1.0)
    steps = numbers.clamp(-1, 1).div(step).round()
    arms, own = (1, 0) if a is None else (2, (a > 0.5).long())
    total = torch.zeros(arms * strata, NUMBERS, dtype=torch.float64)
    for cells in positions.T:  # one of each partition
        total.index_add_(0, arms * cells + own, steps)
    return total.mul_(step).reshape(strata, arms, NUMBERS)


def sensitivity(law: str, partitions: int, n: int) -> float:
    r"""Return how far one replaced record moves the numbers of all cells together, rounding included.

    .. math:: \Delta_1 = 2 P + 3 P g \text{ (laplace)}, \qquad \Delta_2 = \sqrt P (2 + \sqrt 3 g) \text{ (gaussian)}

    for P partitions, each of which a record moves in one cell and arm, or in two; g is the grid of the sums.
    Proof: docs/guarantees/subgroups.md.

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
