"""Effects in cells, of noisy sums over the records of each cell, and arm: post-processing of released numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from torchdpcate.release.estimate import half_width

LAPLACE, GAUSSIAN, RATE = "laplace", "gaussian", "laplace of rates"
BASES: Mapping[str, tuple[tuple[float, ...], ...]] = {
    LAPLACE: ((0.25, -0.5, 0.25), (0.5, 0.0, -0.5), (0.25, 0.5, 0.25)),
    GAUSSIAN: ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (1.0, 0.0, -1.0)),
}
"""What a record of outcome u in [-1, 1] adds to each number, as coefficients of 1, u and u^2, by the law of the noise.

Laplace noise: (1 - u)^2 / 4, (1 - u^2) / 2 and (1 + u)^2 / 4, which are not negative and sum to 1. Gaussian noise: 1, u
and 1 - u^2, whose squares sum to at most 2.
"""
NUMBERS: Mapping[str, int] = {LAPLACE: 3, GAUSSIAN: 3, RATE: 6}
"""Numbers of a cell, and of each of its arms, from which count, sums and sums of squares follow."""
EXPOSED, HAPPENED = 0.25, 0.75
"""Shares of exposure and outcome in what a record adds to the numbers of a rate: most of the noise is of outcomes."""
DEVIATIONS: Mapping[str, float] = {LAPLACE: math.sqrt(2), GAUSSIAN: 1.0, RATE: math.sqrt(2)}
"""Standard deviation of noise of scale 1."""
DOMINATED = 4.0
"""Standard deviations of its noise that a count must exceed, so that its cell has an interval."""

_UPPER = 1.2815515655446004  # normal quantile of 90 %: how far noise is counted that a variance may have


@dataclass(frozen=True, eq=False)
class CellEffects:
    """Differences in means of cells, and the laws of their errors, in outcome units.

    Attributes:
        estimate: [cells].
        gaussian: Standard deviation of the Gaussian part of the error, sampling included, [cells].
        laplace: Scales of its independent Laplace parts, [cells, parts]; no part where the noise is Gaussian.
        noise: Standard deviation of the privacy noise, to first order, [cells].
        size: Weighted records of controls and treated, in units of the largest weight, [cells, 2].
        noise_dominated: Whether noise dominates the count of an arm, so that the interval is the full range, [cells].
        curve: Standard deviation of what a curve of censoring does to all cells alike, part of the others, [cells].
    """

    estimate: Tensor
    gaussian: Tensor
    laplace: Tensor
    noise: Tensor
    size: Tensor
    noise_dominated: Tensor
    curve: Tensor

    def half_width(self, level: float) -> Tensor:
        """Return the half width of each cell's interval, [cells]; ``level`` and errors are ``half_width``'s."""
        return half_width(level, self.gaussian, self.laplace)


def powers(u: Tensor) -> Tensor:
    """Return 1, u and u^2 of outcomes u [n] in [-1, 1], [n, 3]."""
    return torch.stack([torch.ones_like(u), u, u.square()], 1)


def basis(law: str) -> Tensor:
    """Return the coefficients of the three numbers, float64 [3, 3]."""
    return torch.tensor(BASES[law], dtype=torch.float64)


def rate_numbers(y: Tensor, exposure: Tensor) -> Tensor:
    r"""Return what records add of outcomes y [n] and exposures t [n], both in [0, 1], [n, 6].

    .. math:: p_i p_j (2 - 1\{i = j\}), \quad i \le j, \qquad p = (t / 4,\; 3 y / 4,\; 1 - t / 4 - 3 y / 4)

    They are not negative, and their sum is that of p, squared: 1. Nothing happens without exposure: y is then 0.

    Example:
        >>> rate_numbers(torch.tensor([1.0]), torch.tensor([1.0])).tolist()
        [[0.0625, 0.5625, 0.0, 0.375, 0.0, 0.0]]
    """
    t, y = EXPOSED * exposure, HAPPENED * y * (exposure > 0)
    p = torch.stack([t, y, 1 - t - y], 1)
    return torch.cat([p.square(), 2 * p[:, [0, 0, 1]] * p[:, [1, 2, 2]]], 1)


def moments(law: str) -> Tensor:
    """Return how sums follow from the numbers, [6, k]: count, sums of t and y, of t^2, t y and y^2; t is 1 of means."""
    if law != RATE:
        return torch.linalg.inv(basis(law))[[0, 0, 1, 0, 1, 2]]
    t, y = torch.tensor([[1.0, 0, 0, 0.5, 0.5, 0], [0, 1, 0, 0.5, 0, 0.5]], dtype=torch.float64)
    squares = torch.eye(6, dtype=torch.float64)[[0, 3, 1]] * torch.tensor([[1.0], [0.5], [1.0]])
    over = torch.tensor([[EXPOSED**2], [EXPOSED * HAPPENED], [HAPPENED**2]])
    return torch.cat([torch.ones(1, 6), t[None] / EXPOSED, y[None] / HAPPENED, squares / over])


def count_noise(law: str, scale: float) -> float:
    """Return the standard deviation of the noise of what a cell's mean in an arm is divided by."""
    return DEVIATIONS[law] * scale * float(moments(law)[1].norm())


def mean_noise(law: str, mean: Tensor) -> Tensor:
    r"""Return how the noise of the numbers moves a mean u, times the count: (-u, 1, 0) B^{-1}, [..., k].

    Args:
        law: Of the noise, which has the basis B.
        mean: The mean, in [-1, 1], [...].
    """
    _, t, y, *_ = moments(law)
    return y - mean[..., None] * t


