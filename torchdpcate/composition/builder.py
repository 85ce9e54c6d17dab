"""How public plans are made: of facts numbers, of numbers steps, of steps the plan."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torchdpcate.composition.censoring import FollowUpCells
from torchdpcate.composition.constants import (
    EXPECTED,
    PlanConstants,
    PureShares,
    RuleConstants,
    line_constants,
    logit_curvature,
    of_kind,
)
from torchdpcate.composition.plan import CONSTANT, RULE, ComposedPlan, PlanSteps
from torchdpcate.composition.plan_numbers import EFFECT, PURE, PlanFacts, PlanNumbers, numbers_of, values_of
from torchdpcate.composition.priors import Request, held_shares, matrix_noise
from torchdpcate.composition.pure_fits import OBJECTIVE, PUBLIC_SUMS, SUMS
from torchdpcate.composition.steps import (
    CENSORING,
    COUNT_VARIANCE,
    EFFECT_UNITS,
    HALVINGS,
    INTERVALS,
    LINE_SQUARES,
    LINE_SUMS,
    MODIFIERS,
    PAIRS,
    PROGNOSTIC,
    QUANTILES,
    REMAINDERS,
    SCREENING,
    WEIGHTS,
    WINDOWS,
    EpsilonShares,
    Shares,
)
from torchdpcate.data.domain import Domain
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.fit.weighted_basis import all_features
from torchdpcate.privacy.budget import PrivacyBudget

WEIGHT_SHARES = {Shares: 0.01, EpsilonShares: 0.03}
"""Share of the sum of the weights, of mu^2 and of epsilon: its noise is 10 / mu, or has the scale 33 / epsilon."""

CENSORING_SHARES = {Shares: 0.05, EpsilonShares: 0.1}
"""Share of the histogram that a curve of censoring is made of."""

_NORM = 0.5  # of a record's curvature
_PLAIN = "12"  # kinds of features of nuisances that are looked at again


def composed_plan(n: int, budget: PrivacyBudget | None, covariates: int, **facts: Any) -> ComposedPlan:
    """Return the public plan of one composition on all records.

    Args:
        n: Number of records.
        budget: (epsilon, delta); with delta = 0 the plan of an effect has pure events.
        covariates: Number of encoded covariates.
        facts: Others of ``PlanFacts``.

    Raises:
        InputError: Facts that this kind of plan does not have.

    Example:
        >>> plan = composed_plan(16_000, PrivacyBudget(1.0, 1e-5), 6, overlap=0.1)
        >>> plan.retained, plan.form, plan.steps, round(plan.huber_quantile, 3)
        (6, 'additive', 60, 0.74)
        >>> [composed_plan(n, PrivacyBudget(1.0, 0.0), 6).form for n in (300, 300_000)]
        ['constant', 'additive']
        >>> plan = composed_plan(16_000, PrivacyBudget(1.0, 1e-5), 6, overlap=0.1, arms=3)
        >>> sorted(step for step in plan.shares.shares if step.startswith("propensity"))
        ['propensity 1', 'propensity 2', 'propensity 3', 'propensity curvatures']
    """
    return best_plan(PlanFacts(n, budget, covariates, **facts))


def plan_within(n: int, budget: PrivacyBudget | None, domain: Domain, **settings: Any) -> ComposedPlan:
    """Return the plan for n records of a domain.

    Args:
        n: Number of records.
        budget: As of ``composed_plan``.
        domain: Public bounds.
        settings: Facts that are not the domain's.
    """
    known, numbers = domain.known_propensity is not None, domain.two_levels.count(False)
    binary, count = domain.outcome_kind == "binary", domain.outcome_kind == "count"
    treated, design = domain.treated, domain.known_propensity
    if design is not None and design.bounds[0] == design.bounds[1]:
        treated = design.middle
    facts = {"overlap": domain.overlap, "known_propensity": known, "binary": binary, "count": count}
    settings |= {"numbers": numbers, "treated": treated, "weight": domain.expected_weight}
    if domain.censoring is not None:
        settings["follow_up"] = FollowUpCells(domain.censoring, settings.get("arms", 2)).size
    return composed_plan(n, budget, domain.dimension, **facts, **settings)


def plan_of_facts(
    facts: Mapping[str, Any], n: int, domain: Domain, arms: int = 2, cells: Subgroups | None = None
) -> ComposedPlan:
    """Return the plan that a statement's facts describe.

    Args:
        facts: As ``ComposedPlan.facts`` returns them, among others.
        n: Number of records.
        domain: Public bounds.
        arms: Number of arms.
        cells: Public partitions whose cells have lines.

    Raises:
        InputError: No plan has such facts.
    """
    constants = RuleConstants if facts.get("target") == RULE else PlanConstants
    return plan_within(
        n,
        PrivacyBudget(facts["requested_epsilon"], facts["requested_delta"]),
        domain,
        constant_only=bool(facts["constant_only"]),
        intervals=bool(facts["intervals"]),
        constants=constants.from_text(facts["constants"]),
        arms=arms,
        hidden=bool(facts.get("hidden_units", False)),
        sites=facts.get("sites", 1),
        lines=tuple(facts["lines"]) if "lines" in facts else None,
        cells=cells,
        cost=facts.get("cost", 0.0),
        cutoff=facts.get("cutoff", 0.0),
    )


def rebuilt(plan: ComposedPlan, **changes: Any) -> ComposedPlan:
    """Return the plan of the same facts but for some."""
    return best_plan(replace(plan.made_of, **changes))


def best_plan(facts: PlanFacts) -> ComposedPlan:
    r"""Return the plan of least planned regret: of a rule at small n mu there are several.

    An effect that turns out to be one number has the plan that it would have on request. One by Gaussian events may be
    reduced: what it leaves out would cost its effect more than it gains. One by pure events may have its effect as one
    event of sums (``private_sums``), with private or with public constants.

    Args:
        facts: What it is made of.
    """
    plan, rule = _plan_by(facts), facts.rule
    if rule is None and facts.kind == EFFECT and plan.form == CONSTANT and not plan.alone:
        return _plan_by(facts, alone=True)
    if rule is None or facts.binary or facts.constant_only:
        return plan
    if facts.kind == PURE:
        if plan.shrinks or plan.mass * plan.total >= rule.sums_below or (facts.many and plan.form != CONSTANT):
            return plan
        plans = [plan, _plan_by(facts, SUMS), _plan_by(facts, PUBLIC_SUMS)]
        return max(plans, key=lambda each: each.sign.worth(each.planned_correlation(), each.form == CONSTANT))
    if facts.kind != EFFECT or facts.budget is None or facts.many or facts.intervals:
        return plan
    if plan.size >= min(rule.reduced_below, rule.linear_below):
        return plan
    return max(plan, _plan_by(facts, reduced=True), key=ComposedPlan.planned_correlation)


def _plan_by(facts: PlanFacts, way: str = OBJECTIVE, reduced: bool = False, alone: bool = False) -> ComposedPlan:
    """Return the plan by one way, see ``numbers_of``, of steps that serve something."""
    numbers, left_out = numbers_of(facts, way, reduced, alone), set[str]()
    retained = retained_of(numbers)
    while True:
        plan = plan_of(steps_of(numbers, retained, left_out))
        idle = _idle_steps(plan)
        if idle.isdisjoint(plan.shares.shares):
            return plan
        left_out |= idle


def _idle_steps(plan: ComposedPlan) -> set[str]:
    """Return steps that serve nothing, where events are pure: they cost as much as others there.

    They are an outcome regression of a constant alone, which the released centre is already, and, where no regression
    has a feature, covariates.
    """
    if plan.kind != PURE:
        return set()
    rich = {name for name in plan.requests if getattr(plan, name)().basis.features}
    idle = set() if rich else {SCREENING, "moments"}
    idle |= set() if "outcome" in rich or plan.binary else {"outcome", "residual scale"}
    return idle | (set() if "effect" in rich else {"effect curvatures"})


# -- numbers to steps


def steps_of(numbers: PlanNumbers, retained: int, left_out: Collection[str] = ()) -> PlanSteps:
    """Return the steps of nuisances and effect, and their shares.

    Args:
        numbers: Of the plan.
        retained: Number of covariates that are retained.
        left_out: Steps of pure events that are left out.
    """
    if numbers.kind == PURE:
        shares: Shares = _pure_shares(numbers, retained, left_out)
        retained = retained if "moments" in shares.shares else numbers.covariates  # where they are not looked at, all
        choices = _choices(numbers, retained)
    else:
        choices = _choices(numbers, retained)
        shares = Shares(numbers.total, _reduced_shares(numbers) if numbers.reduced else _shares(numbers, choices))
    return PlanSteps(**values_of(numbers), retained=retained, choices=choices, shares=shares)


def retained_of(numbers: PlanNumbers) -> int:
    """Return the number of covariates of least expected error, the r-th one's weight being 1/r.

    With all covariates kept instead, and the effect as requested, the mean logarithm of the squared error changed by
    .17 (standard error .12) in 100 settings of 6 to 12 covariates on random laws, 23 November 2026.

    Args:
        numbers: Of the plan.
    """
    q, most, pure = numbers.covariates, min(numbers.covariates, numbers.constants.most), numbers.kind == PURE
    if numbers.by_sums or (numbers.reduced and not pure) or numbers.sites > 1:  # a private choice is no sum
        return q
    if pure and not numbers.shrinks:  # judged by its constant alone, whose noise a choice would add to
        return 1 if numbers.many else q
    if numbers.alone and not pure:
        return most
    if numbers.budget is None:
        return q
    return min(range(1, most + 1), key=partial(_error_of if numbers.shrinks else _regret_of, numbers))


def _error_of(numbers: PlanNumbers, k: int) -> float:
    """Return the expected squared error of the effect of k covariates, over that of no effect."""
    features = all_features([False] * k, numbers.constants.kinds)
    request = _request(numbers, numbers.priors.choice_variance, _effect_noise(numbers, k))
    prior = request.priors(features) * held_shares(features, k, numbers.covariates)
    return numbers.fill(prior, request.noise, math.inf).error - float(prior.sum())


def _regret_of(numbers: PlanNumbers, k: int) -> float:
    """Return what falls with the expected regret of the sign of an effect of k covariates."""
    return -_correlation(numbers, _unshrunk(numbers, k, numbers.effect_kinds), k)


def _choices(numbers: PlanNumbers, retained: int) -> dict[str, int]:
    """Return how many covariates each step chooses, by step.

    A wide plan chooses half of those that its effect has for the outcome, which have features of all kinds in the
    nuisances, and the others for the effect: what tells of the outcome often changes the effect, in ways that no slope
    or hump of the effect shows.
    """
    if retained == numbers.covariates:
        return {}
    if not numbers.windows:
        return {SCREENING: retained}
    if numbers.alone:
        return {PROGNOSTIC: retained}
    heads = (retained + 1) // 2
    return {PROGNOSTIC: heads, **({MODIFIERS: retained - heads} if retained > heads else {})}


def _shares(numbers: PlanNumbers, choices: Collection[str]) -> dict[str, float]:
    """Return each step's share of mu^2; the steps that choose covariates have even shares."""
    constants, known = numbers.constants, numbers.known_propensity
    shares = {
        **dict.fromkeys(numbers.quantiles, _quantile_share(numbers)),
        **{choice: constants.screening_share / len(choices) for choice in choices},
        **({WINDOWS: _window_share(numbers)} if _window_share(numbers) else {}),
        "moments": constants.moment_share,
        **({PAIRS: constants.pair_share} if numbers.pairs else {}),
    }
    regressions = ("outcome", "effect") if known else ("outcome", "propensity", "effect")
    for name in regressions:
        shares[f"{name} curvatures"] = constants.curvature_share / len(regressions)
    if numbers.intervals:
        shares |= dict(zip(INTERVALS, constants.interval_shares, strict=True))
    effect = _effect_share(numbers, bool(choices))
    nuisances = _left(numbers, bool(choices)) - effect
    propensity = 0.0 if known else constants.propensity_share
    shares["outcome"] = nuisances * (1 - propensity)
    if propensity:
        each = numbers.propensity_steps
        shares |= dict.fromkeys(each, nuisances * propensity / len(each))
    if not numbers.units:
        return shares | {"effect": effect}
    of = of_kind(EFFECT)["units"]
    own = min(of["share"], of["noise"] * numbers.mass / numbers.size**2)
    return shares | {EFFECT_UNITS: own * effect, "effect": (1 - own) * effect}


