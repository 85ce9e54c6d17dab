"""Weights fitted to all records without privacy: never released; their indirect sensitivity is certified."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit
from torch import Tensor

from experiments.convex_sets import Ball, minimise_within
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.feature_maps import FeatureMap, on_domain
from torchdpcate.fit.losses import Logistic, Loss, Slopes
from torchdpcate.fit.minimise import minimise
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.fit.weights import FittedWeights, WeightScheme
from torchdpcate.privacy.budget import PrivacyBudget, number, positive
from torchdpcate.privacy.session import FitSession


def with_indirect(most: float, indirect: float) -> WeightBounds:
    """Return bounds of weights in [0, most], the others of which move by at most ``indirect`` in all.

    Raises:
        InputError: If ``indirect`` is negative.

    Example:
        >>> with_indirect(4.0, 21.908902)
        WeightBounds(most=4.0, first=29.908902, second=25.908902, own=False)
    """
    if number("indirect", indirect) < 0:
        raise InputError(f"indirect = {indirect:g}: give a number of at least 0")
    return WeightBounds(most, 2 * most + indirect, most + indirect, own=indirect == 0)


@dataclass(frozen=True)
class BalancingWeights(WeightScheme):
    r"""Weights of a strongly convex first stage on the same records, which nothing is spent on.

    One record moves the weights of the others by at most the indirect sensitivity :math:`D_1`, a public number, so the
    rule's noise grows from :math:`2 \omega_{max}` to :math:`D_1 + 2 \omega_{max}`. The indirect sensitivity does not
    fall with n: with few records or little ridge, a private propensity's weights (`PrivateWeights`) may need less.

    Args:
        ridge: Strong convexity of the first stage's mean objective, positive and public.

    Raises:
        InputError: A ridge that is not positive.
    """

    ridge: float

    @classmethod
    def restated(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        """Refuse: no release has these weights."""
        raise InputError(f"weights = {cls.name}: of the study dp_2erm alone")

    def __post_init__(self) -> None:
        """Refuse a first stage that nothing holds in place."""
        positive("weights.ridge", self.ridge)

    def bounds(self, n: int, domain: Domain) -> WeightBounds:
        """Return the bounds of the weights; others move by no more in all than if each crossed its range.

        Raises:
            InputError: Settings that do not fit the domain, or too many records.
        """
        least, most = self.span(domain)
        return with_indirect(most, min(self.indirect_sensitivity(n, domain), (n - 1) * (most - least)))

    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        session: FitSession,
    ) -> "BalancedWeights":
        """Return the weights of these records; nothing is spent, for they only enter the rule's objective."""
        bounds = self.bounds(records.n, domain)
        try:
            omega = self.balance(records, domain)
        except NumericalError as error:
            raise NumericalError(f"weights = {self.name}: {error}, that is weights.ridge") from None
        return BalancedWeights(bounds, {}, records.x, records.a, omega)

    @abstractmethod
    def span(self, domain: Domain) -> tuple[float, float]:
        """Return the least and the largest weight there can be."""

    @abstractmethod
    def indirect_sensitivity(self, n: int, domain: Domain) -> float:
        """Return the certified indirect sensitivity of n records, the solver's stop included."""

    @abstractmethod
    def balance(self, records: CausalData, domain: Domain) -> Tensor:
        """Return the weights of the records, [n].

        Raises:
            NumericalError: The solver missed its tolerance.
        """


@dataclass(frozen=True, eq=False)
class BalancedWeights(FittedWeights):
    """Fitted `BalancingWeights`: weights of the records that they were fitted to, and of no others.

    Attributes:
        x: Covariates of those records, [n, q].
        a: Their treatment, [n].
        omega: Their weights, [n].
    """

    x: Tensor
    a: Tensor
    omega: Tensor

    def _omega(self, records: CausalData) -> Tensor:
        if not (torch.equal(records.x, self.x) and torch.equal(records.a, self.a)):
            raise InputError(f"weights of other records than the {len(self.a)} they were fitted to: fit them anew")
        return self.omega


def largest_inverse(cap: float | None, domain: Domain) -> float:
    """Return the cap of 1 / pi(a|x): the given one, or the inverse of the domain's overlap.

    Raises:
        InputError: A cap of two or less, which lets no arm weigh more than in a balanced trial.

    Example:
        >>> largest_inverse(None, Domain([0.0], [1.0], -1.0, 1.0, overlap=0.25))
        4.0
    """
    most = 1 / domain.overlap if cap is None else positive("weights.cap", cap)
    if most <= 2:
        raise InputError(f"weights.cap = {most:g}: caps 1 / pi(a|x), which is 2 in a balanced trial; give more than 2")
    return most


_POINTS = 20_001
_ANGLES = 1_501

