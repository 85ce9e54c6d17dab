"""A noisy function, revealed query by query: a Gaussian process's path by Cholesky rows that grow and never change."""

from collections.abc import Callable
from typing import NamedTuple

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
        self._factor = torch.empty(0, 0, dtype=torch.float64)
        self._points, self._omega = self._factor, self._factor

    @property
    def rows(self) -> int:
        """Number of rows of L."""
        return len(self._factor)

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
                mean = left.T @ self._omega if self.rows else torch.zeros_like(value)
                omega = torch.linalg.solve_triangular(corner, value - mean, upper=False)
                self._append(part, left, corner, omega)
        if not bool(torch.isfinite(self._omega).all()):
            raise NumericalError("a history of queries whose rows depend on one another")

    def _condition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return L^{-1} K(rows, x), [rows, b], and the covariance of the values at x given the rows, [b, b]."""
        covariance = self._covariance(torch.cat([self._points, x]) if self.rows else x, x)
        left = torch.linalg.solve_triangular(self._factor, covariance[: self.rows], upper=False)
        return left, covariance[self.rows :] - left.T @ left

    def _reveal(self, x: Tensor, z: Tensor) -> Revealed:
        left, schur = self._condition(x)
        mean = left.T @ self._omega if self.rows else torch.zeros_like(z)
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
        above = torch.cat([self._factor, left.new_zeros(self.rows, len(x))], 1)
        factor = torch.cat([above, torch.cat([left.T, corner], 1)])
        if self.rows:
            x, omega = torch.cat([self._points, x]), torch.cat([self._omega, omega])
        self._factor, self._points, self._omega = factor, x, omega


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
        self.correction, self.scale, self._noise = correction, scale, noise
        self.path = SamplePath(correction.covariance, _SLACK)

    def reveal(self, lifted: Tensor, runs: int = 1) -> tuple[Revealed, Tensor]:
        """Return the path at new queries, and beside it v + sqrt(jitter) e, [b, runs], for independent paths."""
        z, e = self._noise.gaussian(2 * len(lifted) * runs, 1.0, LATTICE).reshape(2, len(lifted), runs)
        revealed = self.path.reveal(lifted, z)
        return revealed, revealed.values + JITTER**0.5 * e

    def value(self, lifted: Tensor, total: Tensor) -> Tensor:
        """Return f plus the noise, [b, runs]."""
        return self.correction.value(lifted)[:, None] + self.scale * total

    def noise_scales(self, lifted: Tensor) -> Tensor:
        """Return the public standard deviation of the noise, [b]."""
        return self.scale * (self.correction.variance(lifted) + JITTER).sqrt()
