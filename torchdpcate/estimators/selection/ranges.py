"""How far one record moves the utilities of two policies apart, with what rounding to the grid of their sums adds."""

from torchdpcate.data.domain import Domain
from torchdpcate.privacy.exact_sums import TwoGrids, sum_grid

FEWEST = 8
"""Records from which on a step of the scores' grid is 2^-48 of the largest score, above what float64 is off by."""


def clipped_range(n: int, clip: float) -> float:
    """Return the range sensitivity of n gains within [-clip, clip] that are rounded to the grid of their sums.

    One record moves two policies apart by 2 C; each of its gains before and after is rounded by half a step at most,
    for either policy, and a step is for the last places.

    Args:
        n: Number of records.
        clip: C.
    """
    return 2 * clip + 3 * sum_grid(max(n, FEWEST), clip)


def score_step(n: int, domain: Domain, overlap: float) -> float:
    """Return the grid of the sums of n scores within R (1/2 + 1/zeta) of the middle of the outcome's bounds R.

    Args:
        n: Number of records.
        domain: Public bounds.
        overlap: zeta.
    """
    return sum_grid(max(n, FEWEST), _largest(domain, overlap))


def score_grids(n: int, domain: Domain, overlap: float) -> TwoGrids:
    """Return the two grids of such scores where one record moves all of them."""
    return TwoGrids.of(max(n, FEWEST), _largest(domain, overlap))  # n times a step: the steps must not grow with n


def rounded_range(bound: float, n: int, domain: Domain, overlap: float, moved_share: float | None) -> float:
    """Return the range sensitivity of sums of rounded scores.

    A number is rounded by half a step at most: two policies, two neighbours; and a step for their last places.

    Args:
        bound: Of the scores as they are.
        n: Number of records that score.
        domain: Public bounds.
        overlap: zeta.
        moved_share: What a record that moves all scores pays over what one that scores pays; None if none does.
    """
    if moved_share is None:
        return bound + 3 * score_step(n, domain, overlap)
    grids = score_grids(n, domain, overlap)
    return bound + (3 * grids.fine * n + grids.coarse) / moved_share


def _largest(domain: Domain, overlap: float) -> float:
    return domain.outcome_range * (0.5 + 1 / overlap)
