"""One composition on records, in memory or read batch by batch: the order of its steps, and what it releases."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchdpcate._process import threads_for
from torchdpcate.composition.covariates import (
    KeptCovariates,
    Screened,
    WavesAbout,
    chosen_about,
    chosen_pairs,
    kept_covariates,
)
from torchdpcate.composition.effect_law import Covariates
from torchdpcate.composition.interval_events import private_effect_law
from torchdpcate.composition.linear_fit import NoisyNewton, Solver
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import require_noise
from torchdpcate.composition.regressions import (
    FittedEffect,
    Outcome,
    Regressions,
    Residuals,
    Scored,
    WorkedOut,
)
from torchdpcate.composition.rows import InMemory, Rows, Streamed
from torchdpcate.composition.settings import ComposedNuisance
from torchdpcate.composition.steps import MODIFIERS, PAIRS, PROGNOSTIC, NoisySteps, propensity_of
from torchdpcate.composition.summaries import (
    OutcomeScale,
    Quantile,
    ScoreScales,
    Sizes,
    outcome_scale,
    quantile_of,
    residual_scale,
)
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData, RecordStream
from torchdpcate.errors import InputError
from torchdpcate.features.weighted_basis import Standardisation
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.effect_law import EffectLaw, IntervalNumbers, NuisanceNumbers


@dataclass(frozen=True, eq=False)
class ComposedFit:
    """Numbers that a composition released.

    Attributes:
        columns: Covariates that are kept; None for all.
        standardisation: Of those.
        effect: The effect's regression.
        law: What intervals rest on; None where the plan does not ask for them, or the released noise of an estimated
            propensity is beyond their gate.
        numbers: What the law was made of.
    """

    columns: tuple[int, ...] | None
    standardisation: Standardisation
    effect: FittedEffect
    law: EffectLaw | None = None
    numbers: IntervalNumbers | None = None


@dataclass(frozen=True, eq=False)
class RecordsFit(ComposedFit):
    """The same with values at records in memory, which are the curator's.

    Attributes:
        outcome: m at the records, [n].
        propensity: pi at the records, [n], or each arm's, [n, K], where there are more than two.
    """

    _: KW_ONLY
    outcome: Tensor
    propensity: Tensor


def fit_composition(
    records: CausalData,
    domain: Domain,
    plan: ComposedPlan,
    session: FitSession,
    solver: Solver,
    two_levels: Sequence[bool],
    known: Tensor | None = None,
    nuisance: ComposedNuisance | None = None,
) -> RecordsFit:
    """Run the plan's steps on all records in memory.

    Args:
        records: Within the domain, in an order that does not depend on them.
        domain: Public bounds.
        plan: What is asked, and at which shares.
        session: Scope of the block of records; without a budget nothing is charged and no noise is added.
        solver: How regressions are solved.
        two_levels: Whether each covariate has two levels, public, [q].
        known: Known propensities of the records, [n], or each arm's, [n, K]; None fits them.
        nuisance: How nuisances are learnt; None takes their features, by ``solver``.

    Raises:
        BudgetError: The block cannot pay.
    """
    rows, steps = InMemory(replace(records, propensity=known)), NoisySteps(session, plan.shares)
    fit = _Fit(rows, domain, plan, steps, tuple(two_levels), solver, nuisance, known is not None)
    found, rest = fit.run()
    assert isinstance(rest, InMemory)
    assert isinstance(rest.records, WorkedOut)
    return RecordsFit(**vars(found), outcome=rest.records.outcome, propensity=propensity_of(rest.records))


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
    stream: RecordStream, domain: Domain, plan: ComposedPlan, session: FitSession, two_levels: Sequence[bool]
) -> ComposedFit:
    """Run a plan's steps on a stream: the charges and numbers of ``fit_composition`` with additive nuisances.

    Nothing is kept of a record between passes: nuisances are worked out anew from their released coefficients.

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
    with threads_for(0):  # what is done with a batch takes less time than to divide it
        rows = Streamed(stream, plan.n, (Within(domain),))
        steps = NoisySteps(session, plan.shares, rows.batch)
        known = domain.known_propensity is not None
        return _Fit(rows, domain, plan, steps, tuple(two_levels), NoisyNewton(), None, known).run()[0]


