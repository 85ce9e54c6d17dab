"""One composition on records that are read batch by batch: each step is one pass, in constant memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdpcate.composition.asked import Regression
from torchdpcate.composition.doubly_robust import DoublyRobustPlan
from torchdpcate.composition.linear_fit import FitPlan, HuberFit, LinearFit, LogisticFit, Solution
from torchdpcate.composition.noisy_newton import newton_points
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.regressions import FittedEffect, Regressions, planned_curvatures
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.composition.summaries import (
    LEAST_SCALE,
    curvature_sums,
    curvatures_by_sums,
    moment_sums,
    quantile_by_counts,
    standardisation_by_sums,
)
from torchdpcate.data.domain import Domain
from torchdpcate.data.record_stream import RecordStream
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.features.standardisation import Standardisation
from torchdpcate.features.weighted_basis import WeightedBasis
from torchdpcate.privacy.session import FitSession

Column = Callable[[CausalData], Tensor]
"""A number of each record of a batch, [b]."""
Features = Callable[[CausalData], Tensor]
"""Features of each record of a batch, [b, p]."""


@dataclass(frozen=True, eq=False)
class StreamedFit:
    """Released numbers of a composition on a stream.

    Attributes:
        standardisation: Of the covariates.
        effect: The effect's regression.
        passes: How often the stream was read.
    """

    standardisation: Standardisation
    effect: FittedEffect
    passes: int


def stream_composition(
    stream: RecordStream,
    domain: Domain,
    plan: ComposedPlan,
    session: FitSession,
    two_levels: Sequence[bool],
) -> StreamedFit:
    """Run a plan's steps on a stream: the charges and numbers of ``fit_composition`` with additive nuisances.

    Sums over batches take the place of sums over records, and nothing is kept of a record between passes: nuisances
    are worked out anew from their released coefficients. The records stay in the order of the stream, which must not
    depend on them: neighbours differ in one record at the same place.

    Args:
        stream: Records within the domain, the same ones at each reading.
        domain: Public bounds.
        plan: What is asked, and at which shares.
        session: Scope of the block of records.
        two_levels: Whether each covariate has two levels, public, [q].

    Raises:
        InputError: A plan without privacy, with a choice of covariates or with intervals; or a stream whose length
            changes.
        BudgetError: The block cannot pay.
    """
    for refused, what in (
        (plan.budget is None, "budget = None"),
        (plan.screens, f"covariates = {plan.covariates}, of which the plan keeps {plan.kept}"),
        (plan.intervals, "intervals"),
        (plan.lean, f"n mu = {plan.size:.0f}, at which the rule's plan is a lean one"),
        (plan.budget is not None and plan.budget.delta == 0, "delta = 0"),
        (plan.binary, "outcome kind = binary"),
        (isinstance(plan, DoublyRobustPlan), "doubly robust scores"),
    ):
        if refused:
            raise InputError(f"{what}: not for a stream of records; fit them in memory, by fit(X, A, Y)")
    return _Stream(stream, domain, plan, NoisySteps(session, plan.shares), two_levels).fit()


class _Stream:
    """The steps of one plan on one stream."""

    def __init__(
        self, stream: RecordStream, domain: Domain, plan: ComposedPlan, steps: NoisySteps, two_levels: Sequence[bool]
    ) -> None:
        self.stream, self.domain, self.plan, self.steps, self.two_levels = stream, domain, plan, steps, two_levels
        self.passes = 0

    def fit(self) -> StreamedFit:
        domain, plan = self.domain, self.plan
        centre = self.quantile(lambda b: b.y, 0.5, domain.outcome_low, domain.outcome_high, "centre")
        scale = self.residual_scale(lambda b: b.y - centre, "outcome scale")
        standardisation = standardisation_by_sums(self.total(lambda b: moment_sums(self.u(b))), plan.n, self.steps)
        regressions = Regressions(plan, self.steps, tuple(self.two_levels))
        m = self.outcome(regressions, standardisation, centre, scale)
        pi = self.propensity(regressions, standardisation)
        s = self.residual_scale(lambda b: b.y - m(b), "residual scale")
        effect = self.effect(regressions, standardisation, m, pi, s)
        return StreamedFit(standardisation, effect, self.passes)

    def total(self, terms: Callable[[CausalData], Tensor]) -> Tensor:
        """Return the sum over all records of what ``terms`` sums over a batch."""
        found, n = None, 0
        for batch in self.stream:
            # what was checked once may be read otherwise later, and sums must not follow it
            x, y = self.domain.clip_covariates(batch.x.nan_to_num()), self.domain.clip_outcome(batch.y.nan_to_num())
            part = terms(replace(batch, x=x, a=(batch.a > 0.5).double(), y=y))
            found, n = part if found is None else found + part, n + batch.n
        self.passes += 1
        if n != self.plan.n or found is None:
            raise InputError(f"stream: {n} records, where the plan has n = {self.plan.n}; give one that stays as it is")
        return found

    def u(self, batch: CausalData) -> Tensor:
        return self.domain.scale(batch.x)

    def quantile(self, column: Column, q: float, low: float, high: float, step: str) -> float:
        def below(t: float) -> Tensor:
            return self.total(lambda b: (column(b) < t).sum())

        levels = self.plan.constants.quantile_levels
        return quantile_by_counts(below, self.plan.n, q, low, high, levels, step, self.steps)

    def residual_scale(self, residual: Column, step: str) -> float:
        y_range = self.domain.outcome_range
        found = self.quantile(lambda b: residual(b).abs(), self.plan.huber_quantile, 0.0, y_range / 2, step)
        return max(found, y_range * LEAST_SCALE)

    def outcome(self, regressions: Regressions, z: Standardisation, centre: float, scale: float) -> Column:
        regression = self.plan.outcome(regressions.two_levels)
        psi = self.features(regression.basis, z)
        curvatures = self.nuisance_curvatures("outcome", regression, psi)
        asked = regressions.outcome_plan(regression, curvatures, scale, centre)

        def fit(b: CausalData) -> LinearFit:
            return regressions.outcome_fit(rows := psi(b), _inverse_norm(rows), b.y - centre, scale, centre)

        theta = self.solved(fit, scale, asked).coefficients
        low, high = self.domain.outcome_low, self.domain.outcome_high
        return lambda b: (centre + fit(b).means(psi(b) @ theta)).clamp(low, high)

    def propensity(self, regressions: Regressions, z: Standardisation) -> Column:
        known = self.domain.known_propensity
        if known is not None:
            return lambda b: known.of(b).nan_to_num(0.5).clamp(*known.bounds)
        regression, overlap = self.plan.propensity(regressions.two_levels), self.plan.overlap
        psi = self.features(regression.basis, z)
        curvatures = self.nuisance_curvatures("propensity", regression, psi)
        asked, shrink = regressions.logistic_plan("propensity", regression, curvatures)

        def fit(b: CausalData) -> LinearFit:
            return LogisticFit(rows := psi(b), _inverse_norm(rows), b.a, 1.0)

        theta = shrink(self.solved(fit, 1.0, asked).coefficients)
        return lambda b: torch.sigmoid(psi(b) @ theta).clamp(overlap, 1 - overlap)

    def effect(self, regressions: Regressions, z: Standardisation, m: Column, pi: Column, scale: float) -> FittedEffect:
        regression = self.plan.effect(regressions.two_levels)
        psi = self.features(regression.basis, z)

        def weighted(b: CausalData) -> tuple[Tensor, Tensor, Tensor]:
            rows, p = psi(b), pi(b)
            return rows, p, _inverse_norm(rows) / torch.maximum(p, 1 - p)

        def curvature(b: CausalData) -> Tensor:
            rows, p, weight = weighted(b)
            return curvature_sums(rows, weight * p * (1 - p), 0.5)

        planned = self.plan.effect_curvature * regression.basis.energies
        d = curvatures_by_sums(self.total(curvature), self.plan.n, planned, 0.5, "effect curvatures", self.steps)

        def fit(b: CausalData) -> LinearFit:
            rows, p, weight = weighted(b)
            return HuberFit(rows * (b.a - p)[:, None], weight, b.y - m(b), scale)

        asked = regressions.effect_plan(regression, d, scale)
        return regressions.fitted_effect(regression, d, asked, self.solved(fit, scale, asked), scale)

    def nuisance_curvatures(self, step: str, regression: Regression, psi: Features) -> Tensor:
        def sums(b: CausalData) -> Tensor:
            return curvature_sums(rows := psi(b), _inverse_norm(rows), 1.0)

        planned = planned_curvatures(regression)
        return curvatures_by_sums(self.total(sums), self.plan.n, planned, 1.0, f"{step} curvatures", self.steps)

    def features(self, basis: WeightedBasis, z: Standardisation) -> Features:
        return lambda b: basis(z(self.u(b)))

    def solved(self, fit: Callable[[CausalData], LinearFit], slope: float, asked: FitPlan) -> Solution:
        def gradient(theta: Tensor) -> Tensor:
            return self.total(lambda b: fit(b).gradient(theta))

        return newton_points(gradient, (self.plan.n, len(asked.scaling)), slope, asked, self.steps)


def _inverse_norm(psi: Tensor) -> Tensor:
    return 1 / psi.norm(dim=1)
