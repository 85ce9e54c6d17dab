"""Sums of weighted outcomes of either arm as a table, hence two means; and the difference in means of plain records."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from experiments.covariate_balancing.largest import stated_weights, weight_bounds
from experiments.covariate_balancing.root_polytope import RootPolytopeMechanism, TableEstimate
from torchdpcate.causal.estimand import ATE
from torchdpcate.estimators.average.effect_plan import AverageEffectPlan, ErrorPrior, PlannedError, planned_noise
from torchdpcate.estimators.average.ratio_of_sums import SCALES, RatioOfSums, Sums, Total, upper_bound
from torchdpcate.estimators.average.weighted import EffectFacts, Weighted
from torchdpcate.fit.stacked_records import Batch, Records
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.budget import split_epsilon
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism

CELLS = ("treated_high", "treated_low", "control_high", "control_low")
"""T_11, T_10, T_01, T_00."""
EQUAL = ATE(0.5)
"""With it all records weigh the same."""
CONFOUNDING = "whatever confounds, unless everybody was treated with one known probability"
"""What the planned error of a difference in means does not count."""


@dataclass(frozen=True, eq=False)
class OutcomeTable(RatioOfSums):
    r"""Weighted sums of y and 1 - y in either arm, and the Hajek contrast of their shares.

    .. math::
        T_{z1} = \sum_{z_i = z} w_i y_i, \quad T_{z0} = \sum_{z_i = z} w_i (1 - y_i), \quad
        \mu_z = \frac{T_{z1}}{T_{z1} + T_{z0}}, \quad \tau = \mu_1 - \mu_0

    W_z is the largest weight of arm z over the domain at the released coefficients (``EffectFacts.ranges``), or, before
    there are any, over all coefficients. To the cells T_z / W_z a record adds nothing negative, at most 1 in all: they
    get the noise of the root polytope, with covariance 4.8 W_z^2/epsilon^2 on T_z where Laplace noise has 8. An arm
    whose sum is at most 2 W_z / epsilon gets the mean 1/2. Then, the means and N_z = T_z1 + T_z0 being public, the
    variance

    .. math:: V = \sum_z \sum_{z_i = z} \frac{w_i^2 (y_i - \mu_z)^2}{N_z^2}, \quad
        \Delta_V = \max_z \frac{W_z^2 \max\{\mu_z, 1 - \mu_z\}^2}{N_z^2}

    is released for the interval, with a one-sided 90 % bound of its noise.

    Guarantee:
        Certified, pure: the sum of the two epsilons, weights being fixed before. Source: theory note
        ``covariate_balancing``, section 3.3; docs/guarantees/average_effects.md.
    """

    parts: ClassVar[Mapping[str, float]] = {"table": 0.60, "variance": 0.10}

    facts: EffectFacts
    epsilons: Mapping[str, float]

    @cached_property
    def laws(self) -> Mapping[str, AddedNoise]:
        """See ``RatioOfSums``: the noise of the table over W_z and of the variance over Delta_V."""
        n = self.facts.n
        step = sum_grid(n, 1.0)  # terms are rounded so that sums are exact, two of a record by half a step each
        return {
            "table": AddedNoise(RootPolytopeMechanism(self.epsilons["table"], 1 + 2 * step), len(CELLS)),
            "variance": AddedNoise(LaplaceMechanism(self.epsilons["variance"], 1 + step), 1),
        }

    def sums(self, query: str, numbers: Mapping[str, Tensor]) -> Sums:
        """See ``RatioOfSums``: the table and, given it, the variance."""
        n, bounds = self.facts.n, weight_bounds(self.facts)
        if query == "table":
            return Sums(CELLS, partial(_cells, bounds), n, (1.0,) * len(CELLS), unit=bounds.repeat_interleave(2, -1))
        means = self.means(numbers)
        most = means.largest_term(bounds)[:, None]
        return Sums(("variance",), partial(_variances, means, most), n, (1.0,), unit=most)

    def estimate(self, numbers: Mapping[str, Tensor]) -> TableEstimate:
        """See ``RatioOfSums``."""
        facts, means, scales = self.facts, self.means(numbers), self.scales(numbers)
        most = facts.n * means.largest_term(weight_bounds(facts))
        variance = upper_bound(numbers["variance"], scales["variance"], most)
        imbalance = facts.slope_bound * facts.imbalance / means.size.mean(1)
        polytope = means.pulls() * weight_bounds(facts).repeat_interleave(2, -1) * self.scale("table")
        return TableEstimate(
            means.mu[:, 0] - means.mu[:, 1],
            (variance + imbalance.square()).sqrt(),
            polytope.new_zeros(len(polytope), 0),
            (means.size <= SCALES * self.floors).any(1),
            means.size.mean(1),
            numbers,
            polytope if self.private else None,
        )

    def means(self, numbers: Mapping[str, Tensor]) -> "_Means":
        """Return the means of both arms by the table."""
        return _Means.of(torch.stack([numbers[cell] for cell in CELLS], -1), self.floors)

    @property
    def floors(self) -> Tensor:
        """2 W_z / epsilon of the treated and of the controls, [runs, 2]: the sums below which a mean is 1/2."""
        least = weight_bounds(self.facts) * 2 / self.epsilons["table"]
        return least if self.private else torch.zeros_like(least)

    def public(self) -> dict[str, Any]:
        """Return the noise scales, the sums below which an arm's mean is 1/2, and the weights that they follow from."""
        treated, control = self.floors[0].tolist()
        scales = {f"scale_{query}": law.scale for query, law in self.laws.items()}
        return {**scales, "floor_treated": treated, "floor_control": control, **stated_weights(self.facts)}


