"""A noisy function, revealed query by query: a Gaussian process's path by Cholesky rows that grow and never change."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.errors import NumericalError
from torchdpcate.estimators.cate.online.state import Correction
from torchdpcate.privacy.noise import NoiseSource

EXCESS = 1e-3
"""Share by which the variance is raised, to pay for queries that are no rows of their own."""

JITTER = 1e-3
"""Variance of the independent noise that every query gets beside a unit kernel; it only ever adds noise."""

LATTICE = 2.0**-50
"""Spacing of the standard normal numbers that noise is mixed from: far finer than ``answer_step``."""

_CHUNK = 256  # queries worked out at once
_SHARE = 1e-5  # of the slack that is left, which one query may use
_NUGGET = 1e-13  # added to every row's variance, so that rounding errors do not grow; it only ever adds noise


def answer_step(domain: Domain, scale: float) -> float:
    r"""Return the public spacing of answers with noise of this scale.

    Mixed noise lives on a lattice of its own, at most 2^-50 of the scale fine. Answers are rounded to a grid at least
    2^24 times coarser, else their low bits would show f modulo that lattice (Mironov 2012).

    Args:
        domain: Public bounds.
        scale: Public scale of the noise, in outcome units.
    """
    return max(NoiseSource.grid(domain.outcome_range) * 2.0**-16, NoiseSource.grid(scale) / 32)


class Revealed(NamedTuple):
    """Values of paths at queries.

    Attributes:
        values: v, [b, runs].
        residual: Variance d^2 >= 0 of each value given the rows kept before it, [b].
        retained: Whether a query became a row that later values depend on, [b].
    """

    values: Tensor
    residual: Tensor
    retained: Tensor


class GrowingFactor:
    """A lower triangular matrix L that grows downwards; its rows never change.

    Rows are held in blocks [left | corner], each at least as long as all that follow it, so that there are few of
    them and a row is moved O(log r) times.

    Example:
        >>> factor = GrowingFactor()
        >>> factor.append(torch.zeros(1, 0), torch.tensor([[2.0]]))
        >>> factor.append(torch.tensor([[1.0]]), torch.tensor([[1.0]]))
        >>> factor.solve(torch.tensor([[2.0], [3.0]])).flatten().tolist()
        [1.0, 2.0]
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[Tensor, Tensor]] = []
        self.rows = 0

    def append(self, left: Tensor, corner: Tensor) -> None:
        """Add the rows [left | corner], left [m, rows] and corner [m, m] lower triangular."""
        if not len(corner):
            return
        self._blocks.append((left, corner))
        self.rows += len(corner)
        while len(self._blocks) > 1 and len(self._blocks[-2][1]) <= len(self._blocks[-1][1]):
            self._merge()

    def _merge(self) -> None:
        (above, first), (below, second) = self._blocks[-2:]
        start, m = above.shape[1], len(first)
        corner = first.new_zeros(m + len(second), m + len(second))
        corner[:m, :m], corner[m:, :m], corner[m:, m:] = first, below[:, start:], second
        self._blocks[-2:] = [(torch.cat([above, below[:, :start]]), corner)]

    def solve(self, rhs: Tensor) -> Tensor:
        """Return L^{-1} rhs, [rows, b]."""
        out = torch.empty_like(rhs)
        for left, corner in self._blocks:
            start, end = left.shape[1], left.shape[1] + len(corner)
            part = torch.addmm(rhs[start:end], left, out[:start], alpha=-1) if start else rhs[:end]
            out[start:end] = torch.linalg.solve_triangular(corner, part, upper=False)
        return out


