"""One composition on records: the order of its steps, and what it releases."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from torchdpcate.composition.arm_regressions import ArmRegressions, Arms
from torchdpcate.composition.effect_law import Covariates
from torchdpcate.composition.interval_events import EffectRecords, private_effect_law
from torchdpcate.composition.kept_covariates import KeptCovariates, Terms, kept_covariates
from torchdpcate.composition.linear_fit import Solver
from torchdpcate.composition.many_arms import ManyArmRegressions
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import require_noise
from torchdpcate.composition.regressions import FittedEffect, Regressions
from torchdpcate.composition.residual_scale import OutcomeScale, Quantile, outcome_scale, residual_scale
from torchdpcate.composition.screening import CentredChoice, PairChoice, modifier_residual, screening_residual
from torchdpcate.composition.settings import ComposedNuisance
from torchdpcate.composition.steps import MODIFIERS, PAIRS, PROGNOSTIC, NoisySteps
from torchdpcate.composition.summaries import private_quantile
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
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
    """Run the plan's steps on all records.

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
    steps, y_range = NoisySteps(session, plan.shares), domain.outcome_range
    start = private_start(records, domain, plan, steps, two_levels)
    centre, about, kept, z = start
    scale, a, y = about.clip, records.a, records.y - centre
    if plan.scores:
        arms = ArmRegressions(plan, steps, kept.two_levels, solver, nuisance)
        found = arms.scores(Arms(z, a, records.y, known), domain, centre, about)
        kept, z, arms = _for_effect(kept, z, arms, (found.score / found.clip).clamp(-1, 1))
        effect = arms.score_effect(z, found.score, found.clip)
        return RecordsFit(
            kept.columns, kept.standardisation, effect, outcome=found.outcome, propensity=found.propensity
        )
    how = steps, kept.two_levels, solver, nuisance
    regressions = ManyArmRegressions(plan, *how) if plan.arms > 2 else Regressions(plan, *how)
    mean = regressions.outcome(z, y, scale, centre) if "outcome" in plan.shares.shares else None
    m = torch.zeros_like(y) if mean is None else mean.values
    outcome = (centre + m).clamp(domain.outcome_low, domain.outcome_high)
    residual = records.y - outcome

    if isinstance(regressions, ManyArmRegressions):
        each = regressions.propensities(z, a) if known is None else known
        effects = regressions.effects(
            z, residual, a, each, residual_scale(_sizes(residual, plan, y_range, steps), plan, y_range, about)
        )
        return RecordsFit(kept.columns, kept.standardisation, effects, outcome=outcome, propensity=each)
    estimated = regressions.propensity(z, a) if known is None and "propensity" in plan.shares.shares else None
    pi = estimated.values if estimated is not None else torch.full_like(a, 0.5) if known is None else known
    s = residual_scale(_sizes(residual, plan, y_range, steps), plan, y_range, about)
    kept, z, regressions = _for_effect(kept, z, regressions, modifier_residual(residual, a - pi, pi, s))
    effect = regressions.effect(z, residual, a - pi, pi, s)
    law, numbers = None, None
    if plan.intervals:
        at = EffectRecords(effect.regression.basis(z), residual, a - pi, pi)
        bounds = propensity_bounds(domain)
        covariates = Covariates(kept.standardisation, kept.two_levels)
        before = None if estimated is None or mean is None else nuisance_numbers(estimated, mean, scale)
        law, numbers = private_effect_law(
            at,
            effect.regression.basis,
            effect.solution,
            s,
            bounds,
            domain.outcome_range,
            plan,
            steps,
            covariates,
            before,
        )
    return RecordsFit(kept.columns, kept.standardisation, effect, law, numbers, outcome=outcome, propensity=pi)


_R = TypeVar("_R", bound=Regressions)


def _for_effect(kept: KeptCovariates, z: Tensor, regressions: _R, r: Tensor) -> tuple[KeptCovariates, Tensor, _R]:
    """Return the covariates that the effect has, these standardised, and regressions of them with products that step.

    Those of a wide plan are the ones that were chosen for the outcome, and others that are chosen by r [n].
    """
    plan = regressions.plan
    if plan.wide:
        first = plan.choices[PROGNOSTIC]
        chosen: tuple[int, ...] = ()
        if MODIFIERS in plan.choices:
            choice = CentredChoice(MODIFIERS, plan.choices[MODIFIERS], plan.n, regressions.steps)
            chosen = choice.chosen(z[:, first:], r)
        places, kept = kept.modifiers([*range(first), *(place + first for place in chosen)])
        z, regressions = z[:, places], replace(regressions, two_levels=kept.two_levels)
    if plan.pairs:
        pairs = PairChoice(PAIRS, plan.pairs, plan.n, regressions.steps, kept.two_levels)
        regressions = replace(regressions, pairs=pairs.features(pairs.chosen(z, r)))
    return kept, z, regressions


class Start(NamedTuple):
    """What every composition asks for before its regressions.

    Attributes:
        centre: Of the outcome, released.
        outcome: Its scale about the centre, released.
        kept: Covariates that the regressions have.
        z: These, standardised, [n, k], the curator's.
    """

    centre: float
    outcome: OutcomeScale
    kept: KeptCovariates
    z: Tensor


def private_start(
    records: CausalData, domain: Domain, plan: ComposedPlan, steps: NoisySteps, two_levels: Sequence[bool]
) -> Start:
    """Run the steps before any regression: the outcome's centre and scale, screening, and moments of covariates.

    Args:
        records: As of ``fit_composition``, as are the others.
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
    u = domain.scale(records.x)
    if plan.binary or not plan.quantiles:
        centre, outcome = (low + high) / 2, OutcomeScale(y_range * plan.residual_scale)
    else:
        levels, places = plan.constants.quantile_levels, plan.places("centre")
        centre = private_quantile(records.y, 0.5, low, high, levels, "centre", steps, places)
        outcome = outcome_scale(_sizes(records.y - centre, plan, y_range, steps), plan, y_range)
    residual = screening_residual(records.y - centre, outcome.clip, plan.binary)
    kept = kept_covariates(_Columns(u, residual), domain, plan, steps, two_levels)
    return Start(centre, outcome, kept, kept.of(u))


@dataclass(frozen=True, eq=False)
class _Columns:
    """See ``CovariateSums``: of records in memory.

    Attributes:
        u: Covariates scaled to [-1, 1], [n, q].
        residual: See ``screening_residual``, [n].
    """

    u: Tensor
    residual: Tensor

    def total(self, terms: Terms) -> Tensor:
        return terms(self.u, self.residual).cpu()


def _sizes(values: Tensor, plan: ComposedPlan, y_range: float, steps: NoisySteps) -> Quantile:
    """Return what releases a quantile of the values' sizes, [n], below half the outcome's range."""

    def quantile(q: float, step: str) -> float:
        levels, places = plan.constants.quantile_levels, plan.places(step)
        return private_quantile(values.abs(), q, 0.0, y_range / 2, levels, step, steps, places)

    return quantile


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
