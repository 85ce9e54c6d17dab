"""Rows of covariates that follow from released means and spreads: whom a release's figures and findings are about."""

import math

import torch
from torch import Tensor

from torchdpcate.data.domain import unit_grid
from torchdpcate.data.schema import TableSchema
from torchdpcate.fit.weighted_basis import Standardisation

ROWS = 256
"""How many people a release is shown over."""

_END = 0.01  # of a mean, from the ends of its bounds, in their width
_MOST_VARIANCE = 0.9  # of what a mean allows between bounds
_LEAST_SHARE = 1e-6  # of a level, so that shares can be divided by their sum


def released_population(
    schema: TableSchema, standardisation: Standardisation, columns: tuple[int, ...] | None, count: int
) -> Tensor:
    """Return encoded rows whose covariates have the released means and spreads, float64 [count, q].

    Covariates are independent of each other: categories come with their released shares (those that the release leaves
    out divide what is left), numbers by the Beta law between their bounds that has the released mean and spread, on
    their scale. Covariates that the release leaves out are uniform over their scale; its effect does not depend on
    them. The rows follow from released numbers and a fixed seed alone: post-processing, at no cost. No record is among
    them.

    Args:
        schema: Columns and public bounds.
        standardisation: Released means and spreads of the covariates in use.
        columns: Which these are; None for all.
        count: Number of rows.

    Raises:
        InputError: ``count`` is not a positive integer.
    """
    domain, width = schema.domain, schema.domain.dimension
    mean, spread = torch.zeros(width, dtype=torch.float64), torch.full((width,), 3**-0.5, dtype=torch.float64)
    used = list(range(width)) if columns is None else list(columns)
    mean[used], spread[used] = standardisation.mean, standardisation.sd
    share, variance = (mean + 1) / 2, (spread / 2).square()  # of the way from the lower bound to the upper one
    known = torch.zeros(width, dtype=torch.bool)
    known[used] = True
    u, found = unit_grid(count, len(schema.covariates)), []
    for i, covariate in enumerate(schema.covariates):
        of = list(schema.places[covariate.name])
        if covariate.levels:
            found.append(_levels(u[:, i], share[of], known[of]))
            continue
        value, *gone = of
        rest, missing = _split(u[:, i], share[gone[0]].item() if gone else 0.0)
        values = _between(rest, share[value].item(), variance[value].item())
        # a missing value is the middle of its scale
        found.append(torch.stack([torch.where(missing, 0.5, values), *([missing.double()] if gone else [])], 1))
    scaled = torch.cat(found, 1)
    return domain.from_unit(scaled)


def _levels(u: Tensor, share: Tensor, known: Tensor) -> Tensor:
    """Return indicators [count, k] of levels with these shares [k]; of two levels, that of the second, [count, 1].

    Levels whose share was not released divide what the others leave.
    """
    if len(share) == 1:
        return (u[:, None] >= 1 - share).double()
    rest = (1 - share[known].sum()) / (~known).sum().clamp_min(1)
    shares = torch.where(known, share, rest).clamp_min(_LEAST_SHARE)
    level = torch.searchsorted((shares / shares.sum()).cumsum(0)[:-1], u.contiguous(), right=True)
    return torch.nn.functional.one_hot(level, len(share)).double()


def _split(u: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return quantiles u [count] of the values that are there, and which are missing, a share of them."""
    if share <= 0:
        return u, torch.zeros(len(u), dtype=torch.bool)
    missing = u < min(share, 1.0)
    return ((u - share) / (1 - share) if share < 1 else u).clamp(0, 1), missing


def _between(u: Tensor, mean: float, variance: float) -> Tensor:
    """Return quantiles u [count] of the Beta law on [0, 1] of this mean and variance."""
    from scipy.special import betaincinv

    end = min(_END, math.sqrt(variance))  # about which values lie as far from their mean as the released spread says
    mean = min(max(mean, end), 1 - end)
    size = mean * (1 - mean) / min(variance, _MOST_VARIANCE * mean * (1 - mean)) - 1
    return torch.from_numpy(betaincinv(mean * size, (1 - mean) * size, u.numpy()))