def _effect_share(numbers: PlanNumbers, screens: bool) -> float:
    """Return the effect's share.

    Args:
        numbers: Of the plan.
        screens: Whether covariates are left out by a private choice.
    """
    constants = numbers.constants
    nuisances = constants.wide_nuisance_share if screens and numbers.windows else constants.nuisance_share
    outcome = nuisances * (1 - constants.propensity_share)
    return _left(numbers, screens) * (1 - outcome if numbers.known_propensity else 1 - nuisances)


def _left(numbers: PlanNumbers, screens: bool) -> float:
    """Return the share that is left for regressions."""
    constants = numbers.constants
    spent = len(numbers.quantiles) * _quantile_share(numbers) + constants.moment_share + constants.curvature_share
    spent += _window_share(numbers)
    spent += constants.pair_share * (numbers.pairs > 0)
    spent += sum(constants.interval_shares) * numbers.intervals
    return 1 - spent - constants.screening_share * screens


def _quantile_share(numbers: PlanNumbers) -> float:
    least, most = numbers.constants.quantile_shares
    return min(max(_by_counts(numbers, numbers.constants.quantile_levels), least), most)


def _window_share(numbers: PlanNumbers) -> float:
    """Share of the windows; zero without any."""
    if not (numbers.windows and numbers.numeric):
        return 0.0
    least, most = numbers.constants.quantile_shares[0], numbers.constants.window_share
    return min(max(_by_counts(numbers, COUNT_VARIANCE * numbers.numeric * HALVINGS), min(least, most)), most)


