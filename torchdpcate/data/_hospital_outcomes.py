"""Outcomes of a hospital's patients: a score, death within some days, or costs; means of both arms in closed form."""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data._hospital_covariates import uniform
from torchdpcate.data._hospital_law import REACH, Law, Traits, solve
from torchdpcate.data.split import public_generator

_SKEW = (1.2, 6.0)  # of the noise (1 - (1 - U)^(1/b))^(1/a), Kumaraswamy's law


class Outcome(ABC):
    """An outcome under a law.

    Args:
        law: Of patients, treatment and effect.
        seed: Of the outcome's own constants.

    Attributes:
        low: Public lower bound.
        high: Public upper bound.
    """

    low: float
    high: float
    kind = "continuous"

    def __init__(self, law: Law, seed: int) -> None:
        self._law = law
        self._set(law, public_generator(seed, "hospital outcome"))

    def entry(self) -> dict[str, Any]:
        """Return the outcome's entry of a domain file."""
        declared = {} if self.kind == "continuous" else {"kind": self.kind}
        return {"name": "y", "low": self.low, "high": self.high, **declared}

    def effect(self, traits: Traits) -> Tensor:
        """Return E[Y(1) - Y(0)] of patients, [n]."""
        return self.mean(traits, 1.0) - self.mean(traits, 0.0)

    @abstractmethod
    def _set(self, law: Law, generator: torch.Generator) -> None:
        """Draw the constants."""

    @abstractmethod
    def mean(self, traits: Traits, a: Tensor | float) -> Tensor:
        """Return E[Y(a)] of patients, [n], as bounded in public."""

    @abstractmethod
    def draw(self, traits: Traits, a: Tensor | float, generator: torch.Generator) -> Tensor:
        """Return Y(a) of patients, [n], within the public bounds."""


class Score(Outcome):
    r"""Baseline, effect and right-skewed noise :math:`s(x) (K - E K) / \text{sd}`, bounded and of sd about 1 in all.

    K is Kumaraswamy's variable, :math:`(1 - (1 - U)^{1/6})^{1/1.2}`. Bounds hold for every patient: nothing is clipped.
    """

    def _set(self, law: Law, generator: torch.Generator) -> None:
        bias = float(uniform(0.55, 0.95, 1, generator))
        self._baseline = min(0.95, max(0.5, bias / max(law.bias, 1e-9)))
        self._noise = math.sqrt(1.0 - self._baseline**2)
        self._middle, second = (_moment(k) for k in (1, 2))
        self._sd = math.sqrt(second - self._middle**2)
        most = self._noise * law.most_spread
        low = -REACH * self._baseline + law.size * law.shape_bounds[0] - most * self._middle / self._sd
        high = REACH * self._baseline + law.size * law.shape_bounds[1] + most * (1.0 - self._middle) / self._sd
        self.low, self.high = math.floor(2.0 * low) / 2.0, math.ceil(2.0 * high) / 2.0

    def mean(self, traits: Traits, a: Tensor | float) -> Tensor:
        """Return baseline and effect, [n]."""
        return self._baseline * traits.baseline + a * self.effect(traits)

    def effect(self, traits: Traits) -> Tensor:
        """Return size times shape, [n]."""
        return self._law.size * traits.shape

    def draw(self, traits: Traits, a: Tensor | float, generator: torch.Generator) -> Tensor:
        """Return scores, [n]."""
        u = torch.rand(len(traits.baseline), generator=generator, dtype=torch.float64)
        noise = ((1.0 - u ** (1.0 / _SKEW[1])) ** (1.0 / _SKEW[0]) - self._middle) / self._sd
        return self.mean(traits, a) + self._noise * traits.spread * noise