Values = np.ndarray


def between(low: float, high: float) -> Values:
    """Return the predictors in [low, high] at which suprema are sought, which `highest` makes rigorous."""
    return np.linspace(low, high, _POINTS)


def highest(values: Values, at: Values, steepest: float) -> float:
    """Return a bound of a function from its values at predictors `between` two ends, given its largest slope."""
    return float(values.max()) + steepest * float(at[1] - at[0]) / 2


def least_bound(bound: Callable[[float], float], largest: float) -> float:
    """Return the least bound over multipliers in [0, largest]: each is valid, so the search need not be exact."""
    found = minimize_scalar(bound, bounds=(0.0, largest), method="bounded", options={"xatol": 1e-6 * largest})
    return min(bound(0.0), float(found.fun))


def largest_difference(slope: Callable[[Values], Values], radius: float, steepest: float) -> float:
    r"""Return the largest distance of two records' gradients at one l of norm up to ``radius``, features up to one.

    .. math:: \max_{a, b} \sqrt{p^2 + q^2 - 2 p q \cos(a \pm b)}, \quad p = g'(R \cos a), \; q = g'(R \cos b)

    At given predictors a longer l leaves more of the features across it, so that l has norm R.

    Args:
        slope: g', a function of the predictor.
        radius: R.
        steepest: Largest slope of g'.

    Example:
        >>> round(largest_difference(lambda u: 0 * u + 1, 1.0, 0.0), 2)
        2.0
    """
    angle = np.linspace(0, np.pi, _ANGLES)
    size = slope(radius * np.cos(angle))
    p, q = size[:, None], size[None, :]
    turns = (angle[:, None] + angle[None, :], angle[:, None] - angle[None, :])
    squared = p * p + q * q + 2 * np.maximum(*(-p * q * np.cos(turn) for turn in turns))
    # half a step of either angle moves its own gradient by its turn, times its length, and by its change of length
    stray = np.pi / (_ANGLES - 1) * (float(np.abs(size).max()) + steepest * radius)
    return float(np.sqrt(squared.max())) + stray


_STRAY = 1e-10  # how far the fit may stop from the minimiser
_LAMBERT = 0.2784645427610738  # W(1/e), the largest s sigma(-s)
_FLAT = 40.0  # predictors beyond which weights do not move


@cache
def logistic_bound(ridge: float) -> float:
    r"""Largest norm of l, hence largest predictor: at the minimum :math:`\rho \|l\|^2` is the mean of s sigma(-s).

    Example:
        >>> round(logistic_bound(0.1), 6)
        1.668726
    """
    top = 1 + _LAMBERT  # where s sigma(-s) is highest, at W(1/e)
    if ridge * top * top < _LAMBERT:
        return math.sqrt(_LAMBERT / ridge)
    return float(brentq(lambda r: ridge * r - 1 / (1 + math.exp(r)), 0.0, top)) * (1 + 1e-12)


@cache
def logistic_indirect_sensitivity(overlap: float, ridge: float) -> float:
    r"""Indirect sensitivity of weights 1 / (2 clip(pi(a|x))) by ridge logistic fits on features of norm at most one.

    .. math:: D_1 = H M, \quad M = \min_{M, \lambda \ge 0} \Big\{ M : \sup_{|s| \le r} \Psi_M(s)
        + \lambda \big(s \sigma(-s) - \rho s^2\big) \le M \rho \Big\}, \quad
        \Psi_M(s) = \max_{0 \le c \le 1} \tfrac12 e^{-s} c - M \sigma(s) \sigma(-s) c^2

    s is the predictor of a record's own arm, r its `logistic_bound`, H the largest difference of two records'
    gradients. The middle term is what stationarity leaves: weights are large for few records only, and where they move,
    the loss is curved. It does not depend on n. Proof: experiments/dp_2erm/balancing.md.

    Args:
        overlap: zeta, the least propensity of either arm.
        ridge: rho of the mean loss + rho/2 ||l||^2.

    Example:
        >>> round(logistic_indirect_sensitivity(0.25, 0.1), 2)
        2.54
    """
    radius, edge = logistic_bound(ridge), math.log(1 / overlap - 1)
    # below the clip nothing moves and s sigma(-s) falls; above _FLAT all three terms fall
    s = between(-min(radius, edge), min(radius, _FLAT))
    steep, curved = np.exp(-s) / 2, expit(s) * expit(-s)
    stationary = s * expit(-s) - ridge * s * s
    end = float(max(-s[0], s[-1]))
    steepest, most = 1 + end / 4 + 2 * ridge * end, math.exp(-s[0]) / 2

    def least(multiplier: float) -> float:
        def excess(bound: float) -> float:
            share = np.minimum(1.0, steep / (2 * bound * curved))
            value = steep * share - bound * curved * share**2 + multiplier * stationary
            return highest(value, s, most + bound / 10 + multiplier * steepest) - bound * ridge

        high = most / ridge  # valid for any fit, for no weight is steeper
        if excess(high) > 0:
            return high
        low = 0.25 / (ridge + 0.25)  # half of what balanced arms reach, whose predictors are all zero
        return float(brentq(excess, low, high, xtol=1e-9 * low, rtol=1e-9)) * (1 + 1e-6)

    return largest_difference(lambda u: expit(-u), radius, 0.25) * least_bound(least, 4 * most)