def _by_counts(numbers: PlanNumbers, counts: float) -> float:
    """Return the share at which the noise of so many counts is the wanted error of a quantile's rank."""
    return counts / (numbers.constants.rank_error * numbers.size) ** 2


def _reduced_shares(numbers: PlanNumbers) -> dict[str, float]:
    """Return each step's share of mu^2 of a reduced plan."""
    rules = numbers.rules
    shares = dict.fromkeys(QUANTILES[:2], rules.reduced_quantile_share) | {"moments": rules.reduced_moment_share}
    if not numbers.known_propensity:
        shares["propensity"] = rules.reduced_propensity_share
    return shares | {"effect": 1 - math.fsum(shares.values())}


def _pure_shares(numbers: PlanNumbers, retained: int, left_out: Collection[str]) -> EpsilonShares:
    """Return each step's share of epsilon."""
    of = _parts(numbers)
    fixed = dict.fromkeys(QUANTILES, _pure_quantile_share(numbers))
    fixed |= {SCREENING: of.screening, "moments": of.moments, "effect curvatures": of.curvatures}
    parts = {"outcome": of.outcome, "propensity": of.propensity, "effect": 1 - of.outcome - of.propensity}
    screening = (SCREENING,) if retained < numbers.covariates else ()
    moments = () if numbers.way == PUBLIC_SUMS else ("moments",)
    steps = (*numbers.quantiles[:2], *screening, *moments, *_later(numbers))
    steps = tuple(step for step in steps if step not in left_out)
    left = 1 - math.fsum(fixed[step] for step in steps if step in fixed)
    total = math.fsum(parts[step] for step in steps if step in parts)
    shares = {step: fixed[step] if step in fixed else left * parts[step] / total for step in steps}
    return EpsilonShares(numbers.total, shares)


