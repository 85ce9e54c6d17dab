"""The root polytope in four dimensions: its norm, and the simplices that it is cut into."""

from functools import cache
from itertools import combinations

import torch
from torch import Tensor

CELLS = 4
"""Dimension: the cells of a table of two arms by two outcomes."""


def root_norm(z: Tensor) -> Tensor:
    r"""Return the norm whose unit ball is the root polytope K, of vectors z [..., 4].

    .. math:: \|z\|_K = \max\Big\{\sum_j z_j^+, \sum_j z_j^-\Big\}, \quad K = \{z : \|z\|_K \le 1\}

    Example:
        >>> root_norm(torch.tensor([[1.0, -2.0, 0.5, -0.25]])).tolist()
        [2.25]
    """
    return torch.maximum(z.clamp_min(0).sum(-1), (-z).clamp_min(0).sum(-1))


@cache
def root_simplices() -> Tensor:
    r"""Return corners of 70 simplices of one volume that K is cut into, [70, 4, 4]; the fifth corner of each is 0.

    Where k entries are positive, K is the product of two corner simplices, of dimensions k and 4 - k. Fix an order of
    the positive entries and one of the others. Every lattice path from (0, 0) to (k, 4 - k) gives a simplex whose
    corners are the paths' points, (i, j) standing for :math:`e_i - f_j` with e and f unit vectors of the i-th positive
    and the j-th other entry (none for 0): the staircase triangulation, C(4, k) simplices of volume 1/4! each for each
    of C(4, k) signs, in all 1 + 16 + 36 + 16 + 1.

    So the density exp(-||z||_K / s), a uniform point of K times a length of law Gamma(5, s), is that of
    :math:`s \sum_j E_j v_j`: v the corners of a simplex that is drawn uniformly, E independent exponentials. For the
    weights of a uniform point of a simplex with five corners are exponentials over their sum, which is independent of
    them and Gamma(5).

    Example:
        >>> simplices = root_simplices()
        >>> simplices.shape, root_norm(simplices).unique().tolist()
        (torch.Size([70, 4, 4]), [1.0])
    """
    simplices = []
    for positive in range(CELLS + 1):
        for up in combinations(range(CELLS), positive):
            down = [j for j in range(CELLS) if j not in up]
            for steps in combinations(range(CELLS), positive):  # of the path, those that go along the positive entries
                simplices.append(_corners(up, down, steps))
    return torch.tensor(simplices, dtype=torch.float64)


def _corners(up: tuple[int, ...], down: list[int], steps: tuple[int, ...]) -> list[list[float]]:
    corners, i, j = [], 0, 0
    for step in range(CELLS):
        i, j = (i + 1, j) if step in steps else (i, j + 1)
        corner = [0.0] * CELLS
        if i:
            corner[up[i - 1]] = 1.0
        if j:
            corner[down[j - 1]] = -1.0
        corners.append(corner)
    return corners
