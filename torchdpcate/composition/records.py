"""One composition on records, in memory or read batch by batch: the order of its steps, and what it releases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchdpcate.composition.censoring import given_follow_up, private_follow_up
from torchdpcate.composition.covariates import (
    RetainedCovariates,
    WavesAbout,
    chosen_about,
    chosen_pairs,
    retained_covariates,
    to_be_screened,
)
from torchdpcate.composition.effect_law import Covariates, correlated_points, released_correlations
from torchdpcate.composition.interval_events import private_effect_law
from torchdpcate.composition.line_laws import PEOPLE, line_facts, ruled
from torchdpcate.composition.linear_fit import NoisyNewton, Solver
from torchdpcate.composition.lines import ArmScoredBy, ScoredBy, private_lines
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import require_noise
from torchdpcate.composition.regressions import (
    Fitted,
    FittedEffect,
    Means,
    Regressions,
    WorkedOut,
    outcome_means,
    residuals,
)
from torchdpcate.composition.remainders import LeftOver, left_over
from torchdpcate.composition.rows import Change, InMemory, PartedRows, Rows, StreamedRows
from torchdpcate.composition.settings import ComposedNuisance, known_propensities
from torchdpcate.composition.sites import Site, SiteSteps
from torchdpcate.composition.steps import MODIFIERS, PAIRS, PROGNOSTIC, REMAINDERS, NoisySteps, propensity_of
from torchdpcate.composition.summaries import (
    OutcomeScale,
    Quantile,
    outcome_scale,
    private_weight,
    quantile_of,
    residual_scale,
    sizes,
)
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import PartedStream, RecordStream
from torchdpcate.errors import InputError
from torchdpcate.fit.weighted_basis import HiddenUnits, Indicators, Levels, Standardisation, WeightedBasis, effects_of
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.averages import RULE, LineFacts, LineNumbers
from torchdpcate.release.composed import Choices
from torchdpcate.release.effect_law import EffectLaw, IntervalNumbers, NuisanceNumbers
from torchdpcate.release.population import released_population


@dataclass(frozen=True, eq=False)
class ComposedFit:
    """Numbers that a composition released, and what they make of records.

    Attributes:
        columns: Covariates that are retained; None for all.
        standardisation: Of those.
        indicators: For each of all covariates the position of the one that says where it is missing, or None.
        effect: The effect's regression.
        law: What intervals rest on; None where the plan does not request them, or the released noise of an estimated
            propensity is beyond their limit.
        numbers: What the law was made of.
        nuisances: From records within the domain to what the nuisances make of them.
        lines: What its lines are made of; None where the plan has none.
        worked: That of records in memory, which is the curator's; None of a stream.
        weight: Mean weight of the records, released; None where all count alike.
        follow_up: How many records' follow-up ends in each part of the horizon, released; None where outcomes are
            known.
    """

    columns: tuple[int, ...] | None
    standardisation: Standardisation
    indicators: Indicators
    effect: FittedEffect
    law: EffectLaw | None = None
    numbers: IntervalNumbers | None = None
    nuisances: Callable[[CausalData], WorkedOut] = field(kw_only=True)
    worked: WorkedOut | None = field(default=None, kw_only=True)
    weight: float | None = field(default=None, kw_only=True)
    lines: LineNumbers | None = field(default=None, kw_only=True)
    follow_up: Tensor | None = field(default=None, kw_only=True)

    def features(self, u: Tensor) -> Tensor:
        """Return the effect's features, [n, 1 + p], of all covariates u [n, q] scaled to [-1, 1]."""
        return self.effect.regression.basis(self.standardisation.of(u, self.columns, self.indicators))

    @property
    def outcome(self) -> Tensor:
        """The outcome model at records in memory, [n]."""
        assert self.worked is not None
        return self.worked.outcome

    @property
    def propensity(self) -> Tensor:
        """The propensity at records in memory, [n], or each arm's, [n, K], where there are more than two."""
        assert self.worked is not None
        return propensity_of(self.worked)


