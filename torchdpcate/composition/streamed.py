"""One composition on records that are read batch by batch: each step is one pass, in constant memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdpcate.composition.asked import Regression
from torchdpcate.composition.doubly_robust import DoublyRobustPlan
from torchdpcate.composition.interval_events import EffectRecords, private_effect_law
from torchdpcate.composition.linear_fit import FitPlan, HuberFit, LinearFit, LogisticFit, Solution
from torchdpcate.composition.noisy_newton import newton_points
from torchdpcate.composition.nuisance_noise import Covariates
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.records import ComposedFit, nuisance_numbers, propensity_bounds
from torchdpcate.composition.regressions import FittedEffect, Regressions, planned_curvatures
from torchdpcate.composition.screening import screening_by_sums, screening_sums
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
class _Nuisance:
    """A nuisance of batches, and the released numbers it rests on."""

    values: Column
    curvatures: Tensor
    coefficients: Tensor


@dataclass(frozen=True, eq=False)
class _Covariates:
    """What is kept of the covariates: columns, None for all; their standardisation; which have two levels."""

    columns: tuple[int, ...] | None
    standardisation: Standardisation
    two_levels: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class _EffectSums:
    """See ``EffectSums``."""

    n: int
    sum_of: Callable[[Callable[[CausalData], Tensor]], Tensor]
    at: Callable[[CausalData], EffectRecords]

    def total(self, terms: Callable[[EffectRecords], Tensor]) -> Tensor:
        return self.sum_of(lambda b: terms(self.at(b)))


def check_streamed(plan: ComposedPlan) -> None:
    """Refuse a plan that a stream cannot follow.

    Args:
        plan: The public plan.

    Raises:
        InputError: One without privacy, with delta = 0 or of doubly robust scores.
    """
    for refused, what in (
        (plan.budget is None, "budget = None"),
        (plan.budget is not None and plan.budget.delta == 0, "delta = 0"),
        (isinstance(plan, DoublyRobustPlan), "learner = dr"),
    ):
        if refused:
            raise InputError(f"{what}: not for a stream of records; read them at once, by fit(X, A, Y)")


def stream_composition(
    stream: RecordStream,
    domain: Domain,
    plan: ComposedPlan,
    session: FitSession,
    two_levels: Sequence[bool],
) -> ComposedFit:
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

    Returns:
        What was found, without values at the records.

    Raises:
        InputError: As ``check_streamed``; or a stream whose length changes.
        BudgetError: The block cannot pay.
    """
    check_streamed(plan)
    return _Stream(stream, domain, plan, NoisySteps(session, plan.shares), two_levels).fit()


