"""Stage two as a table: weighted outcomes of either arm, hence two means, and then the variance about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE
from torchdpcate.estimators.average.balanced_difference import SCALES, UPPER
from torchdpcate.estimators.average.effect_estimator import (
    Ask,
    EffectEstimator,
    EffectFacts,
    Total,
    Weighted,
    contrast_assumption,
)
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.exact_sums import exact_sum, sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism, RootPolytopeMechanism

CELLS = ("treated_high", "treated_low", "control_high", "control_low")
"""T_11, T_10, T_01, T_00."""
EQUAL = ATE(0.5)
"""With it all records weigh the same."""


@dataclass(frozen=True)
class OutcomeTable(EffectEstimator):
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
        ``covariate_balancing``, section 3.3; docs/guarantees/outcome_table.md.
    """

    name: ClassVar[str] = "outcome_table"
    formula: ClassVar[str] = (
        "root-polytope noise of radius 1/epsilon on the table of weighted outcomes, either arm's in units of its "
        "largest weight W_z, then Laplace noise on the variance; theory note covariate_balancing"
    )
    parts: ClassVar[Mapping[str, float]] = {"table": 0.60, "variance": 0.10}

    @classmethod
    def assumption(cls, public: Mapping[str, Any]) -> str:
        """See ``EffectEstimator``."""
        return contrast_assumption(public)

    @staticmethod
    def laws(facts: EffectFacts, epsilons: Mapping[str, float]) -> dict[str, AddedNoise]:
        """See ``EffectEstimator``: the noise of the table over W_z and of the variance over Delta_V."""
        n = facts.n
        step = sum_grid(n, 1.0)  # terms are rounded so that sums are exact, two of a record by half a step each
        return {
            "table": AddedNoise(RootPolytopeMechanism(epsilons["table"], 1 + 2 * step), len(CELLS), float(n)),
            "variance": AddedNoise(LaplaceMechanism(epsilons["variance"], 1 + step), 1, float(n)),
        }

    @staticmethod
    def ask(total: Total, facts: EffectFacts, epsilons: Mapping[str, float], ask: Ask) -> dict[str, Tensor]:
        """See ``EffectEstimator``: the table and, given it, the variance."""
        table = ask("table", total(_cells(facts)))
        means = _Means.of(table * _units(facts), floors(facts, epsilons["table"]))
        return {"table": table, "variance": ask("variance", total(means.terms(facts.weight_bounds, facts.n)))}

    @classmethod
    def estimate(
        cls, answers: Mapping[str, Tensor], facts: EffectFacts, epsilons: Mapping[str, float]
    ) -> NoisyEstimate:
        """See ``EffectEstimator``."""
        table = answers["table"] * _units(facts)
        means = _Means.of(table, floors(facts, epsilons["table"]))
        return cls._estimate(means, table, answers["variance"][:, 0], facts, epsilons)

    @staticmethod
    def places(numbers: Mapping[str, float], facts: EffectFacts, epsilons: Mapping[str, float]) -> dict[str, Tensor]:
        """See ``EffectEstimator``."""
        table = torch.tensor([[numbers[cell] for cell in CELLS]], dtype=torch.float64)
        means = _Means.of(table, floors(facts, epsilons["table"]))
        variance = torch.tensor([[numbers["variance"]]], dtype=torch.float64)
        return {"table": table / _units(facts), "variance": variance / means.largest_term(facts.weight_bounds)[:, None]}

    @classmethod
    def _estimate(
        cls, means: "_Means", table: Tensor, variance: Tensor, facts: EffectFacts, epsilons: Mapping[str, float]
    ) -> NoisyEstimate:
        """Return the estimate from a table [runs, 4] and the variance [runs] in units of its largest term."""
        laws = cls.laws(facts, epsilons)
        most = means.largest_term(facts.weight_bounds)
        upper = (variance + UPPER * laws["variance"].scale).clamp(0, facts.n) * most
        polytope = means.pulls() * _units(facts) * laws["table"].scale
        return _conclusion(means, facts, upper, polytope, table, variance * most, floors(facts, epsilons["table"]))

    def planned(self, total: Total, facts: EffectFacts, epsilons: Mapping[str, float]) -> NoisyEstimate:
        """See ``EffectEstimator``."""
        table = total(_cells(facts)) * _units(facts)
        means = _Means.of(table, floors(facts, epsilons["table"]))
        return self._estimate(means, table, total(means.terms(facts.weight_bounds, facts.n))[:, 0], facts, epsilons)

    def public(self, facts: EffectFacts, epsilons: Mapping[str, float]) -> dict[str, Any]:
        """Return the noise scales, the sums below which an arm's mean is 1/2, and the weights that they follow from."""
        ranges = {} if facts.ranges is None else facts.ranges.stated_weights
        return {**self.constants(facts, epsilons), **ranges}

    def constants(self, facts: EffectFacts, epsilons: Mapping[str, float]) -> dict[str, float]:
        """Return noise scales, that of the table in units of each arm's largest weight, and floors of the sums."""
        treated, control = floors(facts, epsilons["table"])[0].tolist()
        scales = {f"scale_{part}": law.scale for part, law in self.laws(facts, epsilons).items()}
        return {**scales, "floor_treated": treated, "floor_control": control}

    def without_noise(self, total: Total, facts: EffectFacts) -> NoisyEstimate:
        """See ``EffectEstimator``."""
        table, none = total(_cells(facts)) * _units(facts), torch.zeros(2, dtype=torch.float64)
        means, bounds = _Means.of(table, none), facts.weight_bounds
        variance = total(means.terms(bounds, facts.n))[:, 0] * means.largest_term(bounds)
        return _conclusion(means, facts, variance, None, table, variance, none)


