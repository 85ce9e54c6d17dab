"""Private numbers that later steps rest on: quantiles, moments and correlations of covariates, curvatures."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.composition.steps import NoisySteps, summed
from torchdpcate.features.weighted_basis import Standardisation
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.selection import private_quantile as chosen_quantile

_SQUARES = 0.65  # of mu^2 for the second moments, at no cost beside the first: see moment_sums
LEAST_SCALE = 1 / 200
"""Least clip of residuals or scores, in outcome ranges."""
LEAST_VARIANCE = 0.01  # of a covariate on [-1, 1]
_DOUBT = 2.0  # of a correlation: it counts half where its noise is half of it
_LEAST_CORRELATION = 0.1  # eigenvalue of the correlations


class ExpectedMoments(NamedTuple):
    """What is expected of covariates on [-1, 1].

    Attributes:
        means: Standard deviation of their means about zero, one number or one each, [k].
        square: Their mean square.
        square_spread: Standard deviation of that.
    """

    means: float | Tensor
    square: float
    square_spread: float


_EXPECTED = ExpectedMoments(0.3, 0.15, 0.1)


def private_quantile(
    values: Tensor,
    quantile: float,
    low: float,
    high: float,
    levels: int,
    step: str,
    steps: NoisySteps,
    places: Tensor | None = None,
) -> float:
    """Return a quantile by halving an interval, each time by a noisy count below its middle.

    Each of the ``levels`` counts has sensitivity one and shares the step evenly. By pure events it is chosen at once
    among the middles that halving may end at, with a fraction of that noise (``privacy.quantile``).

    Args:
        values: Of the records, [n].
        quantile: In (0, 1).
        low: Of the public interval.
        high: Of the public interval.
        levels: Halvings.
        step: The step that pays.
        steps: Pays, and draws noise.
        places: Which of those middles, by position, a pure event chooses among; None for all.
    """
    if not steps.private:
        return float(torch.quantile(values[:: max(1, len(values) // 2**24 + 1)], quantile))
    event = steps.pay(step) if steps.pure else None
    if isinstance(event, PureEvent):
        middles = low + (high - low) * (torch.arange(2**levels, dtype=torch.float64) + 0.5) / 2**levels
        middles = middles if places is None else middles[places]
        return chosen_quantile(values, middles, quantile, event.epsilon, steps.session.noise)
    return quantile_by_counts(lambda t: (values < t).sum(), len(values), quantile, low, high, levels, step, steps)


def quantile_by_counts(
    below: Callable[[float], Tensor],
    n: int,
    quantile: float,
    low: float,
    high: float,
    levels: int,
    step: str,
    steps: NoisySteps,
) -> float:
    """Return a quantile of n records by the counts of those below a number; see ``private_quantile``."""
    event = steps.pay(step, count=levels)
    for _ in range(levels):
        middle = (low + high) / 2
        count = steps.noisy(below(middle).double()[None], 1.0, event).item()
        low, high = (middle, high) if count < quantile * n else (low, middle)
    return (low + high) / 2


def moment_sums(u: Tensor) -> Tensor:
    r"""Return the sums over records u [n, k] in [-1, 1] that means and spreads are released by, [2 k].

    Of :math:`u_j / (2\sqrt{k})` and of :math:`\sqrt{.65}\, u_j^2 / \sqrt{k}`, whose joint sensitivity is one: with
    d = |a - b| for two values of a covariate, :math:`d^2/4 + .65\, d^2 (2 - d)^2 \le 1` on [0, 2].
    """
    root = math.sqrt(u.shape[1])
    first, second = summed(lambda rows: torch.stack([rows.sum(0), rows.square().sum(0)]), u)
    return torch.cat([first / (2 * root), math.sqrt(_SQUARES) * second / root])


def standardisation_by_sums(sums: Tensor, n: int, steps: NoisySteps, drawn: bool = False) -> Standardisation:
    """Return released means and spreads of covariates, by one event of ``moment_sums`` of n records.

    Args:
        sums: Of the records.
        n: Their number.
        steps: Pays, and draws noise.
        drawn: Whether means and squares are drawn to what is expected of covariates, as far as their noise says.
    """
    mean, square = released_moments(sums, n, steps, _EXPECTED if drawn else None)
    return Standardisation(mean, (square - mean.square()).clamp(LEAST_VARIANCE, 1).sqrt())


def released_moments(
    sums: Tensor, n: int, steps: NoisySteps, expected: ExpectedMoments | None = None
) -> tuple[Tensor, Tensor]:
    """Return released means, in [-1, 1], and mean squares of covariates, [k] each, of ``moment_sums`` of n records.

    Args:
        sums: Of the records.
        n: Their number.
        steps: Pays, and draws noise.
        expected: What both are drawn to, as far as their noise says; None leaves them.
    """
    k = len(sums) // 2
    root = math.sqrt(k)
    noisy = steps.release("moments", sums, 1 + 2 * steps.rounding(n, 1.0)) / n
    mean = (2 * root * noisy[:k]).clamp(-1, 1)
    square = root * noisy[k:] / math.sqrt(_SQUARES)
    if expected is not None:
        sd = steps.scale("moments", 1.0, 2 * k) / n
        mean = mean * _trust(expected.means, 2 * root * sd)
        trust = _trust(expected.square_spread, root * sd / math.sqrt(_SQUARES))
        square = expected.square + (square - expected.square) * trust
    return mean, square


def _trust(spread: float | Tensor, noise: float) -> float | Tensor:
    """Return the weight of a number that varies so much and has so much noise, both standard deviations."""
    return spread**2 / (spread**2 + noise**2)


def private_curvatures(
    psi: Tensor, weight: Tensor, planned: Tensor, most: float, step: str, steps: NoisySteps
) -> Tensor:
    r"""Return the mean of weight psi psi' over records, float64 [p, p], drawn towards the plan by the noise's share.

    A record's matrix is positive semidefinite and clipped to Frobenius norm ``most``: two differ by at most
    sqrt(2) most. The diagonal is drawn to the planned one; of the correlations only what stands out of the noise's
    spectrum is kept. A plan without this step has the planned diagonal instead.

    Args:
        psi: Features [n, p].
        weight: Of the records, [n], in [0, 1] / |psi|.
        planned: The diagonal that the plan expects, [p].
        most: The norm.
        step: The step that pays.
        steps: Pays, and draws noise.
    """
    if steps.private and step not in steps.shares.shares:
        return planned.diag()
    return curvatures_by_sums(curvature_sums(psi, weight, most), len(psi), planned, most, step, steps)


def curvature_sums(psi: Tensor, weight: Tensor, most: float) -> Tensor:
    """Return the sums over records that ``private_curvatures`` releases, [p (p + 1) / 2].

    The upper triangle by rows, entries off the diagonal times sqrt(2): its norm is the matrix's Frobenius norm.
    """
    squared = psi.square().sum(1)
    clipped = weight * (most / (weight * squared).clamp_min(most))
    row, column, root = _upper(psi.shape[1], psi.device)
    return summed(lambda rows, each: rows.T @ (each[:, None] * rows), psi, clipped)[row, column] * root


def curvatures_by_sums(sums: Tensor, n: int, planned: Tensor, most: float, step: str, steps: NoisySteps) -> Tensor:
    """Return what ``private_curvatures`` does, of ``curvature_sums`` of n records."""
    p = len(planned)
    sensitivity = math.sqrt(2) * most + p * steps.rounding(n, most)
    noisy = steps.release(step, sums, sensitivity).cpu() / n
    sd = steps.scale(step, sensitivity, len(sums)) / n
    row, column, root = _upper(p)
    matrix = torch.zeros(p, p, dtype=torch.float64)
    matrix[row, column] = matrix[column, row] = noisy / root
    trust = 1 / (1 + (2 * sd / planned).square())
    diagonal = torch.minimum(
        torch.maximum(trust * matrix.diagonal() + (1 - trust) * planned, planned / 2), 2.5 * planned
    )
    unit = diagonal.sqrt()
    correlations = _spectrum(matrix / torch.outer(unit, unit), sd / math.sqrt(2) / torch.outer(unit, unit))
    return correlations * torch.outer(unit, unit)


def _spectrum(noisy: Tensor, sd: Tensor) -> Tensor:
    r"""Return correlations [p, p] of which noise of known deviations [p, p] is taken, entry by entry and by spectrum.

    Eigenvalues l of the part off the diagonal become :math:`l (1 - (e/l)^2)_+` with
    :math:`e = 2 \max_i (\sum_j s_{ij}^2)^{1/2}`, about the largest eigenvalue of the noise alone; those of the
    whole are at least a tenth.
    """
    one = torch.eye(len(noisy), dtype=torch.float64)
    trust = (1 - one) / (1 + (_DOUBT * sd).square())
    edge = 2 * (trust * sd).square().sum(1).max().sqrt()
    value, vector = torch.linalg.eigh((trust * noisy).clamp(-1, 1))
    kept = value * (1 - (edge / value.abs().clamp_min(1e-12)).square()).clamp_min(0)
    if not bool(kept.any()):
        return one
    value, vector = torch.linalg.eigh(one + (vector * kept) @ vector.T)
    found = (vector * value.clamp_min(_LEAST_CORRELATION)) @ vector.T
    return (found + found.T) / 2


def _upper(p: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and columns of the upper triangle of a matrix [p, p], and 1 on the diagonal, sqrt(2) off it."""
    row, column = torch.triu_indices(p, p, device=device)
    return row, column, 1 + (math.sqrt(2) - 1) * (row != column).double()