def _later(numbers: PlanNumbers) -> tuple[str, ...]:
    """Return the steps of pure events that follow the covariates' moments."""
    half = numbers.way == PUBLIC_SUMS and numbers.mass * numbers.total < of_kind(PURE)["pure"]["half_below"]
    propensity = () if numbers.known_propensity or half else ("propensity",)
    if numbers.reduced:
        return (*propensity, "effect")
    return ("outcome", *propensity, *numbers.quantiles[2:], "effect curvatures", "effect")


def _parts(numbers: PlanNumbers) -> PureShares:
    rule = EFFECT if numbers.rule is None else "reduced_rule" if numbers.reduced else RULE
    return PureShares(**of_kind(PURE)["shares"]["sums" if numbers.by_sums else rule])


def _pure_quantile_share(numbers: PlanNumbers) -> float:
    # a quantile chosen by its rank is off by about twice the scale of its noise, 2 / epsilon
    wanted = 2 * math.sqrt(2) / (numbers.constants.rank_error * numbers.mass * numbers.total)
    least, most = _parts(numbers).quantiles
    return min(max(wanted, least), most)


def _effect_budget(numbers: PlanNumbers, k: int) -> float:
    """Return mu of the effect where k covariates are retained, or its epsilon where no step is left out."""
    screens = k < numbers.covariates
    if numbers.kind != PURE:
        share = _reduced_shares(numbers)["effect"] if numbers.reduced else _effect_share(numbers, screens)
        return numbers.total * math.sqrt(share)
    of, later = _parts(numbers), _later(numbers)
    quantiles = (2 + ("residual scale" in later)) * (not numbers.binary) * (numbers.way != PUBLIC_SUMS)
    moments = of.moments * (numbers.way != PUBLIC_SUMS)
    left = 1 - quantiles * _pure_quantile_share(numbers) - moments - of.screening * screens
    left -= of.curvatures * ("effect curvatures" in later)
    unused = of.outcome * ("outcome" not in later) + of.propensity * ("propensity" not in later)
    return numbers.total * left * (1 - of.outcome - of.propensity) / (1 - unused)


