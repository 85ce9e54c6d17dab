"""The printed laws of Ohnishi & Awan (2024), section 4: four normal covariates, two propensities, one outcome.

Outcomes and treatments follow from covariates over the sample's largest norm, as printed: the norm is a function of
the records, and the effect depends on it in the fourth decimal. The library sees the covariates in their own units,
clipped to [-4, 4], a public bound; the printed mechanism sees them over the largest norm.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from torchdpcate import Domain
from torchdpcate.data.records import public_generator
from torchdpcate.fit.feature_maps import FeatureMap, on_domain
from torchdpcate.fit.stacked_records import Batch, StackedRecords

CORRELATION = 0.2
BOUND = 4.0
"""Public bound of each covariate, in standard deviations, to which the library clips."""
LEAST_OVERLAP = 0.05
"""Clip of the propensity for all methods: not printed, and the one that brings the published errors."""
EFFECT = 1.0  # gamma, of the log-odds of the outcome
INTERCEPT = 0.15
SLOPES = (-0.2, 0.3, -0.4, 0.6)


@dataclass(frozen=True, eq=False)
class Sample:
    """Data sets side by side.

    Attributes:
        records: As the library sees them.
        scaled: Covariates over the largest norm of their data set, [runs, n, 4].
        truth: The average effect of each data set's law, [runs].
    """

    records: StackedRecords
    scaled: Tensor
    truth: Tensor


@dataclass(frozen=True)
class Law:
    """One scenario.

    Attributes:
        name: Of rows and seeds.
        setting: As the published tables call it.
        logit: Log-odds of treatment by scaled covariates [..., 4].
    """

    name: str
    setting: str
    logit: Callable[[Tensor], Tensor]

    @cached_property
    def domain(self) -> Domain:
        """Public facts."""
        return Domain([-BOUND] * 4, [BOUND] * 4, 0.0, 1.0, overlap=LEAST_OVERLAP)

    @cached_property
    def features(self) -> FeatureMap:
        """The library's default: intercept and covariates scaled by their public bounds."""
        return on_domain(None, self.domain)

    def sample(self, n: int, seeds: range) -> Sample:
        """Draw a data set for each seed; the same ones whatever they are drawn with."""
        drawn = [self.draw(n, public_generator(seed, f"{self.setting}, n = {n}")) for seed in seeds]
        x, scaled, z, y, largest = (torch.stack(parts) for parts in zip(*drawn, strict=True))
        within = self.domain.clip_covariates(x)
        psi = self.features(within.reshape(-1, 4)).reshape(*x.shape[:2], -1)
        return Sample(StackedRecords(Batch(within, psi, z, y)), scaled, average_effect(largest))

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return covariates [n, 4] in both units, treatment [n], outcome [n] and the largest norm."""
        x = covariates(n, generator)
        largest = x.norm(dim=1).amax()
        scaled = x / largest
        u = torch.rand(2, n, generator=generator, dtype=torch.float64)
        z = (u[0] < torch.sigmoid(self.logit(scaled))).double()
        y = (u[1] < torch.sigmoid(outcome_logit(scaled) + EFFECT * z)).double()
        return x, scaled, z, y, largest


def covariates(n: int, generator: torch.Generator) -> Tensor:
    """Return n draws of N(0, 0.8 I + 0.2 J), [n, 4]."""
    normal = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return math.sqrt(1 - CORRELATION) * normal[:, 1:] + math.sqrt(CORRELATION) * normal[:, :1]


def outcome_logit(x: Tensor) -> Tensor:
    """Return the log-odds of a control's outcome, of scaled covariates."""
    return INTERCEPT + x @ x.new_tensor(SLOPES)


def linear_logit(x: Tensor) -> Tensor:
    """Scenario 1: the working model is right."""
    return 0.1 + x @ x.new_tensor((0.8, 2.0, -1.0, -1.8))


def curved_logit(x: Tensor) -> Tensor:
    """Scenario 2: the working model is linear and has no intercept."""
    one, two, three, four = x.unbind(-1)
    return 0.1 + 0.4 * torch.exp(-one / 2) + two * three - 0.6 * torch.sin(one) - 0.9 * four.square()


def average_effect(largest: Tensor) -> Tensor:
    """Return the ATE of covariates over these norms, [runs], by quadrature: the outcome's log-odds are normal."""
    at, mass = (torch.as_tensor(part) for part in np.polynomial.hermite_e.hermegauss(80))
    slopes = torch.tensor(SLOPES, dtype=torch.float64)
    spread = math.sqrt((1 - CORRELATION) * float(slopes @ slopes) + CORRELATION * float(slopes.sum()) ** 2)
    logit = INTERCEPT + spread / largest[:, None] * at
    return (torch.sigmoid(logit + EFFECT) - torch.sigmoid(logit)) @ mass / mass.sum()


LAWS = {
    law.name: law
    for law in (
        Law("scenario 1", "scenario1_well_specified", linear_logit),
        Law("scenario 2", "scenario2_misspecified", curved_logit),
    )
}
