"""Random laws of a trial whose residuals follow arm and covariate: what intervals are tuned by, and judged by."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import public_generator

TUNING, REPORTED = range(200), range(1_000, 2_000)
"""Seeds by which constants may be chosen, and seeds of tables, by which none was."""

COVARIATES, _EDGE = 3, 3.0


@dataclass(frozen=True)
class Draws:
    """Random numbers of some records.

    Attributes:
        x: Covariates, [n, 3].
        a: Treatment, [n].
        generator: Of their noise.
    """

    x: Tensor
    a: Tensor
    generator: torch.Generator

    def normal(self) -> Tensor:
        """Return standard normal numbers, [n]."""
        return torch.randn(len(self.x), generator=self.generator, dtype=torch.float64)

    def uniform(self) -> Tensor:
        """Return uniform numbers, [n]."""
        return torch.rand(len(self.x), generator=self.generator, dtype=torch.float64)


@dataclass(frozen=True)
class SkewedLaw:
    r"""A trial by a coin: y = base(x) + a tau(x) + noise, or (base(x) + a tau(x)) times noise of mean one.

    Attributes:
        low: Of the outcome.
        high: Of the outcome.
        slopes: Of tau in the covariates; its mean is ``level``.
        level: Mean effect.
        base: Of the controls' mean outcome: constant and slopes, [4].
        noise: Of the records.
        times: Whether noise multiplies.
    """

    low: float
    high: float
    slopes: Tensor
    level: float
    base: Tensor
    noise: Callable[[Draws], Tensor]
    times: bool = False

    @property
    def domain(self) -> Domain:
        """Public bounds."""
        return Domain([-_EDGE] * COVARIATES, [_EDGE] * COVARIATES, self.low, self.high, propensity=0.5)

    def effect(self, x: Tensor) -> Tensor:
        """Return tau at covariates [n, 3]."""
        return self.level + x @ self.slopes

    def records(self, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return covariates, treatment and outcomes of n records."""
        draws = Draws(covariates(n, seed), torch.zeros(n), public_generator(seed, "skewed: noise"))
        draws = Draws(draws.x, (draws.uniform() < 0.5).double(), draws.generator)
        mean = self.base[0] + draws.x @ self.base[1:] + draws.a * self.effect(draws.x)
        y = mean.clamp_min(0) * self.noise(draws) if self.times else mean + self.noise(draws)
        return draws.x, draws.a, y.clamp(self.low, self.high)


def covariates(n: int, seed: int) -> Tensor:
    """Return n rows of covariates, [n, 3]."""
    generator = public_generator(seed, "skewed: covariates")
    return torch.randn(n, COVARIATES, generator=generator, dtype=torch.float64).clamp(-_EDGE, _EDGE)


def law(family: str, seed: int) -> SkewedLaw:
    """Return the law of a family and a seed.

    Args:
        family: One of ``FAMILIES``.
        seed: Of its constants.
    """
    return FAMILIES[family](_Constants(public_generator(seed, f"skewed: {family}")))


