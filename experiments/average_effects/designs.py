"""Designs of the simulations: a reading of the paper's two scenarios, and the note's confounded design.

The paper's text is not in our material beyond what the theory note says of it. Of scenario 1 the note states the law of
the covariates, N(0, 0.8 I + 0.2 J), the ATE of 0.2213, that there is nothing to adjust for, and that Horvitz-Thompson
with e = 1/2 is off by a quarter of the effect. The rest is ours: five covariates, an outcome that depends on all of
them, a propensity orthogonal to it. Of scenario 2 nothing is stated; ours has a propensity that no logistic regression
fits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from torchdpcate import Domain
from torchdpcate.data.effect_generators import Confounded
from torchdpcate.data.split import public_generator
from torchdpcate.erm.records import Batch, StackedRecords
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import on_domain

Printed = tuple[Tensor, float]
"""Features as the paper's own mechanism takes them, [runs, n, d], and its bound C of their Euclidean norm."""

WIDTH, BOUND = 5, 4.0  # covariates of the scenarios, and the public bound to which certified methods clip them
SHIFT, SLOPE = 0.92795, 0.12  # of the outcome's logit; by these the ATE is 0.2213
OFFSET = 0.11  # propensities of 0.5275 on average: 2 zy - 2 (1 - z) y is then a quarter of the effect off


@dataclass(frozen=True)
class Sample:
    """Data sets side by side.

    Attributes:
        records: As the library sees them.
        printed: Features and their bound, as the paper's own mechanism sees them.
    """

    records: StackedRecords
    printed: Printed


@dataclass(frozen=True)
class Design:
    """A law of records with a known ATE.

    Attributes:
        name: Of files and columns.
        title: Of pages.
        truth: The ATE.
        literal_eta: Clip of the paper's own mechanism.
        domain: Public facts.
        draw: Covariates [n, q], treatment [n] and outcome [n] from a generator.
        printed: Features of the paper's own mechanism from unclipped covariates [runs, n, q].
    """

    name: str
    title: str
    truth: float
    literal_eta: float
    domain: Domain
    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor, Tensor]]
    printed: Callable[[Tensor], Printed]

    @cached_property
    def features(self) -> FeatureMap:
        """The library's default: intercept and covariates scaled by their public bounds."""
        return on_domain(None, self.domain)

    def sample(self, n: int, seeds: range) -> Sample:
        """Draw a data set for each seed; the same ones whatever they are drawn with."""
        drawn = [self.draw(n, public_generator(seed, f"{self.name}, n = {n}")) for seed in seeds]
        x, z, y = (torch.stack(parts) for parts in zip(*drawn, strict=True))
        within = self.domain.clip_covariates(x)
        psi = self.features(within.reshape(-1, x.shape[-1])).reshape(*x.shape[:2], -1)
        return Sample(StackedRecords(Batch(within, psi, z, y)), self.printed(x))


def by_largest_norm(x: Tensor) -> Printed:
    """Divide by the sample's largest norm, which is a function of the records and not paid for; no intercept."""
    return x / x.norm(dim=2).amax(1)[:, None, None], 1.0


def with_intercept(x: Tensor) -> Printed:
    """Put an intercept beside covariates in [-1, 1]."""
    return torch.cat([torch.ones_like(x[..., :1]), x], 2), math.sqrt(1 + x.shape[-1])


def linear_propensity(x: Tensor) -> Tensor:
    """A logistic propensity, orthogonal to what the outcome depends on: nothing to adjust for."""
    return torch.sigmoid(OFFSET + 0.1 * (x[:, 0] - x[:, 1]))


def stepped_propensity(x: Tensor) -> Tensor:
    """A step in the direction in which the outcome changes: no logistic regression fits it."""
    return 0.35 + 0.3 * (x.sum(1) > 1.5)


def scenario_effect() -> float:
    """The ATE of the scenarios, by quadrature: the covariates' sum is N(0, 9)."""
    at, mass = np.polynomial.hermite_e.hermegauss(60)
    ends = [1 / (1 + np.exp(-(sign * SHIFT / 2 + 3 * SLOPE * at))) for sign in (1, -1)]
    return float((mass * (ends[0] - ends[1])).sum() / mass.sum())


def scenario(propensity: Callable[[Tensor], Tensor]) -> Callable[[int, torch.Generator], tuple[Tensor, Tensor, Tensor]]:
    """Covariates and outcome of the scenarios with a propensity, which sees unclipped covariates [n, 5]."""

    def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        normal = torch.randn(n, WIDTH + 1, generator=generator, dtype=torch.float64)
        u = torch.rand(n, 2, generator=generator, dtype=torch.float64)
        x = math.sqrt(0.8) * normal[:, 1:] + math.sqrt(0.2) * normal[:, :1]
        z = (u[:, 0] < propensity(x)).double()
        y = (u[:, 1] < torch.sigmoid(SHIFT * (z - 0.5) + SLOPE * x.sum(1))).double()
        return x, z, y

    return draw


def draw_confounded(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The note's confounded design, as the library has it."""
    records = Confounded().draw(n, generator)
    return records.x, records.a, records.y


_BOX = Domain([-BOUND] * WIDTH, [BOUND] * WIDTH, 0.0, 1.0)
_LAWS = {"scenario 1": linear_propensity, "scenario 2": stepped_propensity}
_TITLES = {
    "scenario 1": "Scenario 1: nothing to adjust for",
    "scenario 2": "Scenario 2: a misspecified propensity",
}
DESIGNS = {
    name: Design(name, _TITLES[name], scenario_effect(), 0.05, _BOX, scenario(law), by_largest_norm)
    for name, law in _LAWS.items()
}
DESIGNS["confounded"] = Design(
    "confounded",
    "The confounded design",
    Confounded().average_effect("ATE"),
    0.1,
    Confounded().domain(),
    draw_confounded,
    with_intercept,
)
