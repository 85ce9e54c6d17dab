"""Laws of a rule's noise: how long it is, and how many decisions it leaves as they are."""

import math
from functools import lru_cache

import numpy as np
import scipy

from torchdpcate.errors import InputError

_NODES = 200  # of the quadrature, in length and in angle


def expected_accuracy(kind: str, scale: float, size: int, signal: float) -> float:
    r"""Share of decisions that noise leaves as they are, where it dominates the data's curvature.

    .. math:: 1 - \frac1\pi\, E \angle(S, S + b), \qquad \|S\| = \text{signal}

    Far from the margin the minimiser is (S - b) / ridge, S the summed pull of all records, so that decisions agree as
    far as S - b points where S does; for features of uniform direction the share is the above. Noise of length
    R and uniform direction (exact but for ``box``, whose length is replaced by one of the same root mean square)
    is integrated over quantiles of R and of the angle.

    Args:
        kind: Law of b: ``gamma``, ``box`` or ``gaussian``.
        scale: Its scale: 1/beta, or sigma.
        size: Number of coefficients p.
        signal: Length of S, in the scale's units.

    Returns:
        From 0.5 (chance) to 1.

    Example:
        >>> [round(expected_accuracy("gamma", 1.0, 5, s), 3) for s in (0.0, 5.0, 50.0)]
        [0.5, 0.765, 0.972]
    """
    length, cosine, sine = _nodes(kind, size)
    along, across = signal + scale * length * cosine, scale * length * sine
    return 1 - float(np.arctan2(across, along).mean()) / math.pi


def noise_length(kind: str, scale: float, size: int) -> float:
    """Return the root mean square length of the noise; arguments as in `expected_accuracy`.

    Raises:
        InputError: A law that is not known here.
    """
    squares = {"gamma": size * (size + 1), "box": (size + 1) * (size + 2) * size / 3, "gaussian": size}
    if kind not in squares:
        raise InputError(f"perturbation = {kind}: no noise of this law can be planned; choose {', '.join(squares)}")
    return scale * math.sqrt(squares[kind])


def separable_pull(size: int) -> float:
    """Return E|psi_1| of a uniform direction: the mean pull of records whose best arm one direction decides."""
    return math.exp(math.lgamma(size / 2) - math.lgamma((size + 1) / 2)) / math.sqrt(math.pi)


def signal_for(accuracy: float, kind: str, scale: float, size: int) -> float:
    """Return the length of the summed pull at which `expected_accuracy` is this; from 0.5 to 1, both excluded."""
    noise = noise_length(kind, scale, size)

    def short(log_signal: float) -> float:
        return expected_accuracy(kind, scale, size, noise * math.exp(log_signal)) - accuracy

    return noise * math.exp(scipy.optimize.brentq(short, -20.0, 20.0, xtol=1e-6))


@lru_cache(maxsize=64)
def _nodes(kind: str, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths [k, 1] of noise of scale one; cosines and sines of its angle with a fixed direction."""
    levels = (np.arange(_NODES) + 0.5) / _NODES
    half = (size - 1) / 2
    cosine = 2 * scipy.special.betaincinv(half, half, levels) - 1 if size > 1 else np.array([-1.0, 1.0])
    return _lengths(kind, size, levels)[:, None], cosine, np.sqrt(1 - cosine**2)


def _lengths(kind: str, size: int, levels: np.ndarray) -> np.ndarray:
    """Quantiles of the length of noise of scale one."""
    if kind == "gaussian":
        return np.sqrt(2 * scipy.special.gammaincinv(size / 2, levels))
    if kind == "gamma" or size == 1:
        return scipy.special.gammaincinv(size, levels)
    # a point of the cube, whose mean square length is p / 3, times Gamma(p + 1)
    return math.sqrt(size / 3) * scipy.special.gammaincinv(size + 1, levels)