def beside_weights(shares: Shares, censored: bool = False) -> Shares:
    """Return shares of steps beside one that releases the sum of the records' weights.

    Args:
        shares: Of all other steps.
        censored: Whether there is one for a curve of censoring too.

    Example:
        >>> beside_weights(Shares(1.0, {"effect": 1.0})).shares
        {'weights': 0.01, 'effect': 0.99}
    """
    own = {CENSORING: CENSORING_SHARES[type(shares)]} if censored else {}
    own |= {WEIGHTS: WEIGHT_SHARES[type(shares)]}
    left = 1 - math.fsum(own.values())
    return replace(shares, shares=own | {step: left * share for step, share in shares.shares.items()})


def beside_lines(shares: Shares, looks_again: bool = False) -> Shares:
    """Return shares of steps beside those of lines, whose part of mu^2 is public; the total is of both.

    Args:
        shares: Of all other steps.
        looks_again: Whether there is a second look at the nuisances too.

    Example:
        >>> found = beside_lines(Shares(3.0, {"effect": 1.0}))
        >>> round(found.of("effect"), 12), {step: round(share, 4) for step, share in found.shares.items()}
        (3.0, {'effect': 0.75, 'line squares': 0.025, 'line sums': 0.225})
    """
    of = line_constants()
    own = {LINE_SQUARES: of.share * of.squares, LINE_SUMS: of.share * (1 - of.squares)}
    own |= {REMAINDERS: of.remainders} if looks_again else {}
    left = 1 - (of.share + of.remainders * looks_again)
    others = {step: left * share for step, share in shares.shares.items()}
    return replace(shares, total=shares.total / math.sqrt(left), shares=others | own)


# -- steps to the plan


def plan_of(steps: PlanSteps) -> ComposedPlan:
    """Return the plan: what each regression may request by its share, and the shares of all steps.

    Args:
        steps: Of nuisances and effect; those of weights, censoring and lines are beside them.
    """
    shares = steps.shares if steps.weight is None else beside_weights(steps.shares, steps.follow_up > 0)
    shares = shares if steps.lines is None else beside_lines(shares, steps.looks_again)
    values = values_of(steps) | {"shares": replace(shares, sites=steps.sites)}
    return ComposedPlan(**values, requests=_requests(steps))