def floors(facts: EffectFacts, epsilon: float) -> Tensor:
    """Return 2 W_z / epsilon of the treated and of the controls, [runs, 2]: the sums below which a mean is 1/2."""
    return facts.weight_bounds * 2 / epsilon


def _units(facts: EffectFacts) -> Tensor:
    """Return W_z of each cell, in whose units noise of one scale is added to all, [runs, 4]."""
    return facts.weight_bounds.repeat_interleave(2, -1)


def _cells(facts: EffectFacts) -> Callable[[Weighted], Tensor]:
    """Return what sums the cells of a batch in their ``_units``."""
    most_treated, most_control = facts.weight_bounds.split(1, -1)

    def cells(batch: Weighted) -> Tensor:
        treated, control = batch.w / most_treated * batch.z, batch.w / most_control * (1 - batch.z)
        parts = (treated * batch.y, treated * (1 - batch.y), control * batch.y, control * (1 - batch.y))
        return torch.stack([exact_sum(part, facts.n, 1.0) for part in parts], -1)

    return cells


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

    def terms(self, bounds: Tensor, n: int) -> Callable[[Weighted], Tensor]:
        """Return the sum over a batch of the variance's terms, in units of the largest there may be, [runs, 1]."""
        most = self.largest_term(bounds)[:, None]

        def terms(batch: Weighted) -> Tensor:
            mu, size = (torch.where(batch.z > 0.5, part[:, :1], part[:, 1:]) for part in (self.mu, self.size))
            return exact_sum((batch.w * (batch.y - mu) / size).square() / most, n, 1.0)[:, None]

        return terms

    def largest_term(self, bounds: Tensor) -> Tensor:
        """Return Delta_V, [runs], for bounds W_z of the arms, [runs, 2]."""
        reach = torch.maximum(self.mu, 1 - self.mu)
        return (bounds * reach / self.size).square().amax(1)

    def pulls(self) -> Tensor:
        """Return how the estimate follows each cell, [runs, 4]."""
        slopes = torch.stack([1 - self.mu, -self.mu], 2) / self.size[:, :, None]
        return torch.cat([slopes[:, 0], -slopes[:, 1]], 1)


def _conclusion(
    means: _Means,
    facts: EffectFacts,
    variance: Tensor,
    polytope: Tensor | None,
    table: Tensor,
    released_variance: Tensor,
    floor: Tensor,
) -> NoisyEstimate:
    imbalance = facts.slope_bound * facts.imbalance / means.size.mean(1)
    released = {**dict(zip(CELLS, table.T, strict=True)), "variance": released_variance}
    return NoisyEstimate(
        means.mu[:, 0] - means.mu[:, 1],
        (variance + imbalance.square()).sqrt(),
        table.new_zeros(len(table), 0),
        polytope,
        (means.size <= SCALES * floor).any(1),
        means.size.mean(1),
        released,
    )
