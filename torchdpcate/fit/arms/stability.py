r"""How far one replaced training record moves ridge and logistic fits, and with them the scores of all other records.

All bounds are suprema over every data set in the public domain; none looks at records. Features have norm at most
``radius``; the fits minimise means over all m training records,

.. math::
    \frac1m \sum_i 1\{a_i = a\} \tfrac12 (y_i - b^\top x_i)^2 + \tfrac\lambda2 \|b\|^2, \qquad
    \frac1m \sum_i \log(1 + e^{-t_i \theta^\top x_i}) + \tfrac\lambda2 \|\theta\|^2,

with outcomes in [-1/2, 1/2]: multiply what is said of outcomes by the outcome's range. Theory note
``policy_learning``, section 6.2; proofs: docs/guarantees/policy_selection.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import integer, number, positive

_STEPS = 200  # of fixed points and bisections: far beyond what float64 resolves
_PROVED = 1.5  # largest |theta'x| for which the distance of logistic gradients is proved


def ridge_norm(radius: float, ridge: float, localised: bool = True) -> float:
    r"""Return a bound of the ridge coefficients' norm, for outcomes in [-1/2, 1/2].

    .. math:: \|b\| \le \frac12 \max_{s \le R_x} \frac{s}{s^2 + \lambda} \le \frac{1}{2\sqrt\lambda}

    The first is attained; the second, the paper's, is that of the objective's value at zero.

    Args:
        radius: R_x, bound of the features' norm.
        ridge: lambda of the mean loss.
        localised: Whether to take the first.

    Raises:
        InputError: A radius or ridge that is not positive.

    Example:
        >>> ridge_norm(1.0, 1.0), ridge_norm(1.0, 1.0, localised=False)
        (0.25, 0.5)
    """
    radius, ridge = positive("radius", radius), positive("ridge", ridge)
    if not localised:
        return 1 / (2 * math.sqrt(ridge))
    s = min(radius, math.sqrt(ridge))
    return s / (2 * (s * s + ridge))


def ridge_gradient_bound(radius: float, ridge: float, localised: bool = False) -> float:
    r"""Return G_mu = R_x (1/2 + R_x ||b||), the largest gradient of one record at a minimiser.

    Args:
        radius: R_x.
        ridge: lambda.
        localised: See `ridge_norm`.

    Example:
        >>> round(ridge_gradient_bound(21**0.5, 50.0), 6)
        3.776212
    """
    return radius * (0.5 + radius * ridge_norm(radius, ridge, localised))


def ridge_gradient_distance(radius: float, ridge: float) -> float:
    r"""Return the largest distance of two records' gradients at one minimiser, at most 2 G_mu.

    .. math:: R_x \max_\tau \sin\tau\, (1 + 2 z \cos\tau), \qquad z = R_x \|b\|

    Args:
        radius: R_x.
        ridge: lambda.

    Example:
        >>> round(ridge_gradient_distance(1.0, 1.0), 6), 2 * ridge_gradient_bound(1.0, 1.0, localised=True)
        (1.100917, 1.5)
    """
    z = radius * ridge_norm(radius, ridge)
    c = 4 * z / (1 + math.sqrt(1 + 32 * z * z))  # the root of cos + 2 z cos 2 tau = 0
    return radius * math.sqrt(1 - c * c) * (1 + 2 * z * c)


def logistic_norm(radius: float, ridge: float, offset: float = 0.0) -> float:
    r"""Return the largest norm of logistic coefficients, the logit being an offset o plus theta'x.

    .. math:: \lambda r = R_x \sigma(|o| - R_x r), \quad\text{or}\quad \lambda r^2 = \max_v v \sigma(|o| - v) = v^* - 1

    where the first would have R_x r > v*, the place of the maximum, 1.27846... for o = 0; attained by records that all
    agree, with the rarer action.

    Args:
        radius: R_x.
        ridge: lambda.
        offset: o.

    Example:
        >>> round(logistic_norm(21**0.5, 50.0) * 21**0.5, 6)
        0.190099
    """
    radius, ridge, offset = positive("radius", radius), positive("ridge", ridge), abs(offset)
    flattest = _root(lambda v: v * sigmoid(v - offset) - 1, offset + 2)
    if ridge * flattest < radius**2 * sigmoid(offset - flattest):
        return math.sqrt((flattest - 1) / ridge)
    z = _root(lambda z: ridge * z - radius**2 * sigmoid(offset - z), flattest)
    return z / radius


def logistic_gradient_bound(radius: float, ridge: float, localised: bool = False) -> float:
    r"""Return G_e, the largest gradient of one record: R_x, or at a minimiser R_x sigmoid(R_x r).

    Args:
        radius: R_x.
        ridge: lambda.
        localised: Whether to take the second, with r the theory note's root of lambda r = R_x sigmoid(R_x r).

    Example:
        >>> round(logistic_gradient_bound(21**0.5, 50.0, localised=True), 6)
        2.55873
    """
    radius, ridge = positive("radius", radius), positive("ridge", ridge)
    if not localised:
        return radius
    r = radius / ridge
    for _ in range(_STEPS):  # from above: every step is a bound
        r = radius * sigmoid(radius * r) / ridge
    return radius * sigmoid(radius * r)


def logistic_gradient_distance(radius: float, ridge: float, offset: float = 0.0) -> float:
    r"""Return the largest distance of two records' gradients at one minimiser, at most 2 G_e.

    .. math:: 2 R_x \max_c \sqrt{1 - c^2}\, \sigma(|o| + z c), \qquad z = R_x r \le \min\{3/2,
        16 \sigma(|o| + z)^2 \sigma(-|o| - z)\}

    with r of `logistic_norm`; beyond that 2 R_x sigmoid(|o| + z).

    Args:
        radius: R_x.
        ridge: lambda.
        offset: o of the logit.

    Example:
        >>> round(logistic_gradient_distance(1.0, 1.0), 6), logistic_gradient_distance(1.0, 1e-3) <= 2
        (1.01918, True)
    """
    z, offset = radius * logistic_norm(radius, ridge, offset), abs(offset)
    if z > min(_PROVED, 16 * sigmoid(offset + z) ** 2 * sigmoid(-offset - z)):
        return 2 * radius * sigmoid(offset + z)
    c = _root(lambda c: c - z * (1 - c * c) * sigmoid(-offset - z * c), 1.0)
    return 2 * radius * math.sqrt(1 - c * c) * sigmoid(offset + z * c)


def multinomial_norm(radius: float, ridge: float, actions: int) -> float:
    r"""Return a bound of the norm of all K coefficient vectors of a multinomial fit, as one vector.

    The fixed point from above of :math:`\lambda r = R_x g(r)`, g of `multinomial_gradient_bound`.

    Args:
        radius: R_x.
        ridge: lambda.
        actions: K.
    """
    r = math.sqrt(2) * positive("radius", radius) / positive("ridge", ridge)
    for _ in range(_STEPS):  # every step is a bound
        r = _multinomial_gradient(radius, r, actions) / ridge
    return r


def multinomial_gradient_bound(radius: float, ridge: float, actions: int, localised: bool = False) -> float:
    r"""Return the largest gradient of one record of a multinomial fit.

    That is sqrt(2) R_x, or at a minimiser

    .. math:: R_x \sqrt{(1 - p_{min})(1 - p_{min} + p_{max})}

    with the least and largest probability that `multinomial_norm` leaves, `multinomial_range`.

    Args:
        radius: R_x.
        ridge: lambda.
        actions: K.
        localised: Whether to take the second.

    Example:
        >>> round(multinomial_gradient_bound(1.0, 1e6, 3, localised=True), 4)  # sqrt(2/3) at equal probabilities
        0.8165
    """
    if not localised:
        return math.sqrt(2) * radius
    return _multinomial_gradient(radius, multinomial_norm(radius, ridge, actions), actions)


def multinomial_range(norm: float, actions: int) -> tuple[float, float]:
    r"""Return the least and largest softmax probability where the logits' vector has norm at most ``norm``.

    Any two logits differ by at most sqrt(2) norm.

    Example:
        >>> multinomial_range(0.0, 4)
        (0.25, 0.25)
    """
    gap = math.sqrt(2) * norm
    return 1 / (1 + (actions - 1) * math.exp(min(gap, 700.0))), 1 / (1 + (actions - 1) * math.exp(-gap))


def _multinomial_gradient(radius: float, norm: float, actions: int) -> float:
    least, most = multinomial_range(radius * norm, actions)
    return radius * math.sqrt((1 - least) * (1 - least + min(most, 1 - least)))


def sigmoid(u: float) -> float:
    """Return 1 / (1 + exp(-u)), without overflow."""
    return 1 / (1 + math.exp(-u)) if u >= 0 else math.exp(u) / (1 + math.exp(u))


def _root(increasing: Callable[[float], float], high: float) -> float:
    """Return the upper end of a bisection of [0, high] for the root of an increasing function."""
    low = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if increasing(middle) >= 0 else (middle, high)
    return high


def outcome_stability(
    radius: float,
    ridge: float,
    m: int,
    *,
    localised: bool = True,
    tolerance: float = 0.0,
    crossing: bool = False,
    half: float = 0.5,
) -> float:
    r"""Return beta_mu, the most by which one replaced training record moves an arm's outcome model anywhere.

    .. math:: \beta_\mu = \frac{R_x}{\lambda} \Big(\frac{G}{m} + 2 \tau\Big), \quad
        G = 2 G_\mu \text{ (printed)}, \text{ or the distance of two gradients (localised)}

    in units of the outcome's range. A record that crosses to another arm moves both, each by ``crossing``: G = G_mu.

    Args:
        radius: R_x.
        ridge: lambda.
        m: Training records, of all arms.
        localised: Whether gradients are bounded where the minimisers can be.
        tolerance: tau, the largest gradient norm of a fit.
        crossing: Whether the record leaves or enters the arm.
        half: Largest distance of an outcome from what coefficients of zero say, in ranges.

    Example:
        >>> round(1e4 * outcome_stability(21**0.5, 50.0, 1500, localised=False), 6)
        4.614607
    """
    bound = ridge_gradient_bound(radius, ridge, localised)
    if not crossing:
        bound = ridge_gradient_distance(radius, ridge) if localised else 2 * bound
    return moved(radius, 2 * half * bound, ridge, m, tolerance)


def propensity_stability(
    radius: float,
    ridge: float,
    m: int,
    *,
    localised: bool = True,
    tolerance: float = 0.0,
    actions: int = 2,
    overlap: float = 0.0,
) -> float:
    r"""Return beta_e, the most by which one replaced training record moves any propensity anywhere.

    .. math:: \beta_e = \frac{R_x}{4 \lambda} \Big(\frac{2 G_e}{m} + 2\tau\Big), \quad\text{for K > 2}\quad
        (1 - K\zeta) \frac{\sqrt2 R_x}{4\lambda} \Big(\frac{2 G_e}{m} + 2\tau\Big)

    The latter with the softmax mixed, (1 - K zeta) p + zeta.

    Args:
        radius: R_x.
        ridge: lambda.
        m: Training records.
        localised: Whether gradients are bounded where the minimisers can be.
        tolerance: tau, the largest gradient norm of a fit.
        actions: K.
        overlap: zeta; counts for K > 2.

    Example:
        >>> round(1e4 * propensity_stability(21**0.5, 50.0, 1500, localised=False), 6)
        1.4
        >>> round(1e4 * propensity_stability(21**0.5, 50.0, 1500, localised=False, actions=3, overlap=0.1), 6)
        1.96
    """
    if integer("actions", actions, least=2) == 2:
        bound = logistic_gradient_distance(radius, ridge) if localised else 2 * logistic_gradient_bound(radius, ridge)
        return moved(radius, bound, ridge, m, tolerance) / 4
    bound = 2 * multinomial_gradient_bound(radius, ridge, actions, localised)
    return (1 - actions * overlap) * math.sqrt(2) / 4 * moved(radius, bound, ridge, m, tolerance)


@dataclass(frozen=True)
class IndirectBound:
    r"""What one replaced training record does to the sum of n scores, and what a scoring record does: public numbers.

    .. math::
        \text{indirect} = n \Big[\max\Big\{\Big(\frac1\zeta - 1\Big) \beta_\mu, \frac{\beta_\times}{\zeta}\Big\}
        + \frac{R\, \beta_e}{\zeta (\zeta + \beta_e)}\Big], \qquad S = R / \zeta, \qquad
        \Delta_{BR} = \max\{2S, \text{indirect}\}

    Source: theory note ``policy_learning``, section 6.2.

    Args:
        beta_mu: Most movement of one arm's outcome model, in outcome units.
        beta_e: Most movement of a propensity.
        overlap: zeta, least propensity.
        outcome_range: R, the largest |y - mu|.
        averaged: Whether each arm's outcome model averages over the records of all arms, so that a record moves one
            arm's (or two arms', by ``crossing``); else all may move, and the factor is 1 / zeta.
        crossing: Most movement of each of two arms' models if the record crosses between them; None takes half of
            beta_mu.

    Raises:
        InputError: A number out of its range.

    Example:
        >>> bound = IndirectBound(beta_mu=4.614607e-4, beta_e=1.4e-4, overlap=0.1)
        >>> round(bound.paper(1500), 4), round(bound.range_sensitivity(1500), 4)
        (28.6141, 27.2004)
    """

    beta_mu: float
    beta_e: float
    overlap: float
    outcome_range: float = 1.0
    averaged: bool = True
    crossing: float | None = None

    def __post_init__(self) -> None:
        for name in ("overlap", "outcome_range"):
            positive(name, getattr(self, name))
        for name in ("beta_mu", "beta_e"):
            if number(name, getattr(self, name)) < 0:
                raise InputError(f"{name} = {getattr(self, name):g}: give a number of at least 0")
        if self.overlap > 0.5:
            raise InputError(f"overlap = {self.overlap:g}: give at most 1 / K, for K propensities add up to one")

    @property
    def rho(self) -> float:
        r"""The paper's rho* = (1 + 1/zeta) beta_mu + R beta_e / zeta^2 of one score."""
        return (1 + 1 / self.overlap) * self.beta_mu + self.outcome_range * self.beta_e / self.overlap**2

    def paper(self, n: int) -> float:
        """Return the paper's Delta_cert = n rho*, a two-sided sensitivity: as a range it counts twice."""
        return n * self.rho

    def paper_range_sensitivity(self, n: int) -> float:
        """Return that of the paper's calibration, 2 max{2 B_psi, n rho*} with B_psi = R (1 + 1/zeta)."""
        return 2 * max(2 * self.outcome_range * (1 + 1 / self.overlap), self.paper(n))

    @property
    def of_outcomes(self) -> float:
        """The outcome models' part of one score's indirect sensitivity."""
        if not self.averaged:
            return self.beta_mu / self.overlap
        crossing = self.beta_mu / 2 if self.crossing is None else self.crossing
        return max((1 / self.overlap - 1) * self.beta_mu, crossing / self.overlap)

    @property
    def of_propensity(self) -> float:
        """The propensity's part of one score's indirect sensitivity."""
        return self.outcome_range * self.beta_e / (self.overlap * (self.overlap + self.beta_e))

    @property
    def own(self) -> float:
        """S = R / zeta: how far one record's scores of its actions lie apart."""
        return self.outcome_range / self.overlap

    def indirect(self, n: int) -> float:
        """Return the most by which a training record moves the sums of n scores apart."""
        return n * (self.of_outcomes + self.of_propensity)

    def range_sensitivity(self, n: int) -> float:
        """Return Delta_BR = max{2S, indirect}."""
        return max(2 * self.own, self.indirect(n))