def rows_of(records: CausalData | RecordStream, domain: Domain, actions: Sequence[int] = (0, 1)) -> Rows:
    """Return records as a composition sees them, with their propensities where the domain knows them.

    Args:
        records: Within the domain, in an order that does not depend on them: in memory, or a stream, the same ones at
            each reading, of which nothing is retained between passes.
        domain: Public bounds.
        actions: Labels of the arms, ascending, whose positions among them take their places.
    """
    positions = partial(with_positions, tuple(actions))
    changes = positions, partial(within_bounds, domain, len(actions))
    if isinstance(records, PartedStream):
        return PartedRows(records, records.n, changes=changes)
    if isinstance(records, RecordStream):
        return StreamedRows(records, records.n, changes)
    return InMemory(replace(positions(records), propensity=known_propensities(records, domain, len(actions))))


def fit_composition(
    rows: Rows,
    domain: Domain,
    plan: ComposedPlan,
    session: FitSession,
    two_levels: Sequence[bool],
    solver: Solver | None = None,
    nuisance: ComposedNuisance | None = None,
    site: Site | None = None,
    schema: TableSchema | None = None,
    rule: Choices | None = None,
) -> ComposedFit:
    """Run the plan's steps on all records: one batch in memory, or one pass for each total over a stream.

    Args:
        rows: See ``rows_of``; records that have a propensity have none fitted.
        domain: Public bounds.
        plan: What is requested, and at which shares.
        session: Scope of the block of records; without a budget nothing is charged and no noise is added.
        two_levels: Whether each covariate has two levels, public, [q].
        solver: How regressions are solved; None takes ``NoisyNewton``.
        nuisance: How nuisances are learnt; None takes their features, by ``solver``.
        site: The site whose records these are, where there are several; it requests sums over records alone.
        schema: Of the domain; lines need it.
        rule: Public choices of the rule whose values lines are about; None: treat whom the effect favours.

    Raises:
        InputError: A stream whose length changes.
        BudgetError: The block cannot pay.
    """
    steps = NoisySteps(session, plan.shares, rows.batch)
    if site is not None:
        rows, steps = site.rows(rows), SiteSteps(session, plan.shares, rows.batch, link=site.link)
    with rows.threads():
        rows, plan, steps, follow_up = weighed(rows, domain, plan, steps)
        fit = _Fit(rows, domain, plan, steps, tuple(two_levels), solver or NoisyNewton(), nuisance, schema, rule)
        return replace(fit.run(), follow_up=follow_up)


def weighed(
    rows: Rows, domain: Domain, plan: ComposedPlan, steps: NoisySteps
) -> tuple[Rows, ComposedPlan, NoisySteps, Tensor | None]:
    """Return records, plan and steps by the released mean weight of the records, where they do not all count alike.

    Of outcomes that may be censored the weights follow from a released curve first, whose counts are the last.

    Args:
        rows: The records.
        domain: Public bounds.
        plan: The public plan.
        steps: Pays, and draws noise.

    Raises:
        InputError: A budget that is too small for a step's noise; nothing is paid then.
    """
    if plan.weight is None:
        return rows, plan, steps, None
    if steps.private:
        require_noise(plan)
    counts = None
    if domain.censoring is not None:
        counted = private_follow_up(rows, domain.censoring, plan.arms, steps)
        rows, counts = rows.then(counted), counted.counts
    weight = private_weight(rows, plan.weight, steps)
    return rows, plan.at_weight(weight), replace(steps, weight=weight), counts


def with_positions(labels: tuple[int, ...], batch: CausalData) -> CausalData:
    """Return records whose arms are positions among their labels, 0 to K - 1.

    Args:
        labels: Of the arms, ascending.
        batch: Records with these labels.

    Example:
        >>> x = torch.zeros(2, 1, dtype=torch.float64)
        >>> with_positions((1, 3), CausalData(x, torch.tensor([3.0, 1.0]), x[:, 0])).a.tolist()
        [1.0, 0.0]
    """
    if labels == tuple(range(len(labels))):
        return batch
    ascending = torch.tensor(labels, dtype=torch.float64)
    return replace(batch, a=torch.searchsorted(ascending, batch.a.double().contiguous()).double())