def _cells(bounds: Tensor, batch: Weighted) -> tuple[Tensor, ...]:
    """Return what records add to the cells, over the largest weights of their arms [runs, 2]."""
    most_treated, most_control = bounds.split(1, -1)
    treated, control = batch.w / most_treated * batch.z, batch.w / most_control * (1 - batch.z)
    return treated * batch.y, treated * (1 - batch.y), control * batch.y, control * (1 - batch.y)


def _variances(means: "_Means", most: Tensor, batch: Weighted) -> tuple[Tensor]:
    """Return what records add to the variance, over the largest term that there may be, [runs, 1]."""
    mu, size = (torch.where(batch.z > 0.5, part[:, :1], part[:, 1:]) for part in (means.mu, means.size))
    return ((batch.w * (batch.y - mu) / size).square() / most,)


@dataclass(frozen=True, eq=False)
class _Means:
    """Means mu [runs, 2] and sums N [runs, 2] of treated and controls, by released numbers alone."""

    mu: Tensor
    size: Tensor

    @classmethod
    def of(cls, table: Tensor, floor: Tensor) -> "_Means":
        pairs = table.reshape(-1, 2, 2)
        size = pairs.sum(2)
        mu = torch.where(size > floor, pairs[:, :, 0] / size.clamp_min(1e-300), 0.5).clamp(0, 1)
        return cls(mu, torch.maximum(size, floor.clamp_min(1e-12)))

    def largest_term(self, bounds: Tensor) -> Tensor:
        """Return Delta_V, [runs], for bounds W_z of the arms, [runs, 2]."""
        farthest = torch.maximum(self.mu, 1 - self.mu)
        return (bounds * farthest / self.size).square().amax(1)

    def pulls(self) -> Tensor:
        """Return how the estimate follows each cell, [runs, 4]."""
        slopes = torch.stack([1 - self.mu, -self.mu], 2) / self.size[:, :, None]
        return torch.cat([slopes[:, 0], -slopes[:, 1]], 1)


@dataclass(frozen=True, eq=False)
class DifferenceInMeans(AverageEffectPlan):
    """The plan of an outcome table of records that weigh the same; see ``AverageEffectPlan``."""

    name: ClassVar[str] = "difference_in_means"
    formula: ClassVar[str] = (  # type: ignore[override]
        "root-polytope noise of radius 1/epsilon on the outcomes' table, then Laplace noise on the variance; "
        "covariate_balancing sections 3.3 and 5"
    )
    assumption: ClassVar[str] = (
        "treatment was randomised with one probability for everybody; where it was not, the estimate is biased and the "
        "interval may never hold the effect"
    )

    def readout(self, learnt: Mapping[str, Any]) -> OutcomeTable:
        """See ``AverageEffectPlan``."""
        return plain_table(self.n, self.epsilon)

    def own_settings(self) -> dict[str, Any]:
        """See ``AverageEffectPlan``."""
        return {} if self.budget is None else self.readout({}).public()

    def total(self, records: Records, learnt: Mapping[str, Any]) -> Total:
        """See ``AverageEffectPlan``."""
        return equal_weights(records)

    def planned(self, prior: ErrorPrior) -> PlannedError:
        """See ``AverageEffectPlan``; confounding, which it does not adjust for, is not counted."""
        noise = 0.0 if self.budget is None else planned_noise(self.readout({}), prior.treated)
        sampling = prior.deviation * math.sqrt(1 / (prior.treated * (1 - prior.treated)) / self.n)
        return PlannedError("difference_in_means", noise, 0.0, sampling, bias=CONFOUNDING)


def plain_table(n: int, epsilon: float) -> OutcomeTable:
    """Return the table of n records that weigh the same, at this epsilon."""
    return OutcomeTable(EffectFacts(n, EQUAL), split_epsilon(epsilon, OutcomeTable.parts))


def equal_weights(records: Records) -> Total:
    """Return what sums over records that weigh the same."""
    return lambda exact: records.total(lambda batch: exact(_weighing_the_same(batch)))


def _weighing_the_same(batch: Batch) -> Weighted:
    z, y = (part.reshape(-1, part.shape[-1]) for part in (batch.z, batch.y))
    w = EQUAL.at(torch.full_like(z, 0.5), z)
    return Weighted(z, y, w, torch.full_like(w, 0.5))


def plain_difference(records: Records) -> TableEstimate:
    """Return the difference in means without noise. The curator's, never to be published."""
    return plain_table(records.n, 1.0).without_noise(equal_weights(records))
