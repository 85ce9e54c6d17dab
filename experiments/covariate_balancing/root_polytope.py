"""K-norm noise of the root polytope on a table of two arms by two outcomes, and the intervals that it leaves."""

import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import scipy
import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate
from torchdpcate.privacy.budget import positive
from torchdpcate.privacy.mechanisms import KNormMechanism
from torchdpcate.privacy.noise import NoiseSource, float_loss
from torchdpcate.release.estimate import _ALIAS, _HALVINGS, _LEFT_OUT, _POINTS, _RUNS, half_width

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
    for many in range(CELLS + 1):
        for up in combinations(range(CELLS), many):
            down = [j for j in range(CELLS) if j not in up]
            for steps in combinations(range(CELLS), many):  # of the path, those that go along the positive entries
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


def root_polytope(noise: NoiseSource, size: int, scale: float) -> Tensor:
    r"""Return vectors with density proportional to exp(-||z||_K / scale), K the root polytope; [size, 4].

    Four exponentials, times the corners of one of the simplices that K is cut into; see ``root_simplices``. Drawn in
    floating point, moved as ``NoiseSource.k_norm`` and on ``NoiseSource.grid``: add it to values rounded alike.

    Args:
        noise: Where it comes from.
        size: How many.
        scale: Of the length in the norm of K.
    """
    simplices = root_simplices()
    which = (noise.uniform(size) * len(simplices)).long()
    lengths = noise._exponentials(size, CELLS)
    return noise._moved((lengths[:, None] @ simplices[which])[:, 0] * scale, scale)


class RootPolytopeMechanism(KNormMechanism):
    r"""K-norm noise of the root polytope on sums of four cells, to which a record adds no negative number.

    .. math:: p(z) \propto e^{-\|z\|_K / s}, \quad \|z\|_K = \max\Big\{\sum_j z_j^+, \sum_j z_j^-\Big\},
        \quad s = W / \epsilon

    A record adds :math:`t \ge 0` with :math:`\sum_j t_j \le W`; the difference t - t' of two such has positive parts
    that sum to at most W, and negative parts likewise. The covariance is :math:`W^2 / \epsilon^2` times 4.8 on the
    diagonal and -1.2 off it; Laplace noise for the same table has 8 and 0.

    Guarantee:
        Certified epsilon, pure, float64 counted, if every record adds t as above. Source: Hardt & Talwar (2010) and
        Awan & Slavković (2021) for K-norms; experiments/covariate_balancing/root_polytope.md.

    Args:
        epsilon: What one release costs.
        bound: W, the most that a record adds to the four cells together.

    Raises:
        InputError: If an argument is not positive.

    Example:
        >>> mechanism = RootPolytopeMechanism(0.5, bound=10.0)
        >>> mechanism.scale, mechanism.release(torch.zeros(4), NoiseSource.system()).shape
        (20.0, torch.Size([4]))
    """

    def __init__(self, epsilon: float, bound: float) -> None:
        super().__init__(epsilon, positive("bound", bound))
        self.norm = 1  # rounding moves the table by at most half a step a cell, and |z|_K is at most the l1 norm

    def size(self, moved: Tensor) -> Tensor:
        """See ``AdditiveMechanism``: the norm of the root polytope."""
        return root_norm(moved)

    def _float_loss(self, size: int) -> float:
        return float_loss(size, math.inf)

    def _noise(self, like: Tensor, scale: float, noise: NoiseSource) -> Tensor:
        if like.shape[1] != CELLS:
            raise InputError(
                f"value of {like.shape[1]} numbers: root-polytope noise is for the {CELLS} cells of a table"
            )
        return root_polytope(noise, like.shape[0], scale)


@dataclass(frozen=True, eq=False)
class TableEstimate(NoisyEstimate):
    """An estimate with root-polytope noise.

    Attributes:
        polytope: What a draw of the noise with W/epsilon = 1 is multiplied by and summed, [runs, 4]; None without.
    """

    polytope: Tensor | None = None

    @property
    def noise(self) -> Tensor:
        r"""Standard deviation of the noise: variance :math:`6 \sum_j c_j^2 - 1.2 (\sum_j c_j)^2` of c'V."""
        if self.polytope is None:
            return super().noise
        return (6 * self.polytope.square().sum(1) - 1.2 * self.polytope.sum(1).square()).sqrt()


