"""Scales of skewed covariates: private windows that hold most of their values, and moments within these."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchdpcate.composition.steps import HALVINGS, WINDOWS, NoisySteps, summed
from torchdpcate.composition.summaries import LEAST_VARIANCE, ExpectedMoments, released_moments
from torchdpcate.data.domain import Domain
from torchdpcate.features.weighted_basis import MOST, Standardisation

_QUANTILES = (0.2, 0.8)
_APART = 1.6832424671458283  # of these quantiles of a standard normal covariate
CELLS = 2**HALVINGS
"""Of each covariate's interval, as fine as halvings tell."""
_BEND = 3.0  # a covariate that starts at zero is halved evenly in this root of its share of the range
_LEAST = 0.004  # standard deviation of a window, of the interval [-1, 1]
_RATES, _MEANS, _SQUARE, _SQUARE_SPREAD = 0.7, 0.15, 1 / MOST**2, 0.06
# spread of means of covariates of two levels about zero, and of others about the middle of their windows, where their
# mean square is expected, and its spread
LEAST_SPREAD = _LEAST * MOST * math.sqrt(LEAST_VARIANCE)
"""Least standard deviation that a covariate on [-1, 1] can be released with."""


def starts_at_zero(domain: Domain) -> Tensor:
    """Return which covariates have the lower bound zero and no scale of their own, [q]: their values may be skewed."""
    return torch.tensor([column.low == 0 and column.linear for column in domain.columns])


def window_cells(u: Tensor, bent: Tensor) -> Tensor:
    """Return how many of the records u [n, q] lie in each cell of each covariate, [q, 256].

    Args:
        u: Covariates scaled to [-1, 1].
        bent: Which of them have cells that are finer towards -1, [q].
    """
    return summed(lambda rows: _cells(rows, bent), u)


def _cells(u: Tensor, bent: Tensor) -> Tensor:
    share = ((u.double() + 1) / 2).clamp(0, 1)
    share = torch.where(bent.to(u.device), share.pow(1 / _BEND), share)
    cell = (share * CELLS).long().clamp_max(CELLS - 1)
    start = CELLS * torch.arange(u.shape[1], device=u.device)
    return torch.bincount((cell + start).flatten(), minlength=CELLS * u.shape[1]).view(-1, CELLS).double()


def private_windows(cells: Callable[[], Tensor], bent: Tensor, n: int, steps: NoisySteps) -> Standardisation:
    r"""Return a private middle c and scale s of each covariate, by halving for its .2 and .8 quantile.

    .. math:: c = (q_{.2} + q_{.8}) / 2, \qquad s = (q_{.8} - q_{.2}) / 1.683

    Each of the 8 vectors of counts, two of each covariate, has the :math:`\ell_2` sensitivity :math:`\sqrt{2q}` and
    shares the step evenly.

    Args:
        cells: Gives ``window_cells`` of the records, once it is paid for.
        bent: As there.
        n: Of records.
        steps: Pays, and draws noise.
    """
    q, event = len(bent), steps.pay(WINDOWS, count=HALVINGS) if steps.private else None
    below = torch.cat([torch.zeros(q, 1).double(), cells().cpu().cumsum(1)], 1)
    wanted = n * torch.tensor(_QUANTILES, dtype=torch.float64)
    low, high = torch.zeros(q, 2).long(), torch.full((q, 2), CELLS)
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        counts = below.gather(1, middle)
        if event is not None:
            counts = steps.noisy(counts.flatten(), math.sqrt(2 * q), event).view(q, 2)
        short = counts < wanted
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    share = (low + high).double() / (2 * CELLS)
    ends = 2 * torch.where(bent[:, None], share.pow(_BEND), share) - 1
    ends = ends.sort(1).values
    return Standardisation(ends.mean(1), ((ends[:, 1] - ends[:, 0]) / _APART).clamp_min(_LEAST))


def within(u: Tensor, windows: Standardisation, two_levels: Tensor) -> Tensor:
    """Return covariates u [n, q] as shares of their windows, within [-1, 1]; those of two levels as they are.

    Args:
        u: Scaled to [-1, 1].
        windows: Of those that have more levels.
        two_levels: Which have two, [q].
    """
    found = u.double().clone()
    found[:, ~two_levels] = windows(found[:, ~two_levels]) / MOST
    return found


def private_moments(
    sums: Tensor, windows: Standardisation, two_levels: Tensor, n: int, steps: NoisySteps
) -> Standardisation:
    """Return the standardisation of all covariates, by their means and squares within their windows.

    Args:
        sums: ``moment_sums`` of ``within`` of the records.
        windows: Of covariates of more than two levels.
        two_levels: Which have two, [q].
        n: Of records.
        steps: Pays, and draws noise.
    """
    spreads = torch.where(two_levels, _RATES, _MEANS).double()
    mean, square = released_moments(sums, n, steps, ExpectedMoments(spreads, _SQUARE, _SQUARE_SPREAD))
    variance = (torch.where(two_levels, 1.0, square) - mean.square()).clamp(LEAST_VARIANCE, 1)
    middle, reach = torch.zeros_like(mean), torch.ones_like(mean)
    middle[~two_levels], reach[~two_levels] = windows.mean, MOST * windows.sd
    return Standardisation((middle + reach * mean).clamp(-1, 1), (reach * variance.sqrt()).clamp_max(1))