class _Stream:
    """The steps of one plan on one stream."""

    def __init__(
        self, stream: RecordStream, domain: Domain, plan: ComposedPlan, steps: NoisySteps, two_levels: Sequence[bool]
    ) -> None:
        self.stream, self.domain, self.plan, self.steps = stream, domain, plan, steps
        self.two_levels = tuple(two_levels)

    def fit(self) -> ComposedFit:
        domain, plan = self.domain, self.plan
        low, high = domain.outcome_low, domain.outcome_high
        centre = (low + high) / 2 if plan.binary else self.quantile(lambda b: b.y, 0.5, low, high, "centre")
        whole = domain.outcome_range
        scale = whole if plan.binary else self.residual_scale(lambda b: b.y - centre, "outcome scale")
        kept = self.covariates(centre, scale)
        regressions = Regressions(plan, self.steps, kept.two_levels)
        mean = self.outcome(regressions, kept, centre, scale) if "outcome" in plan.shares.shares else None
        m: Column = (lambda b: torch.full_like(b.y, centre)) if mean is None else mean.values
        estimated = self.propensity(regressions, kept) if domain.known_propensity is None else None
        pi = self.known_propensity if estimated is None else estimated.values
        asked = "residual scale" in plan.shares.shares
        s = self.residual_scale(lambda b: b.y - m(b), "residual scale") if asked else scale
        effect = self.effect(regressions, kept, m, pi, s)
        found = ComposedFit(kept.columns, kept.standardisation, effect)
        if not plan.intervals:
            return found
        psi = self.features(effect.regression.basis, kept)
        at = _EffectSums(plan.n, self.total, lambda b: EffectRecords(psi(b), b.y - m(b), b.a - (p := pi(b)), p))
        before = None if estimated is None or mean is None else nuisance_numbers(estimated, mean, scale)
        law, numbers = private_effect_law(
            at,
            effect.regression.basis,
            effect.solution,
            s,
            propensity_bounds(domain),
            whole,
            plan,
            self.steps,
            Covariates(kept.standardisation, kept.two_levels),
            before,
        )
        return replace(found, law=law, numbers=numbers)

    def covariates(self, centre: float, scale: float) -> _Covariates:
        plan, columns, two_levels = self.plan, None, self.two_levels
        if plan.screens:

            def strengths(b: CausalData) -> Tensor:
                return screening_sums(self.u(b, None), ((b.y - centre) / scale).clamp(-1, 1))

            columns = screening_by_sums(self.total(strengths), plan.n, plan.kept, self.steps)
            two_levels = tuple(two_levels[column] for column in columns)
        if "moments" not in self.steps.shares.shares:
            return _Covariates(columns, Standardisation.none(len(two_levels)), two_levels)
        sums = self.total(lambda b: moment_sums(self.u(b, columns)))
        return _Covariates(columns, standardisation_by_sums(sums, plan.n, self.steps), two_levels)

    def total(self, terms: Callable[[CausalData], Tensor]) -> Tensor:
        """Return the sum over all records of what ``terms`` sums over a batch."""
        found, n = None, 0
        for batch in self.stream:
            # what was checked once may be read otherwise later, and sums must not follow it
            x, y = self.domain.clip_covariates(batch.x.nan_to_num()), self.domain.clip_outcome(batch.y.nan_to_num())
            part = terms(replace(batch, x=x, a=(batch.a > 0.5).double(), y=y))
            found, n = part if found is None else found + part, n + batch.n
        if n != self.plan.n or found is None:
            raise InputError(f"stream: {n} records, where the plan has n = {self.plan.n}; give one that stays as it is")
        return found

    def u(self, batch: CausalData, columns: tuple[int, ...] | None) -> Tensor:
        u = self.domain.scale(batch.x)
        return u if columns is None else u[:, list(columns)]

    def quantile(self, column: Column, q: float, low: float, high: float, step: str) -> float:
        """Return a quantile of a column: all thresholds that halving may meet are counted in one pass."""
        levels = self.plan.constants.quantile_levels
        edges = halvings(low, high, levels)
        counts: list[Tensor] = []

        def cells(b: CausalData) -> Tensor:
            return torch.bincount(torch.bucketize(column(b), edges, right=True), minlength=len(edges) + 1)

        def below(t: float) -> Tensor:
            if not counts:  # read once it is paid for
                counts.append(self.total(cells).cumsum(0))
            return counts[0][int(torch.searchsorted(edges, t))]

        return quantile_by_counts(below, self.plan.n, q, low, high, levels, step, self.steps)

    def residual_scale(self, residual: Column, step: str) -> float:
        y_range = self.domain.outcome_range
        found = self.quantile(lambda b: residual(b).abs(), self.plan.huber_quantile, 0.0, y_range / 2, step)
        return max(found, y_range * LEAST_SCALE)

    def outcome(self, regressions: Regressions, kept: _Covariates, centre: float, scale: float) -> _Nuisance:
        regression = self.plan.outcome(regressions.two_levels)
        psi = self.features(regression.basis, kept)
        curvatures = self.nuisance_curvatures("outcome", regression, psi)
        low, high = self.domain.outcome_low, self.domain.outcome_high
        if self.plan.binary:
            asked, shrink = regressions.logistic_plan("outcome", regression, curvatures)

            def logistic(b: CausalData) -> LinearFit:
                return LogisticFit(rows := psi(b), _inverse_norm(rows), ((b.y - centre) / scale + 0.5).clamp(0, 1), 1.0)

            theta = shrink(self.solved(logistic, 1.0, asked).coefficients)
            rate: Column = lambda b: low + scale * torch.sigmoid(psi(b) @ theta)  # noqa: E731
            return _Nuisance(rate, curvatures, theta)
        asked = regressions.outcome_plan(regression, curvatures, scale, centre)

        def fit(b: CausalData) -> LinearFit:
            return regressions.outcome_fit(rows := psi(b), _inverse_norm(rows), b.y - centre, scale, centre)

        theta = self.solved(fit, scale, asked).coefficients
        return _Nuisance(lambda b: (centre + fit(b).means(psi(b) @ theta)).clamp(low, high), curvatures, theta)

    def known_propensity(self, batch: CausalData) -> Tensor:
        known = self.domain.known_propensity
        assert known is not None
        return known.of(batch).nan_to_num(0.5).clamp(*known.bounds)

    def propensity(self, regressions: Regressions, kept: _Covariates) -> _Nuisance:
        regression, overlap = self.plan.propensity(regressions.two_levels), self.plan.overlap
        psi = self.features(regression.basis, kept)
        curvatures = self.nuisance_curvatures("propensity", regression, psi)
        asked, shrink = regressions.logistic_plan("propensity", regression, curvatures)

        def fit(b: CausalData) -> LinearFit:
            return LogisticFit(rows := psi(b), _inverse_norm(rows), b.a, 1.0)

        theta = shrink(self.solved(fit, 1.0, asked).coefficients)
        return _Nuisance(lambda b: torch.sigmoid(psi(b) @ theta).clamp(overlap, 1 - overlap), curvatures, theta)

    def effect(self, regressions: Regressions, kept: _Covariates, m: Column, pi: Column, scale: float) -> FittedEffect:
        regression = self.plan.effect(regressions.two_levels)
        psi = self.features(regression.basis, kept)

        def weighted(b: CausalData) -> tuple[Tensor, Tensor, Tensor]:
            rows, p = psi(b), pi(b)
            return rows, p, _inverse_norm(rows) / torch.maximum(p, 1 - p)

        def curvature(b: CausalData) -> Tensor:
            rows, p, weight = weighted(b)
            return curvature_sums(rows, weight * p * (1 - p), 0.5)

        planned = self.plan.effect_curvature * regression.basis.energies
        d = self.curvatures("effect curvatures", curvature, planned, 0.5)

        def fit(b: CausalData) -> LinearFit:
            rows, p, weight = weighted(b)
            return HuberFit(rows * (b.a - p)[:, None], weight, b.y - m(b), scale)

        asked = regressions.effect_plan(regression, d, scale)
        return regressions.fitted_effect(regression, d, asked, self.solved(fit, scale, asked), scale)

    def nuisance_curvatures(self, step: str, regression: Regression, psi: Features) -> Tensor:
        def sums(b: CausalData) -> Tensor:
            return curvature_sums(rows := psi(b), _inverse_norm(rows), 1.0)

        return self.curvatures(f"{step} curvatures", sums, planned_curvatures(regression), 1.0)

    def curvatures(self, step: str, sums: Column, planned: Tensor, most: float) -> Tensor:
        """Return the mean curvatures that a step releases; the planned ones of a plan without it."""
        if step not in self.steps.shares.shares:
            return planned.diag()
        return curvatures_by_sums(self.total(sums), self.plan.n, planned, most, step, self.steps)

    def features(self, basis: WeightedBasis, kept: _Covariates) -> Features:
        return lambda b: basis(kept.standardisation(self.u(b, kept.columns)))

    def solved(self, fit: Callable[[CausalData], LinearFit], slope: float, asked: FitPlan) -> Solution:
        def gradient(theta: Tensor) -> Tensor:
            return self.total(lambda b: fit(b).gradient(theta))

        return newton_points(gradient, (self.plan.n, len(asked.scaling)), slope, asked, self.steps)


def halvings(low: float, high: float, levels: int) -> Tensor:
    """Return all middles that ``levels`` halvings of an interval may meet, ascending, [2^levels - 1].

    Example:
        >>> halvings(0.0, 1.0, 2).tolist()
        [0.25, 0.5, 0.75]
    """
    edges = torch.tensor([low, high], dtype=torch.float64)
    for _ in range(levels):
        middles = (edges[:-1] + edges[1:]) / 2  # by the same arithmetic as each halving
        edges = torch.cat([torch.stack([edges[:-1], middles], 1).flatten(), edges[-1:]])
    return edges[1:-1]


def _inverse_norm(psi: Tensor) -> Tensor:
    return 1 / psi.norm(dim=1)
