"""What in released effects of subgroups does not follow from its cells, its public constants and what was charged."""

import math
from collections.abc import Iterator

from torchdpcate.causal.estimand import ATE
from torchdpcate.composition.average_plan import SCORES
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.objective_fit import ObjectiveFit
from torchdpcate.estimators.average.clipped_scores import clip_on_grid, clipped_domain, is_step, stated_plan
from torchdpcate.estimators.average.stated import ContradictionError
from torchdpcate.estimators.recompute import CLOSE, compared, constants_problems, scale_problems, share_problems
from torchdpcate.estimators.subgroups.mechanism import STEPS
from torchdpcate.estimators.subgroups.scores import ScorePlan
from torchdpcate.estimators.subgroups.sums import sensitivity
from torchdpcate.estimators.subgroups.weighting import COMPOSED, EQUAL, FITTED, KNOWN, Weighting
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.charge import Purpose
from torchdpcate.privacy.events import Event, GaussianEvent, PureEvent
from torchdpcate.privacy.mechanisms import AdditiveMechanism, GaussianMechanism, LaplaceMechanism
from torchdpcate.privacy.noisy_numbers import far_problems, grid_problems
from torchdpcate.release.blocks import StatedCharge
from torchdpcate.release.cell_effects import LAPLACE
from torchdpcate.release.release import require_tensor
from torchdpcate.release.subgroups import SubgroupRelease

_FITTED = 1e-6  # how well noise scales of fits must agree, some of which are found by search
_MOST = 1e15  # of a coefficient
_COST = 1e-7  # how well what a plan leaves agrees, which is found by search


def problems(mechanism: str, release: SubgroupRelease) -> Iterator[str]:
    """Return what is wrong with released effects of subgroups that claim something.

    Args:
        mechanism: Name of the mechanism.
        release: The release, as read from its file.
    """
    privacy = release.privacy
    if [block.name for block in privacy.blocks] != ["records"]:
        yield "its blocks of records are not those of effects in subgroups"
        return
    own = [charge for charge in privacy.charges if charge.is_release(mechanism)]
    fits = [charge for charge in privacy.charges if charge.purpose is Purpose.WEIGHTS]
    steps = [charge for charge in privacy.charges if is_step(charge)]
    if len(own) != 1 or own[0].count != 1 or len(own) + len(fits) + len(steps) != len(privacy.charges):
        yield "its charges are not one for its sums, and one for a propensity or those of a composition"
        return
    yield from _constants(release)
    yield from _noise(release, own[0])
    yield from _weights(release, fits)
    yield from _scores(release, steps, own[0])


def _constants(release: SubgroupRelease) -> Iterator[str]:
    """Problems of constants that follow from the cells."""
    public, strata = release.privacy.public, release.strata
    needed = {
        "law": release.law,
        "released": release.released,
        "partitions": len(release.subgroups.partitions),
        "cells": release.subgroups.size,
        "strata": strata.size,
        "scale": release.scale,
    }
    for name, value in needed.items():
        if public[name] != value:
            yield f"{name} = {public[name]} is stated, but its cells and numbers make it {value}"


def _noise(release: SubgroupRelease, charge: StatedCharge) -> Iterator[str]:
    """Problems of the noise, and of numbers that it leaves."""
    law, n, strata = release.law, release.privacy.n, release.strata
    moved = sensitivity(law, len(strata.partitions), n)
    event = charge.event
    mechanism: AdditiveMechanism
    if law == LAPLACE and isinstance(event, PureEvent):
        mechanism = LaplaceMechanism(event.epsilon, moved)
    elif law != LAPLACE and isinstance(event, GaussianEvent):
        mechanism = GaussianMechanism.of_event(event, moved)
    else:
        yield f"its charge is none of {law} noise"
        return
    yield from scale_problems("sensitivity", as_number(release.privacy.public["sensitivity"]), moved, CLOSE)
    yield from compared("its sums", release.scale, mechanism.released_scale(release.statistics.numel()))
    yield from grid_problems("a sum of its cells", release.statistics, release.scale)
    yield from far_problems("a sum of its cells", release.statistics, float(n), release.scale)


