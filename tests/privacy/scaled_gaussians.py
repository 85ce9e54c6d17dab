"""The privacy of Gaussian noise of two scales by noncentral chi-square tails; what tests share."""

import math

from scipy.stats import ncx2, norm


def exact_delta(epsilon: float, d: int, t: float, h: float) -> float:
    """Return delta(epsilon) of N(h, e^2t I) against N(0, I) in d dimensions, h a length."""
    if t == 0:
        return float(norm.cdf(h / 2 - epsilon / h) - math.exp(epsilon) * norm.cdf(-h / 2 - epsilon / h))
    r = math.exp(t)
    a, c = 0.5 - 0.5 / r**2, h / (r**2 - 1)
    bound = (epsilon + d * t + h * h / (2 * r * r)) / a + c * c
    tail = ncx2.sf if a > 0 else ncx2.cdf
    if bound <= 0:
        return 0.0
    return float(tail(bound / r**2, d, ((h + c) / r) ** 2) - math.exp(epsilon) * tail(bound, d, c * c))
