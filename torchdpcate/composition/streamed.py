"""One composition on records that are read batch by batch: each step is one pass, in constant memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdpcate._process import threads_for
from torchdpcate.composition.effect_law import Covariates
from torchdpcate.composition.interval_events import EffectRecords, private_effect_law
from torchdpcate.composition.kept_covariates import KeptCovariates, Terms, kept_covariates
from torchdpcate.composition.linear_fit import FitPlan, LinearFit, LogisticFit, Solution, newton_points
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import require_noise
from torchdpcate.composition.priors import Regression
from torchdpcate.composition.records import ComposedFit, nuisance_numbers, propensity_bounds
from torchdpcate.composition.regressions import FittedEffect, Regressions, effect_fit, planned_curvatures
from torchdpcate.composition.residual_scale import OutcomeScale, Quantile, outcome_scale, residual_scale
from torchdpcate.composition.screening import CentredChoice, PairChoice, modifier_residual, screening_residual
from torchdpcate.composition.steps import MODIFIERS, PAIRS, PROGNOSTIC, NoisySteps, added
from torchdpcate.composition.summaries import (
    curvature_sums,
    curvatures_by_sums,
    quantile_by_counts,
)
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData, RecordStream
from torchdpcate.data.table import CachedStream
from torchdpcate.errors import InputError
from torchdpcate.features.weighted_basis import Feature, WeightedBasis, lengths
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


class _Rows:
    """Sums over a stream of what is worked out of its batches.

    Args:
        stream: The records, or what was worked out of them.
        n: Their number, by the plan.
        change: What to work out of a batch, in each pass anew.
    """

    def __init__(self, stream: RecordStream, n: int, change: Callable[[CausalData], CausalData]) -> None:
        self.stream, self.n, self.change = stream, n, change

    def total(self, terms: Column) -> Tensor:
        """Return the sum over all records of what ``terms`` sums over a batch."""
        sizes: list[int] = []

        def parts() -> Iterator[Tensor]:
            for batch in self.stream:
                sizes.append(batch.n)
                yield terms(self.change(batch))
            if sum(sizes) != self.n:
                raise InputError(
                    f"stream: {sum(sizes)} records, where the plan has n = {self.n}; give one that stays as it is"
                )

        return added(parts())

    def then(self, change: Callable[[CausalData], CausalData]) -> "_Rows":
        """Return sums over what is worked out of these, in each pass anew."""
        return _Rows(self.stream, self.n, lambda batch: change(self.change(batch)))

    @contextmanager
    def mapped(self, change: Callable[[CausalData], CausalData], name: str) -> "Iterator[_Rows]":
        """Give the sums over what is worked out of these: a copy on disk is worked out once, into another beside it."""

        def both(batch: CausalData) -> CausalData:
            return change(self.change(batch))

        if isinstance(self.stream, CachedStream):
            with self.stream.mapped(both, name) as copy:
                yield _Rows(copy, self.n, lambda batch: batch)
        else:
            yield _Rows(self.stream, self.n, both)


@dataclass(frozen=True, eq=False)
class _EffectSums:
    """See ``EffectSums``: of rows that hold z, a - pi, y - m and pi."""

    rows: _Rows
    psi: Features

    @property
    def n(self) -> int:
        return self.rows.n

    def total(self, terms: Callable[[EffectRecords], Tensor]) -> Tensor:
        return self.rows.total(lambda b: terms(EffectRecords(self.psi(b), b.y, b.a, _pi(b))))


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
        (plan.scores, "learner = dr"),
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
    require_noise(plan)
    with threads_for(0):  # what is done with a batch takes less time than to divide it
        # a copy has batches of one public size; of other streams nothing is known
        steps = NoisySteps(session, plan.shares, stream.batch_rows if isinstance(stream, CachedStream) else None)
        return _Stream(stream, domain, plan, steps, two_levels).fit()


class _Stream:
    """The steps of one plan on one stream."""

    def __init__(
        self, stream: RecordStream, domain: Domain, plan: ComposedPlan, steps: NoisySteps, two_levels: Sequence[bool]
    ) -> None:
        self.rows = _Rows(stream, plan.n, self.within)
        self.domain, self.plan, self.steps, self.two_levels = domain, plan, steps, tuple(two_levels)

    def fit(self) -> ComposedFit:
        domain, plan = self.domain, self.plan
        low, high, whole = domain.outcome_low, domain.outcome_high, domain.outcome_range
        centre = (low + high) / 2 if plan.binary else self.quantile(self.rows, lambda b: b.y, 0.5, low, high, "centre")
        about = OutcomeScale(whole)
        if not plan.binary:
            about = outcome_scale(self.sizes(self.rows, lambda b: b.y - centre), plan, whole)
        scale = about.clip
        kept = self.covariates(centre, scale)
        regressions = Regressions(plan, self.steps, kept.two_levels)
        with self.rows.mapped(lambda b: replace(b, x=kept.of(self.domain.scale(b.x))), "z") as rows:
            mean = self.outcome(regressions, rows, centre, scale) if "outcome" in plan.shares.shares else None
            m: Column = (lambda b: torch.full_like(b.y, centre)) if mean is None else mean.values
            estimated = self.propensity(regressions, rows) if domain.known_propensity is None else None
            pi = _pi if estimated is None else estimated.values

            def inputs(b: CausalData) -> CausalData:
                p = pi(b)
                return CausalData(b.x, b.a - p, b.y - m(b), p)

            with rows.mapped(inputs, "effect") as rest:
                s = residual_scale(self.sizes(rest, lambda b: b.y), plan, whole, about)
                own, rest, pairs = self.of_effect(kept, rest, s)
                regressions = replace(regressions, two_levels=own.two_levels, pairs=pairs)
                effect = self.effect(regressions, rest, s)
                found = ComposedFit(own.columns, own.standardisation, effect)
                if not plan.intervals:
                    return found
                law, numbers = private_effect_law(
                    _EffectSums(rest, _features(effect.regression.basis)),
                    effect.regression.basis,
                    effect.solution,
                    s,
                    propensity_bounds(domain),
                    whole,
                    plan,
                    self.steps,
                    Covariates(own.standardisation, own.two_levels),
                    None if estimated is None or mean is None else nuisance_numbers(estimated, mean, scale),
                )
                return replace(found, law=law, numbers=numbers)

    def within(self, batch: CausalData) -> CausalData:
        """Return records within their bounds: what was checked once may be read otherwise later."""
        x, y = self.domain.clip_covariates(batch.x.nan_to_num()), self.domain.clip_outcome(batch.y.nan_to_num())
        known = self.domain.known_propensity
        pi = None if known is None else known.of(batch).nan_to_num(0.5).clamp(*known.bounds)
        return CausalData(x, (batch.a > 0.5).double(), y, pi)

    def covariates(self, centre: float, scale: float) -> KeptCovariates:
        rows, domain, binary = self.rows, self.domain, self.plan.binary

        class _Batches:
            def total(self, terms: Terms) -> Tensor:
                return rows.total(lambda b: terms(domain.scale(b.x), screening_residual(b.y - centre, scale, binary)))

        return kept_covariates(_Batches(), domain, self.plan, self.steps, self.two_levels)

    def of_effect(
        self, kept: KeptCovariates, rest: _Rows, scale: float
    ) -> tuple[KeptCovariates, _Rows, tuple[Feature, ...]]:
        """Return the covariates that the effect has, rows of these alone, and products that step."""
        plan = self.plan

        def chosen(choice: CentredChoice, rest: _Rows) -> tuple[int, ...]:
            def pulls(b: CausalData) -> Tensor:
                return modifier_residual(b.y, b.a, _pi(b), scale)

            centre = choice.centre(rest.total(lambda b: pulls(b).sum()))
            return choice.by_sums(rest.total(lambda b: choice.sums(b.x, pulls(b), centre)))

        if plan.wide:
            first = plan.choices[PROGNOSTIC]
            found: tuple[int, ...] = ()
            if MODIFIERS in plan.choices:
                choice = CentredChoice(MODIFIERS, plan.choices[MODIFIERS], plan.n, self.steps)
                found = chosen(choice, rest.then(lambda b: replace(b, x=b.x[:, first:])))
            places, kept = kept.modifiers([*range(first), *(place + first for place in found)])
            rest = rest.then(lambda b: replace(b, x=b.x[:, places]))
        if not plan.pairs:
            return kept, rest, ()
        pairs = PairChoice(PAIRS, plan.pairs, plan.n, self.steps, kept.two_levels)
        return kept, rest, pairs.features(chosen(pairs, rest))

    def quantile(self, rows: _Rows, column: Column, q: float, low: float, high: float, step: str) -> float:
        """Return a quantile of a column: all thresholds that halving may meet are counted in one pass."""
        levels = self.plan.constants.quantile_levels
        edges = halvings(low, high, levels)
        counts: list[Tensor] = []

        def cells(b: CausalData) -> Tensor:
            return torch.bincount(torch.bucketize(column(b), edges, right=True), minlength=len(edges) + 1)

        def below(t: float) -> Tensor:
            if not counts:  # read once it is paid for
                counts.append(rows.total(cells).cumsum(0))
            return counts[0][int(torch.searchsorted(edges, t))]

        return quantile_by_counts(below, self.plan.n, q, low, high, levels, step, self.steps)

    def sizes(self, rows: _Rows, residual: Column) -> Quantile:
        most = self.domain.outcome_range / 2
        return lambda q, step: self.quantile(rows, lambda b: residual(b).abs(), q, 0.0, most, step)

    def outcome(self, regressions: Regressions, rows: _Rows, centre: float, scale: float) -> _Nuisance:
        regression = self.plan.outcome(regressions.two_levels)
        psi = _features(regression.basis)
        curvatures = self.nuisance_curvatures(rows, "outcome", regression)
        low, high = self.domain.outcome_low, self.domain.outcome_high
        if self.plan.binary:
            asked, shrink = regressions.logistic_plan("outcome", regression, curvatures)

            def logistic(b: CausalData) -> LinearFit:
                return LogisticFit(f := psi(b), _inverse_norm(f), ((b.y - centre) / scale + 0.5).clamp(0, 1), 1.0)

            theta = shrink(self.solved(rows, logistic, 1.0, asked).coefficients)
            rate: Column = lambda b: low + scale * torch.sigmoid(psi(b) @ theta)  # noqa: E731
            return _Nuisance(rate, curvatures, theta)
        asked = regressions.outcome_plan(regression, curvatures, scale, centre)

        def fit(b: CausalData) -> LinearFit:
            return regressions.outcome_fit(f := psi(b), _inverse_norm(f), b.y - centre, scale, centre)

        theta = self.solved(rows, fit, scale, asked).coefficients
        return _Nuisance(lambda b: (centre + fit(b).means(psi(b) @ theta)).clamp(low, high), curvatures, theta)

    def propensity(self, regressions: Regressions, rows: _Rows) -> _Nuisance:
        regression, overlap = self.plan.propensity(regressions.two_levels), self.plan.overlap
        psi = _features(regression.basis)
        curvatures = self.nuisance_curvatures(rows, "propensity", regression)
        asked, shrink = regressions.logistic_plan("propensity", regression, curvatures)

        def fit(b: CausalData) -> LinearFit:
            return regressions.propensity_fit(f := psi(b), _inverse_norm(f), b.a)

        theta = shrink(self.solved(rows, fit, self.plan.slope("propensity"), asked).coefficients)
        return _Nuisance(lambda b: torch.sigmoid(psi(b) @ theta).clamp(overlap, 1 - overlap), curvatures, theta)

    def effect(self, regressions: Regressions, rows: _Rows, scale: float) -> FittedEffect:
        regression = self.plan.effect(regressions.two_levels, regressions.pairs)
        psi = _features(regression.basis)

        def curvature(b: CausalData) -> Tensor:
            f, p = psi(b), _pi(b)
            return curvature_sums(f, _inverse_norm(f) * torch.minimum(p, 1 - p), 0.5)

        planned = self.plan.effect_curvature * regression.basis.energies
        d = self.curvatures(rows, "effect curvatures", curvature, planned, 0.5)

        def fit(b: CausalData) -> LinearFit:
            return effect_fit(psi(b), b.y, b.a, _pi(b), scale)

        asked = regressions.effect_plan(regression, d, scale)
        return regressions.fitted_effect(regression, d, asked, self.solved(rows, fit, scale, asked), scale)

    def nuisance_curvatures(self, rows: _Rows, step: str, regression: Regression) -> Tensor:
        psi = _features(regression.basis)

        def sums(b: CausalData) -> Tensor:
            return curvature_sums(f := psi(b), _inverse_norm(f), 1.0)

        return self.curvatures(rows, f"{step} curvatures", sums, planned_curvatures(regression), 1.0)

    def curvatures(self, rows: _Rows, step: str, sums: Column, planned: Tensor, most: float) -> Tensor:
        """Return the mean curvatures that a step releases; the planned ones of a plan without it."""
        if step not in self.steps.shares.shares:
            return planned.diag()
        return curvatures_by_sums(rows.total(sums), self.plan.n, planned, most, step, self.steps)

    def solved(self, rows: _Rows, fit: Callable[[CausalData], LinearFit], slope: float, asked: FitPlan) -> Solution:
        def gradient(theta: Tensor) -> Tensor:
            return rows.total(lambda b: fit(b).gradient(theta))

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


def _features(basis: WeightedBasis) -> Features:
    return lambda b: basis(b.x)


def _pi(batch: CausalData) -> Tensor:
    assert batch.propensity is not None
    return batch.propensity


def _inverse_norm(psi: Tensor) -> Tensor:
    return 1 / lengths(psi)
