"""One released number, the law of its error, sampling and noise together, and how wide an interval must be for it."""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import scipy
import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.draws import CELLS, root_simplices

_POINTS = 2048  # of the characteristic function
_ALIAS = 1e-9  # of the probability that an interval may miss: what the sum over points takes from other periods
_LEFT_OUT = math.sqrt(-2 * math.log(1e-9))  # the Gaussian part's factor at the last point is at most 1e-9
_HALVINGS = 45
_RUNS = 1024  # at a time: 16 MiB for an array of theirs by points


def checked_level(level: float) -> float:
    """Return a probability strictly between 0 and 1.

    Raises:
        InputError: It is none.
    """
    if not 0 < level < 1:
        raise InputError(f"level = {level}: give a probability strictly between 0 and 1")
    return level


def quantile(level: float) -> Tensor:
    """Return the two-sided normal quantile of a level.

    Raises:
        InputError: A level outside (0, 1).

    Example:
        >>> round(quantile(0.95).item(), 4)
        1.96
    """
    return torch.special.ndtri(torch.tensor((1 + checked_level(level)) / 2, dtype=torch.float64))


def half_width(level: float, gaussian: Tensor, laplace: Tensor, polytope: Tensor | None = None) -> Tensor:
    r"""Return the half width of intervals: the quantile of the absolute error, [runs].

    .. math:: X = s Z + \sum_k b_k L_k + c^\top V, \qquad \omega = \inf\{t : P(|X| \le t) \ge \text{level}\}

    Z is standard Gaussian, L_k are Laplace of scale 1, V is root-polytope noise of scale 1, all independent and
    symmetric, so that the characteristic function is real,

    .. math::
        \varphi(u) = e^{-s^2 u^2 / 2} \prod_k \frac{1}{1 + b_k^2 u^2} \cdot
            \frac{1}{70} \sum_S \mathrm{Re} \prod_{v \in S} \frac{1}{1 - i u\, c^\top v},

    V being :math:`\sum_j E_j v_j` for a simplex S drawn uniformly (``root_simplices``), and for t < T / 2

    .. math:: P(|X| \le t) \le \frac{2 t}{T} + \frac2\pi \sum_{m \ge 1} \frac{\varphi(m h) \sin(m h t)}{m},
        \quad h = \frac{2 \pi}{T},

    with an excess of at most P(|X| > T - t) (Poisson's sum), which T keeps below a billionth of what the interval may
    miss. The exact laws of the noise count, not 1.96 times a deviation: Laplace tails are longer. Where too little
    Gaussian noise is there to make the sum short, a little is added, which only widens: every part is symmetric and
    unimodal (Wintner 1938).

    Source: Gil-Pelaez (1951), Davies (1973) for the inversion; theory note ``covariate_balancing``, section 3.6.

    Args:
        level: Probability in (0, 1).
        gaussian: s, standard deviation of the Gaussian part, [runs].
        laplace: b, scales of the Laplace parts, [runs, k]; zeros are allowed, and k = 0.
        polytope: c, factors of the four numbers of V, [runs, 4]; None where there is none.

    Returns:
        Half widths, [runs]; 0 where there is no error at all, infinite where a part is.

    Raises:
        InputError: A level outside (0, 1), scales that are negative, or something that is no number.

    Example:
        >>> one, none = torch.ones(1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
        >>> round(half_width(0.95, one, none).item(), 3), round(half_width(0.95, 0 * one, one[:, None]).item(), 3)
        (1.96, 2.996)
    """
    checked_level(level)
    s, b = gaussian.double(), laplace.double().reshape(len(gaussian), -1)
    c = b.new_zeros(len(b), CELLS) if polytope is None else polytope.double()
    if not (bool((s >= 0).all()) and bool((b >= 0).all()) and not bool(c.isnan().any())):
        raise InputError("half_width: give numbers, those of Gaussian and Laplace parts at least 0")
    unit = torch.cat([s[:, None], b, c.abs()], 1).amax(1)
    there = (unit > 0) & unit.isfinite()
    s, b, c = (part[there] / unit[there].reshape(-1, *[1] * (part.ndim - 1)) for part in (s, b, c))
    widths = torch.where(there, 0.0, unit)
    if bool(there.any()):
        parts = zip(*(part.split(_RUNS) for part in (s, b, c)), strict=True)
        widths[there] = unit[there] * torch.cat([_quantile(level, *part) for part in parts])
    return widths


