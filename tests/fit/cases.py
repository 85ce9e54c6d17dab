"""Private fits by keywords, for tests."""

from torchdpcate.fit.losses import LossBounds
from torchdpcate.fit.private_fit import ObjectiveNoise, PrivateFit, WeightBounds
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.mechanisms import AdditiveMechanism


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