def within_bounds(domain: Domain, arms: int, batch: CausalData) -> CausalData:
    """Return records within their bounds: what was checked once may be read otherwise later.

    Args:
        domain: Public bounds.
        arms: Number of arms.
        batch: Records whose arms are positions.
    """
    known, last = domain.known_propensity, arms - 1
    x, y = domain.clip_covariates(batch.x.nan_to_num()), domain.clip_outcome(batch.y.nan_to_num())
    a = (batch.a > 0.5).double() if last == 1 else batch.a.nan_to_num().round().clamp(0, last)
    pi = known_propensities(batch, domain, arms)
    if known is not None and pi is not None and last == 1:
        pi = pi.nan_to_num(0.5).clamp(*known.bounds)
    follow_up = None
    if domain.censoring is not None:
        follow_up = domain.censoring.within(given_follow_up(batch).nan_to_num())
        y = domain.censoring.outcome(follow_up)
    return CausalData(x, a, y, pi, weight=weight_within(batch, domain), follow_up=follow_up)


def weight_within(batch: CausalData, domain: Domain) -> Tensor | None:
    """Return the weights of a batch within [0, 1], [n]; None where all records count alike.

    Raises:
        InputError: There are none, and the domain has some.
    """
    if domain.weights is None and not domain.dropped:
        return None
    if batch.weight is None:
        raise InputError("records have no weights, and the domain says that they do not all count alike; give them")
    return batch.weight.nan_to_num().clamp(0, 1)


def standardised(domain: Domain, retained: RetainedCovariates, batch: CausalData) -> CausalData:
    """Return records with the covariates that regressions have, standardised.

    Args:
        domain: Public bounds.
        retained: Those covariates.
        batch: Records within the domain.
    """
    return replace(batch, x=retained.of(domain.scale(batch.x)))


def in_turn(first: Callable[[CausalData], WorkedOut], then: Callable[[WorkedOut], Any], batch: CausalData) -> Any:
    """Return what is made of what nuisances make of records."""
    return then(first(batch))


def worked_out(first: Change, then: Callable[[CausalData], WorkedOut], batch: CausalData) -> WorkedOut:
    """Return what the nuisances make of records within the domain, with their covariates as they are.

    Args:
        first: Standardises their covariates.
        then: Nuisances of those.
        batch: The records.
    """
    return replace(then(first(batch)), x=batch.x)


def with_columns(places: Sequence[int] | slice, batch: CausalData) -> CausalData:
    """Return records with some of their covariates."""
    return replace(batch, x=batch.x[:, places])


def with_pulls(scale: float, batch: CausalData) -> CausalData:
    r"""Return what effect modifiers are chosen by, within [-1, 1], in the place of the outcome.

    .. math:: \frac{a - \pi}{\max(\pi, 1 - \pi)}\, \mathrm{clip}\Big(\frac{y - m}{S}\Big)

    Args:
        scale: S, released.
        batch: Of ``residuals``.
    """
    pulls = (batch.y / scale).clamp(-1, 1)
    pi = propensity_of(batch)
    pulls = batch.a / torch.maximum(pi, 1 - pi) * pulls
    return CausalData(batch.x, batch.a, pulls, weight=batch.weight)


class Start(NamedTuple):
    """What every composition requests before its regressions.

    Attributes:
        centre: Of the outcome, released.
        outcome: Its scale about the centre, released.
        retained: Covariates that the regressions have.
    """

    centre: float
    outcome: OutcomeScale
    retained: RetainedCovariates