def noise_deviation(laplace: Tensor, polytope: Tensor | None = None) -> Tensor:
    r"""Return the standard deviation of Laplace parts and root-polytope noise together, [runs].

    .. math:: \mathrm{var} = 2 \sum_k b_k^2 + 6 \sum_j c_j^2 - 1.2 \Big(\sum_j c_j\Big)^2

    V has covariance 4.8 on its diagonal and -1.2 off it (``RootPolytopeMechanism``).

    Args:
        laplace: b, [runs, k].
        polytope: c, [runs, 4]; None where there is none.

    Example:
        >>> noise_deviation(torch.tensor([[3.0, 4.0]])).tolist(), noise_deviation(torch.zeros(1, 0), torch.eye(4)[:1])
        ([7.071067810058594], tensor([2.1909]))
    """
    variance = 2 * laplace.square().sum(1)
    if polytope is not None:
        variance = variance + 6 * polytope.square().sum(1) - 1.2 * polytope.sum(1).square()
    return variance.sqrt()


@dataclass(frozen=True)
class IntervalLaw:
    """Law of the error of one estimate, in the estimate's units; parts as in ``half_width``.

    Attributes:
        gaussian: Standard deviation of the Gaussian part.
        laplace: Scales of the Laplace parts.
        polytope: Factors of the root-polytope noise; empty where there is none.

    Example:
        >>> round(IntervalLaw(0.02, (0.01, 0.0)).half_width(0.95), 4)
        0.0483
    """

    gaussian: float
    laplace: tuple[float, ...] = ()
    polytope: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.polytope) not in (0, CELLS):
            raise InputError(f"polytope: {len(self.polytope)} factors; give {CELLS}, or none")

    def half_width(self, level: float) -> float:
        """Return the half width of an interval; ``level`` and errors are ``half_width``'s."""
        s, b, c = (torch.tensor([part], dtype=torch.float64) for part in (self.gaussian, self.laplace, self.polytope))
        return half_width(level, s, b, c if self.polytope else None).item()