class GrowingRows:
    """Rows that are appended, in memory that doubles: adding one costs what it holds."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, 0, dtype=torch.float64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def all(self) -> Tensor:
        """All rows, [count, width]; a view."""
        return self._buffer[: self._count]

    def beside(self, rows: Tensor) -> Tensor:
        """Return all rows and these below them, [count + m, width]; a view, until something is added."""
        end = self._count + len(rows)
        if end > len(self._buffer):
            buffer = rows.new_empty(max(2 * len(self._buffer), end), rows.shape[1])
            if self._count:
                buffer[: self._count] = self.all
            self._buffer = buffer
        self._buffer[self._count : end] = rows
        return self._buffer[:end]

    def append(self, rows: Tensor) -> None:
        """Add rows [m, width]."""
        self._count = len(self.beside(rows))


class SamplePath:
    r"""Paths of U ~ GP(0, K) at queries that come one by one or in blocks.

    A query x gets :math:`v = l^\top \omega + d z`, with :math:`l = L^{-1} k_x`, :math:`d^2 = K(x, x) - \|l\|^2` and z
    standard normal. It becomes a row of L, :math:`(l^\top, d)`, and z one of omega. While all do, this is chol(K) z,
    whatever the blocks, and v has the law of the path given all values before it (theory note ``dp_cate``, row 5).
    A row's variance is raised by 1e-13, above rounding error.

    A query whose d^2 is next to nothing is left out of L: later values then depend on it through the rows there
    are. So L stays about as small as the numerical rank of K, and answers do not run out. The d^2 left out add up to
    at most T, the ``slack``, and then for every epsilon > 0

    .. math:: K \preceq (1 + \epsilon) (C + (T / \epsilon) I)

    with C the covariance of the values v. Proof: ``docs/guarantees/two_blocks.md``.

    Args:
        covariance: (x [m, q], y [k, q]) -> K(x, y), [m, k], float64 on the CPU.
        slack: T; 0 keeps every row.

    Example:
        >>> def kernel(x, y):
        ...     return torch.exp(-torch.cdist(x, y) ** 2 / (2 * 0.3**2))
        >>> x, z = torch.tensor([[0.1, 0.4, 0.45], [0.5, -1.0, 2.0]], dtype=torch.float64)
        >>> SamplePath(kernel).reveal(x[:, None], z[:, None]).values.flatten()
        tensor([ 0.5000, -0.4918, -0.3639], dtype=torch.float64)
    """

    def __init__(self, covariance: Callable[[Tensor, Tensor], Tensor], slack: float = 0.0) -> None:
        self._covariance, self._slack = covariance, slack
        self._factor, self._points, self._omega = GrowingFactor(), GrowingRows(), GrowingRows()

    @property
    def rows(self) -> int:
        """Number of rows of L."""
        return self._factor.rows

    def reveal(self, x: Tensor, z: Tensor) -> Revealed:
        """Return the values at new queries.

        Args:
            x: Queries, none of them requested before and no two alike, [b, q].
            z: Standard normal numbers, one column for each of several independent paths, [b, runs].
        """
        if len(x) <= _CHUNK:
            return self._reveal(x, z)
        parts = [self._reveal(*part) for part in zip(x.split(_CHUNK), z.split(_CHUNK), strict=True)]
        return Revealed(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def restore(self, x: Tensor, revealed: Revealed) -> None:
        """Take up what was revealed before, as if by this path: what is to come is drawn given these values.

        Raises:
            NumericalError: Rows that depend on one another, so not such a history.
        """
        self._slack -= revealed.residual[~revealed.retained].sum().item()
        values = revealed.values[revealed.retained]
        for part, value in zip(x[revealed.retained].split(_CHUNK), values.split(_CHUNK), strict=True):
            if len(part):
                left, schur = self._condition(part)
                corner, _, _ = _eliminate(schur, torch.full((len(part),), -torch.inf, dtype=torch.float64))
                mean = left.T @ self._omega.all if self.rows else torch.zeros_like(value)
                omega = torch.linalg.solve_triangular(corner, value - mean, upper=False)
                self._append(part, left, corner, omega)
        if not bool(torch.isfinite(self._omega.all).all()):
            raise NumericalError("a history of queries whose rows depend on one another")

    def _condition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return L^{-1} K(rows, x), [rows, b], and the covariance of the values at x given the rows, [b, b]."""
        covariance, rows = self._covariance(self._points.beside(x), x), self.rows
        if not rows:
            return covariance[:0], covariance
        left = self._factor.solve(covariance[:rows])
        return left, torch.addmm(covariance[rows:], left.T, left, alpha=-1)

    def _reveal(self, x: Tensor, z: Tensor) -> Revealed:
        left, schur = self._condition(x)
        mean = left.T @ self._omega.all if self.rows else torch.zeros_like(z)
        least = _SHARE * self._slack
        residual = schur.diagonal().clamp(min=0.0)
        values, kept = mean + residual.sqrt()[:, None] * z, residual > least
        if bool(kept.any()):
            index = kept.nonzero().flatten()
            part = schur[index[:, None], index]
            corner, residual[index], kept[index] = _eliminate(part, torch.full((len(index),), least))
            spread = corner @ z[index]
            alone = index[~kept[index]]
            values[index] = mean[index] + spread
            values[alone] += residual[alone].sqrt()[:, None] * z[alone]
            rows = kept[index].nonzero().flatten()
            new = index[rows]
            self._append(x[new], left[:, new], corner[rows[:, None], rows], z[new])
        self._slack -= residual[~kept].sum().item()
        return Revealed(values, residual, kept)

    def _append(self, x: Tensor, left: Tensor, corner: Tensor, omega: Tensor) -> None:
        self._factor.append(left.T.contiguous(), corner)
        self._points.append(x)
        self._omega.append(omega)