class _Constants:
    """Random constants, one after the other."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def within(self, low: float, high: float) -> float:
        return low + (high - low) * torch.rand(1, generator=self._generator, dtype=torch.float64).item()

    def sign(self) -> float:
        return math.copysign(1.0, self.within(-1, 1))

    def slopes(self, size: float) -> Tensor:
        return torch.tensor([self.within(-size, size) for _ in range(COVARIATES)], dtype=torch.float64)


def _beside(c: _Constants, noise: Callable[[Draws], Tensor]) -> SkewedLaw:
    base = torch.cat([torch.zeros(1, dtype=torch.float64), c.slopes(1.0)])
    return SkewedLaw(-20.0, 20.0, c.slopes(0.6), c.within(-1, 1), base, noise)


def _of_costs(c: _Constants, noise: Callable[[Draws], Tensor]) -> SkewedLaw:
    base = torch.cat([torch.tensor([3.0], dtype=torch.float64), c.slopes(0.25)])
    return SkewedLaw(0.0, 60.0, c.slopes(0.2), c.within(-0.8, 0.8), base, noise, times=True)


def _weibull(draws: Draws, shape: float) -> Tensor:
    """Return Weibull numbers about their mean, of variance one."""
    mean, square = math.gamma(1 + 1 / shape), math.gamma(1 + 2 / shape)
    return ((-torch.log(draws.uniform())).pow(1 / shape) - mean) / math.sqrt(square - mean**2)


def _weibulls(c: _Constants) -> SkewedLaw:
    shapes, signs = [c.within(0.7, 3.0) for _ in range(2)], [c.sign() for _ in range(2)]
    sizes, by = [c.within(0.4, 1.2) for _ in range(2)], [c.slopes(0.4) for _ in range(2)]

    def noise(draws: Draws) -> Tensor:
        control, treated = (
            signs[k] * sizes[k] * (draws.x @ by[k]).exp() * _weibull(draws, shapes[k]) for k in range(2)
        )
        return torch.where(draws.a > 0, treated, control)

    return _beside(c, noise)


def _weibull_costs(c: _Constants) -> SkewedLaw:
    shape = c.within(0.8, 2.0)
    mean, square = math.gamma(1 + 1 / shape), math.gamma(1 + 2 / shape)
    size = math.sqrt(square / mean**2 - 1)  # their deviation over their mean
    return _of_costs(c, lambda draws: 1 + size * _weibull(draws, shape))


def _skewed_arm(c: _Constants) -> SkewedLaw:
    sigma, steep = c.within(0.6, 1.0), c.within(1, 3)

    def noise(draws: Draws) -> Tensor:
        e, scale = draws.normal(), 0.3 + 0.7 * torch.sigmoid(steep * draws.x[:, 1])
        return torch.where(draws.a > 0, ((sigma * e).exp() - math.exp(sigma**2 / 2)) * scale, e / 2)

    return _beside(c, noise)


def _log_normal_costs(c: _Constants) -> SkewedLaw:
    sigma = c.within(0.6, 0.9)
    return _of_costs(c, lambda draws: (sigma * draws.normal() - sigma**2 / 2).exp())


def _costs_with_zeros(c: _Constants) -> SkewedLaw:
    sigma, share, by = c.within(0.5, 0.8), c.within(-0.4, 1.4), c.within(-0.6, 0.6)

    def noise(draws: Draws) -> Tensor:
        paid = torch.sigmoid(share + by * draws.x[:, 2])
        cost = (sigma * draws.normal() - sigma**2 / 2).exp() / paid
        return torch.where(draws.uniform() < paid, cost, 0.0)

    return _of_costs(c, noise)


def _two_scales(c: _Constants) -> SkewedLaw:
    small, large, column = c.within(0.1, 0.4), c.within(1.0, 1.6), int(c.within(0, COVARIATES))
    return _beside(c, lambda draws: draws.normal() * torch.where(draws.x[:, column] > 0, large, small))


def _gamma(c: _Constants) -> SkewedLaw:
    shape = c.within(1, 4)

    def noise(draws: Draws) -> Tensor:
        whole, part = int(shape), shape % 1  # a sum of exponentials, one of them thinned: its mean is the shape
        total = -sum(torch.log(draws.uniform()) for _ in range(whole))
        rest = -torch.log(draws.uniform()) * (draws.uniform() < part)
        return (total + rest) / shape

    return _of_costs(c, noise)


def _plain(c: _Constants) -> SkewedLaw:
    size = c.within(0.5, 1.5)
    return _beside(c, lambda draws: size * draws.normal())


FAMILIES: dict[str, Callable[[_Constants], SkewedLaw]] = {
    "Weibull arms": _weibulls,
    "Weibull costs": _weibull_costs,
    "skewed arm": _skewed_arm,
    "log-normal costs": _log_normal_costs,
    "costs with zeros": _costs_with_zeros,
    "two scales": _two_scales,
    "Gamma": _gamma,
    "normal": _plain,
}
TUNED = ("Weibull arms", "Weibull costs")
"""Families by which constants were chosen."""