def _quantile(level: float, s: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return the quantile of |X|, [runs], for parts of which the largest is 1."""
    missed = 1 - level
    high = _beyond(missed, s, b, c)
    period = high + _beyond(missed * _ALIAS, s, b, c)
    step = 2 * math.pi / period
    enough = (_LEFT_OUT / (s * step)).amax().item()  # points, if the Gaussian part is to end the sum
    m = torch.arange(1, math.ceil(min(enough, _POINTS)) + 1, dtype=torch.float64)
    u = step[:, None] * m
    weights = _characteristic(u, torch.maximum(s, _LEFT_OUT / u[:, -1]), b, c) * (2 / (math.pi * m))
    low = torch.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        inside = 2 * middle / period + (weights * (u * middle[:, None]).sin()).sum(1)
        low, high = torch.where(inside < level, middle, low), torch.where(inside < level, high, middle)
    return high


def _beyond(missed: float, s: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return what |X| exceeds with a probability of at most ``missed``, by a union over the parts, [runs]."""
    share = missed / (2 + b.shape[1])
    normal = -torch.special.ndtri(torch.tensor(share / 2, dtype=torch.float64))
    largest = c.clamp_min(0).amax(1) + (-c).clamp_min(0).amax(1)  # the largest c'v over K
    # |c'V| is at most that times the length of V, which is Gamma of shape 4
    return s * normal - b.sum(1) * math.log(share) + largest * float(scipy.special.gammainccinv(CELLS, share))


def _characteristic(u: Tensor, s: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return the characteristic function of X at u [runs, points]."""
    values = (-0.5 * (s[:, None] * u).square()).exp()
    for scale in b.T:
        values /= 1 + (scale[:, None] * u).square()
    return values * _polytope(u, c) if bool(c.any()) else values


def _polytope(u: Tensor, c: Tensor) -> Tensor:
    """Return that of c'V: the mean over simplices of the real part of the product over corners of 1 / (1 - i u c'v).

    With e_k the elementary symmetric polynomials of the four c'v, the product's denominator is
    (1 - e_2 u^2 + e_4 u^4) - i u (e_1 - e_3 u^2).
    """
    half = root_simplices()[:35]  # the others are their mirrors
    slopes = torch.einsum("scd,rd->rsc", half, c)
    total, square = torch.zeros_like(u), u.square()
    for e_1, e_2, e_3, e_4 in zip(*_symmetric(slopes), strict=True):
        real = 1 - square * (e_2 - e_4 * square)
        imaginary = e_1 - e_3 * square
        total += real / (real.square() + square * imaginary.square())
    return total / len(half)


def _symmetric(slopes: Tensor) -> list[Tensor]:
    """Return e_1 to e_4 of slopes [runs, simplices, 4], each [simplices, runs, 1]."""
    e = [torch.ones_like(slopes[..., 0]), *(torch.zeros_like(slopes[..., 0]) for _ in range(CELLS))]
    for slope in slopes.unbind(-1):
        for k in range(CELLS, 0, -1):
            e[k] = e[k] + slope * e[k - 1]
    return [part.mT[..., None] for part in e[1:]]


_MOST_PARTS = 1000  # Laplace parts in a file; an estimate has a few, and each costs time


@dataclass(frozen=True)
class Estimate:
    """An estimate in outcome units, and the law of its error.

    Attributes:
        value: The estimate.
        law: Law of its error, sampling and noise together; None where no interval is known.
        noise_dominated: Whether noise dominates a denominator of it, so that the data say nothing.

    Example:
        >>> low, high = Estimate(0.2, IntervalLaw(0.05)).interval(0.95, bound=1.0)
        >>> round(low, 3), round(high, 3)
        (0.102, 0.298)
    """

    value: float
    law: IntervalLaw | None
    noise_dominated: bool = False

    def interval(self, level: float, bound: float, per_person: int = 1) -> tuple[float, float]:
        """Return the interval, clipped to [-bound, bound]; where noise dominates a denominator, all of that, and warn.

        Args:
            level: Probability in (0, 1).
            bound: Largest effect there can be, for instance the outcome's range.
            per_person: k, records of each person: sums over records have at most k times the variance that independent
                ones would give them, and the Gaussian part of the error, which holds sampling, counts that.

        Raises:
            InputError: No interval is known, or a level outside (0, 1).
        """
        if self.noise_dominated:
            warnings.warn(
                "interval: the denominator of this estimate is dominated by privacy noise, so that any effect is "
                "possible; the interval is the full range. More records, more epsilon or a larger overlap would help",
                stacklevel=3,
            )
        return self.range(level, bound, per_person)

    def range(self, level: float, bound: float, per_person: int = 1) -> tuple[float, float]:
        """Return what ``interval`` does, without a warning."""
        checked_level(level)
        if self.noise_dominated:
            return -bound, bound
        if self.law is None:
            raise InputError(
                "interval: no honest interval is known for this estimate; CovariateBalancingEffect has one"
            )
        half = replace(self.law, gaussian=math.sqrt(per_person) * self.law.gaussian).half_width(level)
        low, high = (min(max(end, -bound), bound) for end in (self.value - half, self.value + half))
        return low, high

    def moments(self, per_person: int = 1) -> tuple[float, float]:
        """Return the value and the variance of its error, infinite where noise dominates or no law is known.

        Args:
            per_person: As of ``interval``.
        """
        if self.law is None or self.noise_dominated:
            return self.value, math.inf
        laplace, polytope = (
            torch.tensor([part], dtype=torch.float64) for part in (self.law.laplace, self.law.polytope)
        )
        noise = noise_deviation(laplace, polytope if self.law.polytope else None).item()
        return self.value, per_person * self.law.gaussian**2 + noise**2

    def tensor(self) -> Tensor:
        """Return the numbers: value, Gaussian deviation, Laplace scales, polytope factors."""
        law = () if self.law is None else (self.law.gaussian, *self.law.laplace, *self.law.polytope)
        return torch.tensor([self.value, *law], dtype=torch.float64)

    def facts(self) -> dict[str, Any]:
        """Return what is needed, beside the numbers, to rebuild the estimate."""
        parts = None if self.law is None else {"laplace": len(self.law.laplace), "polytope": bool(self.law.polytope)}
        return {"law": parts, "swamped": self.noise_dominated}

    @classmethod
    def build(cls, numbers: Tensor, facts: dict[str, Any]) -> "Estimate":
        """Rebuild an estimate from ``tensor`` and ``facts``.

        Raises:
            ValueError: They do not fit together.
        """
        parts, noise_dominated = facts["law"], facts["swamped"]
        if parts is not None and not 0 <= parts["laplace"] <= _MOST_PARTS:
            raise ValueError("more parts of noise than any estimate has")
        count = 1 if parts is None else 2 + parts["laplace"] + CELLS * bool(parts["polytope"])
        if tuple(numbers.shape) != (count,) or numbers.dtype != torch.float64 or not bool(numbers.isfinite().all()):
            raise ValueError(f"an estimate of {tuple(numbers.shape)} numbers, not {count}")
        if not isinstance(noise_dominated, bool):
            raise TypeError("swamped is no truth value")
        value, *rest = numbers.tolist()
        if parts is None:
            return cls(value, None, noise_dominated)
        end = 1 + parts["laplace"]
        if min(rest[:end]) < 0:
            raise ValueError("a negative scale")
        return cls(value, IntervalLaw(rest[0], tuple(rest[1:end]), tuple(rest[end:])), noise_dominated)
