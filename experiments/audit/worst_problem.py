"""Search of whole data sets, every record of them, for the neighbours whose linear heads lie farthest apart."""

import math

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.heads.linear import LinearProblem, WorstPair

_FIRST_STEP, _LAST_STEP = 0.05, 0.0005  # of Adam, in units of the bounds
_NEWTON_STEPS = 30


def worst_problem(
    weight_bound: float,
    target_bound: float,
    ridge: float,
    n: int,
    p: int = 2,
    threshold: float = math.inf,
    *,
    starts: int = 16,
    steps: int = 500,
    seed: int = 0,
) -> WorstPair:
    r"""Climb ||theta_{D'} - theta_D|| over all records (v, s) of D and the one that D' has instead of record 0.

    Projected Adam from random data sets, all of them together. Minimisers are differentiated by the implicit
    function theorem: one Newton step from the solution, in which only the records carry a gradient. The pair
    that moves farthest is solved exactly once more, so that its change is a fact; that there is no worse pair
    is not (see `torchdpcate.heads.linear` for what such searches end at).

    Args:
        weight_bound: Public bound B of ||v||.
        target_bound: Public bound S of |s|.
        ridge: lambda, positive.
        n: Records, at least 2.
        p: Coefficients.
        threshold: Huber threshold; infinity means the squared loss.
        starts: Random data sets that climb.
        steps: Steps of Adam.
        seed: Of the random data sets.

    Returns:
        The worst pair found.

    Raises:
        InputError: A count that is too small, or a bad ridge or threshold.

    Example:
        >>> pair = worst_problem(0.9, 1.0, 0.1, 50, steps=200, starts=8)
        >>> 0.7 < pair.share <= 1
        True
    """
    for name, count, least in (("n", n, 2), ("p", p, 1), ("starts", starts, 1), ("steps", steps, 1)):
        if count < least:
            raise InputError(f"{name} = {count}: give at least {least}")
    v, s = _climb(weight_bound, target_bound, ridge, n, p, threshold, starts, steps, seed)
    pairs = [
        WorstPair(*(_problem(v[k], s[k], ridge, weight_bound, target_bound, threshold, which) for which in (0, 1)))
        for k in range(starts)
    ]
    return max(pairs, key=lambda pair: pair.change)


def _climb(
    weight_bound: float,
    target_bound: float,
    ridge: float,
    n: int,
    p: int,
    threshold: float,
    starts: int,
    steps: int,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Data sets of n + 1 records, [starts, n + 1, p] and [starts, n + 1]: D has all but 1, D' all but 0."""
    generator = torch.Generator().manual_seed(seed)
    unit_v = torch.randn(starts, n + 1, p, dtype=torch.float64, generator=generator)
    unit_v *= 0.5 * torch.rand(starts, 1, 1, dtype=torch.float64, generator=generator)
    unit_s = 2 * torch.rand(starts, n + 1, dtype=torch.float64, generator=generator) - 1
    unit_v.requires_grad_()
    unit_s.requires_grad_()
    optimizer = torch.optim.Adam([unit_v, unit_s], lr=_FIRST_STEP)
    decay = (_LAST_STEP / _FIRST_STEP) ** (1 / steps)
    for _ in range(steps):
        v, s = weight_bound * unit_v, target_bound * unit_s
        thetas = [_minimisers(_without(v, k), _without(s, k), ridge, threshold) for k in (1, 0)]
        optimizer.zero_grad()
        (-(thetas[1] - thetas[0]).norm(dim=1).sum() * ridge * n / (weight_bound * target_bound)).backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= decay
        with torch.no_grad():
            unit_v /= unit_v.norm(dim=2, keepdim=True).clamp(min=1.0)
            unit_s.clamp_(-1, 1)
    return (weight_bound * unit_v).detach(), (target_bound * unit_s).detach()


def _minimisers(v: Tensor, s: Tensor, ridge: float, threshold: float) -> Tensor:
    """Minimisers [K, p] of data sets v [K, n, p], s [K, n]; differentiable in both."""
    theta = v.new_zeros(v.shape[0], v.shape[2])
    with torch.no_grad():
        theta = _newton(v, s, theta, ridge, math.inf)
        for _ in range(_NEWTON_STEPS if math.isfinite(threshold) else 0):
            new = _newton(v, s, theta, ridge, threshold)
            arrived = bool((new - theta).abs().max() <= 1e-13 * new.abs().max())
            theta = new
            if arrived:
                break
    return _newton(v, s, theta, ridge, threshold)


def _newton(v: Tensor, s: Tensor, theta: Tensor, ridge: float, threshold: float) -> Tensor:
    """One Newton step; the curvature carries no gradient, as it meets a residual of zero at a minimiser."""
    n = v.shape[1]
    residual = s - (v @ theta[:, :, None])[:, :, 0]
    pull = (residual.clamp(-threshold, threshold)[:, None, :] @ v)[:, 0] / n - ridge * theta
    with torch.no_grad():
        inside = v * (residual.abs() <= threshold)[:, :, None]
        curvature = inside.mT @ v / n + ridge * torch.eye(v.shape[2], dtype=v.dtype)
    return theta + torch.linalg.solve(curvature, pull)


def _without(records: Tensor, k: int) -> Tensor:
    """All records but number k of the first two."""
    return torch.cat([records[:, 1 - k : 2 - k], records[:, 2:]], 1)


def _problem(
    v: Tensor, s: Tensor, ridge: float, weight_bound: float, target_bound: float, threshold: float, which: int
) -> LinearProblem:
    v, s = _without(v[None], 1 - which)[0], _without(s[None], 1 - which)[0]
    w = v.norm(dim=1).clamp(max=weight_bound)
    psi = v / v.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return LinearProblem(psi, s, w, ridge, weight_bound, target_bound, threshold)
