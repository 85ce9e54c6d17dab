"""Public intervals of released nuisances over the domain: what sensitivities that follow from them rest on."""

import numpy as np
import torch
from torch import Tensor, nn

from torchdpcate.data.domain import Domain
from torchdpcate.nuisance.convex_model import ConvexNuisances
from torchdpcate.nuisance.model import NuisanceModel
from torchdpcate.nuisance.nuisances import Nuisances

_ROUNDING = 2.0**-44
"""What float64 may be off by in a sum, over the number of its terms and their absolute sum."""


def nuisance_range(model: NuisanceModel, domain: Domain) -> tuple[Tensor, Tensor]:
    r"""Return intervals of released nuisances over the domain: of P(A = 1) [2], and of both outcomes [2, 2].

    Exact for `ConvexNuisances`, which are additive: each coordinate's polynomial has its own range. For networks by
    interval arithmetic, layer by layer; for others the clips alone. Then pushed outwards by more than float64 rounds,
    so that predictions lie within on any machine: sums by `_ROUNDING`, what follows from them by 2^-48 of its size.

    Args:
        model: Nuisances that a mechanism paid for, in float64; what is returned follows from them.
        domain: The public bounds that they were trained with.

    Example:
        >>> from torchdpcate.data import Domain
        >>> domain = Domain([0.0], [1.0], -1.0, 1.0)
        >>> pi, mu = nuisance_range(ConvexNuisances(domain), domain)
        >>> [round(end, 12) for end in pi.tolist()], mu.abs().amax().item() < 1e-12
        ([0.5, 0.5], True)
    """
    low, high = domain.outcome_low, domain.outcome_high  # a propensity that is known has its own
    infinite = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64)
    logit, mean = infinite, infinite.expand(2, 2)
    if isinstance(model, ConvexNuisances):
        logit = _additive_range(model.propensity, domain.dimension)
        mean = torch.stack([_additive_range(theta, domain.dimension) for theta in model.outcomes]) + model.median
    elif isinstance(model, Nuisances):
        logit = _network_range(model.propensity.net, domain.dimension)[0]
        mean = _network_range(model.outcome.net, domain.dimension) * domain.outcome_range + low
    outwards = 2.0**-48 * torch.tensor([-1.0, 1.0], dtype=torch.float64)
    pi, mean = torch.sigmoid(logit) + outwards, mean + outwards * max(abs(low), abs(high))
    if domain.known_propensity is not None:
        pi = torch.tensor(domain.known_propensity.bounds, dtype=torch.float64)
    return pi.clamp(domain.overlap, 1 - domain.overlap), mean.clamp(low, high)


def _additive_range(theta: Tensor, width: int) -> Tensor:
    """Return least and largest value over [-1, 1]^width of an additive Legendre series, see `additive_legendre`."""
    # degree by degree: coefficient k of coordinate j stands at (k - 1) width + j, after the intercept
    series = np.vstack([np.zeros(width), theta[1:].reshape(-1, width).cpu().numpy()])
    ends = theta[0].item() + np.sum([_series_range(column) for column in series.T], axis=0)
    # |P_k| <= 1, so the terms' absolute sum is that of the coefficients
    slack = _ROUNDING * len(theta) * theta.abs().sum().item()
    return torch.tensor([ends[0] - slack, ends[1] + slack], dtype=torch.float64) / len(theta) ** 0.5


def _series_range(series: np.ndarray) -> tuple[float, float]:
    """Return least and largest value of one Legendre series over [-1, 1]."""
    function = np.polynomial.Legendre(series)
    turns = function.deriv().trim().roots()
    # real roots may come with a rounded imaginary part; a point more costs nothing
    values = function(np.concatenate([[-1.0, 1.0], np.clip(turns.real, -1, 1)]))
    return values.min(), values.max()


def _network_range(net: nn.Sequential, width: int) -> Tensor:
    """Return bounds [outputs, 2] of what layers give on [-1, 1]^width, by interval arithmetic."""
    centre, radius = torch.zeros(width, dtype=torch.float64), torch.ones(width, dtype=torch.float64)
    for layer in net:
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach().cpu().double()
            bias = layer.bias.detach().cpu().double()
            terms = weight.abs() @ (centre.abs() + radius) + bias.abs()
            slack = _ROUNDING * (weight.shape[1] + 1) * terms
            centre, radius = weight @ centre + bias, weight.abs() @ radius + slack
        else:  # a rectifier, monotone
            low, high = layer(centre - radius), layer(centre + radius)
            centre, radius = (low + high) / 2, (high - low) / 2
    return torch.stack([centre - radius, centre + radius], 1)
