"""Public facts that a composition is planned by, and the numbers that follow from them alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from torch import Tensor

from torchdpcate.composition.constants import (
    EXPECTED,
    PlanConstants,
    RuleConstants,
    effect_curvature,
    line_constants,
    of_kind,
)
from torchdpcate.composition.priors import Filling, Sign, gaussian_filling, pure_filling, sampling_filling
from torchdpcate.composition.pure_fits import NOISE_SHARE, OBJECTIVE, PUBLIC_SUMS, SUMS
from torchdpcate.composition.steps import COUNT_VARIANCE, HALVINGS, QUANTILES, total_mu
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.averages import OVER, POLICIES, REQUESTS, tilts_of

EFFECT, ARMS, PURE = "effect", "arms", "pure"
"""Kinds of plans; windows, chosen products, hidden units and reduced rules are those of ``EFFECT`` alone."""
NO_INTERVALS_OF_ARMS = "intervals of effects by covariates compare two arms; the average of each arm has one"
"""Why a composition of more than two arms has none."""


@dataclass(frozen=True)
class PlanFacts:
    """What a plan is made of: n, the budget, facts of the domain, and what a user chose; no record is looked at.

    Args:
        n: Number of records.
        budget: (epsilon, delta); None without privacy.
        covariates: Number of encoded covariates q.
        overlap: Public bound of the propensity.
        known_propensity: Whether the propensity is a public fact, on which nothing is spent.
        constant_only: Whether the effect is to be one number.
        constants: Constants of the plan; those of rules request the effect's sign.
        intervals: Whether the numbers are requested that intervals rest on.
        binary: Whether the outcome has two values: its regression is logistic, and no residual is clipped.
        count: Whether the outcome is a count: its regression may have a logarithmic link.
        numbers: Number of covariates that have more than two levels; None: all.
        treated: Public share of the treated, or the one propensity that is known; None expects about half.
        part: Share of the budget that the steps have together, of mu^2, or of epsilon in a plan of pure events; the
            rest is for what follows on their answers.
        arms: Number of arms.
        weight: Mean weight of the records, as it is expected, or as it was released; None where all count alike.
        follow_up: Cells of the histogram that a curve of censoring is made of; 0 where outcomes are known.
        hidden: Whether the effect may have features of hidden units, which need networks.
        sites: Number of sites that have the records, and add noise to sums of their own each.
        lines: What is requested beside the average of scores (``REQUESTS`` of lines); None: no lines.
        cells: Public partitions whose cells have lines; None: none.
        cost: Of a treatment by the rule, or the policies, whose values are requested, outcome units.
        cutoff: Gain beyond the cost above which that rule treats; None: a share of public people says.

    Raises:
        InputError: No records, no covariates, or lines of no known name; delta = 0, or intervals, where plans of this
            kind do not have it.
    """

    n: int
    budget: PrivacyBudget | None
    covariates: int
    overlap: float = 0.05
    known_propensity: bool = False
    constant_only: bool = False
    constants: PlanConstants = field(default_factory=PlanConstants)
    intervals: bool = False
    binary: bool = False
    count: bool = False
    numbers: int | None = None
    treated: float | None = None
    part: float = 1.0
    arms: int = 2
    weight: float | None = None
    follow_up: int = 0
    hidden: bool = False
    sites: int = 1
    lines: tuple[str, ...] | None = None
    cells: Subgroups | None = None
    cost: float = 0.0
    cutoff: float | None = 0.0

    def __post_init__(self) -> None:
        if self.n < 1 or self.covariates < 1:
            raise InputError(f"n = {self.n}, covariates = {self.covariates}: give at least one of each")
        if not set(self.requested_lines) <= {*REQUESTS, *tilts_of(self.requested_lines)}:
            raise InputError(f"lines = {list(self.requested_lines)}: give some of {', '.join(REQUESTS)}, beta:a:b")
        self._check_policies()
        if self.kind == ARMS and self.budget is not None and self.budget.delta == 0:
            raise InputError(
                f"delta = 0: effects of {self.arms} arms have Gaussian steps, which are only (epsilon, delta)-private; "
                "give privacy.delta above 0, for instance 1e-6"
            )
        if self.intervals and self.kind == ARMS:
            raise InputError(f"intervals = true: {NO_INTERVALS_OF_ARMS}; leave intervals=auto")
        if self.intervals and self.kind == PURE:
            raise InputError(
                "intervals = true: they rest on Gaussian noise; give privacy.delta above 0, for instance 1e-6, or "
                "leave intervals=auto"
            )

    def _check_policies(self) -> None:
        """Refuse values of treating public cells where there are none, and cells whose names would be those of values.

        Raises:
            InputError: So it is.
        """
        if POLICIES in self.requested_lines and self.cells is None:
            raise InputError(
                f"lines = {list(self.requested_lines)}: {POLICIES} treat exactly the people of one public cell; give "
                "second_stage.cells, as [{sex: true}, {age: [40, 60]}]"
            )
        names = set() if self.cells is None else set(self.cells.labels)
        clash = sorted(names & {f"{name}{over}" for name in names for over in OVER})
        if clash:
            raise InputError(f"cells: {clash[0]!r} is the name of a policy's value; call its level otherwise")

    @property
    def kind(self) -> str:
        """Kind of the plan: its events are Gaussian, but those of ``PURE``."""
        if self.arms > 2:
            return ARMS
        return PURE if self.budget is not None and self.budget.delta == 0 else EFFECT

    @property
    def requested_lines(self) -> tuple[str, ...]:
        """What is requested of scores beside their average."""
        return () if self.lines is None else self.lines

    @property
    def mass(self) -> float:
        """What sums over the records are divided by: n, or the sum of their weights, as far as it is known."""
        return self.n if self.weight is None else self.n * self.weight

    @property
    def reaches_bounds(self) -> bool:
        """Whether outcomes often are at their bounds: those of two values, and those by a horizon."""
        return self.binary or self.follow_up > 0

    @property
    def looks_again(self) -> bool:
        """Whether squares and products that the nuisances left over are looked for, once both are fitted."""
        return self.lines is not None and not self.known_propensity and not self.intervals and self.arms == 2

    @property
    def line_share(self) -> float:
        """Part of mu^2 that lines have, with that of a second look at the nuisances."""
        of = line_constants()
        return 0.0 if self.lines is None else of.share + of.remainders * self.looks_again

    @property
    def estimates_propensity(self) -> bool:
        """Whether intervals are requested beside a propensity that is estimated."""
        return self.intervals and not self.known_propensity

    @property
    def numeric(self) -> int:
        """Number of covariates that have more than two levels."""
        return self.covariates if self.numbers is None else self.numbers

    @property
    def many(self) -> bool:
        """Whether there are more covariates than a plan keeps: few are requested, for all cost more than they gain."""
        return self.covariates > self.constants.most

    @property
    def effect_kinds(self) -> str:
        """Kinds of features that the effect may have."""
        kinds, own = self.constants.kinds, self.constants.interval_kinds
        return "".join(kind for kind in kinds if kind in own) if self.intervals else kinds

    @cached_property
    def priors(self) -> PlanConstants:
        """The constants, with the prior variances that effects on this kind of outcome have, in units of its S^2."""
        return self.constants.of_binary() if self.binary else self.constants

    @property
    def rule(self) -> RuleConstants | None:
        """These constants, where the effect is estimated for its sign."""
        return self.priors if isinstance(self.priors, RuleConstants) else None

    @cached_property
    def rules(self) -> RuleConstants:
        """Constants of rules with such prior variances, whatever the effect is estimated for."""
        return self.rule or (RuleConstants().of_binary() if self.binary else RuleConstants())


@dataclass(frozen=True, kw_only=True)
class PlanNumbers(PlanFacts):
    """Numbers of a plan that follow from its facts, however many covariates are retained.

    Attributes:
        way: How the effect is found: by one objective, or by sums.
        reduced: Whether it is a rule's without an outcome regression.
        total: What the steps of nuisances and effect divide: the Gaussian mu that costs all of their part of the
            budget, infinite without privacy; or epsilon of pure events.
        size: N mu, on which its numbers depend, or that of Gaussian events with as much noise; at most 1e9.
        fill: How feature weights are found.
        quantiles: Steps that find a private quantile.
        windows: Whether covariates are scaled by private windows.
        pairs: How many products of a covariate's slope with others are chosen for the effect: see ``PairsAbout``.
        units: Whether the effect has features of hidden units.
        one_propensity: Whether a propensity that is not known is estimated as one number.
        propensity_steps: Steps that fit the propensity, where it is not known.
        propensity_slope: Bound of a record's gradient in a regression of the propensity.
        log_link: Whether the outcome regression is one of logarithms: not where intervals would count its noise, nor by
            pure events, for no objective can be perturbed of losses whose curvature has no bound.
        huber_quantile: Quantile of absolute residuals at which they are clipped.
        inside: Planned share of residuals that are not clipped.
        sampling: Planned variance of a record's clipped residual, in squared scales.
        residual_scale: Residual scale to expect, in outcome ranges; that of a binary outcome is the range.
        steps: Steps of each regression.
        burn_in: Steps among them that only move to the solution.
        step_size: Of a step, over the inverse of the curvature.
        momentum: Part of the last move that a step repeats.
        effect_curvature: Planned mean curvature of the effect's features, over their weights.
        effect_size: Standard deviation that parts of effects on this kind of outcome have, in units of S, over others'.
        head_variance: Prior variance of effects on this kind of outcome, in units of S^2.
        shrinking_variance: That by which the effect is shrunk.
        shrinks: Whether coefficients are shrunk by their noise; those of a rule are not below some n mu.
        noise_inflation: Variance of the effect's estimates by noise, over that of one event of all that its step has.
        sign: What the effect's sign is planned by.
        interval_spread: Clip of the mean's correction, in standard deviations of normal residuals.
        interval_clip: Clip of the effect in the average, in its planned standard deviations: wider with less noise.
        line_groups: How many groups by released effect have lines; 1: none.
        alone: Whether the effect is one number, on request or as no more can be learnt; its plan is the same.
    """

    way: str
    reduced: bool
    total: float
    size: float
    fill: Callable[[Tensor, float, float], Filling]
    quantiles: tuple[str, ...]
    windows: bool
    pairs: int
    units: bool
    one_propensity: bool
    propensity_steps: tuple[str, ...]
    propensity_slope: float
    log_link: bool
    huber_quantile: float
    inside: float
    sampling: float
    residual_scale: float
    steps: int
    burn_in: int
    step_size: float
    momentum: float
    effect_curvature: float
    effect_size: float
    head_variance: float
    shrinking_variance: float
    shrinks: bool
    noise_inflation: float
    sign: Sign
    interval_spread: float
    interval_clip: float
    line_groups: int
    alone: bool

    @property
    def by_sums(self) -> bool:
        """Whether the effect is one event of sums."""
        return self.way != OBJECTIVE

    @property
    def noise_share(self) -> float:
        """Share of a step that is left for its noise."""
        return NOISE_SHARE if self.kind == PURE else 1.0

    @property
    def constant_variance(self) -> float:
        """Prior variance of the effect's constant, in units of S^2."""
        return self.rule.constant_variance if self.rule else math.inf

    def unit_noise(self, own: float, weight: float, inside: float | None = None, slope: float = 1.0) -> float:
        """Return the variance of a function of weight one: sensitivity 2 slope, curvature n inside weight.

        Without privacy it is that by sampling; of a perturbed objective that of one coefficient.

        Args:
            own: Mu of the step, or its epsilon.
            weight: Curvature over the features' weights.
            inside: Of all records, how many have a curvature; None takes the plan's.
            slope: Bound of a record's gradient.
        """
        if self.budget is None:
            return self.unit_sampling(weight, inside)
        unit = 2 * slope / (self.noise_share * own * self.mass * (inside or self.inside) * weight)
        return (2 if self.kind == PURE else 1) * unit**2

    def unit_sampling(self, weight: float, inside: float | None = None) -> float:
        """Return the variance of a feature's part of the function by sampling, whatever its weight."""
        return self.sampling / (self.mass * (inside or self.inside) ** 2 * weight)