def _eliminate(schur: Tensor, least: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cholesky in the given order, without the columns whose residual is no more than ``least``, [b].

    Returns:
        The factor [b, b], with columns of zeros for what was left out; every residual, and whether it was kept.
    """
    residual, nugget = schur.diagonal().clone(), _NUGGET * torch.eye(len(schur), dtype=schur.dtype)
    factor, info = torch.linalg.cholesky_ex(schur + nugget)
    if not bool(info) and bool((factor.diagonal().square() - _NUGGET > least).all()):
        return factor, factor.diagonal().square() - _NUGGET, torch.ones_like(residual, dtype=torch.bool)
    factor, kept = torch.zeros_like(schur), torch.zeros_like(residual, dtype=torch.bool)
    for i, bound in enumerate(least.tolist()):
        rest = residual[i].item()
        kept[i] = rest > bound
        if rest > bound:
            root = (max(rest, 0.0) + _NUGGET) ** 0.5
            factor[i:, i] = (schur[i:, i] - factor[i:, :i] @ factor[i, :i]) / root
            factor[i, i] = root
            residual[i + 1 :] -= factor[i + 1 :, i].square()
    return factor, residual.clamp(min=0.0), kept


_SLACK = EXCESS * JITTER
_STOCK = 1_024  # numbers drawn at once


class _Stock:
    """Standard normal numbers drawn in advance, for one draw costs as much as hundreds; none is used twice."""

    def __init__(self, noise: NoiseSource) -> None:
        self._noise, self._owner, self._left = noise, 0, torch.empty(0, dtype=torch.float64)

    def take(self, count: int) -> Tensor:
        """Return numbers that were never used, [count]."""
        if self._owner != os.getpid():  # a fork has the same stock, and both would use it
            self._owner, self._left = os.getpid(), self._left[:0]
        if count > len(self._left):
            self._left = self._noise.gaussian(max(count, _STOCK), 1.0, LATTICE)
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins with an empty stock: it must not use the same numbers again."""
        return {**self.__dict__, "_left": self._left[:0]}


class NoisyFunction:
    r"""f(x) + s (v(x) + sqrt(jitter) e(x)) at queries as they come: v a path of GP(0, K), e white noise.

    s = r sqrt(1 + excess) covers what ``SamplePath`` leaves out, so that the covariance of the noise is never below
    r^2 K.

    Args:
        correction: f and its kernel.
        scale: s, in outcome units.
        noise: Where z and e come from.
    """

    def __init__(self, correction: Correction, scale: float, noise: NoiseSource) -> None:
        self.correction, self.scale = correction, scale
        self.path, self._stock = SamplePath(correction.covariance, _SLACK), _Stock(noise)

    def reveal(self, lifted: Tensor, runs: int = 1) -> tuple[Revealed, Tensor]:
        """Return the path at new queries, and beside it v + sqrt(jitter) e, [b, runs], for independent paths."""
        z, e = self._stock.take(2 * len(lifted) * runs).reshape(2, len(lifted), runs)
        revealed = self.path.reveal(lifted, z)
        return revealed, revealed.values + JITTER**0.5 * e

    def value(self, lifted: Tensor, total: Tensor) -> Tensor:
        """Return f plus the noise, [b, runs]."""
        return self.correction.value(lifted)[:, None] + self.scale * total

    def noise_scales(self, lifted: Tensor) -> Tensor:
        """Return the public standard deviation of the noise, [b]."""
        return self.scale * (self.correction.variance(lifted) + JITTER).sqrt()