class Death(Outcome):
    """0 or 1: the logit of P(Y = 1) is linear in baseline and, of the treated, less by twice size times shape.

    Of the untreated 1.5 to 5 % die.
    """

    kind, low, high = "binary", 0.0, 1.0

    def _set(self, law: Law, generator: torch.Generator) -> None:
        rate, self._slope = (float(uniform(*bounds, 1, generator)) for bounds in ((0.015, 0.05), (0.7, 1.1)))
        known = self._slope * law.reference.baseline
        self._intercept = solve(lambda c: float(torch.sigmoid(c + known).mean()) - rate, -40.0, 40.0)

    def mean(self, traits: Traits, a: Tensor | float) -> Tensor:
        """Return the probability of death, [n]."""
        less = 2.0 * self._law.size * a * traits.shape
        return torch.sigmoid(self._intercept + self._slope * traits.baseline - less)

    def draw(self, traits: Traits, a: Tensor | float, generator: torch.Generator) -> Tensor:
        """Return deaths, [n]."""
        u = torch.rand(len(traits.baseline), generator=generator, dtype=torch.float64)
        return (u < self.mean(traits, a)).to(torch.float64)


class Cost(Outcome):
    r"""No cost for 20 to 50 %, else the exponential of :math:`m + \beta b(x) - a g(x) + \sigma Z`, or high if less.

    g is size times shape. Patients who do badly have costs more often. High is the .9995 quantile of costs, rounded up
    to two digits; means are those of costs so bounded, :math:`E[\min(Y, \text{high})]`.
    """

    low = 0.0

    def _set(self, law: Law, generator: torch.Generator) -> None:
        zeros, self._sd, self._slope, typical = (
            float(uniform(*bounds, 1, generator)) for bounds in ((0.2, 0.5), (0.7, 1.0), (0.3, 0.6), (7.0, 9.0))
        )
        self._typical, reference = typical, law.reference
        half = 0.5 * reference.baseline
        self._some = solve(lambda c: float(torch.sigmoid(c + half).mean()) - (1.0 - zeros), -40.0, 40.0)

        def within(logarithm: float) -> float:
            control, treated = (self._above(reference, a, logarithm) for a in (0.0, 1.0))
            return 0.0005 - float(torch.lerp(control, treated, reference.propensity).mean())

        self.high = _rounded_up(math.exp(solve(within, 0.0, 40.0)))

    def _any(self, traits: Traits) -> Tensor:
        """Return P(cost > 0), [n]."""
        return torch.sigmoid(self._some + 0.5 * traits.baseline)

    def _logarithm(self, traits: Traits, a: Tensor | float) -> Tensor:
        """Return the mean logarithm of a cost above 0, [n]."""
        return self._typical + self._slope * traits.baseline - self._law.size * a * traits.shape

    def _above(self, traits: Traits, a: Tensor | float, bound: float) -> Tensor:
        """Return P(log cost > bound), [n]."""
        z = (self._logarithm(traits, a) - bound) / self._sd
        return self._any(traits) * torch.special.ndtr(z)

    def mean(self, traits: Traits, a: Tensor | float) -> Tensor:
        """Return the mean cost, [n], of costs cut at high."""
        middle, bound, sd = self._logarithm(traits, a), math.log(self.high), self._sd
        below = torch.exp(middle + sd**2 / 2.0) * torch.special.ndtr((bound - middle) / sd - sd)
        return self._any(traits) * below + self.high * self._above(traits, a, bound)

    def draw(self, traits: Traits, a: Tensor | float, generator: torch.Generator) -> Tensor:
        """Return costs, [n]."""
        n = len(traits.baseline)
        u = torch.rand(n, generator=generator, dtype=torch.float64)
        z = torch.randn(n, generator=generator, dtype=torch.float64)
        costs = torch.exp(self._logarithm(traits, a) + self._sd * z).clamp(max=self.high)
        return costs * (u < self._any(traits))


OUTCOMES: dict[str, type[Outcome]] = {"score": Score, "death": Death, "cost": Cost}
"""Outcomes by name."""


def _moment(order: int) -> float:
    """Return E K^order of Kumaraswamy's law."""
    a, b = _SKEW
    share = 1.0 + order / a
    return b * math.exp(math.lgamma(share) + math.lgamma(b) - math.lgamma(share + b))


def _rounded_up(value: float) -> float:
    """Return value with two digits, not less than it."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit
