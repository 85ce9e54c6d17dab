"""The public plan of a composition's release: its steps, what they conclude, and what verification works out anew."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from torchdpcate.composition.builder import plan_of_facts, rebuilt
from torchdpcate.composition.constants import RuleConstants, of_kind
from torchdpcate.composition.effect_law import Covariates, correlated_points
from torchdpcate.composition.fit_plans import effect_coefficients, effect_variances
from torchdpcate.composition.interval_events import interval_plan, law_of
from torchdpcate.composition.line_laws import curve_noise, lines_of, ruled, unlike
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.plan_numbers import PURE
from torchdpcate.composition.planned import (
    NO_DELTA,
    NOT_REQUESTED,
    effect_errors,
    expected_scale,
    planned_line,
    why_no_lines,
    why_none,
)
from torchdpcate.composition.records import ComposedFit, propensity_bounds
from torchdpcate.data.assignment import NO_INTERVALS
from torchdpcate.data.censoring import planned_curve_error
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.head import AVERAGE_LEARNERS, LEARNERS
from torchdpcate.estimators.planned_noise import (
    ASKED,
    OF_EFFECT,
    PlannedNoise,
    planned_deviation,
    shown,
    stated_deviation,
    told,
)
from torchdpcate.estimators.rules.plan import RULE_LEARNERS
from torchdpcate.fit.weighted_basis import PAIRED, Levels, Standardisation, WeightedBasis, all_features, among
from torchdpcate.plan import Plan, Query, requested_budget
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.exact_sums import same
from torchdpcate.release.averages import RULE
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.file import Release
from torchdpcate.release.release import QueryRelease
from torchdpcate.release.statement import PrivacyStatement

FORMULA = (
    "Gaussian noise in each step, on all records and by its share of the budget; in the effect's gradients of standard "
    "deviation 2 S sqrt(steps) / mu, S the clip and mu what the share buys; composed_estimator section 3"
)
SITES_FORMULA = (
    "each site adds Gaussian noise to sums of its own records in each step, by its share of the budget, before they "
    "leave it: each record has this guarantee against everybody, coordinator and other sites included, and a person "
    "with records at k sites pays k times; the total of K sites has sqrt(K) times one site's noise, in the effect's "
    "gradients 2 S sqrt(K steps) / mu; composed_estimator section 3"
)
PURE_FORMULA = (
    "pure noise in each step, on all records and by its share of epsilon; the effect's objective has K-norm noise of "
    "scale 2 S / (the effect's epsilon - J); composed_estimator section 4"
)
SUMS_FORMULA = (
    "pure noise in each step, on all records and by its share of epsilon; the effect's sums have K-norm noise of the "
    "largest entry, of scale 2 / the effect's epsilon; composed_rules_and_selection section 1"
)


@dataclass(frozen=True, eq=False)
class CompositionPlan(Plan[Any]):
    """What a composition's release asks of all records: the steps of its plan, which pay for the effect too.

    The plan of the steps follows from n, domain, budget and constants; every charge from that plan; features and
    feature_weights from plan and schema; the coefficients from estimates, curvatures and scale; the law of intervals
    from its numbers. Those, and the standardisation, are released numbers, of which only bounds are known, and of the
    scale the public grid of the bisection.

    Attributes:
        steps: The plan of the steps.
        schema: Columns and public bounds.
        learner: Name of the learner's class.
    """

    name = "composed"
    kinds = (ComposedRelease.kind, QueryRelease.kind)
    close = 1e-6  # sums of another machine
    repeats = True  # a release of another fit on the same records may be charged in the same ledger

    steps: ComposedPlan
    schema: TableSchema
    learner: str

    @property
    def n(self) -> int:  # type: ignore[override]
        """Number of records."""
        return self.steps.n

    @property
    def budget(self) -> PrivacyBudget | None:  # type: ignore[override]
        """What all steps may cost together; None without privacy."""
        return self.steps.budget

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        return {"steps": Query(Charge(Purpose.RELEASE, self.name), self.steps.law)}

    @property
    def formula(self) -> str:
        if self.steps.sites > 1:
            return SITES_FORMULA
        if self.steps.kind != PURE:
            return FORMULA
        return SUMS_FORMULA if self.steps.by_sums else PURE_FORMULA

    def settings(self) -> dict[str, Any]:
        return {"learner": self.learner, **self.steps.facts()}

    def agreed(self) -> dict[str, Any]:
        """Return what several sites must say alike before any of them pays, in plain types, all of it public."""
        requested = {name: value for name, value in self.public().items() if name.startswith("requested_")}
        facts = {**requested, "domain": self.schema.to_dict(), **self.public(), "shares": self.steps.shares.shares}
        return dict(json.loads(json.dumps(facts)))

    @classmethod
    def restated(cls, release: Release) -> Self:
        privacy, public = release.privacy, release.privacy.public
        requested_budget(privacy.blocks[0], public["requested_epsilon"], public["requested_delta"])
        return cls(stated_plan(release), release.schema, public["learner"])

    def answers(self, release: Release) -> dict[str, Any]:
        """See ``Plan``: released numbers of the steps, and what they chose."""
        effect = release.function
        if effect.kind != ComposedRelease.kind:
            return {}
        return {name: getattr(effect, name) for name in ANSWERS} | _chosen(effect.basis)

    def answers_of(self, found: ComposedFit) -> dict[str, Any]:
        """Return the same of a fit."""
        own = {"columns": found.columns, "standardisation": found.standardisation, "numbers": found.numbers}
        effect = found.effect
        return own | {
            "weight": found.weight,
            "follow_up": found.follow_up,
            "line_numbers": found.lines,
            "estimates": effect.estimates,
            "curvatures": effect.curvatures,
            "scale": effect.scale,
            **_chosen(effect.regression.basis),
        }

    def conclude(self, answers: Mapping[str, Any], privacy: PrivacyStatement) -> ComposedRelease:
        """See ``Plan``: features by plan and choices, coefficients shrunk, the law of intervals."""
        plan, scale, numbers = self.steps.at_weight(answers["weight"]), answers["scale"], answers["numbers"]
        levels = self.levels(answers["columns"], answers["standardisation"])
        regression = plan.effect(levels, answers["pairs"], answers["units"])
        curvatures, law = answers["curvatures"], None
        variances = effect_variances(plan, curvatures, scale)
        if numbers is not None:
            domain, covariates = self.schema.domain, Covariates(answers["standardisation"], levels)
            own_range, per_person = domain.outcome_range, privacy.protected.records
            facts = interval_plan(regression.basis, scale, propensity_bounds(domain), own_range, plan, per_person)
            law = law_of(numbers, facts, own_range, plan, covariates)
        lines, own, follow_up = None, answers["line_numbers"], answers["follow_up"]
        apart = None if own is None else unlike(own.facts, plan, self.schema.domain, follow_up)
        if own is not None and apart is None:
            lines = lines_of(own, plan, self.schema.domain, None, privacy.protected.records, follow_up)
        return ComposedRelease(
            effect_coefficients(plan, regression, answers["estimates"], variances, scale),
            answers["estimates"],
            curvatures,
            scale,
            regression.basis,
            answers["standardisation"],
            self.schema,
            privacy,
            columns=answers["columns"],
            law=law,
            numbers=numbers,
            weight=answers["weight"],
            follow_up=follow_up,
            without=self._without(withheld=numbers is not None) if law is None else None,
            averages=lines,
            line_numbers=own,
            no_lines=(apart or _no_lines(self.steps, self.schema)) if lines is None else None,
        )

    def _without(self, withheld: bool) -> str:
        """Return in one line why a release has no intervals; see ``why_none``."""
        return why_none(self.steps, withheld) if self.schema.cluster is None else NO_INTERVALS

    def problems(self, release: Release) -> Iterator[str]:
        """See ``Plan``; no number is there that no step of the plan paid for."""
        yield from self.statement_problems(release)
        if isinstance(release, QueryRelease):
            if release.noise_scales is not None or release.head or release.nuisances is not None:
                yield "it holds noise scales, a kernel or nuisances, which no composition releases"
            return
        effect = release.function
        found = [*_weight(effect, self.steps)] or [*_summaries(effect, self.steps), *self._choice_problems(effect)]
        yield from found
        if not found:
            yield from self.conclusion_problems(effect)

    def levels(self, columns: tuple[int, ...] | None, scales: Standardisation) -> Levels:
        """Return whether each covariate in use has two levels, and which of them says where another is missing.

        Args:
            columns: Those in use; None for all.
            scales: Released.
        """
        levels, indicators = self.schema.domain.two_levels, self.schema.domain.indicators
        used = levels if columns is None else tuple(levels[column] for column in columns)
        used = scales.levels(used) if "moments" in self.steps.shares.shares else used
        return Levels(used, among(columns, indicators))

    def _choice_problems(self, release: ComposedRelease) -> Iterator[str]:
        """Problems of what was chosen, and of numbers that no step of the plan paid for: nothing is concluded then."""
        plan, numbers = self.steps.at_weight(release.weight), release.numbers
        levels = self.levels(release.columns, release.standardisation)
        pairs, units = _chosen(release.basis).values()
        if len(pairs) > plan.pairs or not set(pairs) <= set(all_features(levels, PAIRED, plan.retained)):
            yield "its chosen products are not those of a choice that its plan requests"
            return
        if units is not None and not plan.units:
            yield "it has features of hidden units that its plan does not request"
            return
        if units is not None:
            points = correlated_points(units.correlations, Covariates(release.standardisation, levels))
            if not units.fit(plan.effect(levels, pairs).basis, points):
                yield "its features of hidden units are not what its plan makes of these"
                return
        yield from _curvatures(release, plan, plan.effect(levels, pairs, units).basis.feature_weights)
        if (release.line_numbers is not None) is not (plan.lines is not None) or (
            release.line_numbers is not None and len(release.line_numbers.others) != plan.arms - 2
        ):
            yield "it holds what lines rest on though its plan does not request it, or the other way round"
        yield from self._rule_problems(release)
        if (numbers is not None) is not plan.intervals:
            yield "it holds what intervals rest on though its plan does not request it, or the other way round"
        elif numbers is not None and (numbers.nuisances is not None) is not plan.estimates_propensity:
            yield "it holds numbers of an estimated propensity though its plan has none, or the other way round"
        elif numbers is not None and numbers.nuisances is not None:
            sizes = plan.propensity(levels).basis.dimension, plan.outcome(levels).basis.dimension
            if (len(numbers.nuisances.propensity), len(numbers.nuisances.outcome_curvatures)) != sizes:
                yield "its numbers of nuisances are not of the features that its plan requests"

    def _rule_problems(self, release: ComposedRelease) -> Iterator[str]:
        """Problems of the effect at which a rule decides whose values there are."""
        plan, own = self.steps.at_weight(release.weight), release.line_numbers
        rule = None if own is None else own.facts.rule
        if (rule is not None) is not (RULE in plan.requested_lines):
            yield "it holds what a rule decides by though its plan does not request its values, or the other way round"
        elif rule is not None and own is not None:
            fresh = ruled(plan, self.schema.domain, None, own).rule
            assert fresh is not None
            if not same(fresh.cost, rule.cost) or not (plan.cutoff is None or same(fresh.at, rule.at)):
                yield "the effect at which its rule decides is not that of its costs and of its released sums"


def stated_plan(release: Release) -> ComposedPlan:
    """Return the plan that a release of one composition states; what it cost is not looked at.

    Args:
        release: Of an effect, or of answers or a rule by it.

    Raises:
        InputError: Its learner is none of the library's, or its facts are those of no plan.
    """
    privacy, learner = release.privacy, release.privacy.public["learner"]
    if not _composes(learner):
        raise InputError(f"its learner is called {learner}, which has no composition")
    given = privacy.public.get("cells")
    cells = None if given is None else Subgroups.of(json.loads(given), release.schema)
    return plan_of_facts(privacy.public, privacy.n, release.domain, len(release.schema.actions), cells)


def known_plan(release: Release) -> ComposedPlan | None:
    """Return ``stated_plan`` of a release; None where it states none of the library's."""
    try:
        return stated_plan(release)
    except (InputError, KeyError, TypeError, ValueError, AttributeError):
        return None


ANSWERS = (
    *("columns", "standardisation", "estimates", "curvatures", "scale", "numbers", "weight", "follow_up"),
    "line_numbers",
)
"""What a release holds of its steps, by the names of its attributes."""


def _chosen(basis: WeightedBasis) -> dict[str, Any]:
    """Return the features that a private step chose, and the hidden units that the outcome's regression released."""
    return {"pairs": tuple(feature for feature in basis.features if feature.kind in PAIRED), "units": basis.units}


def _composes(learner: object) -> bool:
    """Return whether a learner that statements call so has a composition."""
    for learners in (LEARNERS, RULE_LEARNERS, AVERAGE_LEARNERS):
        names = learners.class_names()
        if isinstance(learner, str) and learner in names:
            return getattr(learners[names[learner]], "composes", False)
    return False


def _weight(release: ComposedRelease, plan: ComposedPlan) -> Iterator[str]:
    """Problems of the mean weight, which a plan requests or not."""
    if (release.weight is None) is not (plan.weight is None):
        yield "it holds a mean weight of records that its domain gives none, or the other way round"
    counts = 0 if release.follow_up is None else release.follow_up.numel()
    if counts != plan.follow_up:
        yield f"it holds {counts} counts of the ends of follow-up, but its plan requests {plan.follow_up}"


def _summaries(release: ComposedRelease, plan: ComposedPlan) -> Iterator[str]:
    """Problems of columns, standardisation and scale."""
    columns, standardisation = release.columns, release.standardisation
    if (columns is not None) is not plan.screens:
        yield "its columns are not those of a choice that its plan requests"
    if "moments" not in plan.shares.shares and not (
        bool((standardisation.mean == 0).all()) and bool((standardisation.sd == 1).all())
    ):
        yield "it has a standardisation that no step paid for"
    if len(standardisation.mean) != plan.effect_covariates:
        yield f"it keeps {len(standardisation.mean)} covariates, but its plan {plan.retained}"
    y_range, binary = release.domain.outcome_range, plan.binary
    if (binary or not plan.quantiles) and not same(release.scale, y_range * (1 if binary else plan.residual_scale)):
        yield "its scale is not the planned one, and no step requested another"


def _curvatures(release: ComposedRelease, plan: ComposedPlan, feature_weights: Tensor) -> Iterator[str]:
    """Problems of curvatures: those of the plan, unless a step requested others."""
    curvatures, planned = release.curvatures, plan.effect_curvature * feature_weights.repeat(plan.arms - 1)
    if curvatures.shape != (len(planned), len(planned)):
        yield "its features and their weights are not those that its plan requests"
        return
    if "effect curvatures" not in plan.shares.shares and not torch.allclose(curvatures, planned.diag()):
        yield "its curvatures are not those of its plan, which no step requested"


