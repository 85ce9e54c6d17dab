"""What follows from a public plan alone: noise, error, regret, where intervals hold, and the least budget."""

import math
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdpcate.composition.builder import best_plan, rebuilt
from torchdpcate.composition.constants import EXPECTED, logit_curvature, of_kind
from torchdpcate.composition.covariates import CENTRE
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.plan_numbers import NO_INTERVALS_OF_ARMS, PlanFacts
from torchdpcate.composition.priors import Regression, held_shares, prior_variances
from torchdpcate.composition.steps import (
    AVERAGE,
    CENSORING,
    CORRECTION,
    COUNTS,
    EFFECT_UNITS,
    HALVINGS,
    LINE_SQUARES,
    LINE_SUMS,
    LOOKED_FOR,
    MATRIX,
    MODIFIERS,
    PAIRS,
    PROGNOSTIC,
    REMAINDERS,
    SCREENING,
    WEIGHTS,
    WINDOWS,
    gradient_rounding,
    mechanism_of,
)
from torchdpcate.composition.summaries import OUTCOME, RESIDUAL
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.private_fit import SOLVER_SHARE
from torchdpcate.fit.weighted_basis import KINDS, Levels, all_features
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.mechanisms import KNormMechanism
from torchdpcate.release.averages import POLICIES


class EffectErrors(NamedTuple):
    """Root mean squared errors to expect of an effect over people, in outcome units; public.

    Attributes:
        constant: Of its constant, by noise ...
        sampling: ... and by sampling.
        nuisances: What those lose of confounding.
        variation: What is missed of how effects differ, by noise, sampling, and features that show none of it.
        deviation: Expected of effects over people: the variation of one number; zero where that is requested.
    """

    constant: float
    sampling: float
    nuisances: float
    variation: float
    deviation: float

    @property
    def total(self) -> float:
        """Error to expect of the effect of a person."""
        return math.hypot(*self[:4])

    @property
    def relative(self) -> float | None:
        """The same over that of one number for all with the same constant; None where that is what was requested."""
        return self.total / math.hypot(*self[:3], self.deviation) if self.deviation else None


def effect_errors(plan: ComposedPlan, domain: Domain, scale: float | None = None) -> EffectErrors:
    r"""Return the errors to expect of the effect; they fall as n and the budget grow.

    With noise and sampling v_j of the features, the expected deviation h of effects over people, .9 of whose variance
    is linear in covariates, and the share f of it that the k retained ones hold, the variation is

    .. math:: \Big(h^2 - \sum_{j \le k} \frac{t_j^2}{t_j + 1.69\, v_j}\Big)^{1/2}, \quad t_j = \frac{.9\, f h^2}{k}

    h is .2 outcome deviations, and .3 variances over the range of an outcome of two values or by a horizon, as those
    near a bound have smaller effects; the plan's own prior variances, by which it requests and shrinks, are wider.
    Generated laws differ by a factor of four.

    Args:
        plan: Of the composition.
        domain: Public facts of the outcome.
        scale: S, at which residuals are clipped, in outcome units, as released; None takes ``expected_scale``.
    """
    own, size = of_kind("effect")["errors"], expected_scale(plan, domain) if scale is None else scale
    sd = domain.outcome_sd or (_BINARY * size if plan.binary else size / (own["residuals"] * _normal_clip(plan)))
    residual = sd if plan.binary else own["residuals"] * sd
    deviation = own["binary"] * sd**2 / domain.outcome_range if plan.reaches_bounds else own["deviation"] * sd
    effect, lost = plan.effect(), lost_of(plan)
    sampled = 0.0 if plan.budget is None else plan.unit_sampling(plan.effect_curvature) * size**2
    sampled *= sd**2 / (EXPECTED.sampling_binary * size**2) if plan.binary else 1.0
    noise = effect.noise * size**2 / effect.basis.feature_weights
    linear = torch.tensor([feature.kind == KINDS[0] for feature in effect.basis.features], dtype=torch.bool)
    held = held_shares(effect.basis.features, plan.effect_covariates, plan.covariates)[linear]
    known = own["linear"] * held * deviation**2 / plan.effect_covariates
    found = known.square() / (known + EXPECTED.nuisances**2 * (noise[1:][linear] + sampled))
    varies = 0.0 if plan.constant_only else deviation
    variation = math.sqrt(max(varies**2 - float(found.sum()), 0.0))
    biased = residual * math.sqrt(lost.bias**2 + lost.variance)
    return EffectErrors(math.sqrt(float(noise[0])), math.sqrt(sampled), biased, variation, varies)


