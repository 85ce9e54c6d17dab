"""Every weighting scheme by its name."""

from torchdpcate.errors import InputError
from torchdpcate.nuisance.weights.known import ConstantWeights, KnownWeights
from torchdpcate.nuisance.weights.logistic import LogisticWeights
from torchdpcate.nuisance.weights.mmd import MMDWeights
from torchdpcate.nuisance.weights.private import PrivateWeights
from torchdpcate.nuisance.weights.scheme import FittedWeights, WeightScheme
from torchdpcate.nuisance.weights.tilting import TiltingWeights

__all__ = [
    "WEIGHTS",
    "ConstantWeights",
    "FittedWeights",
    "KnownWeights",
    "LogisticWeights",
    "MMDWeights",
    "PrivateWeights",
    "TiltingWeights",
    "WeightScheme",
    "make_weights",
]

_SCHEMES: tuple[type[WeightScheme], ...] = (
    KnownWeights,
    ConstantWeights,
    PrivateWeights,
    LogisticWeights,
    TiltingWeights,
    MMDWeights,
)

WEIGHTS: dict[str, type[WeightScheme]] = {scheme.name: scheme for scheme in _SCHEMES}
"""Weighting schemes by the name that users give."""


def make_weights(weights: str | WeightScheme) -> WeightScheme:
    """Return the weighting scheme, or the one of this name with its defaults.

    Raises:
        InputError: No such name, or ``known`` without its propensity.

    Example:
        >>> make_weights("private").share
        0.25
    """
    if isinstance(weights, WeightScheme):
        return weights
    if weights == KnownWeights.name:
        raise InputError("weights = known: say which propensity; give KnownWeights(0.5) or KnownWeights('column')")
    if weights not in WEIGHTS:
        raise InputError(f"weights = {weights!r}: choose one of {', '.join(WEIGHTS)}, or give a WeightScheme")
    return WEIGHTS[weights]()