GAIN = 1e-6
"""The delta whose gain plans with delta = 0 name."""


def planned_composition(plan: ComposedPlan, schema: TableSchema, residual_scale: float | None = None) -> PlannedNoise:
    """Return the error that the noise and the priors of a composition leave of the effect.

    Args:
        plan: The public plan.
        schema: Columns and public bounds.
        residual_scale: What public knowledge says of S, the scale at which residuals y - m(x) are clipped, in outcome
            units: about their standard deviation. None takes ``stated_scale``, else a fourteenth of its range.

    Raises:
        InputError: A scale beyond what residuals may have, or for a binary outcome, which has none.
    """
    assert plan.budget is not None
    domain = schema.domain
    scale = stated_scale(residual_scale, plan, schema) or plan.residual_scale * domain.outcome_range
    given, stated = residual_scale is not None, domain.outcome_sd is not None
    residual = None if stated and not given else scale
    size = expected_scale(plan, domain, residual)
    clipped = "nothing is clipped of a binary outcome"
    if not plan.binary:
        clipped = f"residuals of the outcome are clipped at {shown(size)}"
        clipped += " (residual_scale, as given)" if given else told(schema)
        if not (given or stated or domain.censoring is not None):
            clipped += ", by 1/14 of its range; state outcome.sd, for that may be several times too large or too small"
    errors = effect_errors(plan, domain, size)
    parts = {name: value for name, value in errors._asdict().items() if value and name != "deviation"}
    parts |= curve_part(plan, domain)
    least, most = of_kind("effect")["errors"]["between"]
    between = f"; in nine of ten generated laws the error was {least} to {most} times the expected one"
    return PlannedNoise.of_parts(
        parts,
        OF_EFFECT,
        domain.outcome_range,
        plan.n,
        plan.budget,
        assumes=(
            f"{clipped}, and effects vary by {shown(errors.deviation)} over people, nearly linearly in covariates"
            + between * (given or stated),
        ),
        left_out=("what the covariates do not say of who is treated",) * (not plan.known_propensity),
        remarks=(
            f"{ASKED}{plan.form} effect of {plan.retained} of {domain.dimension} covariates"
            + ", and hidden units for it" * plan.units,
            _average(plan, schema, scale),
            *_with_delta(plan, domain, residual),
        ),
        inconclusive=_inconclusive(plan, schema),
        relative=errors.relative,
    )