def expected_scale(plan: ComposedPlan, domain: Domain, residual: float | None = None) -> float:
    r"""Return the scale S at which residuals are expected to be clipped, in outcome units: :math:`\sigma z_q`.

    Args:
        plan: With the quantile q of absolute residuals, whose normal one is z.
        domain: Public facts of the outcome, of which a stated deviation gives :math:`\sigma`, that of residuals.
        residual: Sigma, if it is stated; None takes what the domain says, else a fourteenth of the range.
    """
    if plan.binary:
        return domain.outcome_range
    stated = None if domain.outcome_sd is None else of_kind("effect")["errors"]["residuals"] * domain.outcome_sd
    return (residual or stated or plan.residual_scale * domain.outcome_range) * _normal_clip(plan)


def _normal_clip(plan: ComposedPlan) -> float:
    return NormalDist().inv_cdf((1 + plan.huber_quantile) / 2)


def planned_noise(plan: ComposedPlan, scale: float) -> float:
    r"""Return the standard deviation of the effect's noise before it is shrunk, in outcome units.

    .. math:: 1.3\, S \sigma \Big(\sum_j 1/e_j\Big)^{1/2}

    over records like those that were fitted; the factor is for the nuisances' noise, and for propensities away from
    one half (``experiments/defaults/noise.py``).

    Args:
        plan: Of the composition.
        scale: S, as released, in outcome units.
    """
    regression = plan.effect()
    return EXPECTED.nuisances * scale * math.sqrt(float((regression.noise / regression.basis.feature_weights).sum()))


def propensity_noise(plan: ComposedPlan) -> float:
    r"""Return the root mean squared noise and sampling error to expect of the estimated propensity.

    .. math:: 0.2\, \Big(\sum_j \frac{v_j}{(1 + v_j / g_j)^2}\Big)^{1/2}, \quad
        v_j = \frac{1.1\,\sigma^2}{e_j} + \frac{5}{n}

    over the features of its regression, g_j their prior variances by its ridge.

    Args:
        plan: Of a composition that estimates the propensity.
    """
    regression, sampling = plan.propensity(), 1 / (logit_curvature(plan.treated) * plan.mass)
    variance = EXPECTED.noise_inflation * regression.noise / regression.basis.feature_weights + sampling
    if plan.budget is None:  # where sampling is what features are held against, and counted
        variance = variance.new_full(variance.shape, sampling)
    prior = torch.cat([variance.new_tensor([EXPECTED.logit_constant]), EXPECTED.logit_prior * regression.prior])
    return logit_curvature(plan.treated) * math.sqrt(float((variance / (1 + variance / prior).square()).sum()))


_UNIT = math.sqrt(1 / (2 * math.pi))  # half the mean of |N(0, 1)|


class Regret(NamedTuple):
    """Regrets in residual scales S, against the rule that knows the effect.

    Attributes:
        rule: Of the plan's rule.
        constant: Of the better one of treating everybody and nobody.
    """

    rule: float
    constant: float


def planned_regret(plan: ComposedPlan) -> Regret:
    r"""Return the expected regret of the sign of the plan's effect, and that of the best constant rule.

    With an effect tau ~ N(0, G), the prior of a linear rule, and a score t of the correlation rho with it,

    .. math:: E[\tau^+] - E[\tau\, 1\{t > 0\}] = \sqrt{\tfrac{G}{2\pi}}\,(1 - \rho)

    Effects s tau of several sizes s are expected, and the score's correlation with them grows with s: rho is its mean
    with the weights s (``Sign.correlation``), so that regrets are means over s, over the mean size.
    A constant rule that is the better one has :math:`\rho^2 = g_0 / G`.

    Args:
        plan: The public plan of a rule.

    Example:
        >>> from torchdpcate.composition.builder import composed_plan
        >>> from torchdpcate.composition.constants import RuleConstants
        >>> from torchdpcate.privacy.budget import PrivacyBudget
        >>> budget = PrivacyBudget(1.0, 1e-5)
        >>> few, many = (composed_plan(n, budget, 6, constants=RuleConstants()) for n in (500, 50_000))
        >>> planned_regret(many).rule < planned_regret(few).rule
        True
    """
    rules = plan.sign.rules
    total = rules.constant_variance + rules.linear_variance
    size, constant = _UNIT * math.sqrt(total), math.sqrt(rules.constant_variance / total)
    return Regret(size * (1 - plan.planned_correlation()), size * (1 - constant))


