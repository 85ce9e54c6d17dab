r"""A private average effect by an ensemble over folds: the principle of Lebeda et al. (2025), arXiv 2505.19589.

K disjoint folds fit nuisances without privacy. The nuisances of a record are means over the other folds: of the outcome
models, and of 1/pi and 1/(1 - pi). With outcomes within [0, 1] and weights of at most W a score

.. math:: \varphi = \mu_1 - \mu_0 \pm w_a (y - \mu_a)

lies in [-W, W]. A replaced record moves its own score by 2 W, and one of the K - 1 members behind each score of the
other folds, hence those by (2 W - 1)/(K - 1) at most, or W/(K - 1) where the propensity is known. So the mean moves
by at most 2 W/n + (2 W - 1)/K, and the mean of the squares by W^2/n + 2 W (2 W - 1)/K.

Assumed, where the paper leaves it open or we did not have it: ridge regressions in folds of ``FOLD`` records, within
[0, 1]; propensities clipped to [``CLIP``, 1 - ``CLIP``]; Gaussian noise on the mean and, for the interval, on the
mean square, with shares .8 and .2 of mu^2. The argument above is ours and is not certified by the library.
"""

import math

import torch
from torch import Tensor

from experiments.hospital.cases import LEVEL, Case, Estimate
from torchdpcate.data.records import public_generator
from torchdpcate.privacy.calibration import analytic_gaussian_sigma

FOLD = 40
CLIP = 0.1
SHARE = 0.8
_BLOCK = 2_000  # records that all folds predict at a time


def fold_ensemble(case: Case, epsilon: float, delta: float, seed: int) -> Estimate:
    """Return the estimate with its interval.

    Args:
        case: The records; of those beyond a multiple of ``FOLD`` nothing is taken.
        epsilon: Of all of it.
        delta: Of all of it.
        seed: Public, of folds and noise.
    """
    domain, generator = case.schema.domain, public_generator(seed, "fold ensemble")
    folds = case.data.n // FOLD
    n = folds * FOLD
    order = torch.randperm(case.data.n, generator=generator)[:n]
    x, a = case.data.x[order], case.data.a[order]
    y = (case.data.y[order] - domain.outcome_low) / domain.outcome_range
    known = None if domain.known_propensity is None else domain.known_propensity.middle
    scores = _scores(x, a, y, folds, known)

    largest = 1 / (CLIP if known is None else min(known, 1 - known))
    others = (2 * largest - 1 if known is None else largest) / folds
    multiplier = analytic_gaussian_sigma(epsilon, delta)
    noise = multiplier / math.sqrt(SHARE) * (2 * largest / n + others)
    of_squares = multiplier / math.sqrt(1 - SHARE) * (largest**2 / n + 2 * largest * others)
    drawn = torch.randn(2, generator=generator, dtype=torch.float64)
    mean = scores.mean().item() + noise * drawn[0].item()
    variance = scores.square().mean().item() + of_squares * drawn[1].item() - mean**2
    half = _normal(LEVEL) * math.hypot(noise, math.sqrt(min(max(variance, 0.0), largest**2) / n))
    return Estimate(*(domain.outcome_range * value for value in (mean, mean - half, mean + half)))


def _scores(x: Tensor, a: Tensor, y: Tensor, folds: int, known: float | None) -> Tensor:
    """Return scores [n] of records whose folds lie one after the other."""
    inside = [value.view(folds, FOLD, *value.shape[1:]) for value in (x, a, y)]
    every = torch.ones_like(inside[1])
    treated = _Ridge(inside[0], inside[1], every)
    arms = [_Ridge(inside[0], inside[2], weight) for weight in (1 - inside[1], inside[1])]
    found = []
    for rows in torch.arange(len(x)).split(_BLOCK):
        other = (rows // FOLD)[:, None] != torch.arange(folds)
        m0, m1 = (_mean(arm(x[rows]).clamp(0, 1), other) for arm in arms)
        if known is None:
            pi = treated(x[rows]).clamp(CLIP, 1 - CLIP)
            w1, w0 = _mean(1 / pi, other), _mean(1 / (1 - pi), other)
        else:
            w1, w0 = torch.full_like(m1, 1 / known), torch.full_like(m0, 1 / (1 - known))
        of = a[rows] == 1
        found.append(m1 - m0 + torch.where(of, w1 * (y[rows] - m1), -w0 * (y[rows] - m0)))
    return torch.cat(found)


class _Ridge:
    """A weighted ridge regression in each fold, of covariates in the fold's own units."""

    def __init__(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        total = weight.sum(1, keepdim=True)
        there = total > 0
        share = torch.where(there, weight / total.clamp_min(1), torch.full_like(weight, 1 / FOLD))
        self._middle = (share[..., None] * x).sum(1)
        self._mean = (share * y).sum(1)
        scale = x.std(1)
        self._scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        z = (x - self._middle[:, None]) / self._scale[:, None] * weight.sqrt()[..., None]
        r = (y - self._mean[:, None]) * weight.sqrt()
        gram = z @ z.mT + FOLD * torch.eye(FOLD, dtype=torch.float64)
        self._slope = (z.mT @ torch.linalg.solve(gram, r)[..., None]).squeeze(-1) / self._scale

    def __call__(self, x: Tensor) -> Tensor:
        """Return predictions of all folds, [n, K]."""
        return x @ self._slope.T + (self._mean - (self._slope * self._middle).sum(1))


def _mean(values: Tensor, other: Tensor) -> Tensor:
    return (values * other).sum(1) / other.sum(1)


def _normal(level: float) -> float:
    """Return the two-sided quantile of the standard normal law."""
    return math.sqrt(2) * torch.special.erfinv(torch.tensor(level, dtype=torch.float64)).item()