def curve_part(plan: ComposedPlan, domain: Domain) -> dict[str, float]:
    """Return what noise in a curve of censoring does to an average, as a part of planned noise; none without one."""
    if domain.censoring is None or plan.budget is None:
        return {}
    share = 0.5 if plan.treated is None else plan.treated
    sizes = torch.tensor([1 - share, share] if plan.arms == 2 else [1 / plan.arms] * plan.arms, dtype=torch.float64)
    noise = curve_noise(domain.censoring, plan)
    return {"curve": planned_curve_error(domain.censoring, plan.n * sizes, noise, scored=True)}


def _inconclusive(plan: ComposedPlan, schema: TableSchema) -> str | None:
    """Return why a release will say no more than an effect without an interval; None where it will, or is asked to."""
    if plan.lines is not None or plan.intervals or isinstance(plan.constants, RuleConstants):
        return None
    reason = _no_lines(plan, schema)
    return None if reason == NOT_REQUESTED else reason.removeprefix("no interval: ")


def _no_lines(plan: ComposedPlan, schema: TableSchema) -> str:
    """Return in one line why a release has no lines; see ``why_no_lines``."""
    return why_no_lines(plan) if schema.cluster is None else NO_INTERVALS


def _average(plan: ComposedPlan, schema: TableSchema, scale: float) -> str:
    """Return what interval the average effect will have, or why it will have none."""
    if plan.lines is None:
        return f"the average effect: {_no_lines(plan, schema).removeprefix('no interval: ')}"
    residual = None if plan.binary else scale
    curve = curve_part(plan, schema.domain).values()
    error = math.hypot(*planned_line(plan, schema.domain.outcome_range, residual).values(), *curve)
    groups = f", and {plan.line_groups} groups by effect" * (plan.line_groups > 1)
    return f"the average effect has an interval, with a standard error of about {shown(error)}{groups}"


def _with_delta(plan: ComposedPlan, domain: Domain, residual: float | None) -> tuple[str, ...]:
    """Return what a small delta would gain, where there is none."""
    assert plan.budget is not None
    if plan.budget.delta > 0:
        return ()
    other = rebuilt(plan, budget=PrivacyBudget(plan.budget.epsilon, GAIN))
    errors = ((effect_errors(of, domain, expected_scale(of, domain, residual)).total, of) for of in (plan, other))
    now, then = (shown(math.hypot(error, *curve_part(of, domain).values())) for error, of in errors)
    return (
        f"privacy.delta={GAIN:g} would make the expected error {then} instead of {now}, with {other.form} effect",
        f"no intervals with {NO_DELTA}",
    )


def stated_scale(residual_scale: float | None, plan: ComposedPlan, schema: TableSchema) -> float | None:
    """Return the residual scale that was stated, if any; refuse what cannot be one.

    Where it was not, that is the outcome's standard deviation, if the domain states it or scores tell it: residuals
    have no larger one. A time up to a horizon has one of about .3 of it where a fifth to a half of the people have the
    event.
    """
    domain = schema.domain
    if residual_scale is None:
        own = stated_deviation(schema) if domain.censoring is None else planned_deviation(schema)
        return None if plan.binary else own
    if plan.binary:
        raise InputError(f"residual_scale = {residual_scale}: a binary outcome's is its range; leave it out")
    most = domain.outcome_range / 2
    if not 0 < residual_scale <= most:
        raise InputError(
            f"residual_scale = {residual_scale}: give a number above 0 and at most {shown(most, 4)}, half the "
            "outcome's range: the standard deviation of outcomes of records alike, from public knowledge"
        )
    return float(residual_scale)