def cell_effects(
    statistics: Tensor,
    members: Tensor,
    law: str,
    scale: float,
    unit: float,
    per_person: float = 1,
    step: float = 0.0,
) -> CellEffects:
    r"""Return the difference in means of every cell with the law of its error.

    .. math::
        \bar u_z = \frac{S_z}{N_z}, \quad \tau = \frac{R}{2} (\bar u_1 - \bar u_0), \quad
        \mathrm{var}\, \bar u_z = \frac{Q_z / N_z - \bar u_z^2}{N_z} + \frac{s^2}{N_z^2}
            \| (-\bar u_z, 1, 0) B^{-1} \|^2

    N, S and Q are count, sum and sum of squares of outcomes u in [-1, 1] of arm z, B the basis of the noise. The
    sampling variance has a one-sided 90 % bound of its noise, and is at most :math:`(1 - \bar u_z^2) / N_z`. To first
    order in the noise; where a count is at most four deviations of its noise, the cell's interval is the full range.
    Where an event adds a step to S, the variance is that of one event more in either arm, so that intervals hold few of
    them. Of rates N is the sum of exposures t, S that of outcomes y, and the variance is that of
    :math:`y - \bar u_z t`.

    Of K arms every other is compared with the first, :math:`\bar u_z - \bar u_0`, each with the law of its own error,
    which counts the noise of both; the errors of a cell's K - 1 effects share that of the first arm. They stand cell
    after cell, so that there are K - 1 entries a cell where it says [cells].

    Args:
        statistics: Released numbers of each stratum, controls before treated, [strata, arms, 3]; of differences, whose
            mean is the effect, [strata, 1, 3].
        members: Which strata each cell is the union of, 0 or 1, [cells, strata].
        law: Law of the noise, ``laplace`` or ``gaussian``.
        scale: Of the noise of each number.
        unit: Half of the width of what is summed, R/2 of outcomes, R of differences; of rates what one of outcomes and
            exposures in [0, 1] is.
        per_person: k, records of each person: a sum over records has at most k times the variance that independent
            ones would give it, whatever those of one person have to do with each other, and the laws count that; of
            clusters, times their design effect.
        step: What an event adds to the sum of u, of counts and of two outcomes; zero of others.

    Example:
        >>> exact = torch.tensor([[[25.0, 0.0, 75.0], [0.0, 0.0, 100.0]]], dtype=torch.float64)
        >>> found = cell_effects(exact, torch.ones(1, 1, dtype=torch.float64), "laplace", 1e-9, 0.5)
        >>> round(found.estimate.item(), 6), round(found.gaussian.item(), 6)
        (0.25, 0.043301)
    """
    arms = statistics.shape[1]
    signs = torch.tensor([-1.0, 1.0], dtype=torch.float64)[-arms:]
    if arms > 2:
        facts = members, law, scale, unit, per_person, step
        return _together([cell_effects(statistics[:, [0, arm]], *facts) for arm in range(1, arms)])
    of, unions = moments(law), members.sum(1)
    sums = torch.einsum("cs,szk->czk", members, statistics) @ of.T
    deviation = DEVIATIONS[law] * scale * unions.sqrt()[:, None]  # of each number of a cell
    least = DOMINATED * float(of[1].norm()) * deviation
    size, count = (torch.maximum(sums[..., place], least) for place in (0, 1))
    mean = (sums[..., 2] / count).clamp(0 if law == RATE else -1, math.inf if law == RATE else 1)
    pulls = mean_noise(law, mean) / count[..., None]
    tt, ty, yy = (sums[..., 3:] / count[..., None]).unbind(-1)
    most = (mean + mean.square() if law == RATE else 1 - mean.square()) / count
    apart = yy - 2 * mean * ty + mean.square() * tt
    turn = torch.stack([mean.square(), -2 * mean, torch.ones_like(mean)], -1) @ of[3:]
    moved = turn + 2 * (mean * tt - ty)[..., None] * mean_noise(law, mean) - apart[..., None] * of[1]
    doubt = deviation * moved.norm(dim=-1) / count.square()  # of each arm's variance by its noise
    sampled = (apart.clamp_min(0) / count).sum(1) + _UPPER * doubt.norm(dim=1)
    sampling = per_person * (torch.minimum(sampled, most.sum(1)).clamp_min(0) + (step / count).square().sum(1))
    noise = (deviation * pulls.norm(dim=-1)).norm(dim=1)
    laplace = pulls.new_zeros(len(pulls), 0)
    variance = sampling
    if law != GAUSSIAN:
        laplace = _repeated(scale * pulls.abs().flatten(1), unions)
    else:
        variance = sampling + noise.square()
    dominated = (sums[..., 1] <= least).any(1)
    estimate = unit * (mean @ signs)
    laws = unit * variance.sqrt(), unit * laplace, unit * noise
    return CellEffects(estimate, *laws, size, dominated, torch.zeros_like(estimate))


def _together(each: Sequence[CellEffects]) -> CellEffects:
    """Return the effects of several arms, cell after cell."""
    parts = {field.name: [getattr(one, field.name) for one in each] for field in fields(CellEffects)}
    return CellEffects(**{name: torch.stack(own, 1).flatten(0, 1) for name, own in parts.items()})


def _repeated(parts: Tensor, times: Tensor) -> Tensor:
    """Return the parts of each cell [cells, k] as often as its strata are many, zeros behind, [cells, k most]."""
    most = int(times.max())
    there = torch.arange(most) < times[:, None]
    return (parts[:, None, :] * there[:, :, None]).flatten(1)
