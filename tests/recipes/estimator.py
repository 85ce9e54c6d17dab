"""A new estimator of average effects: the table of weighted outcomes with Laplace noise in its four sums."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE
from torchdpcate.estimators.average.outcome_table import OutcomeTable
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate
from torchdpcate.estimators.average.weighted import EffectFacts, Weighted
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.release.statement import UNSTATED


class LaplaceTable(OutcomeTable):
    r"""The sums of an outcome table with Laplace noise of scale 2 / epsilon, in units of the arms' largest weights.

    A record adds at most 1 to the four sums together, so one that is replaced moves them by at most 2.

    Guarantee:
        Certified, pure: the sum of the two epsilons, weights being fixed before.
    """

    name: ClassVar[str] = "laplace_table"
    formula: ClassVar[str] = "Laplace noise of scale 2/epsilon on the table of weighted outcomes, then on the variance"

    @classmethod
    def assumption(cls, public: Mapping[str, Any]) -> str:
        """Return the full warning: nobody has shown which models may be wrong."""
        return UNSTATED

    @cached_property
    def laws(self) -> Mapping[str, AddedNoise]:
        """Return the noise of the table and of the variance."""
        table = LaplaceMechanism(self.epsilons["table"], 2 + 4 * sum_grid(self.facts.n, 1.0))
        return {**super().laws, "table": AddedNoise(table, 4, float(self.facts.n))}

    def estimate(self, numbers: Mapping[str, Tensor]) -> NoisyEstimate:
        """Return the contrast of the table's means, whose noise is that of four Laplace parts."""
        plain, means = super().estimate(numbers), self.means(numbers)
        noise = means.pulls().abs() * self.facts.weight_bounds.repeat_interleave(2, -1) * self.scale("table")
        parts = noise if self.private else noise[:, :0]
        return NoisyEstimate(
            plain.estimate, plain.gaussian, parts, None, plain.noise_dominated, plain.size, plain.released
        )

    @worst_case("laplace_table", pair="a treated record of the largest weight, its outcome at either end")
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        facts, shares = EffectFacts(50, ATE(0.1)), {"table": 0.99, "variance": 0.01}
        readout = LaplaceTable(facts, {part: share * budget.epsilon for part, share in shares.items()})
        datasets = []
        for outcome in (1.0, 0.0):
            z = (torch.arange(50) % 2).double()[None]
            y, w = torch.full_like(z, 0.5), torch.ones_like(z)
            z[0, 0], y[0, 0], w[0, 0] = 1.0, outcome, facts.weight_bounds[0, 0]
            datasets.append(Weighted(z, y, w, y))
        return readout.game([lambda exact, batch=batch: exact(batch) for batch in datasets], budget.epsilon)
