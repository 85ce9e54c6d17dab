"""Exact refits of the linear head with one record replaced, thousands at once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.descent import Evaluate, Step, newton
from torchdpcate.heads.linear import LinearProblem, solve

_CHUNK_ELEMENTS = 2**18  # of an array of residuals, of which a handful live at once: 2 MiB each stay in a core's cache


@dataclass(frozen=True, eq=False)
class Replacements:
    """K candidate records, each of which replaces one record.

    Attributes:
        index: Which record is replaced, int64 [K].
        psi: Features of the candidates, float64 [K, p].
        s: Their targets, float64 [K].
        w: Their weights, float64 [K].
    """

    index: Tensor
    psi: Tensor
    s: Tensor
    w: Tensor

    def __len__(self) -> int:
        """Return K."""
        return len(self.index)

    @property
    def v(self) -> Tensor:
        """Weighted features, [K, p]."""
        return self.w[:, None] * self.psi

    def part(self, rows: Tensor) -> "Replacements":
        """Return the candidates of these rows."""
        return Replacements(self.index[rows], self.psi[rows], self.s[rows], self.w[rows])

    def check(self, problem: LinearProblem) -> None:
        """Refuse shapes that do not fit the regression, and records that it does not have."""
        K, p = len(self.index), problem.psi.shape[1]
        if self.psi.shape != (K, p) or self.s.shape != (K,) or self.w.shape != (K,):
            raise InputError(
                f"psi {tuple(self.psi.shape)}, s {tuple(self.s.shape)}, w {tuple(self.w.shape)}: "
                f"{K} indices need psi [{K}, {p}], s [{K}] and w [{K}]"
            )
        if K and not 0 <= int(self.index.min()) <= int(self.index.max()) < problem.n:
            raise InputError(f"index: gives a record outside 0 to {problem.n - 1}; replace records of the regression")


class ReplaceOne:
    r"""The replace-one neighbours of one regression: their minimisers and curvature.

    A neighbour's curvature differs from that of the base solution by the record that left, the record that
    came, and the records whose residual crossed the Huber threshold: a change of rank m, so that

    .. math:: (A + U^\top C U)^{-1} g = x - Z^\top (I + C U Z^\top)^{-1} C U x, \quad x = A^{-1} g, Z = U A^{-1}

    costs one gather and an m by m solve (Woodbury's identity). With the squared loss m = 2 and one step is
    exact; with the Huber loss Newton steps follow the crossings, from the base solution. A is factored once.

    Args:
        problem: The regression of the base data set.

    Attributes:
        problem: The same.
        theta: Its minimiser, [p]. The curator's, as everything here.

    Raises:
        NumericalError: The base regression cannot be solved.
    """

    def __init__(self, problem: LinearProblem) -> None:
        self.problem, self.theta = problem, solve(problem).theta
        self._v = problem.v
        self._inside = self._sides(problem.s - self._v @ self.theta)
        kept = self._v[self._inside]
        eye = torch.eye(len(self.theta), dtype=self._v.dtype, device=self._v.device)
        self._curvature = kept.T @ kept / problem.n + problem.ridge * eye
        self._factor = torch.linalg.cholesky(self._curvature)
        self._solved = torch.cholesky_solve(self._v.T, self._factor).T
        self._moment = self._v.T @ problem.s / problem.n

    def refit(self, candidates: Replacements) -> Tensor:
        """Return the minimisers, [K, p], each with a gradient norm of at most ``problem.tolerance``.

        Raises:
            InputError: Shapes or records that do not fit.
            NumericalError: A neighbour's tolerance was not reached.
        """
        candidates.check(self.problem)
        return self._in_chunks(self._squared if self.problem.squared else self._huber, candidates)

    def solve_curvature(self, candidates: Replacements, theta: Tensor, rhs: Tensor) -> Tensor:
        r"""Return A_k^{-1} rhs_k, [K, p], with A_k half the Hessian of neighbour k at its own theta_k.

        As theta_k minimises its objective, a candidate that moves by d pulls it by
        A_k^{-1} d(l'(r) v / 2) / n: the implicit function theorem.

        Args:
            candidates: The neighbours.
            theta: Their minimisers, [K, p].
            rhs: Right-hand sides, [K, p].
        """

        def huber(rows: Replacements, theta: Tensor, rhs: Tensor) -> Tensor:
            return self._apply_inverse(rows, self._evaluate(rows, theta)[2], rhs)

        def squared(rows: Replacements, theta: Tensor, rhs: Tensor) -> Tensor:
            return self._swap(rows, rhs)

        return self._in_chunks(squared if self.problem.squared else huber, candidates, theta, rhs)

    def solve_base(self, rows: Tensor) -> Tensor:
        """Return A^{-1} of each row, [K, p], with A half the Hessian of the base regression."""
        return torch.cholesky_solve(rows.T, self._factor).T

    def _in_chunks(self, function: Callable[..., Tensor], candidates: Replacements, *rows: Tensor) -> Tensor:
        if len(candidates) == 0:
            return self.theta.new_empty(0, len(self.theta))
        width = 2 * len(self.theta) if self.problem.squared else max(self.problem.n, 2 * len(self.theta))
        chunks = torch.arange(len(candidates), device=candidates.index.device).split(max(1, _CHUNK_ELEMENTS // width))
        return torch.cat([function(candidates.part(chunk), *(row[chunk] for row in rows)) for chunk in chunks])

    def _squared(self, candidates: Replacements) -> Tensor:
        """One step from the base solution, and one more where rounding errors request it."""
        theta = self.theta.expand(len(candidates), -1)
        gradient = self._squared_gradient(candidates, theta)
        for _ in range(2):
            theta = theta - self._swap(candidates, gradient / 2)
            gradient = self._squared_gradient(candidates, theta)
            if bool((gradient.norm(dim=1) <= self.problem.tolerance).all()):
                return theta
        self._check(gradient.norm(dim=1))
        return theta

    def _squared_gradient(self, candidates: Replacements, theta: Tensor) -> Tensor:
        """Gradients from the moments of the base data, at a cost free of n."""
        left, came = self._v[candidates.index], candidates.v
        gone = self.problem.s[candidates.index] - (left * theta).sum(1)
        new = candidates.s - (came * theta).sum(1)
        change = (gone[:, None] * left - new[:, None] * came) / self.problem.n
        return 2 * (theta @ self._curvature - self._moment + change)

    def _swap(self, candidates: Replacements, rhs: Tensor) -> Tensor:
        """Solve with the curvature less the record that left, plus the one that came."""
        came = candidates.v
        U = torch.stack([self._v[candidates.index], came], 1)
        Z = torch.stack([self._solved[candidates.index], self.solve_base(came)], 1)
        signs = rhs.new_tensor([-1.0, 1.0]).expand(len(rhs), 2)
        return _woodbury(U, Z, signs / self.problem.n, self.solve_base(rhs))

    def _huber(self, candidates: Replacements) -> Tensor:
        """Newton steps from the base solution."""

        def part(rows: Tensor) -> tuple[Evaluate, Step]:
            own = candidates.part(rows)

            def evaluate(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                return self._evaluate(own, theta)

            def step(theta: Tensor, gradient: Tensor, inside: Tensor) -> Tensor:
                return self._apply_inverse(own, inside, gradient / 2)

            return evaluate, step

        every = torch.arange(len(candidates), device=self.theta.device)
        start, remedy = self.theta.expand(len(every), -1), "raise second_stage.ridge"
        return newton(*part(every), start, self.problem.tolerance, what="a refit", remedy=remedy, part=part)[0]

    def _evaluate(self, candidates: Replacements, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values [K], gradients [K, p], and which records lie inside the threshold, the newcomer last, [K, n + 1]."""
        problem, tau = self.problem, self.problem.threshold
        rows = torch.arange(len(candidates), device=theta.device)
        residual = problem.s - theta @ self._v.T
        residual[rows, candidates.index] = 0.0  # the record that left neither pulls nor costs
        came = candidates.v
        new = candidates.s - (came * theta).sum(1)
        clipped, new_clipped = residual.clamp(-tau, tau), new.clamp(-tau, tau)
        # r^2 inside and 2 tau |r| - tau^2 outside, without infinity minus infinity when tau is infinite
        loss = (clipped * (2 * residual - clipped)).sum(1) + new_clipped * (2 * new - new_clipped)
        value = loss / problem.n + problem.ridge * (theta * theta).sum(1)
        pull = clipped @ self._v + new_clipped[:, None] * came
        gradient = 2 * (problem.ridge * theta - pull / problem.n)
        inside = torch.cat([self._sides(residual), self._sides(new)[:, None]], 1)
        inside[rows, candidates.index] = False
        return value, gradient, inside

    def _apply_inverse(self, candidates: Replacements, inside: Tensor, rhs: Tensor) -> Tensor:
        """Solve with the curvature of each row: the base's, changed by every record that crossed or was swapped."""
        crossed = inside[:, :-1] != self._inside
        m = int(crossed.sum(1).max())
        signs = rhs.new_zeros(len(rhs), m + 1)
        index = torch.zeros(len(rhs), m, dtype=torch.int64, device=rhs.device)
        row, record = crossed.nonzero(as_tuple=True)
        place = crossed.cumsum(1)[row, record] - 1
        index[row, place] = record
        signs[row, place] = torch.where(self._inside[record], -1.0, 1.0).to(rhs)
        signs[:, m] = inside[:, -1].to(rhs)
        return self._changed_solve(candidates.v, index, signs / self.problem.n, rhs)

    def _changed_solve(self, came: Tensor, index: Tensor, signs: Tensor, rhs: Tensor) -> Tensor:
        """Woodbury's identity where the change is short, else a factor of each matrix; memory is bounded."""
        m, p = signs.shape[1], rhs.shape[1]
        size = max(1, _CHUNK_ELEMENTS // (max(m, p) * p))
        if len(rhs) > size:
            pieces = zip(came.split(size), index.split(size), signs.split(size), rhs.split(size), strict=True)
            return torch.cat([self._changed_solve(*piece) for piece in pieces])
        U = torch.cat([self._v[index], came[:, None]], 1)
        if m > p:
            L = torch.linalg.cholesky(self._curvature + (signs[:, :, None] * U).mT @ U)
            return torch.cholesky_solve(rhs[:, :, None], L)[:, :, 0]
        Z = torch.cat([self._solved[index], self.solve_base(came)[:, None]], 1)
        return _woodbury(U, Z, signs, self.solve_base(rhs))

    def _sides(self, residual: Tensor) -> Tensor:
        return residual.abs() <= self.problem.threshold

    def _check(self, norms: Tensor) -> None:
        worst = float(norms.max()) if len(norms) else 0.0
        if not worst <= self.problem.tolerance:
            raise NumericalError(
                f"a refit stopped at a gradient norm above {self.problem.tolerance:.1e}: raise second_stage.ridge"
            )


def refit(problem: LinearProblem, index: Tensor, psi: Tensor, s: Tensor, w: Tensor) -> Tensor:
    """Return the minimisers of the regression with record index[k] replaced by candidate k, [K, p].

    Args:
        problem: The regression of the base data set; squared or Huber loss.
        index: Which record is replaced, int64 [K].
        psi: Features of the candidates, [K, p].
        s: Targets of the candidates, [K].
        w: Weights of the candidates, [K].

    Returns:
        Exact refits, each with a gradient norm of at most ``problem.tolerance``. The curator's.

    Raises:
        InputError: Shapes or records that do not fit.
        NumericalError: A tolerance was not reached.

    Example:
        >>> psi = torch.eye(2, dtype=torch.float64)
        >>> s = torch.tensor([1.0, 2.0], dtype=torch.float64)
        >>> problem = LinearProblem(psi, s, torch.ones_like(s), 0.5, 1.0, 2.0)
        >>> refit(problem, torch.tensor([0, 1]), psi, -s, torch.ones_like(s))
        tensor([[-0.5000,  1.0000],
                [ 0.5000, -1.0000]], dtype=torch.float64)
    """
    return ReplaceOne(problem).refit(Replacements(index, psi, s, w))


def _woodbury(U: Tensor, Z: Tensor, signs: Tensor, solved: Tensor) -> Tensor:
    """``(A + U'CU)^{-1} g`` from Z = U A^{-1} [K, m, p], C = diag(signs) [K, m] and solved = A^{-1} g [K, p]."""
    inner = torch.eye(U.shape[1], dtype=U.dtype, device=U.device) + signs[:, :, None] * (U @ Z.mT)
    outer = signs * (U @ solved[:, :, None])[:, :, 0]
    return solved - (Z.mT @ torch.linalg.solve(inner, outer)[:, :, None])[:, :, 0]