@dataclass(frozen=True)
class LogisticWeights(BalancingWeights):
    r"""Weights 1 / (2 clip(pi(a|x))) with pi by ridge logistic regression on the same records, without privacy.

    .. math:: \hat l = \arg\min_l \tfrac1n \sum_i \log(1 + e^{-t_i \psi_i^\top l}) + \tfrac\rho2 \|l\|^2,
        \quad \pi = \sigma(\psi^\top \hat l)

    Guarantee:
        Certified indirect sensitivity (`logistic_indirect_sensitivity`), the solver's stop included; free. The
        features' norm is at most one and their entries smaller still, so that even a small ridge shrinks the propensity
        strongly towards 1/2.

    Args:
        ridge: rho.
        features: Public feature map; None takes intercept and scaled covariates.

    Example:
        >>> round(LogisticWeights(ridge=1.0).bounds(400, Domain([0.0], [1.0], -1.0, 1.0, overlap=0.25)).first, 2)
        2.9
    """

    name = "ipw"

    ridge: float = 0.1
    features: FeatureMap | None = None

    def span(self, domain: Domain) -> tuple[float, float]:
        """Return the weights at the propensities nearest to zero and one that a fit reaches."""
        most = min(1 / domain.overlap, 1 + math.exp(min(logistic_bound(self.ridge), 700.0))) / 2
        return 0.5 / (1 - 0.5 / most), most

    def indirect_sensitivity(self, n: int, domain: Domain) -> float:
        """Return the indirect sensitivity; either fit stops near its minimiser and takes every weight with it."""
        steepest = self.span(domain)[1]
        return logistic_indirect_sensitivity(domain.overlap, self.ridge) + 2 * (n - 1) * steepest * _STRAY

    def balance(self, records: CausalData, domain: Domain) -> Tensor:
        """Return the weights of the records, [n]."""
        psi = on_domain(self.features, domain)(records.x)
        label, gamma = 2 * records.a.double() - 1, records.n * self.ridge
        none = psi.new_zeros(1, psi.shape[1])
        fit = minimise(psi, label, torch.ones_like(label), Logistic(), gamma, none, _STRAY * gamma)[0]
        own = torch.sigmoid(label * (psi @ fit))
        least = 0.5 / self.span(domain)[1]
        return 0.5 / own.clamp(least, 1 - least)


@cache
def largest_mean_tilt(cap: float, ridge: float) -> float:
    r"""Largest mean of the weights e^{u}, u the predictor of a record's own arm, which stationarity allows.

    .. math:: \bar\omega = \min_{\lambda \ge 0} \sup_{|u| \le R} \{ e^u - \lambda (u(2 e^u - 1) + \rho u^2) \}
        + \lambda \sup_{|u| \le R} \{ u - \rho u^2 \}

    Example:
        >>> round(largest_mean_tilt(20.0, 0.1), 2)
        1.88
    """
    radius = math.log(cap / 2)
    u = between(-radius, radius)
    tilt, ridged = np.exp(u), ridge * u * u
    own, other = u * (2 * tilt - 1) + ridged, u - ridged
    steep = 1 + 2 * ridge * radius

    def bound(multiplier: float) -> float:
        first = highest(tilt - multiplier * own, u, cap / 2 + multiplier * (cap * (1 + radius) + steep))
        return first + multiplier * highest(other, u, steep)

    return min(cap / 2, least_bound(bound, cap))