@dataclass(frozen=True, eq=False)
class Within:
    """Records within their bounds: what was checked once may be read otherwise later.

    Attributes:
        domain: Public bounds.
    """

    domain: Domain

    def __call__(self, batch: CausalData) -> CausalData:
        """Return a batch so."""
        domain, known = self.domain, self.domain.known_propensity
        x, y = domain.clip_covariates(batch.x.nan_to_num()), domain.clip_outcome(batch.y.nan_to_num())
        pi = None if known is None else known.of(batch).nan_to_num(0.5).clamp(*known.bounds)
        return CausalData(x, (batch.a > 0.5).double(), y, pi)


@dataclass(frozen=True, eq=False)
class Standardised:
    """Records with the covariates that regressions have, standardised.

    Attributes:
        domain: Public bounds.
        kept: Those covariates.
    """

    domain: Domain
    kept: KeptCovariates

    def __call__(self, batch: CausalData) -> CausalData:
        """Return a batch so."""
        return replace(batch, x=self.kept.of(self.domain.scale(batch.x)))


@dataclass(frozen=True, eq=False)
class Columns:
    """Records with some of their covariates.

    Attributes:
        places: Which.
    """

    places: Sequence[int] | slice

    def __call__(self, batch: CausalData) -> CausalData:
        """Return a batch so."""
        return replace(batch, x=batch.x[:, self.places])


@dataclass(frozen=True, eq=False)
class Pulls:
    r"""What effect modifiers are chosen by, within [-1, 1], in the place of the outcome: of ``Residuals``, or scores.

    .. math:: \frac{a - \pi}{\max(\pi, 1 - \pi)}\, \mathrm{clip}\Big(\frac{y - m}{S}\Big)

    Attributes:
        scale: S, released.
        scores: Whether it is the clipped score.
    """

    scale: float
    scores: bool

    def __call__(self, batch: CausalData) -> CausalData:
        """Return a batch so."""
        pulls = (batch.y / self.scale).clamp(-1, 1)
        if not self.scores:
            pi = propensity_of(batch)
            pulls = batch.a / torch.maximum(pi, 1 - pi) * pulls
        return CausalData(batch.x, batch.a, pulls)


@dataclass(frozen=True, eq=False)
class ScorePlaces(Sizes):
    """Where the sizes of corrections by scores lie on their public scales, in [0, 1].

    Of a binary outcome that is the inverse propensity of each record's arm, times the range: its corrections are few
    and large, and clipping those would leave none.

    Attributes:
        scales: Public interval of the clip.
        binary_range: Range of a binary outcome; None of others.
    """

    scales: ScoreScales | None = None
    binary_range: float | None = None

    def __call__(self, batch: CausalData) -> Tensor:
        """See ``Sizes``."""
        assert isinstance(batch, WorkedOut)
        assert self.scales is not None
        assert batch.correction is not None
        if self.binary_range is None:
            return self.scales.place(batch.correction.abs())
        pi = propensity_of(batch)
        return self.scales.place(self.binary_range / torch.where(batch.a > 0.5, pi, 1 - pi))


class Start(NamedTuple):
    """What every composition asks for before its regressions.

    Attributes:
        centre: Of the outcome, released.
        outcome: Its scale about the centre, released.
        kept: Covariates that the regressions have.
    """

    centre: float
    outcome: OutcomeScale
    kept: KeptCovariates


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
        centre = quantile_of(rows, Sizes(), 0.5, low, high, levels, "centre", steps, places)
        outcome = outcome_scale(sizes_of(rows, centre, plan, y_range, steps), plan, y_range)
    screened = rows.then(Screened(domain, centre, outcome.clip, plan.binary))
    return Start(centre, outcome, kept_covariates(screened, domain, plan, steps, two_levels))


