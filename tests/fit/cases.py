"""Private fits by keywords, and records on a line, for tests."""

import torch

from torchdpcate.data.domain import Domain
from torchdpcate.fit.losses import LossBounds
from torchdpcate.fit.private_fit import ObjectiveNoise, PrivateFit, WeightBounds
from torchdpcate.fit.stacked_records import Batch, StackedRecords
from torchdpcate.fit.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget
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