def _weights(release: SubgroupRelease, fits: list[StatedCharge]) -> Iterator[str]:
    """Problems of the weights: their bounds, and a propensity that was fitted."""
    public, way = release.privacy.public, release.privacy.public["weights"]
    fitted = release.weights is not None
    if (way == FITTED) is not fitted or (len(fits) == 1) is not fitted or len(fits) > 1:
        yield "a propensity, its charge and the weights of its records are not there together"
        return
    if way == FITTED:
        eta = as_number(public["eta"])
        weighting = Weighting(FITTED, eta, 1 - eta, estimand=public["estimand"])
        yield from _fit(release, fits[0], eta)
    elif way == COMPOSED:
        yield from constants_problems("weights", public, {}, _FITTED)
        eta = as_number(public["eta"])
        weighting = Weighting(COMPOSED, eta, 1 - eta)
    else:
        yield from constants_problems("weights", public, {}, _FITTED)
        known = Weighting.of("auto", release.schema, estimand=public["estimand"])
        if way == KNOWN and known.way != KNOWN:
            yield "its records are weighted by a known propensity, but its domain states none that differs"
            return
        weighting = known if way == KNOWN else Weighting.of("randomised", release.schema)
    if way not in (EQUAL, KNOWN, FITTED, COMPOSED):
        yield f"its records are weighted by {way}, which is no way"
        return
    for name, value in weighting.public().items():
        stated = public.get(name)
        close = value if isinstance(value, str) else CLOSE * value
        if stated != value and (isinstance(close, str) or abs(as_number(stated) - value) > close):
            yield f"{name} = {stated} is stated, but its domain and settings make it {value}"


def _scores(release: SubgroupRelease, steps: list[StatedCharge], sums: StatedCharge) -> Iterator[str]:
    """Problems of doubly robust scores: their composition's plan and charges, what it leaves to the sums, the clip."""
    public, held, domain = release.privacy.public, release.scores, release.domain
    if held is None:
        if steps or set(STEPS) & public.keys() or public["weights"] == COMPOSED:
            yield "it sums no scores, but states or was charged for their composition"
        return
    if public["weights"] != COMPOSED:
        yield f"it sums scores, but its weights are stated to be {public['weights']}"
        return
    estimand, n = ATE(as_number(public["eta"])), release.privacy.n
    try:
        plan = stated_plan(public, release.privacy.blocks[0], n, domain, estimand)
    except ContradictionError as problem:
        yield str(problem)
        return
    yield from share_problems(steps, {step: plan.shares.due(step) for step in plan.shares.shares})
    assert plan.budget is not None
    whole = PrivacyBudget(plan.budget.epsilon / (1 - SCORES), plan.budget.delta)
    if not _same_cost(sums.event, ScorePlan(plan, whole, domain).event(release.law)):
        yield "its sums were not charged what its plan leaves for them"
    if not clip_on_grid(held.clip, plan, clipped_domain(domain, estimand)):
        yield f"its clip {held.clip:.6g} is not on the grid of its quantile"
    if not max(abs(held.centre), held.error) <= domain.outcome_range * (1 + CLOSE):
        yield "its centre or its error is larger than the outcome's range"


def _same_cost(stated: Event | None, needed: Event) -> bool:
    """Whether two events are of one kind and cost; the accountant is asked in steps of 1e-9."""
    if isinstance(stated, PureEvent) and isinstance(needed, PureEvent):
        return math.isclose(stated.epsilon, needed.epsilon, rel_tol=_COST)
    if isinstance(stated, GaussianEvent) and isinstance(needed, GaussianEvent):
        return math.isclose(stated.noise_multiplier, needed.noise_multiplier, rel_tol=_COST)
    return False


def _fit(release: SubgroupRelease, charge: StatedCharge, eta: float) -> Iterator[str]:
    """Problems of a fitted propensity: its clip, its coefficients, its constants and its charge."""
    held, start = release.weights, "weights_"
    assert held is not None
    assert charge.event is not None
    assert charge.count is not None
    if held.estimand.name != release.privacy.public["estimand"] or held.estimand.overlap != eta:
        yield "its propensity is not clipped as its statement says"
    require_tensor(held.theta, (held.features.dimension,), "theta")
    if not float(held.theta.abs().amax()) <= _MOST:
        yield "its propensity has coefficients that no fit gives"
    public = {k.removeprefix(start): v for k, v in release.privacy.public.items() if k.startswith(start)}
    if charge.charge.mechanism != ObjectiveFit.name or public.get("fitter") != ObjectiveFit.name:
        yield "its propensity is by no fit of the library"
        return
    fit = ObjectiveFit.recompute(public, charge.event, charge.count, Logistic(), release.privacy.n, held.features)
    if (fit.event, fit.count) != (charge.event, charge.count):
        yield "the charge of its propensity is not that of its settings"
    yield from constants_problems("weights", release.privacy.public, fit.public, _FITTED)
    yield from grid_problems("its propensity", held.theta, as_number(public["solver_scale"]))
