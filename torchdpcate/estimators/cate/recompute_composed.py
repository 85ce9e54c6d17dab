"""What of a composition's release does not follow from its public facts: plan, charges and numbers, worked out anew."""

import math
from collections.abc import Iterator

import torch

from torchdpcate.composition.arm_regressions import ScoreScales
from torchdpcate.composition.asked import STEPS
from torchdpcate.composition.doubly_robust import DoublyRobustPlan
from torchdpcate.composition.interval_events import law_of
from torchdpcate.composition.interval_gate import why_none
from torchdpcate.composition.nuisance_noise import Covariates
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.pure_plan import PurePlan, kind_of_plan
from torchdpcate.composition.records import propensity_bounds
from torchdpcate.composition.regressions import effect_coefficients, effect_variances
from torchdpcate.composition.summaries import LEAST_SCALE, LEAST_VARIANCE
from torchdpcate.composition.windows import LEAST_SPREAD
from torchdpcate.estimators.cate.effect_plan import LEARNERS
from torchdpcate.estimators.recompute import CLOSE, requested_budget, same, share_problems, shown
from torchdpcate.estimators.rules.recompute import RULE_LEARNERS
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.effect_law import EffectLaw, NuisanceNumbers
from torchdpcate.release.release import QueryRelease
from torchdpcate.release.statement import PrivacyStatement

FORMULA = (
    "Gaussian events on all records, mu^2 the sum of their shares; the effect's gradients have noise "
    "2 S sqrt(steps) / mu_effect; composed_estimator section 3"
)
PURE_FORMULA = (
    "pure events on all records, epsilon the sum of their shares; the effect's objective has K-norm noise of scale "
    "2 S / (epsilon_effect - J); composed_estimator section 4"
)
SUMS_FORMULA = (
    "pure events on all records, epsilon the sum of their shares; the effect's sums have K-norm noise of the largest "
    "entry, of scale 2 / epsilon_effect; composed_rules_and_selection section 1"
)
RECORDS = "records"
_ROUGHLY = 2.0  # a noisy matrix may be this much larger than any without noise
_LARGEST_ROTATION = 0.05**-0.5  # eigenvalues of correlations are at least .05


def composed_problems(release: ComposedRelease | QueryRelease, mechanism: str) -> Iterator[str]:
    """Return problems of a composition's release that claims something.

    Its plan follows from n, domain, budget and constants; every charge from the plan; features and energies from plan
    and schema; the coefficients from estimates, curvatures and scale; the law of intervals from its numbers. Those, and
    the standardisation, are released numbers, of which only bounds are known, and of the scale the public grid of the
    bisection.

    Args:
        release: The release.
        mechanism: The composition's name.
    """
    privacy = release.privacy
    learner = privacy.public["learner"]
    plans = _plans(learner)
    if plans is None:
        yield f"its learner is called {learner}, which has no composition"
        return
    public = privacy.public
    budget = requested_budget(privacy.blocks[0], public["requested_epsilon"], public["requested_delta"])
    plan = kind_of_plan(budget, plans).from_facts(privacy.public, privacy.n, release.domain)
    if privacy.formula != formula_of(plan):
        yield "its formula is not that of its plan's events"
    facts = {"effect_by": None, **plan.facts()}
    for name in facts:
        if privacy.public.get(name) != facts[name]:
            yield f"{name} = {shown(public.get(name))} is stated, but the plan makes it {shown(facts[name])}"
    yield from _charges(privacy, plan, mechanism)
    if isinstance(release, ComposedRelease):
        yield from _summaries(release, plan)
        yield from _effect(release, plan)
        yield from _intervals(release, plan)
    elif release.noise_scales is not None or release.head or release.nuisances is not None:
        yield "it holds noise scales, a kernel or nuisances, which no composition releases"
    elif not bool((release.answers.abs() <= release.domain.outcome_range).all()):
        yield "an answer is larger than the outcome's range"


def formula_of(plan: ComposedPlan) -> str:
    """Return the noise of a plan's events in words."""
    if not isinstance(plan, PurePlan):
        return FORMULA
    return SUMS_FORMULA if plan.by_sums else PURE_FORMULA


def _plans(learner: object) -> type[ComposedPlan] | None:
    """Return the kind of plan of a learner of effects, or of rules, that statements call so; None if it has none."""
    for learners in (LEARNERS, RULE_LEARNERS):
        names = learners.class_names()
        if isinstance(learner, str) and learner in names:
            return getattr(learners[names[learner]], "plans", None)
    return None


def _charges(privacy: PrivacyStatement, plan: ComposedPlan, mechanism: str) -> Iterator[str]:
    """Problems of the one block, and of what each step was charged against its share of the budget."""
    if [(block.name, block.n) for block in privacy.blocks] != [(RECORDS, privacy.n)]:
        yield f"its records are not in the one block {RECORDS!r}"
        return
    # others are of another release from the same records, whose cost counts all the same
    charges = [charge for charge in privacy.blocks[0].charges if charge.is_release(mechanism)]
    yield from share_problems(charges, {step: plan.shares.due(step) for step in plan.shares.shares}, plan.shares.cost)


def _summaries(release: ComposedRelease, plan: ComposedPlan) -> Iterator[str]:
    """Problems of columns, standardisation and scale."""
    columns, standardisation = release.columns, release.standardisation
    if (columns is not None) is not plan.screens or (columns and list(columns) != sorted(set(columns))):
        yield "its columns are not those of a choice that its plan asks for"
    if "moments" not in plan.shares.shares and not (
        bool((standardisation.mean == 0).all()) and bool((standardisation.sd == 1).all())
    ):
        yield "it has a standardisation that no step paid for"
    if len(standardisation.mean) != plan.kept:
        yield f"it keeps {len(standardisation.mean)} covariates, but its plan {plan.kept}"
    least = (LEAST_SPREAD if plan.windows else math.sqrt(LEAST_VARIANCE)) * (1 - CLOSE)
    if not bool((standardisation.mean.abs() <= 1).all() and (standardisation.sd >= least).all()):
        yield "its means or spreads are not those of covariates on [-1, 1]"
    if not bool((standardisation.sd <= 1).all()):
        yield "a spread is larger than that of any covariate on [-1, 1]"
    y_range, levels = release.domain.outcome_range, plan.constants.quantile_levels
    if plan.binary and not isinstance(plan, DoublyRobustPlan):
        if not same(release.scale, y_range):
            yield "its scale is not the range of a binary outcome"
        return
    if not plan.quantiles:
        if not same(release.scale, y_range * plan.residual_scale):
            yield "its scale is not the planned one, and no step asked for another"
        return
    if isinstance(plan, DoublyRobustPlan):
        if not ScoreScales.of(release.domain).on_grid(release.scale, levels):
            yield f"its scale {release.scale:.6g} is not on the grid of its quantile"
        return
    place = release.scale / (y_range / 2) * 2 ** (levels + 1)  # the middle of an interval that was halved
    odd = round(place) % 2 == 1 and 0 < round(place) < 2 ** (levels + 1) and same(place, round(place))
    if not (same(release.scale, y_range * LEAST_SCALE) or (odd and release.scale >= y_range * LEAST_SCALE)):
        yield f"its scale {release.scale:.6g} is not on the grid of its quantile"


