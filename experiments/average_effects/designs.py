"""The confounded design of the theory note: four covariates decide who is treated and who has the outcome."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdpcate import Domain
from torchdpcate.data.records import public_generator
from torchdpcate.fit.feature_maps import FeatureMap, on_domain
from torchdpcate.fit.stacked_records import Batch, StackedRecords
from torchdpcate.papers.confounded import Confounded

Printed = tuple[Tensor, float]
"""Features as the paper's own mechanism takes them, [runs, n, d], and its bound C of their Euclidean norm."""


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
        truth: The ATE.
        literal_eta: Clip of the paper's own mechanism.
        domain: Public facts.
        draw: Covariates [n, q], treatment [n] and outcome [n] from a generator.
        printed: Features of the paper's own mechanism from unclipped covariates [runs, n, q].
    """

    name: str
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


def with_intercept(x: Tensor) -> Printed:
    """Put an intercept beside covariates in [-1, 1]."""
    return torch.cat([torch.ones_like(x[..., :1]), x], 2), math.sqrt(1 + x.shape[-1])


def draw_confounded(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The note's confounded design, as the library has it."""
    records = Confounded().draw(n, generator)
    return records.x, records.a, records.y


CONFOUNDED = Design(
    "confounded",
    Confounded().average_effect("ATE"),
    0.1,
    Confounded().domain(),
    draw_confounded,
    with_intercept,
)