def error_width(level: float, found: NoisyEstimate) -> Tensor:
    r"""Return the half width of an estimate's intervals, [runs]: ``half_width``, with c'V where there is some.

    V is :math:`\sum_j E_j v_j` for a simplex S drawn uniformly, so that the characteristic function of c'V is

    .. math:: \frac{1}{70} \sum_S \mathrm{Re} \prod_{v \in S} \frac{1}{1 - i u\, c^\top v} .

    Args:
        level: Probability in (0, 1).
        found: The estimate.
    """
    c = found.polytope if isinstance(found, TableEstimate) else None
    if c is None:
        return half_width(level, found.gaussian, found.laplace)
    unit = torch.cat([found.gaussian[:, None], c.abs()], 1).amax(1)
    s, c = found.gaussian / unit, c / unit[:, None]
    parts = zip(s.split(_RUNS), c.split(_RUNS), strict=True)
    return unit * torch.cat([_quantile(level, *part) for part in parts])


def _quantile(level: float, s: Tensor, c: Tensor) -> Tensor:
    """Return the quantile of |X|, [runs], for parts of which the largest is 1."""
    missed = 1 - level
    high = _beyond(missed, s, c)
    period = high + _beyond(missed * _ALIAS, s, c)
    step = 2 * math.pi / period
    enough = (_LEFT_OUT / (s * step)).amax().item()  # points, if the Gaussian part is to end the sum
    m = torch.arange(1, math.ceil(min(enough, _POINTS)) + 1, dtype=torch.float64)
    u = step[:, None] * m
    gaussian = (-0.5 * (torch.maximum(s, _LEFT_OUT / u[:, -1])[:, None] * u).square()).exp()
    weights = gaussian * _polytope(u, c) * (2 / (math.pi * m))
    low = torch.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        inside = 2 * middle / period + (weights * (u * middle[:, None]).sin()).sum(1)
        low, high = torch.where(inside < level, middle, low), torch.where(inside < level, high, middle)
    return high


def _beyond(missed: float, s: Tensor, c: Tensor) -> Tensor:
    """Return what |X| exceeds with a probability of at most ``missed``, by a union over the parts, [runs]."""
    share = missed / 2
    normal = -torch.special.ndtri(torch.tensor(share / 2, dtype=torch.float64))
    largest = c.clamp_min(0).amax(1) + (-c).clamp_min(0).amax(1)  # the largest c'v over K
    # |c'V| is at most that times the length of V, which is Gamma of shape 4
    return s * normal + largest * float(scipy.special.gammainccinv(CELLS, share))


def _polytope(u: Tensor, c: Tensor) -> Tensor:
    """Return that of c'V: the mean over simplices of the real part of the product over corners of 1 / (1 - i u c'v).

    With e_k the elementary symmetric polynomials of the four c'v, the product's denominator is
    (1 - e_2 u^2 + e_4 u^4) - i u (e_1 - e_3 u^2).
    """
    half = root_simplices()[:35]  # the others are their mirrors
    slopes = torch.einsum("scd,rd->rsc", half, c)
    total, square = torch.zeros_like(u), u.square()
    for e_1, e_2, e_3, e_4 in zip(*_symmetric(slopes), strict=True):
        real = 1 - square * (e_2 - e_4 * square)
        imaginary = e_1 - e_3 * square
        total += real / (real.square() + square * imaginary.square())
    return total / len(half)


def _symmetric(slopes: Tensor) -> list[Tensor]:
    """Return e_1 to e_4 of slopes [runs, simplices, 4], each [simplices, runs, 1]."""
    e = [torch.ones_like(slopes[..., 0]), *(torch.zeros_like(slopes[..., 0]) for _ in range(CELLS))]
    for slope in slopes.unbind(-1):
        for k in range(CELLS, 0, -1):
            e[k] = e[k] + slope * e[k - 1]
    return [part.mT[..., None] for part in e[1:]]