def indirect_bound(
    m: int,
    *,
    radius: float,
    ridge: float,
    propensity_ridge: float,
    overlap: float,
    actions: int = 2,
    outcome_range: float = 1.0,
    localised: bool = True,
    tolerance: float = 0.0,
    half: float = 0.5,
    known: Sequence[Sequence[float]] | None = None,
) -> IndirectBound:
    r"""Return what a replaced training record does to scores whose nuisances are ridge and logistic fits.

    Localised, not only gradients are bounded where the minimisers can be, but what the fits can say at all: a
    propensity is at least :math:`\sigma(-R_x \|\theta\|)` and :math:`|y - \mu| \le R (1/2 + R_x \|b\|)`, which
    take the places of zeta and R.

    Args:
        m: Training records.
        radius: R_x, bound of the features' norm.
        ridge: lambda of the outcome models.
        propensity_ridge: lambda of the propensity.
        overlap: zeta, to which propensities are projected.
        actions: K.
        outcome_range: R.
        localised: See above; else as printed.
        tolerance: tau, the largest gradient norm of a fit, outcomes in units of their range.
        half: Largest distance of an outcome from what coefficients of zero say, in ranges; localised bounds are for a
            half, others in ``deviations``.
        known: Least and largest propensity of each arm, where no record moves it.

    Example:
        >>> printed = dict(radius=21**0.5, ridge=50.0, propensity_ridge=50.0, overlap=0.1)
        >>> round(indirect_bound(1500, **printed, localised=False).range_sensitivity(1500), 6)
        27.200361
        >>> round(indirect_bound(1500, **printed).range_sensitivity(1500), 6)
        2.862845
    """
    if localised and half != 0.5:
        raise InputError(f"half = {half:g}: localised bounds are for outcomes about the middle; see deviation_bound")
    common: dict[str, Any] = {"localised": localised, "tolerance": tolerance}
    least, norm = overlap, outcome_range
    if localised:
        least = max(overlap, least_propensity(radius, propensity_ridge, actions, overlap, tolerance))
        norm = outcome_range * min(1.0, 0.5 + outcome_bound(radius, ridge, tolerance))
    beta_e = propensity_stability(radius, propensity_ridge, m, actions=actions, overlap=overlap, **common)
    if known is not None:
        beta_e, least = 0.0, min(ends[0] for ends in known)
    return IndirectBound(
        outcome_range * outcome_stability(radius, ridge, m, half=half, **common),
        beta_e,
        least,
        norm,
        crossing=outcome_range * outcome_stability(radius, ridge, m, crossing=True, half=half, **common),
    )


def outcome_bound(radius: float, ridge: float, tolerance: float = 0.0) -> float:
    """Return the most by which an outcome model can differ from the middle, R_x (||b|| + tau / lambda), in ranges."""
    return radius * (ridge_norm(radius, ridge) + tolerance / ridge)


def least_propensity(radius: float, ridge: float, actions: int, overlap: float, tolerance: float = 0.0) -> float:
    """Return the least propensity that a logistic or multinomial fit can give before (K > 2: after) the overlap.

    Example:
        >>> round(least_propensity(21**0.5, 50.0, 2, 0.1), 6)
        0.452618
    """
    if actions == 2:
        return multinomial_range(radius * (logistic_norm(radius, ridge) + tolerance / ridge) / math.sqrt(2), 2)[0]
    norm = radius * (multinomial_norm(radius, ridge, actions) + tolerance / ridge)
    return (1 - actions * overlap) * multinomial_range(norm, actions)[0] + overlap


def moved(radius: float, bound: float, ridge: float, m: int, tolerance: float) -> float:
    """Return R_x (bound / m + 2 tau) / lambda: the most that theta'x moves if gradients are ``bound`` apart."""
    return radius * (bound / integer("m", m, least=1) + 2 * number("tolerance", tolerance)) / ridge