@cache
def tilting_indirect_sensitivity(cap: float, ridge: float) -> float:
    r"""Indirect sensitivity of the weights e^{<l, psi>}, half of 1 / pi, on features of norm at most one.

    .. math:: D_1 = \max\big\{ 2 c\, M(\bar\omega / 2), \; (H + 2)\, M(\tfrac{H}{H + 2} \bar\omega) \big\},
        \quad M(W) = \min\Big\{\frac{W}{\rho + 2 W}, \sqrt{\frac{W}{8 \rho}}\Big\}

    The first where the record changes its arm, the second where it does not, H then being the largest difference of two
    gradients of its arm and at least 2. The mean weight is at most `largest_mean_tilt`. It does not depend on n. Proof:
    experiments/dp_2erm/balancing.md.

    Args:
        cap: c > 2, the largest 2 e^{<l, psi>}.
        ridge: rho of the mean objective.

    Example:
        >>> round(tilting_indirect_sensitivity(4.0, 0.1), 2)
        7.52
    """
    mean = largest_mean_tilt(cap, ridge)
    radius = math.log(cap / 2)
    stays = max(2.0, largest_difference(lambda u: 2 * np.exp(u) - 1, radius, cap))

    def moved(weight: float) -> float:
        # at most a quarter where the ridge is small beside the curvature that all weights have together
        return weight / (ridge + 2 * weight) if weight < ridge / 2 else math.sqrt(weight / (8 * ridge))

    return max(2 * cap * moved(mean / 2), (stays + 2) * moved(mean * stays / (stays + 2)))


@dataclass(frozen=True)
class TiltingLoss(Loss):
    r"""2 t e^u - u for t in {0, 1}: at its minimum t e^u balances what u is linear in; straight beyond |u| = radius.

    Its bounds are those of targets in [0, 1]; at -1, a label, it is steeper and not convex.

    Attributes:
        radius: Largest |u| that counts.
    """

    targets: ClassVar[tuple[float, float]] = (0.0, 1.0)
    radius: float

    @property
    def slope(self) -> float:  # type: ignore[override]
        """2 e^radius - 1, which is at least 1."""
        return 2 * math.exp(self.radius) - 1

    @property
    def curvature(self) -> float:  # type: ignore[override]
        """2 e^radius."""
        return 2 * math.exp(self.radius)

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """Return the loss and its two derivatives."""
        held = u.clamp(-self.radius, self.radius)
        tilt = 2 * target * held.exp()
        return Slopes(tilt * (1 + u - held) - u, tilt - 1, tilt * (u == held))


@dataclass(frozen=True)
class TiltingWeights(BalancingWeights):
    r"""Entropy balancing: exponential tilts that give each arm the covariates of everybody.

    .. math:: \hat l_a = \arg\min_{\|l\| \le R} \tfrac1n \sum_i \big( 2 \cdot 1\{a_i = a\} e^{\psi_i^\top l}
        - \psi_i^\top l \big) + \tfrac\rho2 \|l\|^2, \quad \omega_i = e^{\psi_i^\top \hat l_{a_i}}, \quad 2 e^R = c

    Each arm's moments, weighted by 2 omega = 1 / pi, come within rho l of everybody's. Nothing is normalised by an
    arm's size. A ridge without end gives weights of one, those of a balanced trial.

    Guarantee:
        Certified indirect sensitivity (`tilting_indirect_sensitivity`), the solver's stop included; free.

    Args:
        ridge: rho.
        cap: c, the largest 1 / pi(a|x); None takes the inverse of the domain's overlap.
        features: Public feature map, whose moments are balanced; None takes intercept and scaled covariates.

    Example:
        >>> domain = Domain([0.0], [1.0], -1.0, 1.0, overlap=0.25)
        >>> round(TiltingWeights(ridge=1.0).bounds(400, domain).first, 2)
        6.17
    """

    name = "entropy"

    ridge: float = 0.1
    cap: float | None = None
    features: FeatureMap | None = None

    def span(self, domain: Domain) -> tuple[float, float]:
        """Return the weights at either end of the tilts, of which none goes beyond the norm 1/ridge."""
        most = min(largest_inverse(self.cap, domain) / 2, math.exp(min(1 / self.ridge, 700.0)))
        return 1 / most, most

    def indirect_sensitivity(self, n: int, domain: Domain) -> float:
        """Return the indirect sensitivity; either fit stops near its minimiser and takes every weight with it."""
        cap = 2 * self.span(domain)[1]
        return tilting_indirect_sensitivity(cap, self.ridge) + 2 * (n - 1) * cap / 2 * _STRAY

    def balance(self, records: CausalData, domain: Domain) -> Tensor:
        """Return the weights of the records, [n]."""
        radius = math.log(self.span(domain)[1])
        psi = on_domain(self.features, domain)(records.x)
        arms = torch.stack([records.a == 0, records.a == 1]).to(psi)
        gamma, none = records.n * self.ridge, psi.new_zeros(2, psi.shape[1])
        # on a ball the distance to the minimiser is at most twice the gradient mapping over gamma
        tolerance, ones = _STRAY * gamma / 2, torch.ones_like(psi[:, 0])
        fits = minimise_within(psi, arms, ones, TiltingLoss(radius), gamma, none, tolerance, Ball(radius))
        return (arms * (fits @ psi.T).clamp(-radius, radius).exp()).sum(0)