def _effect(release: ComposedRelease, plan: ComposedPlan) -> Iterator[str]:
    """Problems of features, energies, curvatures and coefficients."""
    pairs = tuple(feature for feature in release.basis.features if feature.kind == STEPS)
    if len(pairs) > plan.pairs or any(feature.i == feature.j or _levels(release)[feature.j] for feature in pairs):
        yield "its products with a step are not those of a choice that its plan asks for"
        return
    regression, curvatures = plan.effect(_levels(release), pairs), release.curvatures
    basis = regression.basis
    if release.basis.features != basis.features or not torch.allclose(release.basis.energies, basis.energies):
        yield "its features and energies are not those that its plan asks for"
        return
    planned = plan.effect_curvature * basis.energies
    if "effect curvatures" not in plan.shares.shares and not torch.allclose(curvatures, planned.diag()):
        yield "its curvatures are not those of its plan, which no step asked for"
        return
    values, diagonal = torch.linalg.eigvalsh(curvatures), curvatures.diagonal()
    near = (diagonal >= planned / 20 * (1 - CLOSE)) & (diagonal <= 2.5 * (1 + len(planned)) * planned * (1 + CLOSE))
    if not (torch.allclose(curvatures, curvatures.T, rtol=0, atol=1e-12) and values[0] > 0 and bool(near.all())):
        yield "its curvatures are outside what its plan allows"
        return
    variances = effect_variances(plan, curvatures, release.scale)
    needed = effect_coefficients(plan, regression, release.estimates, variances, release.scale)
    if not torch.allclose(release.theta, needed, rtol=1e-6, atol=1e-9 * release.scale):
        yield "its coefficients do not follow from its estimates, curvatures and scale"


def _intervals(release: ComposedRelease, plan: ComposedPlan) -> Iterator[str]:
    """Problems of what intervals rest on."""
    law, numbers = release.law, release.numbers
    if (numbers is not None) is not plan.intervals or (law is not None and numbers is None):
        yield "it holds what intervals rest on though its plan does not ask for it, or the other way round"
        return
    needed: EffectLaw | None = None
    if numbers is not None:
        if (numbers.nuisances is not None) is not plan.estimates_propensity:
            yield "it holds numbers of an estimated propensity though its plan has none, or the other way round"
            return
        yield from _nuisances(numbers.nuisances, release, plan)
        domain = release.domain
        bounds = propensity_bounds(domain)
        covariates = Covariates(release.standardisation, _levels(release))
        per_person = release.privacy.protected.records
        facts = release.basis, release.scale, bounds, domain.outcome_range, plan, covariates, per_person
        needed = law_of(numbers, *facts)
    if (needed is None) is not (law is None):
        yield "it has a law of intervals that its numbers do not carry, or withholds one that they do"
    elif needed is not None and law is not None:
        stated, tensors = law.tensors(), needed.tensors()
        if stated.keys() != tensors.keys():
            yield "its law of intervals has other numbers than those that follow from its own"
        for name, tensor in tensors.items():
            size = 1e-6 * float(tensor.abs().max())
            same_shape = name in stated and tensor.shape == stated[name].shape
            if not same_shape or not torch.allclose(stated[name], tensor, rtol=1e-6, atol=size):
                yield f"its law of intervals does not follow from its numbers: {name}"
    if release.without != (None if law else why_none(plan, numbers is not None)):
        yield "why it has no intervals is not what its plan says"


def _nuisances(numbers: NuisanceNumbers | None, release: ComposedRelease, plan: ComposedPlan) -> Iterator[str]:
    """Problems of the numbers of nuisances: of more features than the plan's, or a scale that cannot be."""
    if numbers is None:
        return
    levels, y_range = _levels(release), release.domain.outcome_range
    sizes = plan.propensity(levels).basis.dimension, plan.outcome(levels).basis.dimension
    if (len(numbers.propensity), len(numbers.outcome_curvatures)) != sizes:
        yield "its numbers of nuisances are not of the features that its plan asks for"
    elif not LEAST_SCALE * y_range * (1 - CLOSE) <= float(numbers.outcome_scale) <= y_range * (1 + CLOSE):
        yield "the scale of its outcome regression is outside the outcome's range"


def _levels(release: ComposedRelease) -> tuple[bool, ...]:
    """Return whether each covariate in use has two levels."""
    levels = release.schema.two_levels
    return levels if release.columns is None else tuple(levels[column] for column in release.columns)
