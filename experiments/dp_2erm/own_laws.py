"""Laws of observational studies that are ours, not the paper's: mildly and strongly confounded, known best rules."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.designs.rules import ITR
from experiments.dp_2erm.sample import Sample
from torchdpcate.data.domain import Domain

CONTRAST = 7.0
"""Slope of the linear scenario's effect."""


@dataclass(frozen=True)
class Law:
    """Uniform covariates on [-1, 1]^p, treatment by a propensity, Y = m + (A - 1/2) tau(x) + noise.

    Attributes:
        name: What the page calls it.
        dimension: p.
        effect: tau, from covariates [..., p].
        propensity: P(A = 1 | x).
        baseline: m.
        noise_sd: Standard deviation of the noise.
        overlap: Public bound to which propensities are clipped.
        reach: Public bound of |Y - m|, to which outcomes are clipped.
    """

    name: str
    dimension: int
    effect: Callable[[Tensor], Tensor]
    propensity: Callable[[Tensor], Tensor]
    baseline: float = 0.0
    noise_sd: float = 1.0
    overlap: float = 0.25
    reach: float = 15.0

    @property
    def domain(self) -> Domain:
        """The public facts."""
        box = [-1.0] * self.dimension, [1.0] * self.dimension
        return Domain(*box, self.baseline - self.reach, self.baseline + self.reach, self.overlap, better="higher")

    def draw(self, runs: int, n: int, generator: torch.Generator) -> Sample:
        """Draw data sets of n records."""
        u = torch.rand(runs, n, self.dimension + 1, generator=generator, dtype=torch.float64)
        x = 2 * u[..., :-1] - 1
        propensity = self.propensity(x)
        a = (u[..., -1] < propensity).double()
        noise = self.noise_sd * torch.randn(runs, n, generator=generator, dtype=torch.float64)
        return Sample(x, a, self.baseline + (a - 0.5) * self.effect(x) + noise, propensity)


def _linear(x: Tensor) -> Tensor:
    return CONTRAST * (x[..., 0] + x[..., 1] - x[..., 2] - x[..., 3])


def _quadratic(x: Tensor) -> Tensor:
    return CONTRAST * (x[..., 0] + 3 * x[..., 1].square() - 1)


def _tree(x: Tensor) -> Tensor:
    better = torch.where(x[..., 0] > 0, x[..., 1] > -0.5, x[..., 2] > 0.5)
    return CONTRAST * (2 * better.double() - 1)


def _mild(x: Tensor) -> Tensor:
    return torch.sigmoid(0.55 * (x[..., 0] - x[..., 1]))  # within 0.25 and 0.75


def scenario(name: str, dimension: int = 10) -> Law:
    """One of the three scenarios: ``linear``, ``quadratic`` or ``tree``, mildly confounded."""
    effect = {"linear": _linear, "quadratic": _quadratic, "tree": _tree}[name]
    return Law(name, dimension, effect, _mild)


def confounded() -> Law:
    """The library's `ITR`, linear and confounded, propensities clipped to [0.1, 0.9]."""
    law = ITR("linear", confounded=True)
    return Law(law.name, law.dimension, law.effect, law.propensity, 4.0, law.noise_sd, overlap=0.1, reach=8.0)
