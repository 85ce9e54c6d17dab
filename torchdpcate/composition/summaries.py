"""Private numbers that later steps rest on: quantiles, moments and correlations of covariates, curvatures."""

import math
from collections.abc import Callable

import scipy
import torch
from torch import Tensor

from torchdpcate.composition.steps import NoisySteps, summation_error
from torchdpcate.features.standardisation import Standardisation

_SQUARES = 0.65  # of mu^2 for the second moments, at no cost beside the first: see private_standardisation
LEAST_VARIANCE = 0.01  # of a covariate on [-1, 1]
_COLLINEAR = 0.15  # eigenvalue of the correlations below which covariates are rotated: features along axes serve better
_EDGE = 1.4  # of the eigenvalues of pure noise, over sd sqrt(k)


def private_quantile(
    values: Tensor, quantile: float, low: float, high: float, levels: int, step: str, steps: NoisySteps
) -> float:
    """Return a quantile by halving an interval, each time by a noisy count below its middle.

    Each of the ``levels`` counts has sensitivity one and shares the step evenly.

    Args:
        values: Of the records, [n].
        quantile: In (0, 1).
        low: Of the public interval.
        high: Of the public interval.
        levels: Halvings.
        step: The step that pays.
        steps: Pays, and draws noise.
    """
    if not steps.private:
        return float(torch.quantile(values[:: max(1, len(values) // 2**24 + 1)], quantile))
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


def private_standardisation(u: Tensor, steps: NoisySteps) -> Standardisation:
    r"""Return released means and spreads of scaled covariates u [n, k] in [-1, 1].

    One Gaussian event releases the sums of :math:`u_j / (2\sqrt{k})` and of :math:`\sqrt{.65}\, u_j^2 / \sqrt{k}`,
    whose joint sensitivity is one: with d = |a - b| for two values of a covariate,
    :math:`d^2/4 + .65\, d^2 (2 - d)^2 \le 1` on [0, 2].
    """
    return standardisation_by_sums(moment_sums(u), len(u), steps)


def moment_sums(u: Tensor) -> Tensor:
    """Return the sums over records u [n, k] that ``private_standardisation`` releases, [2 k]."""
    root = math.sqrt(u.shape[1])
    return torch.cat([u.sum(0) / (2 * root), math.sqrt(_SQUARES) * u.square().sum(0) / root])


def standardisation_by_sums(sums: Tensor, n: int, steps: NoisySteps) -> Standardisation:
    """Return what ``private_standardisation`` does, of ``moment_sums`` of n records."""
    k = len(sums) // 2
    root = math.sqrt(k)
    noisy = steps.release("moments", sums, 1 + 2 * summation_error(n, 1.0)) / n
    mean = (2 * root * noisy[:k]).clamp(-1, 1)
    square = root * noisy[k:] / math.sqrt(_SQUARES)
    return Standardisation(mean, (square - mean.square()).clamp(LEAST_VARIANCE, 1).sqrt())


def private_rotation(z: Tensor, steps: NoisySteps) -> Tensor | None:
    r"""Return the symmetric inverse root of the correlations of z [n, k]; None where none is strong, or all are lost in the
    noise.

    Rows are clipped to norm :math:`\sqrt{2k}`, so that :math:`\|z z^\top\|_F \le 2k` and two such matrices differ by
    at most :math:`2\sqrt2\, k`; the released upper triangle, by its off-diagonal entries alone, by 2k. What clipping
    takes from normal covariates is given back. Eigenvalues are drawn to their bulk, those within the noise wholly.
    """
    return rotation_by_products(clipped_products(z), len(z), z.shape[1], steps)


def clipped_products(z: Tensor) -> Tensor:
    """Return the sums over records z [n, k] that ``private_rotation`` releases, [k (k - 1) / 2]."""
    k = z.shape[1]
    z = z * (math.sqrt(2 * k) / z.norm(dim=1, keepdim=True).clamp_min(math.sqrt(2 * k)))
    row, column = torch.triu_indices(k, k, 1)
    return (z.T @ z)[row, column]


def rotation_by_products(products: Tensor, n: int, k: int, steps: NoisySteps) -> Tensor | None:
    """Return what ``private_rotation`` does, of ``clipped_products`` of n records with k covariates."""
    row, column = torch.triu_indices(k, k, 1)
    sensitivity = 2 * k + 2 * k * summation_error(n, 2.0 * k)
    upper = steps.release("correlations", products, sensitivity) / (n * _unclipped(k))
    matrix = torch.eye(k, dtype=torch.float64)
    matrix[row, column] = matrix[column, row] = upper.clamp(-0.98, 0.98)
    value, vector = torch.linalg.eigh(matrix)
    edge = _EDGE * math.sqrt(2 * k) * steps.scale("correlations", sensitivity) / n
    bulk = torch.ones(k, dtype=torch.bool)
    for _ in range(5):
        near = (value - value[bulk].median()).abs() <= edge
        bulk = near if bool(near.any()) else bulk
    middle = value[bulk].mean().clamp_min(0.05)
    off = value - middle
    off = off * (1 - (edge / off.abs().clamp_min(1e-9)).square()).clamp_min(0)
    if float((middle + off).min()) > _COLLINEAR:
        return None
    return vector @ ((middle + off).clamp_min(0.05) ** -0.5).diag() @ vector.T


def _unclipped(k: int) -> float:
    """Return the share of |z|^2 that clipping at 2k leaves, were z standard normal: what off-diagonal entries keep."""
    return float(scipy.stats.chi2.cdf(2 * k, k + 2) + 2 * scipy.stats.chi2.sf(2 * k, k))


def private_curvatures(
    psi: Tensor, weight: Tensor, planned: Tensor, most: float, step: str, steps: NoisySteps
) -> Tensor:
    r"""Return the mean of weight psi_j^2 over records, float64 [p], drawn towards the plan by the noise's share.

    A record's vector has nonnegative entries and is clipped to norm ``most``: two differ by at most sqrt(2) most.

    Args:
        psi: Features [n, p].
        weight: Of the records, [n], in [0, 1] / |psi|.
        planned: What the plan expects, [p].
        most: The norm.
        step: The step that pays.
        steps: Pays, and draws noise.
    """
    return curvatures_by_sums(curvature_sums(psi, weight, most), len(psi), planned, most, step, steps)


def curvature_sums(psi: Tensor, weight: Tensor, most: float) -> Tensor:
    """Return the sums over records that ``private_curvatures`` releases, [p]."""
    rows = psi.square() * weight[:, None]
    return (rows * (most / rows.norm(dim=1, keepdim=True).clamp_min(most))).sum(0)


def curvatures_by_sums(sums: Tensor, n: int, planned: Tensor, most: float, step: str, steps: NoisySteps) -> Tensor:
    """Return what ``private_curvatures`` does, of ``curvature_sums`` of n records."""
    p = len(sums)
    sensitivity = math.sqrt(2) * most + math.sqrt(p) * summation_error(n, most)
    noisy = steps.release(step, sums, sensitivity) / n
    sd = steps.scale(step, sensitivity) / n
    trust = 1 / (1 + (2 * sd / planned).square())
    return torch.minimum(torch.maximum(trust * noisy + (1 - trust) * planned, planned / 2), 2.5 * planned)
