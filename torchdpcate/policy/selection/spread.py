"""How far one record's scores of two actions lie apart: by public intervals of the nuisances over the domain."""

from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from torchdpcate.data import Domain
from torchdpcate.errors import NumericalError
from torchdpcate.nuisance import ConvexNuisances, NuisanceModel, Nuisances


def score_spread(domain: Domain, propensity: Tensor, outcome: Tensor) -> float:
    r"""Return S, the most by which one record's scores of two actions differ, by intervals of the nuisances.

    .. math:: S = \sup_{y, a, b, c} \max\Big\{\Big|\frac{y - \mu_a}{e_a} + \mu_a - \mu_b\Big|, |\mu_b - \mu_c|\Big\}

    The supremum runs over the corners of the intervals, where it is attained: the expression is linear in y, 1/e and
    each mu alone. A replaced scoring record moves two policies' utilities apart by at most 2 S. Source: theory note
    ``policy_learning``, section 6.1.

    Args:
        domain: Public bounds of the outcome.
        propensity: Least and largest propensity of each arm over the domain, [K, 2], positive.
        outcome: Least and largest outcome model of each arm over the domain, [K, 2].

    Raises:
        NumericalError: An end of an interval is not finite.

    Returns:
        S in outcome units; R / zeta where the intervals are all that floor and domain allow.

    Example:
        >>> from torchdpcate.data import Domain
        >>> half, middle = torch.full((2, 2), 0.5), torch.zeros(2, 2)
        >>> score_spread(Domain([0], [1], -0.5, 0.5), half, middle)
        1.0
    """
    if not bool(torch.isfinite(propensity).all() & torch.isfinite(outcome).all()):
        raise NumericalError("nuisances are not finite over the domain: nothing is released")
    arms, worst = len(propensity), 0.0
    ends = (domain.outcome_low, domain.outcome_high)
    mu, e = outcome.tolist(), propensity.tolist()
    for a, b in product(range(arms), repeat=2):
        if a == b:
            continue
        for y, mu_a, mu_b, e_a in product(ends, mu[a], mu[b], e[a]):
            worst = max(worst, abs((y - mu_a) / e_a + mu_a - mu_b))
            if arms > 2:
                worst = max(worst, abs(mu_a - mu_b))
    return worst


def nuisance_range(model: NuisanceModel, domain: Domain) -> tuple[Tensor, Tensor]:
    r"""Return intervals of released nuisances over the whole domain: of P(A = 1) [2], and of both outcomes [2, 2].

    Exact for `ConvexNuisances`, which are additive: each coordinate's polynomial has its own range. For networks by
    interval arithmetic, layer by layer; for others the clips alone.

    Args:
        model: Nuisances that a mechanism paid for, in float64; what is returned follows from them.
        domain: The public bounds that they were trained with.

    Example:
        >>> from torchdpcate.data import Domain
        >>> domain = Domain([0.0], [1.0], -1.0, 1.0)
        >>> pi, mu = nuisance_range(ConvexNuisances(domain), domain)
        >>> pi.tolist(), mu.tolist()
        ([0.5, 0.5], [[0.0, 0.0], [0.0, 0.0]])
    """
    low, high = domain.outcome_low, domain.outcome_high
    infinite = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64)
    logit, mean = infinite, infinite.expand(2, 2)
    if isinstance(model, ConvexNuisances):
        logit = _additive_range(model.propensity, domain.dimension)
        mean = torch.stack([_additive_range(theta, domain.dimension) for theta in model.outcomes]) + model.median
    elif isinstance(model, Nuisances):
        logit = _network_range(model.propensity.net, domain.dimension)[0]
        mean = _network_range(model.outcome.net, domain.dimension) * domain.outcome_range + low
    return torch.sigmoid(logit).clamp(domain.overlap, 1 - domain.overlap), mean.clamp(low, high)


def _additive_range(theta: Tensor, width: int) -> Tensor:
    """Return least and largest value over [-1, 1]^width of an additive Legendre series, see `additive_legendre`."""
    # degree by degree: coefficient k of coordinate j stands at (k - 1) width + j, after the intercept
    series = np.vstack([np.zeros(width), theta[1:].reshape(-1, width).cpu().numpy()])
    ends = theta[0].item() + np.sum([_series_range(column) for column in series.T], axis=0)
    return torch.from_numpy(np.asarray(ends)) / len(theta) ** 0.5


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
            centre, radius = weight @ centre + layer.bias.detach().cpu().double(), weight.abs() @ radius
        else:  # a rectifier, monotone
            low, high = layer(centre - radius), layer(centre + radius)
            centre, radius = (low + high) / 2, (high - low) / 2
    return torch.stack([centre - radius, centre + radius], 1)
