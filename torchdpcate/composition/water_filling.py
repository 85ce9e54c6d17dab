"""How much of one noise each feature gets, from what is expected of it."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Filling(NamedTuple):
    """How one noise is divided.

    Attributes:
        noise: sigma^2, variance of the noise of a function of energy one.
        constant: e_0, energy of the constant.
        energies: e, of the features, [p].
        error: Expected squared error of the function.
    """

    noise: float
    constant: float
    energies: Tensor
    error: float


def water_filling(prior: Tensor, noise: float, constant: float = math.inf) -> tuple[float, Tensor]:
    r"""Return energies e_0 of the constant and e_j of features, together one, of least expected error.

    .. math:: \min_e \sum_{j \ge 0} \frac{g_j v_j}{g_j + v_j}, \quad v_j = \frac{\sigma^2}{e_j},
        \qquad e_j = \max(0, \lambda - \sigma^2/g_j)

    With an infinite prior variance of the constant, :math:`\lambda = e_0`: a feature is asked for only where its prior
    variance g_j exceeds the constant's noise.

    Args:
        prior: g, variances of the features' parts of a function, float64 [p], positive.
        noise: sigma^2, variance of the noise of a function of energy one.
        constant: g_0, prior variance of the constant; at least that of any feature, so that it is always asked for.

    Returns:
        e_0, and e [p].

    Example:
        >>> constant, rest = water_filling(torch.tensor([1.0, 0.1]).double(), 0.2)
        >>> round(constant, 6), [round(e, 6) for e in rest.tolist()]
        (0.6, [0.4, 0.0])
    """
    needs, own = noise / prior, noise / constant
    ordered = needs.sort().values
    level = (1 + own + torch.cat([needs.new_zeros(1), ordered.cumsum(0)])) / torch.arange(1, len(needs) + 2)
    asked = int((level[1:] > ordered).sum())  # levels exceed needs for the first few, and for no others
    return level[asked].item() - own, (level[asked] - needs).clamp_min(0)


def gaussian_filling(prior: Tensor, noise: float, constant: float = math.inf) -> Filling:
    """Return the energies of ``water_filling`` with what is to be expected; see there."""
    return Filling(noise, *water_filling(prior, noise, constant), sum(expected_error(prior, noise, constant)))


def sampling_filling(prior: Tensor, noise: float, constant: float = math.inf) -> Filling:
    """Return equal energies of all features whose prior variance exceeds what sampling leaves of them.

    Args:
        prior: g, [p].
        noise: Variance of a feature's part by sampling, whatever its energy.
        constant: g_0.
    """
    asked = (prior > noise).double()
    even = 1 / (1 + float(asked.sum()))
    return Filling(noise, even, even * asked, sum(expected_error(prior, noise, constant)))


def pure_filling(prior: Tensor, unit: float, constant: float = math.inf) -> Filling:
    r"""Return energies of least expected error where noise grows with the number of features.

    K-norm noise of 1 + k coefficients has the variance :math:`\sigma^2 = u (2 + k) / 2`, u that of one coefficient.
    Features are asked for by falling prior variance, those of one variance together.

    Args:
        prior: g, [p], positive.
        unit: u.
        constant: Prior variance of the constant; see ``water_filling``.

    Example:
        >>> found = pure_filling(torch.tensor([1.0, 1.0, 0.1]).double(), 0.1)
        >>> round(found.noise, 6), round(found.constant, 6), [round(e, 6) for e in found.energies.tolist()]
        (0.2, 0.466667, [0.266667, 0.266667, 0.0])
    """
    least, found = _constant_error(unit, constant) + float(prior.sum()), (unit, 1.0, torch.zeros_like(prior))
    for value in prior.unique().flip(0).tolist():
        asked = prior >= value
        noise = unit * (2 + int(asked.sum())) / 2
        error = sum(expected_error(prior[asked], noise, constant)) + float(prior[~asked].sum())
        if error < least:
            own, some = water_filling(prior[asked], noise, constant)
            energies = torch.zeros_like(prior)
            energies[asked] = some
            least, found = error, (noise, own, energies)
    noise, own, energies = found
    rest = float((prior * noise / (prior * energies + noise)).sum())
    return Filling(noise, own, energies, _constant_error(noise, constant, own) + rest)


def _constant_error(noise: float, prior: float, energy: float = 1.0) -> float:
    return noise / energy if math.isinf(prior) else prior * noise / (prior * energy + noise)


def expected_error(prior: Tensor, noise: float, constant: float = math.inf) -> tuple[float, float]:
    """Return the expected squared error of the constant, and that of all features, by ``water_filling``.

    Args:
        prior: g, [p].
        noise: sigma^2.
        constant: g_0.
    """
    own, energies = water_filling(prior, noise, constant)
    first = noise / own if math.isinf(constant) else constant * noise / (constant * own + noise)
    return first, float((prior * noise / (prior * energies + noise)).sum()) if noise else 0.0