def values_of(facts: PlanFacts) -> dict[str, Any]:
    """Return the values of a plan's fields by their names."""
    return {f.name: getattr(facts, f.name) for f in fields(facts)}


def numbers_of(facts: PlanFacts, way: str = OBJECTIVE, reduced: bool = False, alone: bool = False) -> PlanNumbers:
    """Return the numbers that follow from public facts.

    Args:
        facts: What the plan is made of.
        way: How a rule's effect is found by pure events: ``OBJECTIVE``, ``SUMS``, or ``PUBLIC_SUMS`` for sums whose
            constants are all public.
        reduced: Whether a rule by Gaussian events is to be without an outcome regression, with a propensity of one
            number, and all covariates.
        alone: Whether the effect is to be one number.
    """
    constants, rule, pure = facts.constants, facts.rule, of_kind(PURE)["pure"] if facts.kind == PURE else {}
    total = _total(facts)
    size = min(facts.mass * (total / pure["equivalent"] if pure else total), 1e9)
    if pure:  # at small n an outcome regression would cost a rule's sign more than it gains
        reduced = way != OBJECTIVE or (rule is not None and not facts.binary and size < pure["reduced_below"])
    shrinks, head = rule is None or size >= rule.linear_below, facts.priors.head_variance
    shrinking = pure["head"] * head if pure else head
    unshrunk = facts.rules.reduced_variance if reduced and not pure else facts.rules.linear_variance
    # each of the K - 1 functions of arms is planned as that of two alike ones is
    of_arms = 2 * EXPECTED.effect_curvature / math.sqrt(2 * facts.arms * (facts.arms - 1))
    quantile = _huber_quantile(facts, size)
    spread = next(spread for below, spread in EXPECTED.spreads if size < below)
    least, wide = line_constants().group_size, facts.known_propensity * of_kind(EFFECT)["alone"] * facts.covariates
    alone = alone or facts.constant_only or (facts.kind == EFFECT and rule is None and size < max(least, wide))
    rich = facts.kind == EFFECT and not alone and rule is None
    pairs = rich and facts.covariates > 1 and facts.sites == 1  # a private choice is no sum, which sites could add up
    units, start = rich and facts.hidden and facts.budget is not None and facts.weight is None, of_kind(EFFECT)["units"]
    groups = "groups" in facts.requested_lines and not alone and size >= least
    each = tuple(f"propensity {arm}" for arm in range(1, facts.arms + 1))
    return PlanNumbers(
        **values_of(facts),
        **_motion(facts, size, reduced),
        way=way,
        reduced=reduced,
        total=total,
        size=size,
        fill=pure_filling if pure else sampling_filling if facts.budget is None else gaussian_filling,
        quantiles=() if facts.binary or way == PUBLIC_SUMS else QUANTILES[:2] if reduced else QUANTILES,
        windows=not reduced and _has_windows(facts, total),
        pairs=constants.pairs if pairs and size >= constants.pair_size else 0,
        units=units and size >= start["size"] and facts.n >= start["records"],
        one_propensity=way != OBJECTIVE if pure else reduced,
        propensity_steps=each if facts.kind == ARMS else ("propensity",),
        propensity_slope=1 - facts.overlap,
        log_link=facts.count and not facts.estimates_propensity and not pure,
        huber_quantile=quantile,
        inside=1.0 if facts.binary else min(quantile + EXPECTED.inside, (1 + quantile) / 2),
        sampling=EXPECTED.sampling_binary if facts.binary else EXPECTED.sampling,
        residual_scale=1.0 if facts.binary else EXPECTED.residual_scale,
        effect_curvature=of_arms if facts.kind == ARMS else effect_curvature(facts.treated, facts.known_propensity),
        effect_size=math.sqrt(constants.binary_part) if facts.binary else 1.0,
        head_variance=head,
        shrinking_variance=shrinking,
        shrinks=shrinks,
        noise_inflation=pure["noise_inflation"] if pure else EXPECTED.noise_inflation,
        sign=_sign(facts, way, reduced, shrinks, shrinking if shrinks else unshrunk),
        interval_spread=spread,
        interval_clip=constants.interval_clip * spread / EXPECTED.spreads[0][1],
        line_groups=line_constants().groups if groups else 1,
        alone=alone,
    )