def sizes_of(rows: Rows, centre: float, plan: ComposedPlan, y_range: float, steps: NoisySteps) -> Quantile:
    """Return what releases a quantile of how far outcomes lie from a centre, below half their range."""

    def quantile(q: float, step: str) -> float:
        levels, places = plan.constants.quantile_levels, plan.places(step)
        return quantile_of(rows, Sizes(centre), q, 0.0, y_range / 2, levels, step, steps, places)

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
    known: bool

    def run(self) -> tuple[ComposedFit, Rows]:
        """Return what was found, and what the effect's regression was made on."""
        domain, plan, steps = self.domain, self.plan, self.steps
        start = private_start(self.rows, domain, plan, steps, self.two_levels)
        about, kept = start.outcome, start.kept
        regressions = Regressions(plan, steps, kept.two_levels, self.solver, self.nuisance)
        with self.rows.stored(Standardised(domain, kept), "z") as z:
            change, before = self._nuisances(z, regressions, start)
            with z.stored(change, "effect") as rest:
                scale = self._clip(rest, about)
                kept, rest, regressions = self._for_effect(kept, rest, regressions, scale)
                effect = regressions.effect(rest, scale)
                found = ComposedFit(kept.columns, kept.standardisation, effect)
                if not plan.intervals:
                    return found, rest
                covariates, basis = Covariates(kept.standardisation, kept.two_levels), effect.regression.basis
                facts = scale, propensity_bounds(domain), domain.outcome_range, plan, steps, covariates, before
                law, numbers = private_effect_law(rest, basis, effect.solution, *facts)
                return replace(found, law=law, numbers=numbers), rest

    def _nuisances(
        self, z: Rows, regressions: Regressions, start: Start
    ) -> tuple[Residuals | Scored, NuisanceNumbers | None]:
        """Return what the nuisances make of a batch, and what intervals need of them; None where one is not fitted."""
        plan, bounds = self.plan, (self.domain.outcome_low, self.domain.outcome_high)
        mean: Outcome | float = start.centre
        outcome, propensity, pi = None, None, None
        if "outcome" in plan.shares.shares:
            fits = regressions.outcome_fits(start.outcome.clip, start.centre)
            outcome = regressions.outcome(z, fits)
            mean = Outcome(fits, outcome.scores, bounds)
        if not self.known and plan.propensity_steps[0] in plan.shares.shares:
            pi, propensity = regressions.propensity(z)
        at = pi if self.known or pi is not None else 0.5
        before = None
        if plan.intervals and outcome is not None and propensity is not None:
            before = nuisance_numbers(propensity, outcome, start.outcome.clip)
        if plan.scores:
            assert isinstance(mean, Outcome)
            return Scored(mean, at), before
        return Residuals(mean, at, plan.arms), before

    def _clip(self, rest: Rows, about: OutcomeScale) -> float:
        """Return the clip S of residuals, or of doubly robust scores."""
        plan, domain, y_range = self.plan, self.domain, self.domain.outcome_range
        if not plan.scores:
            return residual_scale(sizes_of(rest, 0.0, plan, y_range, self.steps), plan, y_range, about)
        scales, levels = ScoreScales.of(domain), plan.constants.quantile_levels
        if about.few:
            return scales.nearest(about.clip * plan.score_scale, levels)
        places = ScorePlaces(scales=scales, binary_range=y_range if plan.binary else None)
        quantile = plan.score_quantile
        return scales.at(quantile_of(rest, places, quantile, 0.0, 1.0, levels, "residual scale", self.steps))

    def _for_effect(
        self, kept: KeptCovariates, rest: Rows, regressions: Regressions, scale: float
    ) -> tuple[KeptCovariates, Rows, Regressions]:
        """Return the covariates that the effect has, records of these, and regressions with products that step.

        Those of a wide plan are the ones that were chosen for the outcome, and others that are chosen for the effect.
        """
        plan, steps, pulls = self.plan, self.steps, Pulls(scale, self.plan.scores)
        if plan.wide:
            first = plan.choices[PROGNOSTIC]
            chosen: tuple[int, ...] = ()
            if MODIFIERS in plan.choices:
                others = rest.then(pulls).then(Columns(slice(first, None)))
                chosen = chosen_about(others, WavesAbout, plan.choices[MODIFIERS], MODIFIERS, steps)
            places, kept = kept.modifiers([*range(first), *(place + first for place in chosen)])
            rest, regressions = rest.then(Columns(places)), replace(regressions, two_levels=kept.two_levels)
        if plan.pairs:
            pairs = chosen_pairs(rest.then(pulls), kept.two_levels, plan.pairs, PAIRS, steps)
            regressions = replace(regressions, pairs=pairs)
        return kept, rest, regressions


class Released(Protocol):
    """Numbers that a nuisance's regression released."""

    @property
    def coefficients(self) -> Tensor | None:
        """Of its features, [1 + p]."""

    @property
    def curvatures(self) -> Tensor:
        """Mean curvatures of its features, [1 + p, 1 + p]."""


def nuisance_numbers(propensity: Released, outcome: Released, scale: float) -> NuisanceNumbers:
    """Return what two regressions by features released, the outcome's at its released scale."""
    assert propensity.coefficients is not None
    at = torch.tensor([scale], dtype=torch.float64)
    return NuisanceNumbers(propensity.coefficients, propensity.curvatures, outcome.curvatures, at)


def propensity_bounds(domain: Domain) -> tuple[float, float]:
    """Return the least and the largest propensity that a record may have, public."""
    known = domain.known_propensity
    return (domain.overlap, 1 - domain.overlap) if known is None else known.bounds
