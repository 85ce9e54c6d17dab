"""One released number, the law of its error, sampling and noise together, and how wide an interval must be for it."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchdpcate.errors import InputError

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


def half_width(level: float, gaussian: Tensor, laplace: Tensor) -> Tensor:
    r"""Return the half width of intervals: the quantile of the absolute error, [runs].

    .. math:: X = s Z + \sum_k b_k L_k, \qquad \omega = \inf\{t : P(|X| \le t) \ge \text{level}\}

    Z is standard Gaussian, L_k are Laplace of scale 1, all independent and symmetric, so that the characteristic
    function is real,

    .. math:: \varphi(u) = e^{-s^2 u^2 / 2} \prod_k \frac{1}{1 + b_k^2 u^2},

    and for t < T / 2

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
    if not (bool((s >= 0).all()) and bool((b >= 0).all())):
        raise InputError("half_width: give numbers, at least 0")
    unit = torch.cat([s[:, None], b], 1).amax(1)
    there = (unit > 0) & unit.isfinite()
    s, b = s[there] / unit[there], b[there] / unit[there][:, None]
    widths = torch.where(there, 0.0, unit)
    if bool(there.any()):
        parts = zip(s.split(_RUNS), b.split(_RUNS), strict=True)
        widths[there] = unit[there] * torch.cat([_quantile(level, *part) for part in parts])
    return widths


def noise_deviation(laplace: Tensor) -> Tensor:
    """Return the standard deviation of independent Laplace parts of these scales [runs, k] together, [runs].

    Example:
        >>> noise_deviation(torch.tensor([[3.0, 4.0]])).tolist()
        [7.071067810058594]
    """
    return (2 * laplace.square().sum(1)).sqrt()


@dataclass(frozen=True)
class IntervalLaw:
    """Law of the error of one estimate, in the estimate's units; parts as in ``half_width``.

    Attributes:
        gaussian: Standard deviation of the Gaussian part.
        laplace: Scales of the Laplace parts.

    Example:
        >>> round(IntervalLaw(0.02, (0.01, 0.0)).half_width(0.95), 4)
        0.0483
    """

    gaussian: float
    laplace: tuple[float, ...] = ()

    def half_width(self, level: float) -> float:
        """Return the half width of an interval; ``level`` and errors are ``half_width``'s."""
        s, b = (torch.tensor([part], dtype=torch.float64) for part in (self.gaussian, self.laplace))
        return half_width(level, s, b).item()


def _quantile(level: float, s: Tensor, b: Tensor) -> Tensor:
    """Return the quantile of |X|, [runs], for parts of which the largest is 1."""
    missed = 1 - level
    high = _beyond(missed, s, b)
    period = high + _beyond(missed * _ALIAS, s, b)
    step = 2 * math.pi / period
    enough = (_LEFT_OUT / (s * step)).amax().item()  # points, if the Gaussian part is to end the sum
    m = torch.arange(1, math.ceil(min(enough, _POINTS)) + 1, dtype=torch.float64)
    u = step[:, None] * m
    weights = (-0.5 * (torch.maximum(s, _LEFT_OUT / u[:, -1])[:, None] * u).square()).exp()
    for scale in b.T:
        weights /= 1 + (scale[:, None] * u).square()
    weights = weights * (2 / (math.pi * m))
    low = torch.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        inside = 2 * middle / period + (weights * (u * middle[:, None]).sin()).sum(1)
        low, high = torch.where(inside < level, middle, low), torch.where(inside < level, high, middle)
    return high


def _beyond(missed: float, s: Tensor, b: Tensor) -> Tensor:
    """Return what |X| exceeds with a probability of at most ``missed``, by a union over the parts, [runs]."""
    share = missed / (2 + b.shape[1])
    normal = -torch.special.ndtri(torch.tensor(share / 2, dtype=torch.float64))
    return s * normal - b.sum(1) * math.log(share)


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
        """Return the interval, clipped to [-bound, bound]; where noise dominates a denominator, all of that.

        Args:
            level: Probability in (0, 1).
            bound: Largest effect there can be, for instance the outcome's range.
            per_person: k, records of each person: sums over records have at most k times the variance that independent
                ones would give them, and the Gaussian part of the error, which holds sampling, counts that.

        Raises:
            InputError: No interval is known, or a level outside (0, 1).
        """
        checked_level(level)
        if self.noise_dominated:
            return -bound, bound
        if self.law is None:
            raise InputError("interval: none is known for this estimate")
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
        noise = noise_deviation(torch.tensor([self.law.laplace], dtype=torch.float64)).item()
        return self.value, per_person * self.law.gaussian * self.law.gaussian + noise * noise

    def tensor(self) -> Tensor:
        """Return the numbers: value, Gaussian deviation, Laplace scales."""
        law = () if self.law is None else (self.law.gaussian, *self.law.laplace)
        return torch.tensor([self.value, *law], dtype=torch.float64)

    def facts(self) -> dict[str, Any]:
        """Return what is needed, beside the numbers, to rebuild the estimate."""
        parts = None if self.law is None else {"laplace": len(self.law.laplace), "polytope": False}
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
        count = 1 if parts is None else 2 + parts["laplace"]
        if tuple(numbers.shape) != (count,) or numbers.dtype != torch.float64 or not bool(numbers.isfinite().all()):
            raise ValueError(f"an estimate of {tuple(numbers.shape)} numbers, not {count}")
        if not isinstance(noise_dominated, bool):
            raise TypeError("swamped is no truth value")
        value, *rest = numbers.tolist()
        if parts is None:
            return cls(value, None, noise_dominated)
        if min(rest) < 0:
            raise ValueError("a negative scale")
        return cls(value, IntervalLaw(rest[0], tuple(rest[1:])), noise_dominated)