def _requests(steps: PlanSteps) -> dict[str, Request]:
    """Return what each regression may request, by name."""
    constants, shares = steps.constants, steps.shares
    looked_at = "moments" in shares.shares
    kinds = constants.kinds if looked_at else ""
    if steps.looks_again and steps.size < line_constants().plain_size:
        kinds = "".join(kind for kind in kinds if kind in _PLAIN)  # others are looked for later
    heads = steps.choices[PROGNOSTIC] if steps.windows and steps.choices else None
    found = {}
    if "outcome" in shares.shares:
        noise = steps.unit_noise(shares.of("outcome"), 1.0, EXPECTED.logit_curvature if steps.binary else None)
        found["outcome"] = _request(steps, constants.outcome_variance, noise, kinds, heads=heads)
    first = steps.propensity_steps[0]
    if first in shares.shares:
        noise = steps.unit_noise(shares.of(first), 1.0, logit_curvature(steps.treated), steps.propensity_slope)
        variance = 0.0 if steps.one_propensity else constants.propensity_variance
        found["propensity"] = _request(steps, variance, noise, kinds, heads=heads)
    return found | {"effect": _effect(steps, looked_at)}


def _effect(steps: PlanSteps, looked_at: bool) -> Request:
    """Return what the effect may request; without a look at covariates it has none of their features.

    Where the matrix of all their curvatures can be told from its noise, that of a wide plan has linear features of the
    covariates that were not chosen too: at any budget an effect of many covariates would else be missed.
    """
    if steps.by_sums:
        own = _effect_budget(steps, steps.covariates) * steps.mass * steps.inside * steps.effect_curvature
        variance = steps.rules.linear_variance / steps.covariates
        return _request(steps, variance, 2 / own, steps.constants.kinds if looked_at else "")
    kinds = steps.effect_kinds if looked_at else ""
    if not steps.shrinks:
        return _unshrunk(steps, steps.retained, kinds)
    variance, least = steps.shrinking_variance, steps.unit_sampling(steps.effect_curvature)
    noise = steps.unit_noise(steps.shares.of("effect"), steps.effect_curvature)
    request = _request(steps, 0.0 if steps.alone else variance, noise, kinds, steps.constant_variance, least)
    if steps.intervals or steps.rule is not None or not (steps.windows and steps.choices):
        return request
    spread, may = replace(request, heads=steps.retained, confounds=False), of_kind(EFFECT)["spread"]
    basis = spread.regression([False] * steps.covariates).basis
    unit = math.sqrt(2) * _NORM / (steps.shares.of("effect curvatures") * steps.mass * steps.effect_curvature)
    seen = steps.n >= may["records"] and matrix_noise(basis, unit) <= may["noise"]
    return spread if seen and any(feature.j >= steps.retained for feature in basis.features) else request


def _unshrunk(numbers: PlanNumbers, k: int, kinds: str) -> Request:
    """Return that of k covariates that is not shrunk: linear where its sign is worth it, else a constant."""
    noise = _effect_noise(numbers, k)
    alone = _request(numbers, 0.0, noise, constant=numbers.constant_variance)
    if numbers.rule is None or numbers.alone:
        return alone
    linear = _request(numbers, numbers.sign.variance, noise, kinds[:1], numbers.constant_variance)
    least = max(_correlation(numbers, alone, k), numbers.rule.least_correlation)
    return linear if _correlation(numbers, linear, k) > least else alone


def _effect_noise(numbers: PlanNumbers, k: int) -> float:
    """Return the variance of an effect of weight one by noise, where k covariates are retained."""
    return numbers.unit_noise(_effect_budget(numbers, k), numbers.effect_curvature)


def _correlation(numbers: PlanNumbers, request: Request, k: int) -> float:
    sign = replace(numbers.sign, sizes=(1.0,)) if numbers.kind == PURE else numbers.sign  # as they were tuned
    return sign.correlation(request.regression([False] * k), k, numbers.covariates)


def _request(
    numbers: PlanNumbers,
    variance: float,
    noise: float,
    kinds: str = "",
    constant: float = math.inf,
    least: float = 0.0,
    heads: int | None = None,
) -> Request:
    """Return what a regression may request; see ``Request``."""
    facts = numbers.constants, numbers.size, not numbers.known_propensity, numbers.fill
    return Request(*facts, variance, noise, kinds, constant, least, heads)
