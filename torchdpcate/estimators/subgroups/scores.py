"""Effects in subgroups by doubly robust scores, whose nuisances one composition learns on all records."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE
from torchdpcate.composition.average import AverageNuisances, average_nuisances
from torchdpcate.composition.builder import average_plan
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.settings import known_propensities
from torchdpcate.composition.steps import total_mu
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.clipped_scores import clip_on_grid, clipped_domain
from torchdpcate.estimators.average.composed import planned_clip
from torchdpcate.estimators.average.planned_error import ErrorPrior
from torchdpcate.laws import CLOSE, Steps
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import GaussianEvent, PureEvent
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.cell_effects import LAPLACE, CellScores, mean_square

_INWARDS = 1e-9  # of mu^2: the accountant's rounding never exceeds the budget
_LEAST = 1e-4  # of mu^2 that a Gaussian event of the sums needs: at tiny epsilon delta pays, and the steps have it all


@dataclass(frozen=True, eq=False)
class ScorePlan:
    r"""The public plan of the scores' composition, and what it leaves to the sums of cells.

    The steps cost :math:`((1 - f)\epsilon, \delta)`; the sums cost what is left beside them, as one pure event, by
    exact composition, or as one Gaussian event,

    .. math:: \mu_s^2 = \mu^2 - \mu_{steps}^2 .

    Attributes:
        steps: The plan of the steps.
        budget: Of steps and sums together; None without privacy.
        domain: Public bounds, their overlap the clip of propensities in scores.
    """

    steps: ComposedPlan
    budget: PrivacyBudget | None
    domain: Domain

    @classmethod
    def of(cls, n: int, budget: PrivacyBudget | None, schema: TableSchema, overlap: float) -> "ScorePlan":
        """Return the plan for n records.

        Args:
            n: Number of records.
            budget: Of all of it; None without privacy.
            schema: Columns and public bounds.
            overlap: Public clip of the propensity in scores.

        Raises:
            InputError: A budget without delta.

        Example:
            >>> schema = TableSchema.from_domain(Domain([0.0] * 4, [1.0] * 4, 0.0, 1.0, overlap=0.1))
            >>> plan = ScorePlan.of(4_000, PrivacyBudget(1.0, 1e-5), schema, 0.1)
            >>> round(plan.event("laplace").epsilon, 4), round(1 / plan.event("gaussian").noise_multiplier, 4)
            (0.4217, 0.2088)
        """
        if budget is not None and budget.delta == 0:
            raise InputError(
                "propensity = composed: has Gaussian steps, which are only (epsilon, delta)-private; give "
                "privacy.delta above 0, for instance 1e-5, or take propensity=fitted, which is pure"
            )
        domain = clipped_domain(schema.domain, ATE(overlap))
        return cls(average_plan(n, budget, domain, least=schema.domain.overlap), budget, domain)

    def event(self, law: str) -> PureEvent | GaussianEvent:
        """Return what the sums cost, by the law of their noise; see above.

        Raises:
            InputError: Gaussian noise of which the steps leave nothing.
        """
        assert self.budget is not None
        assert self.steps.score_epsilon is not None
        if law == LAPLACE:
            return PureEvent(self.steps.score_epsilon)
        if self._left <= 0:
            raise InputError(
                f"law = gaussian: epsilon = {self.budget.epsilon:g} leaves no Gaussian event beside the steps of "
                "propensity=composed; take law=laplace"
            )
        return GaussianEvent(1 / math.sqrt(self._left))

    def has(self, law: str) -> bool:
        """Whether something is left for sums with noise of this law."""
        return law == LAPLACE or self._left > 0

    @property
    def _left(self) -> float:
        """Squared mu that is left for a Gaussian event of the sums; 0 where it is next to nothing."""
        total = total_mu(self.budget) ** 2
        left = total * (1 - _INWARDS) - self.steps.shares.total**2
        return left if left > _LEAST * total else 0.0

    @property
    def clip(self) -> float:
        """The clip of scores to expect, in outcome units."""
        return planned_clip(self.steps, ErrorPrior.of(self.domain)) * self.domain.outcome_range

    def nuisances(self, records: CausalData, schema: TableSchema, session: FitSession) -> AverageNuisances:
        """Pay for the steps, and return what they released with the scores by it, which are the curator's.

        Args:
            records: Within the domain, in an order that does not depend on them.
            schema: Columns.
            session: Scope of the block of records.
        """
        known = known_propensities(records, self.domain)
        return average_nuisances(records, self.domain, self.steps, session, schema.two_levels, known)

    def scores(self, found: AverageNuisances, numbers: Tensor, law: str, scale: float, partitions: int) -> CellScores:
        """Return what scores were scaled by, with what errors of both nuisances do, by released numbers alone.

        Args:
            found: Of ``nuisances``.
            numbers: Released numbers of each stratum, [strata, 1, 3].
            law: Law of their noise.
            scale: Of the noise of each.
            partitions: How many the strata are the cells of.
        """
        square = mean_square(numbers, law, scale, partitions, self.steps.n)
        error = min(found.error(square), self.domain.outcome_range)
        return CellScores(found.centre, found.clip, error, self.steps.n)

    def public(self) -> dict[str, Any]:
        """Return the plan's facts, as statements have them."""
        return self.steps.facts()

    @property
    def law(self) -> Steps:
        """What the steps ask of the records."""
        return self.steps.law

    def problems(self, held: CellScores) -> Iterator[str]:
        """Return what in released numbers of scores no steps of this plan leave."""
        if not clip_on_grid(held.clip, self.steps, self.domain):
            yield f"its clip {held.clip:.6g} is not on the grid of its quantile"
        if not max(abs(held.centre), held.error) <= self.domain.outcome_range * (1 + CLOSE):
            yield "its centre or its error is larger than the outcome's range"


def places(found: AverageNuisances) -> Tensor:
    """Return the scores about their centre, over their clip, in [-1, 1], [n]; the curator's."""
    return ((found.scores - found.centre) / found.clip).clamp(-1, 1).to(torch.float64)