def private_start(
    rows: Rows, domain: Domain, plan: ComposedPlan, steps: NoisySteps, two_levels: Sequence[bool]
) -> Start:
    """Run the steps before any regression: the outcome's centre and scale, screening, and moments of covariates.

    Args:
        rows: Records within the domain.
        domain: Public bounds.
        plan: The public plan.
        steps: Pays, and draws noise.
        two_levels: Whether each covariate has two levels, public, [q].

    Raises:
        InputError: A budget that is too small for a step's noise; nothing is paid then.
    """
    if steps.private:
        require_noise(plan)
    y_range, low, high = domain.outcome_range, domain.outcome_low, domain.outcome_high
    if plan.binary or not plan.quantiles:
        centre, outcome = (low + high) / 2, OutcomeScale(y_range * plan.residual_scale)
    else:
        levels, places = plan.constants.quantile_levels, plan.places("centre")
        centre = quantile_of(rows, sizes, 0.5, low, high, levels, "centre", steps, places)
        outcome = outcome_scale(sizes_of(rows, centre, plan, y_range, steps), plan, y_range)
    screened = rows.then(partial(to_be_screened, domain, centre, outcome.clip, plan.binary))
    return Start(centre, outcome, retained_covariates(screened, domain, plan, steps, two_levels))


def sizes_of(rows: Rows, centre: float, plan: ComposedPlan, y_range: float, steps: NoisySteps) -> Quantile:
    """Return what releases a quantile of how far outcomes lie from a centre, below half their range."""

    def quantile(q: float, step: str) -> float:
        levels, places = plan.constants.quantile_levels, plan.places(step)
        return quantile_of(rows, partial(sizes, centre=centre), q, 0.0, y_range / 2, levels, step, steps, places)

    return quantile