def _total(facts: PlanFacts) -> float:
    """Return what the steps divide; of several sites mu is that of the noise in their total, which has each one's."""
    if facts.kind == PURE:
        assert facts.budget is not None
        return facts.budget.epsilon * facts.part
    return total_mu(facts.budget) * math.sqrt(facts.part * (1 - facts.line_share) / facts.sites)


def _huber_quantile(facts: PlanFacts, size: float) -> float:
    low, high = facts.constants.huber_quantiles
    quantile = float(min(max(low + (high - low) * math.log(size / 100) / math.log(300), low), high))
    if not facts.intervals:
        return quantile
    # the clip weighs records by how likely it leaves them alone: much data see that, so it opens
    start, end = EXPECTED.wide_sizes
    opened = min(max(math.log(size / start) / math.log(end / start), 0.0), 1.0)
    return quantile + opened * (EXPECTED.wide_quantile - quantile)


def _motion(facts: PlanFacts, size: float, reduced: bool) -> dict[str, Any]:
    """Return the steps of each regression: at large n mu they have momentum, unless the user gave other ones."""
    constants, (low, high) = facts.constants, facts.constants.step_bounds
    steps = round(min(max(constants.steps * math.sqrt(size / 1000), low), high))
    burn_in, step_size, momentum = constants.burn_in, constants.step_size, 0.0
    for large in of_kind(EFFECT)["large"]:
        if size >= large["from"] and not reduced and not constants.own_steps:
            steps, burn_in, step_size, momentum = (large[name] for name in ("steps", "burn_in", "size", "momentum"))
    if facts.kind == PURE:  # one event a regression
        steps, burn_in = 1, 0.0
    elif reduced:
        steps = facts.rules.reduced_steps
    return {"steps": steps, "burn_in": round(burn_in * steps), "step_size": step_size, "momentum": momentum}


