"""Where an estimated propensity has intervals: a public limit of its planned noise, and what is said elsewhere."""

import math
from dataclasses import replace
from functools import lru_cache

from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned_error import propensity_noise
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget

GATE = 0.06
"""Largest root mean squared error of an estimated propensity, of noise and sampling, at which there are intervals."""
PLANNED = 0.9 * GATE
"""Largest planned one at which they are asked for: what is then released of it is hardly ever beyond the gate."""
NO_DELTA = "delta = 0: they rest on Gaussian noise; give privacy.delta above 0, for instance 1e-6"
"""Why a composition of pure events has none."""
_RATIO, _MOST = 2**0.25, 40  # of the numbers of records, or budgets, that are tried, and how many of them
_WHERE = "nuisances made of the plan's features (nuisance=auto or additive)"


def require_gate(plan: ComposedPlan, by_features: bool) -> None:
    """Refuse intervals with an estimated propensity where they would not hold; public.

    Args:
        plan: With intervals.
        by_features: Whether features alone make up its nuisances.

    Raises:
        InputError: The planned noise is too large, and from where on it is not; or there is no planned noise.
    """
    if not plan.estimates_propensity:
        return
    if not by_features:
        raise InputError(f"intervals = true: with an estimated propensity they need {_WHERE}, whose noise is known")
    if plan.screens:
        raise InputError(
            f"intervals = true: {plan.covariates - plan.kept} of {plan.covariates} covariates would be left out, and "
            "may confound; name fewer in the domain, or leave intervals out"
        )
    if propensity_noise(plan) > PLANNED:
        raise InputError(
            f"intervals = true: they hold where the propensity is known (propensity: in the domain), or estimated with "
            f"a planned noise of at most {PLANNED:g}; here it is {propensity_noise(plan):.2g}{_from(plan)}"
        )


def why_none(plan: ComposedPlan, withheld: bool) -> str:
    """Return in one line why a release has no intervals, and from where on it could have some.

    Args:
        plan: Of the release.
        withheld: Whether it asked for them, and what it released says that the propensity's noise is too large.
    """
    if withheld:
        return (
            f"the noise of its estimated propensity is above {GATE:g} by its released covariance, and then they would "
            "not hold"
        )
    if plan.budget is not None and plan.budget.delta == 0:
        return NO_DELTA
    if not plan.has_intervals:
        return "doubly robust scores have none; learner=r (RLearner) has"
    if plan.known_propensity:
        return "it was fitted with second_stage.intervals=false; auto or true asks for the numbers they rest on"
    asked = replace(plan, intervals=True)
    if asked.screens:
        return f"its propensity is estimated; of {plan.covariates} covariates some would be left out, and may confound"
    if propensity_noise(asked) <= PLANNED:
        return (
            "its propensity is estimated; second_stage.intervals=true asks for the numbers they rest on, about a fifth "
            "of mu^2, and they hold if the propensity's model is right"
        )
    return (
        f"its propensity is estimated, with a planned noise of {propensity_noise(asked):.2g}, and above {PLANNED:g} "
        f"they would not hold{_from(asked)}"
    )


def _from(plan: ComposedPlan) -> str:
    """Return with how many records, and at which epsilon, the planned noise is within the gate, as words."""
    records, epsilon = least(plan)
    parts = [] if records is None else [f"about {records:,} records at this budget"]
    parts += [] if epsilon is None else [f"epsilon = {epsilon:g} with these records"]
    return f"; second_stage.intervals=true has some at {', or at '.join(parts)}" if parts else ""


@lru_cache(maxsize=256)
def least(plan: ComposedPlan) -> tuple[int | None, float | None]:
    """Return the least number of records, and the least epsilon, at which a plan with intervals passes the gate.

    To within a fifth; None where there is none up to a thousand times as much.

    Args:
        plan: With intervals and an estimated propensity.

    Example:
        >>> least(ComposedPlan(1_500, PrivacyBudget(1.0, 1e-5), 6, overlap=0.1, intervals=True))
        (2600, 2.0)
    """
    factors = [_RATIO**k for k in range(1, _MOST + 1)]
    sizes = (replace(plan, n=_rounded(plan.n * factor)) for factor in factors)
    records = next((other.n for other in sizes if propensity_noise(other) <= PLANNED), None)
    budget = plan.budget
    if budget is None:
        return records, None
    budgets = (PrivacyBudget(float(f"{budget.epsilon * factor:.2g}"), budget.delta) for factor in factors)
    plans = (replace(plan, budget=other) for other in budgets if other.epsilon <= 50)
    found = next((other.budget for other in plans if propensity_noise(other) <= PLANNED), None)
    return records, None if found is None else found.epsilon


def _rounded(n: float) -> int:
    """Return n with two digits, rounded up."""
    unit = 10 ** max(math.floor(math.log10(n)) - 1, 0)
    return math.ceil(n / unit) * unit