@dataclass(frozen=True, eq=False)
class _Fit:
    """The steps of one plan on records; see ``fit_composition``."""

    rows: Rows
    domain: Domain
    plan: ComposedPlan
    steps: NoisySteps
    two_levels: tuple[bool, ...]
    solver: Solver
    nuisance: ComposedNuisance | None
    schema: TableSchema | None = None
    rule: Choices | None = None

    def run(self) -> ComposedFit:
        """Return what was found."""
        domain, plan, steps = self.domain, self.plan, self.steps
        start = private_start(self.rows, domain, plan, steps, self.two_levels)
        about, retained = start.outcome, start.retained
        regressions = Regressions(plan, steps, retained.levels, self.solver, self.nuisance)
        first = partial(standardised, domain, retained)
        with self.rows.then(first).stored("z") as z:
            change, before, outcome, propensity = self._nuisances(z, regressions, start)
            left = self._left_over(z, change, propensity, start)
            if left is not None:
                bounds = domain.outcome_low, domain.outcome_high
                change = partial(in_turn, change, partial(left, bounds, domain.overlap))
            worked = z.then(change)
            nuisances = partial(worked_out, first, change)
            with worked.stored("effect") as rest:
                scale = residual_scale(
                    sizes_of(rest, 0.0, plan, domain.outcome_range, steps), plan, domain.outcome_range, about
                )
                retained, rest, regressions = self._for_effect(retained, rest, regressions, scale)
                if plan.units:
                    units = self._units(start.retained, outcome, retained, rest, scale, regressions)
                    regressions = replace(regressions, units=units)
                effect = regressions.effect(rest, scale)
                found = ComposedFit(
                    retained.columns,
                    retained.standardisation,
                    retained.indicators,
                    effect,
                    nuisances=nuisances,
                    worked=worked.records if isinstance(worked, InMemory) else None,  # type: ignore[arg-type]
                    weight=steps.weight,
                )
                if plan.intervals:
                    covariates, basis = Covariates(retained.standardisation, retained.levels), effect.regression.basis
                    own = scale, propensity_bounds(domain), domain.outcome_range, plan, steps, covariates, before
                    law, numbers = private_effect_law(rest, basis, effect.solution, *own)
                    found = replace(found, law=law, numbers=numbers)
                return found if plan.lines is None else replace(found, lines=self._lines(found, left))

    def _lines(self, found: ComposedFit, left: LeftOver | None) -> LineNumbers:
        """Return what lines are made of: sums of scores of the records, of each arm against the reference."""
        assert self.schema is not None
        domain, effect, plan, made = self.domain, found.effect, self.plan, []
        features = partial(encoded_features, replace(found, worked=None), domain)
        people = released_population(self.schema, found.standardisation, found.columns, PEOPLE)
        bound = domain.outcome_range
        effects = effects_of(features(people), effect.shrunk, plan.arms).clamp(-bound, bound)
        for arm in range(1, plan.arms):
            tau = effects if plan.arms == 2 else effects[:, arm - 1]
            error = 0.0 if left is None else left.error
            facts = line_facts(people, tau, found.nuisances, domain, plan, effect.scale, arm, error)
            own = features, effect.shrunk, bound, facts.centre
            by = ScoredBy(*own, plan.cells) if plan.arms == 2 else ArmScoredBy(*own, arm=arm)
            rule = self._ruled(features, by) if RULE in plan.requested_lines else None
            made.append(private_lines(self.rows, plan, self.steps, partial(in_turn, found.nuisances, by), facts, rule))
        return replace(made[0], others=tuple(made[1:]))

    def _ruled(self, features: Callable[[Tensor], Tensor], by: ScoredBy) -> Callable[[LineNumbers], LineFacts]:
        """Return what adds the effect at which the rule decides to facts."""
        cutoff = None
        if self.rule is not None and self.rule.population is not None:
            cutoff = partial(self.rule.cutoff, self.domain, by.effect(features(self.rule.population)))
        return partial(ruled, self.plan, self.domain, cutoff)

    def _nuisances(
        self, z: Rows, regressions: Regressions, start: Start
    ) -> tuple[Callable[[CausalData], WorkedOut], NuisanceNumbers | None, Fitted | None, Fitted | None]:
        """Return what the nuisances make of a batch, and what intervals need of them; None where one is not fitted.

        The last ones are the regressions of outcome and propensity, where there are some.
        """
        plan, bounds = self.plan, (self.domain.outcome_low, self.domain.outcome_high)
        mean: Means | float = start.centre
        outcome, propensity, pi = None, None, None
        if "outcome" in plan.shares.shares:
            fits = regressions.outcome_fits(start.outcome.clip, start.centre)
            outcome = regressions.outcome(z, fits)
            mean = partial(outcome_means, fits, outcome.scores, bounds)
        if not plan.known_propensity and plan.propensity_steps[0] in plan.shares.shares:
            pi, propensity = regressions.propensity(z)
        at = pi if plan.known_propensity or pi is not None else 0.5
        before = None
        if plan.intervals and outcome is not None and propensity is not None:
            before = nuisance_numbers(propensity, outcome, start.outcome.clip)
        return partial(residuals, mean, at, plan.arms, plan.overlap), before, outcome, propensity

    def _left_over(
        self, z: Rows, change: Callable[[CausalData], WorkedOut], propensity: Fitted | None, start: Start
    ) -> LeftOver | None:
        """Return what the nuisances left over of squares and products, where the plan looks for it."""
        plan, steps, retained = self.plan, self.steps, start.retained
        if REMAINDERS not in plan.shares.shares:
            return None
        assert propensity is not None
        basis = plan.propensity(retained.levels).basis
        correlations = released_correlations(basis, propensity.curvatures, len(retained.levels))
        points = correlated_points(correlations, Covariates(retained.standardisation, retained.levels))
        none = points.new_zeros(len(points))
        at_points = change(CausalData(points, none, none))
        return left_over(z.then(change), plan, steps, Levels.of(retained.levels), points, at_points, start.outcome.clip)

    def _units(
        self,
        before: RetainedCovariates,
        outcome: Fitted | None,
        retained: RetainedCovariates,
        rest: Rows,
        scale: float,
        own: Regressions,
    ) -> HiddenUnits | None:
        """Return what released hidden units, the outcome's and others for the effect, have beyond its features.

        Args:
            before: Covariates of the outcome regression.
            outcome: What it released; its hidden units are then of the effect's covariates alone.
            retained: Those.
            rest: ``Residuals`` with them.
            scale: S.
            own: Regressions with them.
        """
        assert outcome is not None
        (weights, biases), k = own.hidden_units(rest, scale), len(before.two_levels)
        basis = self.plan.outcome(before.levels).basis
        assert isinstance(basis, WeightedBasis)
        places = list(range(k))
        if before.columns is not None and retained.columns is not None:
            places = [before.columns.index(column) for column in retained.columns]
        if outcome.hidden is not None:
            weights = torch.cat([outcome.hidden[0][:, places], weights])
            biases = torch.cat([outcome.hidden[1], biases])
        correlations = released_correlations(basis, outcome.curvatures, k)[places][:, places]
        points = correlated_points(correlations, Covariates(retained.standardisation, retained.levels))
        features = self.plan.effect(retained.levels, own.pairs).basis
        return HiddenUnits.beyond(weights, biases, features, correlations, points)

    def _for_effect(
        self, retained: RetainedCovariates, rest: Rows, regressions: Regressions, scale: float
    ) -> tuple[RetainedCovariates, Rows, Regressions]:
        """Return the covariates that the effect has, records of these, and regressions with chosen products.

        Those of a wide plan are the ones that were chosen for the outcome, and others that are chosen for the effect.
        """
        plan, steps, pulls = self.plan, self.steps, partial(with_pulls, scale)
        if plan.wide:
            first = plan.choices[PROGNOSTIC]
            chosen: tuple[int, ...] = ()
            if MODIFIERS in plan.choices:
                others = rest.then(pulls).then(partial(with_columns, slice(first, None)))
                chosen = chosen_about(others, WavesAbout, plan.choices[MODIFIERS], MODIFIERS, steps)
            every, columns = {*range(first), *(place + first for place in chosen)}, retained.columns
            assert columns is not None
            # what was chosen comes first, each by the order of all: they are a set, and nothing is told of their scores
            places = sorted(range(len(columns)), key=lambda place: (place not in every, columns[place]))
            places = places[: plan.effect_covariates]
            retained = retained.at(places)
            rest = rest.then(partial(with_columns, places))
            regressions = replace(regressions, two_levels=retained.levels)
        if plan.pairs:
            levels = retained.at(range(plan.retained)).levels
            heads = rest.then(partial(with_columns, slice(plan.retained)))
            pairs = chosen_pairs(heads.then(pulls), levels, plan.pairs, PAIRS, steps)
            regressions = replace(regressions, pairs=pairs)
        return retained, rest, regressions


def encoded_features(found: ComposedFit, domain: Domain, x: Tensor) -> Tensor:
    """Return the effect's features, [n, 1 + p], of encoded covariates x [n, q]."""
    return found.features(domain.scale(x))


class ReleasedNuisance(Protocol):
    """Numbers that a nuisance's regression released."""

    @property
    def coefficients(self) -> Tensor | None:
        """Of its features, [1 + p]."""

    @property
    def curvatures(self) -> Tensor:
        """Mean curvatures of its features, [1 + p, 1 + p]."""


def nuisance_numbers(propensity: ReleasedNuisance, outcome: ReleasedNuisance, scale: float) -> NuisanceNumbers:
    """Return what two regressions by features released, the outcome's at its released scale."""
    assert propensity.coefficients is not None
    at = torch.tensor([scale], dtype=torch.float64)
    return NuisanceNumbers(propensity.coefficients, propensity.curvatures, outcome.curvatures, at)


def propensity_bounds(domain: Domain) -> tuple[float, float]:
    """Return the least and the largest propensity that a record may have, public."""
    known = domain.known_propensity
    return (domain.overlap, 1 - domain.overlap) if known is None else known.bounds