def _has_windows(facts: PlanFacts, mu: float) -> bool:
    """Return whether the noise of the ranks of the windows' quantiles is small.

    It may be twice as large where the propensity is estimated: what a plan leaves out confounds there.
    """
    constants = facts.constants
    if facts.kind != EFFECT or not constants.window_rank or facts.estimates_propensity:
        return False
    own = mu * math.sqrt(constants.window_share)
    noise = 0.0 if facts.budget is None else rank_noise(facts.numeric, own, facts.mass)
    most = constants.window_rank * (1 if facts.known_propensity else 2)
    return noise <= most and facts.covariates <= EXPECTED.most_wide


def _sign(facts: PlanFacts, way: str, reduced: bool, shrinks: bool, variance: float) -> Sign:
    """Return what the effect's sign is planned by, of features of this prior variance."""
    rule, rules = facts.rule, facts.rules
    if facts.kind == PURE:  # over effects of the sizes that rules expect, by a choice of covariates that finds all
        limits = {OBJECTIVE: 1.0, SUMS: rules.sums_correlation, PUBLIC_SUMS: rules.public_sums_correlation}
        sizes = rules.effect_sizes if way != OBJECTIVE or (rule and rule.sums_below) else (1.0,)
        return Sign(rules, shrinks, variance, 1.0, of_kind(PURE)["pure"]["sign_noise"], limits[way], sizes)
    found, sizes = (1.0, (1.0,)) if facts.many else (rules.found_share, rules.effect_sizes)
    noise, limit = (rules.reduced_noise, rules.reduced_correlation) if reduced else (EXPECTED.nuisances, 1.0)
    return Sign(rules, shrinks, variance, found, noise, limit, sizes)


def rank_noise(numbers: int, mu: float, n: float) -> float:
    r"""Return the standard deviation of the noise of a quantile's rank, over n.

    .. math:: \sqrt{\tfrac43\, q \cdot 8} / (n \mu)

    One record moves the two counts of each of q covariates by one, as ``turned`` measures them.

    Args:
        numbers: q, of covariates that have windows.
        mu: Of the step.
        n: Of records.

    Example:
        >>> round(rank_noise(22, 0.0657, 4_000), 3)
        0.058
    """
    return math.sqrt(COUNT_VARIANCE * numbers * HALVINGS) / (mu * n)