GATE = 0.06
"""Largest root mean squared error of an estimated propensity, of noise and sampling, at which there are intervals."""
PLANNED = 0.9 * GATE
"""Largest planned one at which they are requested: what is then released of it is hardly ever beyond the limit."""
NO_DELTA = "delta = 0: they rest on Gaussian noise; give privacy.delta above 0, for instance 1e-6"
"""Why a composition of pure events has none."""
_RATIO, _MOST = 2**0.25, 40  # of the numbers of records, or budgets, that are tried, and how many of them
_WHERE = "nuisances made of the plan's features (nuisance=auto or additive)"


def require_little_noise(plan: ComposedPlan, by_features: bool) -> None:
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
            f"intervals = true: {plan.covariates - plan.retained} of {plan.covariates} covariates would be left out, "
            "and may confound; name fewer in the domain, or leave intervals out"
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
        withheld: Whether it requested them, and what it released says that the propensity's noise is too large.
    """
    if withheld:
        return (
            f"the noise of its estimated propensity is above {GATE:g} by its released covariance, and then they would "
            "not hold"
        )
    if plan.budget is not None and plan.budget.delta == 0:
        return NO_DELTA
    if plan.arms > 2:
        return NO_INTERVALS_OF_ARMS
    if plan.known_propensity:
        return "it was fitted with second_stage.intervals=false; auto or true requests the numbers they rest on"
    requested = rebuilt(plan, intervals=True)
    if requested.screens:
        return f"its propensity is estimated; of {plan.covariates} covariates some would be left out, and may confound"
    if propensity_noise(requested) <= PLANNED:
        return (
            "its propensity is estimated; second_stage.intervals=true requests the numbers they rest on, about a fifth "
            "of mu^2, and they hold if the propensity's model is right"
        )
    return (
        f"its propensity is estimated, with a planned noise of {propensity_noise(requested):.2g}; above {PLANNED:g} "
        f"they would not hold{_from(requested)}"
    )


def _from(plan: ComposedPlan) -> str:
    """Return with how many records, and at which epsilon, the planned noise is within the limit, as words."""
    records, epsilon = least(plan.made_of)
    parts = [] if records is None else [f"about {records:,} records at this budget"]
    parts += [] if epsilon is None else [f"epsilon = {epsilon:g} with these records"]
    return f"; second_stage.intervals=true has some at {', or at '.join(parts)}" if parts else ""


@lru_cache(maxsize=256)
def least(facts: PlanFacts) -> tuple[int | None, float | None]:
    """Return the least number of records, and the least epsilon, at which a plan with intervals passes the limit.

    To within a fifth; None where there is none up to a thousand times as much.

    Args:
        facts: Of a plan with intervals and an estimated propensity.

    Example:
        >>> least(PlanFacts(1_500, PrivacyBudget(1.0, 1e-5), 6, overlap=0.1, intervals=True))
        (2600, 2.0)
    """
    factors = [_RATIO**k for k in range(1, _MOST + 1)]
    records = next((n for n in (_rounded(facts.n * factor) for factor in factors) if _passes(facts, n=n)), None)
    budget = facts.budget
    if budget is None:
        return records, None
    epsilons = (float(f"{budget.epsilon * factor:.2g}") for factor in factors)
    tried = (epsilon for epsilon in epsilons if epsilon <= 50)
    passes = (epsilon for epsilon in tried if _passes(facts, budget=PrivacyBudget(epsilon, budget.delta)))
    return records, next(passes, None)


def _passes(facts: PlanFacts, **changes: Any) -> bool:
    return propensity_noise(best_plan(replace(facts, **changes))) <= PLANNED


def _rounded(n: float) -> int:
    """Return n with two digits, rounded up."""
    unit = 10 ** max(math.floor(math.log10(n)) - 1, 0)
    return math.ceil(n / unit) * unit


class Lost(NamedTuple):
    """What the nuisances of a plan are expected to lose of their features, in residual deviations; public.

    Attributes:
        bias: What errors of one sign make of the average.
        variance: Of what errors of either sign make of it.
        kept: Share of its prior variance that the propensity keeps.
    """

    bias: float
    variance: float
    kept: float


def lost_of(
    plan: ComposedPlan, levels: Levels | None = None, treated: float | None = None, spread: float | None = None
) -> Lost:
    r"""Return what errors of both nuisances are expected to make of the average; nothing where the propensity is known.

    With :math:`\delta` the logit's error, that of a doubly robust mean is about
    :math:`E[\delta\,(\Delta m + (1 - 2 e)\,\Delta\tau)]`, hence

    .. math:: \sum_j (l_j l^m_j)^{1/2} + |1 - 2 \bar e| \sum_j (l_j l^\tau_j)^{1/2}, \qquad
        \sum_j r_j \big(r^m_j + (1 - 2 \bar e)^2 r^\tau_j\big), \qquad
        l = p\,(1 - w)^2,\ r = l + v w^2,\ w = \frac{p}{p + v}

    with the prior variance p and the noise v of a feature; a covariate without a feature loses all.

    Args:
        plan: The public plan.
        levels: Whether each covariate of the nuisances has two levels; None takes none.
        treated: Mean propensity, released; None takes what the plan expects.
        spread: Of a binary outcome the variance of residuals, in its squared range, in which a logit's error is as
            much smaller; None takes what the plan expects.
    """
    if plan.known_propensity:
        return Lost(0.0, 0.0, 1.0)
    two = [False] * (plan.covariates if plan.wide else plan.retained) if levels is None else levels
    features = all_features(two, plan.constants.kinds, plan.heads)
    heads = len(two) if plan.heads is None else plan.heads
    beyond = 1.0 if plan.heads is None else 1 - plan.constants.part_share(KINDS[0])
    unseen = beyond * (1 - float(held_shares(features[:1], heads, plan.covariates)))
    share, again = plan.treated if treated is None else treated, REMAINDERS in plan.shares.shares
    rarer = (logit_curvature(plan.treated) / logit_curvature(share)) ** 2  # of the logit's noise

    def of(regression: Regression, variance: float, times: float = 1.0) -> tuple[Tensor, Tensor, float]:
        """Return what is lost of each feature, all that it errs by, and the share of the prior that is kept."""
        prior = prior_variances(features, variance, plan.constants, 1e9, plan.heads, confounds=False)
        own = [(k, feature) for k, feature in enumerate(regression.basis.features) if feature in features]
        at, of_it = [features.index(feature) for _, feature in own], [k for k, _ in own]
        noise = times * regression.noise / regression.basis.feature_weights[1:][of_it]
        kept, errs = torch.zeros_like(prior), torch.zeros_like(prior)
        kept[at] = regression.prior[of_it] / (regression.prior[of_it] + noise)
        errs[at] = noise * kept[at].square()
        rest = prior.new_tensor([unseen * variance])
        lost = torch.cat([prior * (1 - kept) ** 2, rest])
        errors = lost + torch.cat([errs, 0 * rest])
        return lost, errors, float((prior * kept).sum() / prior.sum()) * (1 - unseen)

    propensity, e_errs, kept = of(plan.propensity(two), plan.constants.propensity_variance, rarer)
    unit = (_BINARY**2 if spread is None else spread) if plan.binary else 1.0
    varies = _BY_TIME if plan.follow_up and not plan.binary else unit
    outcome, m_errs = (varies * part for part in of(plan.outcome(two), plan.constants.outcome_variance)[:2])
    effect, t_errs = (part / unit for part in of(plan.effect(None if plan.wide else two), plan.head_variance)[:2])
    apart = 0.0 if share is None else abs(1 - 2 * share)
    seen = 1 - propensity.new_tensor([again and f.kind in LOOKED_FOR for f in features] + [False])
    bias = float(((propensity * outcome).sqrt() * seen).sum() + apart * (propensity * effect).sqrt().sum())
    return Lost(bias, float((e_errs * (m_errs + apart**2 * t_errs)).sum()), kept)


def hardly_adjusted(plan: ComposedPlan) -> str | None:
    """Return in one line why a plan with lines of a cohort would adjust for next to nothing; None where it does not.

    Args:
        plan: With lines.
    """
    if plan.lines is None or plan.known_propensity or plan.budget is None:
        return None
    kept, own = lost_of(plan).kept, plan.line_constants
    if kept < own.least_kept:
        return (
            f"no interval: at this budget the propensity's model keeps {kept:.0%} of what covariates are expected to "
            f"say of the treatment, so that the average would be hardly adjusted; give more records {_ELSE}"
        )
    missed = left_over_noise(plan) / own.most_missed
    if missed > 1:
        return (
            "no interval: at this budget noise hides whether squares and products of covariates decide who is treated, "
            f"so that the average would be hardly adjusted; give {math.ceil(plan.n * missed):,} records {_ELSE}"
        )
    return None


_ELSE = "or a larger epsilon; if treatment was drawn, state propensity:"


def left_over_noise(plan: ComposedPlan) -> float:
    r"""Return the planned noise of a coefficient of what is left over, in the logit of a propensity about one half.

    .. math:: \frac{2 R \sqrt{1 + 1/4}}{n\,\mu\, \bar h\, u}, \quad R = \sqrt p / 2, \quad u = .43

    with :math:`\bar h` = .2, and u the mean of a standard normal covariates' square or product times itself in its
    bound, from 3 to 12 covariates. Zero of a plan that does not look for it.

    Args:
        plan: Of a cohort, with lines.
    """
    if REMAINDERS not in plan.shares.shares or plan.budget is None:
        return 0.0
    moved = math.sqrt(_released(plan, REMAINDERS) / 2) * math.hypot(1, 0.5)
    return moved / (plan.mass * plan.shares.of(REMAINDERS) * EXPECTED.logit_curvature * _WITHIN)


_WITHIN = 0.43  # of a square or a product of normal covariates times itself in its bound, on average
NO_LINES_OF_PURE = "delta = 0: they are sums with Gaussian noise; give privacy.delta above 0, for instance 1e-6"
"""Why a composition of pure events has no lines."""


def planned_line(
    plan: ComposedPlan, outcome_range: float, scale: float | None = None, cells: int | None = None
) -> dict[str, float]:
    r"""Return the parts of the standard error to expect of a line, in outcome units: sampling, noise, nuisances.

    .. math:: \sigma_\varphi = \frac{\sigma_u}{\sqrt{\bar h}}, \quad \frac{\sigma_\varphi}{\sqrt n}, \quad
        \frac{2 C}{n \mu_1}, \quad 0.6\,\sigma_u \sum_j (l_j l_j')^{1/2}

    with the planned mean h of :math:`\pi (1 - \pi)`; of K > 2 equal arms that of one against the reference. A cell, one
    of K as large, has 1 / K of the records, and of its partition's part what counts leave. What the clip takes is not
    planned.

    Args:
        plan: With lines.
        outcome_range: Of the domain.
        scale: The residuals' deviation, if it is stated; None takes what the plan expects.
        cells: K, of a cell's line; None for the average's.
    """
    own, n = plan.line_constants, plan.mass
    residual = scale if scale is not None else outcome_range * (_BINARY if plan.binary else plan.residual_scale)
    held = 2 * logit_curvature(plan.treated) / plan.arms
    if plan.known_propensity and plan.treated is not None:
        held = plan.treated * (1 - plan.treated)
    deviation = residual / math.sqrt(held)
    clip = plan.line_clip * deviation
    if not plan.reaches_bounds:
        share = 0.5 if plan.treated is None else min(plan.treated, 1 - plan.treated)
        clip *= own.rarity(2 * share / plan.arms, plan.arms / (2 * share * (1 - share)))
    partitions = 0 if plan.cells is None else len(plan.cells.partitions)
    rest = 1 - own.tails - own.spreads * bool(partitions) - own.overlap * (not plan.known_propensity)
    part = rest / (1 + len(set(plan.requested_lines) - {POLICIES}) + partitions)
    size = n
    if cells is not None:
        part, size = part * (1 - own.counts), n / cells
    noise = 2 * clip / (size * plan.line_step(LINE_SUMS) * math.sqrt(part))
    found = lost_of(plan)
    lost = residual * math.hypot(own.lost * found.bias, math.sqrt(found.variance))
    parts = {"sampling": deviation / math.sqrt(size), "noise": noise, "nuisances": lost}
    return {name: value for name, value in parts.items() if value}


_BINARY = 0.4  # deviation of a binary outcome's residuals that plans expect, in its range
_BY_TIME = 0.3  # of log hazards' variance: that of mean times up to a horizon over residuals' (.16 to .41, exponential)


NOT_REQUESTED = "none were requested"
"""Why a composition that could have lines has none."""


def why_no_lines(plan: ComposedPlan) -> str:
    """Return in one line why a release has no lines; see ``hardly_adjusted``."""
    if plan.budget is not None and plan.budget.delta == 0:
        return NO_LINES_OF_PURE
    return hardly_adjusted(rebuilt(plan, lines=())) or NOT_REQUESTED


_QUANTILES = ("centre", OUTCOME, RESIDUAL)
_LINES = 64  # numbers of lines at most
_FEW = {WEIGHTS: 1, COUNTS: 3, CORRECTION: 2, AVERAGE: 1, LINE_SQUARES: 1, LINE_SUMS: _LINES}  # that steps release
_CURVATURES = " curvatures"
_MOST_WEIGHTS = 100_000  # of a network, whose width is the user's


def require_noise(plan: ComposedPlan) -> None:
    """Refuse a budget of which a step's noise would be so large that its grid would matter.

    Each step would refuse it by itself, when those before it are paid for. Sizes are those of covariates without two
    levels, the most that a step can have.

    Args:
        plan: The public plan; nothing is refused without privacy.

    Raises:
        InputError: Names the step.
    """
    if not math.isfinite(plan.shares.total):
        return
    for step in plan.shares.shares:
        try:
            _require(plan, step)
        except InputError as error:
            raise InputError(f"privacy.epsilon: too small for step {step!r} on n = {plan.n}: {error}") from error


def _require(plan: ComposedPlan, step: str) -> None:
    whole = plan.shares.event(step)
    pure = isinstance(whole, PureEvent)
    if step in _QUANTILES and not pure:
        mechanism_of(plan.shares.event(step, count=plan.constants.quantile_levels), 1.0, 1).released_scale(1)
    elif step == WINDOWS:
        size = 2 * plan.numeric
        mechanism_of(plan.shares.event(step, count=HALVINGS), 1.0, size).released_scale(size)
    elif step in (PROGNOSTIC, MODIFIERS, PAIRS):
        mechanism_of(plan.shares.event(step, CENTRE), 1.0, 1).released_scale(1)
    elif step in _QUANTILES or step == SCREENING:
        return  # choices, whose noise is on no grid
    elif step in ("moments", CENSORING) or step in _FEW or step in (MATRIX, REMAINDERS) or step.endswith(_CURVATURES):
        size = _released(plan, step)
        mechanism_of(whole, 1.0, size).released_scale(size)
    elif isinstance(whole, PureEvent):
        p, sums = _features(plan, step), plan.by_sums and step == "effect"
        epsilon = whole.epsilon * (1 if sums else SOLVER_SHARE)
        KNormMechanism(epsilon, 1.0, math.inf if sums else 2.0).released_scale(p)
    else:
        gradient_rounding(plan.shares.event(step, 0.5, plan.steps), _features(plan, step))


def _released(plan: ComposedPlan, step: str) -> int:
    """Return how many numbers a step's one event releases."""
    if step == "moments":
        return 2 * (plan.covariates if plan.windows else plan.retained)
    if step == CENSORING:
        return plan.follow_up
    if step in _FEW:
        return _FEW[step]
    if step == REMAINDERS:
        rich = plan.retained if plan.heads is None else plan.heads
        return 2 * len(all_features([False] * rich, LOOKED_FOR))
    p = _features(plan, "effect" if step == MATRIX else step.removesuffix(_CURVATURES))
    return p * (p + 1) // 2


def _features(plan: ComposedPlan, regression: str) -> int:
    """Return how many coefficients a regression has."""
    if regression == EFFECT_UNITS:
        return _MOST_WEIGHTS
    if regression == "effect":
        return plan.effect().basis.dimension * (plan.arms - 1)
    if regression == "outcome":
        return plan.outcome().basis.dimension
    return plan.propensity().basis.dimension
