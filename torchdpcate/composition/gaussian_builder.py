"""How the plan of an effect by Gaussian events is found: how rich it can be, by which steps, at which shares."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

from torchdpcate.composition.constants import (
    EXPECTED,
    PlanConstants,
    RuleConstants,
    effect_curvature,
    line_constants,
    logit_curvature,
    of_kind,
)
from torchdpcate.composition.plan import (
    EFFECT,
    ComposedPlan,
    PlanFacts,
)
from torchdpcate.composition.priors import (
    Request,
    Sign,
    gaussian_filling,
    held_shares,
    sampling_filling,
)
from torchdpcate.composition.pure_fits import OBJECTIVE
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
    total_mu,
)
from torchdpcate.errors import InputError
from torchdpcate.fit.weighted_basis import all_features

_PLAIN = "12"  # kinds of features of nuisances that are looked at again

WEIGHT_SHARES = {Shares: 0.01, EpsilonShares: 0.03}
"""Share of the sum of the weights, of mu^2 and of epsilon: its noise is 10 / mu, or has the scale 33 / epsilon."""

CENSORING_SHARES = {Shares: 0.05, EpsilonShares: 0.1}
"""Share of the histogram that a curve of censoring is made of."""


@dataclass(frozen=True)
class Builder(PlanFacts):
    """Finds the numbers of a plan of Gaussian events; budgets of steps are shares of mu^2.

    Args:
        asks_reduced: Whether a rule is to be reduced: without an outcome regression, with a propensity of one number,
            and all covariates.

    Raises:
        InputError: As ``PlanFacts``; delta = 0, or what this kind of plan does not have.
    """

    kind: ClassVar[str] = EFFECT
    way: ClassVar[str] = OBJECTIVE

    asks_reduced: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is not None and self.budget.delta == 0:
            raise InputError(
                f"delta = 0: no Gaussian event of a plan of kind {self.kind} has it; give privacy.delta above 0, for "
                "instance 1e-6, or use learner=r (RLearner), which has pure ones"
            )

    def build(self) -> ComposedPlan:
        """Return the plan: its numbers are those below, and attributes of their names."""
        own = self.own_numbers()
        if self.weight is not None:
            own["shares"] = beside_weights(self.shares, self.follow_up > 0)
        if self.lines is not None:
            own["shares"] = beside_lines(own.get("shares", self.shares), self.looks_again)
        own["shares"] = replace(own.get("shares", self.shares), sites=self.sites)
        return ComposedPlan(**{f.name: getattr(self, f.name) for f in fields(ComposedPlan) if f.name not in own}, **own)

    def own_numbers(self) -> dict[str, Any]:
        """Return numbers of the plan that no other one follows from."""
        spread = next(spread for size, spread in EXPECTED.spreads if self.size < size)
        return {
            "propensity_steps": ("propensity",),
            "log_link": self.count and not self.estimates_propensity,  # else intervals count its noise
            "residual_scale": 1.0 if self.binary else EXPECTED.residual_scale,
            "burn_in": round((self._large["burn_in"] if self._large else self.constants.burn_in) * self.steps),
            "step_size": self._large["size"] if self._large else self.constants.step_size,
            "momentum": self._large["momentum"] if self._large else 0.0,
            "effect_size": math.sqrt(self.constants.binary_part) if self.binary else 1.0,
            "noise_inflation": EXPECTED.noise_inflation,
            "interval_spread": spread,
            "interval_clip": self.constants.interval_clip * spread / EXPECTED.spreads[0][1],  # wider with less noise
        }

    def best(self) -> ComposedPlan:
        """Return the plan of less planned regret: of a rule at small n mu it may be reduced.

        What is left out would cost its effect more than it gains.
        """
        full = self.build()
        if not self._may_be_reduced:
            return full
        reduced = replace(self, asks_reduced=True).build()
        return reduced if reduced.planned_correlation() > full.planned_correlation() else full

    def may(self, what: str) -> bool:
        """Whether such a plan may have something, by the file of its constants."""
        return what in of_kind(self.kind)["may"]

    # -- sizes and priors

    @cached_property
    def mu(self) -> float:
        """The Gaussian that costs all of the steps' part of the budget; infinite without privacy.

        Of several sites that of the noise in their total, which has each one's.
        """
        own = self.part if self.lines is None else self.part * (1 - shares_of_lines(self.looks_again))
        return total_mu(self.budget) * math.sqrt(own / self.sites)

    @property
    def looks_again(self) -> bool:
        """Whether squares and products that the nuisances left over are looked for, once both are fitted."""
        needed = self.lines is not None and not self.known_propensity and not self.intervals
        return needed and self.arms == 2 and self.covariates > 0

    @property
    def size(self) -> float:
        return min(self.mass * self.mu, 1e9)

    @cached_property
    def _priors(self) -> PlanConstants:
        """The constants, with the prior variances that effects on this kind of outcome have, in units of its S^2."""
        return self.constants.of_binary() if self.binary else self.constants

    @property
    def _rule(self) -> RuleConstants | None:
        return self._priors if isinstance(self._priors, RuleConstants) else None

    @cached_property
    def _rules(self) -> RuleConstants:
        """Those of rules with such variances, of an effect's plan too."""
        return self._rule or (RuleConstants().of_binary() if self.binary else RuleConstants())

    @property
    def head_variance(self) -> float:
        return self._priors.head_variance

    @property
    def shrinking_variance(self) -> float:
        return self.head_variance

    @property
    def _constant_variance(self) -> float:
        """Prior variance of the effect's constant, in units of S^2."""
        return self._rule.constant_variance if self._rule else math.inf

    @property
    def _many(self) -> bool:
        # of more covariates than a plan keeps few are requested: on generated data all of them cost more than they gain
        return self.covariates > self.constants.most

    @property
    def shrinks(self) -> bool:
        """Whether coefficients are shrunk by their noise; those of a rule are not below some n mu."""
        return self._rule is None or self.size >= self._rule.linear_below

    @property
    def reduced(self) -> bool:
        return self.asks_reduced

    @property
    def _may_be_reduced(self) -> bool:
        rule = self._rule
        if rule is None or not self.may("reduced") or self.budget is None or self._many:
            return False
        if self.binary or self.intervals or self.constant_only:
            return False
        return self.size < min(rule.reduced_below, rule.linear_below)

    @property
    def one_propensity(self) -> bool:
        return self.reduced

    # -- records, as they are expected

    @cached_property
    def huber_quantile(self) -> float:
        low, high = self.constants.huber_quantiles
        quantile = float(min(max(low + (high - low) * math.log(self.size / 100) / math.log(300), low), high))
        if not self.intervals:
            return quantile
        # the clip weighs records by how likely it leaves them alone: much data see that, so it opens
        start, end = EXPECTED.wide_sizes
        opened = min(max(math.log(self.size / start) / math.log(end / start), 0.0), 1.0)
        return quantile + opened * (EXPECTED.wide_quantile - quantile)

    @property
    def inside(self) -> float:
        if self.binary:
            return 1.0
        return min(self.huber_quantile + EXPECTED.inside, (1 + self.huber_quantile) / 2)

    @property
    def sampling(self) -> float:
        return EXPECTED.sampling_binary if self.binary else EXPECTED.sampling

    @property
    def effect_weight(self) -> float:
        return effect_curvature(self.treated, self.known_propensity)

    @property
    def effect_curvature(self) -> float:
        return self.effect_weight

    @property
    def propensity_slope(self) -> float:
        """One less the overlap."""
        return 1 - self.overlap

    # -- steps

    @property
    def steps(self) -> int:
        if self.reduced and self._rule:
            return self._rule.reduced_steps
        if self._large:
            return int(self._large["steps"])
        low, high = self.constants.step_bounds
        return round(min(max(self.constants.steps * math.sqrt(self.size / 1000), low), high))

    @property
    def _large(self) -> dict[str, float] | None:
        """Numbers of the steps at large n mu, which have momentum, unless the user gave other ones."""
        rows: tuple[dict[str, float], ...] = of_kind(EFFECT)["large"]
        reached = [row for row in rows if self.size >= row["from"]]
        return reached[-1] if reached and not self.reduced and not self.constants.own_steps else None

    @property
    def quantiles(self) -> tuple[str, ...]:
        return () if self.binary else QUANTILES[:2] if self.reduced else QUANTILES

    @cached_property
    def retained(self) -> int:
        if self.reduced or self.sites > 1:  # a private choice is no sum, which sites could add up
            return self.covariates
        return self.best_retained()

    def best_retained(self) -> int:
        """Return the number of covariates of least expected error, the r-th one's weight being 1/r.

        With all covariates kept instead, and the effect as requested, the mean logarithm of the squared error changed
        by .17 (standard error .12) in 100 settings of 6 to 12 covariates on random laws, 23 November 2026.
        """
        most, q = min(self.covariates, self.constants.most), self.covariates
        if self.constant_only:
            return most
        if self.budget is None:
            return q
        return min(range(1, most + 1), key=self._error_of if self.shrinks else self._regret_of)

    def _error_of(self, k: int) -> float:
        """Return the expected squared error of the effect of k covariates, over that of no effect."""
        noise = self._unit_noise(self._effect_budget(k), self.effect_weight)
        return self._error(self._ask(self._priors.choice_variance, noise), k)

    def _error(self, request: Request, k: int) -> float:
        """Return the expected squared error of a function of k covariates, over that of none."""
        features = all_features([False] * k, self.constants.kinds)
        prior = request.priors(features) * held_shares(features, k, self.covariates)
        return request.fill(prior, request.noise, math.inf).error - float(prior.sum())

    def _regret_of(self, k: int) -> float:
        """Return what falls with the expected regret of the sign of an effect of k covariates."""
        return -self._correlation(self._unshrunk(k), k)

    @cached_property
    def windows(self) -> bool:
        """Whether the noise of the ranks of the windows' quantiles is small.

        It may be twice as large where the propensity is estimated: what a plan leaves out confounds there.
        """
        constants = self.constants
        if not (constants.window_rank and self.may("windows")) or self.reduced or self.estimates_propensity:
            return False
        mu = self.mu * math.sqrt(constants.window_share)
        noise = 0.0 if self.budget is None else rank_noise(self._numbers, mu, self.mass)
        most = constants.window_rank * (1 if self.known_propensity else 2)
        return noise <= most and self.covariates <= EXPECTED.most_wide

    @property
    def choices(self) -> dict[str, int]:
        """How many covariates each step chooses, by step.

        A wide plan chooses half of those that its effect has for the outcome, which have features of all kinds in the
        nuisances, and the others for the effect: what tells of the outcome often changes the effect, in ways that no
        slope or hump of the effect shows.
        """
        if self.retained == self.covariates:
            return {}
        if not self.windows:
            return {SCREENING: self.retained}
        if self.constant_only or not self.may("modifiers"):
            return {PROGNOSTIC: self.retained}
        heads = (self.retained + 1) // 2
        return {PROGNOSTIC: heads, **({MODIFIERS: self.retained - heads} if self.retained > heads else {})}

    @property
    def pairs(self) -> int:
        may = self.may("pairs") and not self.constant_only and self._rule is None and self.covariates > 1
        may = may and self.sites == 1  # see retained
        return self.constants.pairs if may and self.size >= self.constants.pair_size else 0

    @property
    def units(self) -> bool:
        if not self.hidden or not self.may("units") or self.constant_only or self._rule is not None:
            return False
        return self.budget is not None and self.weight is None and self.size >= self._of_units["size"]

    @property
    def _of_units(self) -> dict[str, float]:
        found: dict[str, float] = of_kind(EFFECT)["units"]
        return found

    @property
    def _numbers(self) -> int:
        return self.covariates if self.numbers is None else self.numbers

    @property
    def line_groups(self) -> int:
        """Groups by effect that have lines: none where the effect is one number, or n mu is small."""
        of = line_constants()
        requested = self.lines is not None and "groups" in self.lines and not self.constant_only
        return of.groups if requested and self.size >= of.group_size else 1

    # -- shares

    @cached_property
    def shares(self) -> Shares:
        if not (self.reduced and self._rule):
            return Shares(self.mu, self._shares(tuple(self.choices)))
        rule = self._rule
        shares = dict.fromkeys(QUANTILES[:2], rule.reduced_quantile_share) | {"moments": rule.reduced_moment_share}
        if not self.known_propensity:
            shares["propensity"] = rule.reduced_propensity_share
        return Shares(self.mu, shares | {"effect": 1 - math.fsum(shares.values())})

    def _shares(self, choices: Sequence[str]) -> dict[str, float]:
        """Return each step's share of mu^2.

        Args:
            choices: Steps that choose covariates, by even shares; none where all are retained.
        """
        constants, left = self.constants, self._left(bool(choices))
        shares = {
            **dict.fromkeys(self.quantiles, self._quantile_share),
            **{choice: constants.screening_share / len(choices) for choice in choices},
            **({WINDOWS: self._window_share} if self._window_share else {}),
            "moments": constants.moment_share,
            **({PAIRS: constants.pair_share} if self.pairs else {}),
        }
        regressions = ("outcome", "effect") if self.known_propensity else ("outcome", "propensity", "effect")
        for name in regressions:
            shares[f"{name} curvatures"] = constants.curvature_share / len(regressions)
        if self.intervals:
            shares |= dict(zip(INTERVALS, constants.interval_shares, strict=True))
        effect = self._effect_share(bool(choices))
        propensity = 0.0 if self.known_propensity else constants.propensity_share
        shares["outcome"] = (left - effect) * (1 - propensity)
        if propensity:
            shares["propensity"] = (left - effect) * propensity
        if not self.units:
            return shares | {"effect": effect}
        own = self._of_units["share"]
        return shares | {EFFECT_UNITS: own * effect, "effect": (1 - own) * effect}

    def _effect_share(self, screens: bool) -> float:
        """Return the effect's share.

        Args:
            screens: Whether covariates are left out by a private choice.
        """
        constants = self.constants
        nuisances = constants.wide_nuisance_share if screens and self.windows else constants.nuisance_share
        outcome = nuisances * (1 - constants.propensity_share)
        return self._left(screens) * (1 - outcome if self.known_propensity else 1 - nuisances)

    def _left(self, screens: bool) -> float:
        """Return the share that is left for regressions."""
        constants = self.constants
        spent = len(self.quantiles) * self._quantile_share + constants.moment_share + constants.curvature_share
        spent += self._window_share
        spent += constants.pair_share * (self.pairs > 0)
        spent += sum(constants.interval_shares) * self.intervals
        return 1 - spent - constants.screening_share * screens

    @property
    def _quantile_share(self) -> float:
        least, most = self.constants.quantile_shares
        return min(max(self._by_counts(self.constants.quantile_levels), least), most)

    @property
    def _window_share(self) -> float:
        """Share of the windows; zero without any."""
        if not (self.windows and self._numbers):
            return 0.0
        least, most = self.constants.quantile_shares[0], self.constants.window_share
        return min(max(self._by_counts(COUNT_VARIANCE * self._numbers * HALVINGS), min(least, most)), most)

    def _by_counts(self, counts: float) -> float:
        """Return the share at which the noise of so many counts is the wanted error of a quantile's rank."""
        return counts / (self.constants.rank_error * self.size) ** 2

    def _effect_budget(self, k: int) -> float:
        """Return mu of the effect where k covariates are retained."""
        return (
            self.shares.of("effect") if self.reduced else self.mu * math.sqrt(self._effect_share(k < self.covariates))
        )

    # -- regressions

    @cached_property
    def requests(self) -> Mapping[str, Request]:
        constants, shares = self.constants, self.shares.shares
        heads = self.choices[PROGNOSTIC] if self.windows and self.choices else None
        found = {}
        kinds = constants.kinds
        if self.looks_again and self.size < line_constants().plain_size:
            kinds = "".join(kind for kind in kinds if kind in _PLAIN)  # others are looked for later
        if "outcome" in shares:
            found["outcome"] = self._ask(constants.outcome_variance, self._outcome_noise, kinds, heads=heads)
        first = next((step for step in ("propensity", "propensity 1") if step in shares), None)
        if first is not None:
            mu = self.shares.of(first)
            noise = self._unit_noise(mu, 1.0, logit_curvature(self.treated), self.propensity_slope)
            found["propensity"] = self._ask(
                0.0 if self.one_propensity else constants.propensity_variance, noise, kinds, heads=heads
            )
        return found | ({"effect": self._effect} if "effect" in shares else {})

    @property
    def _effect(self) -> Request:
        if not self.shrinks:
            return self._unshrunk(self.retained)
        variance = 0.0 if self.constant_only else self.shrinking_variance
        least = self._unit_sampling(self.effect_weight)
        noise = self._unit_noise(self.shares.of("effect"), self.effect_weight)
        return self._ask(variance, noise, self._effect_kinds, self._constant_variance, least)

    def _unshrunk(self, k: int) -> Request:
        """Return that of k covariates that is not shrunk: linear where its sign is worth it, else a constant."""
        noise = self._unit_noise(self._effect_budget(k), self.effect_weight)
        alone = self._ask(0.0, noise, constant=self._constant_variance)
        if self._rule is None or self.constant_only:
            return alone
        linear = self._ask(self._unshrunk_variance, noise, self._effect_kinds[:1], self._constant_variance)
        least = max(self._correlation(alone, k), self._rule.least_correlation)
        return linear if self._correlation(linear, k) > least else alone

    @property
    def _unshrunk_variance(self) -> float:
        """Prior variance of the features of an effect that is not shrunk, in units of S^2."""
        return self._rules.reduced_variance if self.reduced else self._rules.linear_variance

    @property
    def _effect_kinds(self) -> str:
        """Kinds of features that the effect may have."""
        kinds, constants = self.constants.kinds, self.constants
        return "".join(kind for kind in kinds if kind in constants.interval_kinds) if self.intervals else kinds

    @cached_property
    def sign(self) -> Sign:
        rules = self._rules
        return Sign(
            rules,
            self.shrinks,
            self.shrinking_variance if self.shrinks else self._unshrunk_variance,
            found=1.0 if self._many else rules.found_share,
            noise=self._rule.reduced_noise if self.reduced and self._rule else EXPECTED.nuisances,
            limit=self._rule.reduced_correlation if self.reduced and self._rule else 1.0,
            sizes=(1.0,) if self._many else rules.effect_sizes,
        )

    def _correlation(self, request: Request, k: int) -> float:
        return self.sign.correlation(request.regression([False] * k), k, self.covariates)

    @property
    def _outcome_noise(self) -> float:
        return self._noise_of_outcome(self.shares.of("outcome"))

    def _noise_of_outcome(self, mu: float) -> float:
        return self._unit_noise(mu, 1.0, EXPECTED.logit_curvature if self.binary else None)

    def _unit_noise(self, mu: float, weight: float, inside: float | None = None, slope: float = 1.0) -> float:
        """Return the variance of a function of weight one: sensitivity 2 slope, curvature n inside weight.

        Without privacy it is that by sampling.
        """
        if self.budget is None:
            return self._unit_sampling(weight, inside)
        return (2 * slope / (mu * self.mass * (inside or self.inside) * weight)) ** 2

    def _unit_sampling(self, weight: float, inside: float | None = None) -> float:
        """Return the variance of a feature's part of the function by sampling, whatever its weight."""
        return self.sampling / (self.mass * (inside or self.inside) ** 2 * weight)

    def _ask(
        self,
        variance: float,
        noise: float,
        kinds: str | None = None,
        constant: float = math.inf,
        least: float = 0.0,
        heads: int | None = None,
    ) -> Request:
        """Return what a regression may request; kinds: None takes the plan's; the others are those of ``Request``."""
        kinds = (self.constants.kinds if kinds is None else kinds) if self._looks else ""
        facts = self.constants, self.size, not self.known_propensity, self._filling
        return Request(*facts, variance, noise, kinds, constant, least, heads)

    @property
    def _looks(self) -> bool:
        """Whether covariates are looked at."""
        return True

    @property
    def _filling(self) -> Any:
        """How feature weights are found; without privacy features are held against sampling alone."""
        return sampling_filling if self.budget is None else gaussian_filling


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


def shares_of_lines(looks_again: bool) -> float:
    """Return the part of mu^2 that lines have, with that of a second look at the nuisances."""
    of = line_constants()
    return of.share + of.remainders * looks_again


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
    left = 1 - shares_of_lines(looks_again)
    others = {step: left * share for step, share in shares.shares.items()}
    return replace(shares, total=shares.total / math.sqrt(left), shares=others | own)


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
