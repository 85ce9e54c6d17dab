"""Private fits by keywords, and records on a line, for tests."""

import math

import torch

from torchdpcate.data.domain import Domain
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.gaussian_scale import _log_delta
from torchdpcate.fit.losses import LossBounds
from torchdpcate.fit.private_fit import ObjectiveNoise, PrivateFit, WeightBounds
from torchdpcate.fit.stacked_records import Batch, StackedRecords
from torchdpcate.privacy.budget import PrivacyBudget, integer, positive
from torchdpcate.privacy.mechanisms import AdditiveMechanism

LINE_DOMAIN = Domain([0.0], [1.0], 0.0, 1.0, better="higher")
LINE = on_domain(None, LINE_DOMAIN)  # (1, x) / sqrt 2, so that phi = sqrt 2 psi has C^2 = 2


def on_a_line(n: int) -> StackedRecords:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, dtype=torch.float64, generator=generator)
    z = (torch.rand(n, generator=generator) < torch.sigmoid(2 * x[:, 0] - 0.5)).double()
    return StackedRecords(Batch(x, LINE(x), z, torch.rand(n, dtype=torch.float64, generator=generator)))


def calibrate_objective(
    budget: PrivacyBudget,
    *,
    kind: str,
    slope: float,
    bounds: WeightBounds,
    curvature: float,
    gamma: float,
    size: int,
    logistic: bool = False,
    monotone: bool = False,
    **facts,
) -> ObjectiveNoise:
    """Return the noise of an objective with these bounds."""
    return PrivateFit(LossBounds(slope, curvature, monotone, logistic), bounds, gamma, size, **facts).objective(
        budget, kind
    )


def output_mechanism(
    budget: PrivacyBudget, *, kind: str, slope: float, bounds: WeightBounds, gamma: float, **facts
) -> AdditiveMechanism:
    """Return the noise on the minimiser of a sum with these bounds."""
    return PrivateFit(LossBounds(slope, 1.0), bounds, gamma, 1, **facts).output(budget, kind)


def objective_delta(sigma: float, epsilon: float, shift: float, jacobian: float = 0.0, dimension: int = 2) -> float:
    r"""Delta at ``epsilon`` of Gaussian objective noise N(0, sigma^2 I) whose shift lies in a fixed subspace.

    .. math:: \delta = E\big[(1 - e^{\varepsilon - Z})_+\big], \quad
              Z = J + \frac{\xi^2}{2\sigma^2} + \frac{\xi}{\sigma}\chi_k

    Args:
        sigma: Standard deviation of each entry of the noise.
        epsilon: Positive.
        shift: xi, the largest length of the difference of two neighbours' gradients.
        jacobian: J, the largest log ratio of their determinants.
        dimension: k of a subspace that contains that difference wherever it is taken.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> round(objective_delta(12.0, 1.0, 2.0, 0.25) * 1e6, 6)
        2.023653
    """
    ratio = positive("shift", shift) / positive("sigma", sigma)
    return math.exp(
        _log_delta(ratio, positive("epsilon", epsilon) - jacobian, integer("dimension", dimension, least=1))
    )
