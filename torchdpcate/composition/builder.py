"""How public plans are found: how rich an effect n and the budget can carry, by which steps, at which shares."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any, ClassVar

from torchdpcate.composition.constants import (
    EXPECTED,
    PlanConstants,
    PureShares,
    RuleConstants,
    effect_curvature,
    logit_curvature,
    of_kind,
)
from torchdpcate.composition.plan import (
    ARMS,
    AVERAGE,
    CONSTANT,
    DOUBLY_ROBUST,
    EFFECT,
    PURE,
    RULE,
    ComposedPlan,
    PlanFacts,
)
from torchdpcate.composition.priors import (
    Ask,
    Sign,
    gaussian_filling,
    held_shares,
    pure_filling,
    sampling_filling,
)
from torchdpcate.composition.pure_fits import BARE, NOISE_SHARE, OBJECTIVE, SUMS
from torchdpcate.composition.steps import (
    HALVINGS,
    INTERVALS,
    MODIFIERS,
    PAIRS,
    PROGNOSTIC,
    QUANTILES,
    SCREENING,
    WINDOWS,
    EpsilonShares,
    Shares,
    total_mu,
)
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.features.weighted_basis import all_features
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.gaussian_dp import range_beside


@dataclass(frozen=True)
class _Builder(PlanFacts):
    """Finds the numbers of a plan of Gaussian events; budgets of steps are shares of mu^2.

    Args:
        asks_lean: Whether a rule is to be lean: without an outcome regression, with a propensity of one number, and
            all covariates.

    Raises:
        InputError: As ``PlanFacts``; delta = 0, or what this kind of plan does not have.
    """

    kind: ClassVar[str] = EFFECT
    way: ClassVar[str] = OBJECTIVE

    asks_lean: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is not None and self.budget.delta == 0:
            raise InputError(
                f"delta = 0: no Gaussian event of a plan of kind {self.kind} has it; give privacy.delta above 0, for "
                "instance 1e-6, or use learner=r (RLearner), which has pure ones"
            )

    def build(self) -> ComposedPlan:
        """Return the plan."""
        return ComposedPlan(**{f.name: getattr(self, f.name) for f in fields(ComposedPlan)})

    def best(self) -> ComposedPlan:
        """Return the plan of less planned regret: of a rule at small n mu it may be lean.

        What is left out would cost its effect more than it gains.
        """
        full = self.build()
        if not self._may_be_lean:
            return full
        lean = replace(self, asks_lean=True).build()
        return lean if lean.planned_correlation() > full.planned_correlation() else full

    def may(self, what: str) -> bool:
        """Whether such a plan may have something, by the file of its constants."""
        return what in of_kind(self.kind)["may"]

    @property
    def propensity_steps(self) -> tuple[str, ...]:
        return ("propensity",)

    # -- sizes and priors

    @cached_property
    def mu(self) -> float:
        """The Gaussian that costs all of the steps' part of the budget; infinite without privacy."""
        return total_mu(self.budget) * math.sqrt(self.part)

    @property
    def size(self) -> float:
        return min(self.n * self.mu, 1e9)

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
    def effect_size(self) -> float:
        return math.sqrt(self.constants.binary_part) if self.binary else 1.0

    @property
    def _constant_variance(self) -> float:
        """Prior variance of the effect's constant, in units of S^2."""
        return self._rule.constant_variance if self._rule else math.inf

    @property
    def _many(self) -> bool:
        # of more covariates than a plan keeps few are asked for: on random laws all of them cost more than they gain
        return self.covariates > self.constants.most

    @property
    def shrinks(self) -> bool:
        """Whether coefficients are drawn to zero by their noise; those of a rule are not below some n mu."""
        return self._rule is None or self.size >= self._rule.linear_below

    @property
    def lean(self) -> bool:
        return self.asks_lean

    @property
    def _may_be_lean(self) -> bool:
        rule = self._rule
        if rule is None or not self.may("lean") or self.budget is None or self._many:
            return False
        if self.binary or self.intervals or self.constant_only:
            return False
        return self.size < min(rule.lean_below, rule.linear_below)

    @property
    def one_propensity(self) -> bool:
        return self.lean

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
    def residual_scale(self) -> float:
        return 1.0 if self.binary else EXPECTED.residual_scale

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

    @property
    def log_link(self) -> bool:
        """Of counts, but where intervals count its noise."""
        return self.count and not self.estimates_propensity

    @property
    def wandering(self) -> float:
        return EXPECTED.wandering

    @property
    def interval_spread(self) -> float:
        return next(spread for size, spread in EXPECTED.spreads if self.size < size)

    @property
    def interval_reach(self) -> float:
        """Wider where noise is small."""
        return self.constants.interval_reach * self.interval_spread / EXPECTED.spreads[0][1]

    @property
    def score_scale(self) -> float:
        return 1.0

    @property
    def score_quantile(self) -> float:
        return self.huber_quantile

    @property
    def score_spread(self) -> float:
        return 1.0

    @property
    def clip_factor(self) -> float:
        return 1.0

    # -- steps

    @property
    def steps(self) -> int:
        if self.lean and self._rule:
            return self._rule.lean_steps
        low, high = self.constants.step_bounds
        return round(min(max(self.constants.steps * math.sqrt(self.size / 1000), low), high))

    @property
    def warm(self) -> int:
        return round(self.constants.warm * self.steps)

    @property
    def quantiles(self) -> tuple[str, ...]:
        return () if self.binary else QUANTILES[:2] if self.lean else QUANTILES

    @cached_property
    def kept(self) -> int:
        return self.covariates if self.lean else self.best_kept()

    def best_kept(self) -> int:
        """Return the number of covariates of least expected error, the r-th one's weight being 1/r."""
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

    def _error(self, ask: Ask, k: int) -> float:
        """Return the expected squared error of a function of k covariates, over that of none."""
        features = all_features([False] * k, self.constants.kinds)
        prior = ask.priors(features) * held_shares(features, k, self.covariates)
        return ask.fill(prior, ask.noise, math.inf).error - float(prior.sum())

    def _regret_of(self, k: int) -> float:
        """Return what falls with the expected regret of the sign of an effect of k covariates."""
        return -self._correlation(self._unshrunk(k), k)

    @cached_property
    def windows(self) -> bool:
        """Whether the noise of the ranks of the windows' quantiles is small.

        It may be twice as large where the propensity is estimated: what a plan leaves out confounds there.
        """
        constants = self.constants
        if not (constants.window_rank and self.may("windows")) or self.lean or self.estimates_propensity:
            return False
        mu = self.mu * math.sqrt(constants.window_share)
        noise = 0.0 if self.budget is None else rank_noise(self._numbers, mu, self.n)
        most = constants.window_rank * (1 if self.known_propensity else 2)
        return noise <= most and self.covariates <= EXPECTED.most_wide

    @property
    def choices(self) -> dict[str, int]:
        """How many covariates each step chooses, by step.

        A wide plan chooses half of those that its effect has for the outcome, which have features of all kinds in the
        nuisances, and the others for the effect: what tells of the outcome often changes the effect, in ways that no
        slope or hump of the effect shows.
        """
        if self.kept == self.covariates:
            return {}
        if not self.windows:
            return {SCREENING: self.kept}
        if self.constant_only or not self.may("modifiers"):
            return {PROGNOSTIC: self.kept}
        heads = (self.kept + 1) // 2
        return {PROGNOSTIC: heads, **({MODIFIERS: self.kept - heads} if self.kept > heads else {})}

    @property
    def pairs(self) -> int:
        may = self.may("pairs") and not self.constant_only and self._rule is None and self.covariates > 1
        return self.constants.pairs if may and self.size >= self.constants.pair_size else 0

    @property
    def _numbers(self) -> int:
        return self.covariates if self.numbers is None else self.numbers

    # -- shares

    @cached_property
    def shares(self) -> Shares:
        if not (self.lean and self._rule):
            return Shares(self.mu, self._shares(tuple(self.choices)))
        rule = self._rule
        shares = dict.fromkeys(QUANTILES[:2], rule.lean_quantile_share) | {"moments": rule.lean_moment_share}
        if not self.known_propensity:
            shares["propensity"] = rule.lean_propensity_share
        return Shares(self.mu, shares | {"effect": 1 - math.fsum(shares.values())})

    def _shares(self, choices: Sequence[str]) -> dict[str, float]:
        """Return each step's share of mu^2.

        Args:
            choices: Steps that choose covariates, by even shares; none where all are kept.
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
        return shares | {"effect": effect}

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
        return min(max(self._by_counts(2 * self._numbers * HALVINGS), min(least, most)), most)

    def _by_counts(self, counts: int) -> float:
        """Return the share at which the noise of so many counts is the wanted error of a quantile's rank."""
        return counts / (self.constants.rank_error * self.size) ** 2

    def _effect_budget(self, k: int) -> float:
        """Return mu of the effect where k covariates are kept."""
        return self.shares.of("effect") if self.lean else self.mu * math.sqrt(self._effect_share(k < self.covariates))

    # -- regressions

    @cached_property
    def asks(self) -> Mapping[str, Ask]:
        constants, shares = self.constants, self.shares.shares
        heads = self.choices[PROGNOSTIC] if self.windows and self.choices else None
        found = {}
        if "outcome" in shares:
            found["outcome"] = self._ask(constants.outcome_variance, self._outcome_noise, heads=heads)
        if self.propensity_steps[0] in shares:
            mu = self.shares.of(self.propensity_steps[0])
            noise = self._unit_noise(mu, 1.0, logit_curvature(self.treated), self.propensity_slope)
            found["propensity"] = self._ask(
                0.0 if self.one_propensity else constants.propensity_variance, noise, heads=heads
            )
        return found | ({"effect": self._effect} if "effect" in shares else {})

    @property
    def _effect(self) -> Ask:
        if not self.shrinks:
            return self._unshrunk(self.kept)
        variance = 0.0 if self.constant_only else self.shrinking_variance
        least = self._unit_sampling(self.effect_weight)
        noise = self._unit_noise(self.shares.of("effect"), self.effect_weight)
        return self._ask(variance, noise, self._effect_kinds, self._constant_variance, least)

    def _unshrunk(self, k: int) -> Ask:
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
        return self._rules.lean_variance if self.lean else self._rules.linear_variance

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
            noise=self._rule.lean_noise if self.lean and self._rule else EXPECTED.nuisances,
            limit=self._rule.lean_correlation if self.lean and self._rule else 1.0,
            sizes=(1.0,) if self._many else rules.effect_sizes,
        )

    def _correlation(self, ask: Ask, k: int) -> float:
        return self.sign.correlation(ask.regression([False] * k), k, self.covariates)

    @property
    def _outcome_noise(self) -> float:
        return self._noise_of_outcome(self.shares.of("outcome"))

    def _noise_of_outcome(self, mu: float) -> float:
        return self._unit_noise(mu, 1.0, EXPECTED.logit_curvature if self.binary else None)

    def _unit_noise(self, mu: float, weight: float, inside: float | None = None, slope: float = 1.0) -> float:
        """Return the variance of a function of energy one: sensitivity 2 slope, curvature n inside weight.

        Without privacy it is that by sampling.
        """
        if self.budget is None:
            return self._unit_sampling(weight, inside)
        return (2 * slope / (mu * self.n * (inside or self.inside) * weight)) ** 2

    def _unit_sampling(self, weight: float, inside: float | None = None) -> float:
        """Return the variance of a feature's part of the function by sampling, whatever its energy."""
        return self.sampling / (self.n * (inside or self.inside) ** 2 * weight)

    def _ask(
        self,
        variance: float,
        noise: float,
        kinds: str | None = None,
        constant: float = math.inf,
        least: float = 0.0,
        heads: int | None = None,
    ) -> Ask:
        """Return what a regression may ask for; kinds: None takes the plan's; the others are those of ``Ask``."""
        kinds = (self.constants.kinds if kinds is None else kinds) if self._looks else ""
        facts = self.constants, self.size, not self.known_propensity, self._filling
        return Ask(*facts, variance, noise, kinds, constant, least, heads)

    @property
    def _looks(self) -> bool:
        """Whether covariates are looked at."""
        return True

    @property
    def _filling(self) -> Any:
        """How energies are found; without privacy features are held against sampling alone."""
        return sampling_filling if self.budget is None else gaussian_filling


@dataclass(frozen=True)
class _ScoreBuilder(_Builder):
    r"""Finds the plan of one composition whose effect is regressed on doubly robust scores.

    .. math:: \varphi = m_1(x) - m_0(x) + \frac{a - \pi(x)}{\pi(x) (1 - \pi(x))} (y - m_a(x))

    The arms come from one regression on :math:`(\psi, (2a - 1)\psi)`, the effect is a Huber regression of
    :math:`\varphi` on :math:`\psi` with weights :math:`1/|\psi|`. A score's clip is planned at twice the residual
    scale, as it is where :math:`\pi = 1/2`. All else is as of an effect, the planned noise and error too.

    Raises:
        InputError: As ``_Builder``; or intervals, which this composition has none of.
    """

    kind: ClassVar[str] = DOUBLY_ROBUST

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.intervals:
            raise InputError("intervals = true: doubly robust scores have none; use learner=r (RLearner)")

    @property
    def _scores(self) -> dict[str, float]:
        found: dict[str, float] = of_kind(DOUBLY_ROBUST)["scores"]
        return found

    @property
    def score_scale(self) -> float:
        return self._scores["scale"]

    @property
    def effect_curvature(self) -> float:
        return self._scores["curvature"]

    @property
    def score_quantile(self) -> float:
        return self._scores["binary_quantile"] if self.binary else self.huber_quantile

    @property
    def quantiles(self) -> tuple[str, ...]:
        """Of a binary outcome that of the inverse propensities is left."""
        return QUANTILES[2:] if self.binary else QUANTILES

    @cached_property
    def asks(self) -> Mapping[str, Ask]:
        found = super().asks
        contrast = replace(found["outcome"], variance=self.constants.head_variance / 4)
        return {**found, "contrast": contrast}


@dataclass(frozen=True)
class _ArmsBuilder(_Builder):
    r"""Finds the plan of one composition for K arms: that of an effect but for treatment and effect.

    The arms are the vertices :math:`v_1, .., v_K` of a simplex with edges of length one (``simplex``), so that K - 1
    functions b of the covariates say how the arms differ, :math:`\mu_a - \mu_b = (v_a - v_b)^\top b(x)`, and none of
    the arms is another's reference. For two arms they are -1/2 and 1/2, and b is the effect. Each arm's propensity is a
    logistic regression against all others, at an equal share of what the propensity has.

    Raises:
        InputError: As ``_Builder``; fewer than three arms, or intervals.
    """

    kind: ClassVar[str] = ARMS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arms < 3 or self.intervals:
            raise InputError(f"arms = {self.arms}, intervals = {self.intervals}: give three arms or more, no intervals")

    @property
    def propensity_steps(self) -> tuple[str, ...]:
        """One for each arm."""
        return tuple(f"propensity {arm}" for arm in range(1, self.arms + 1))

    @cached_property
    def shares(self) -> Shares:
        shares = dict(super().shares.shares)
        if "propensity" in shares:
            shares |= dict.fromkeys(self.propensity_steps, shares.pop("propensity") / self.arms)
        return Shares(self.mu, shares)

    @property
    def effect_weight(self) -> float:
        """Of each of the K - 1 functions, where all arms are alike: planned as that of two is."""
        return 2 * EXPECTED.effect_curvature / math.sqrt(2 * self.arms * (self.arms - 1))


@dataclass(frozen=True)
class _AverageBuilder(_ScoreBuilder):
    r"""Finds the plan of an average effect whose nuisances are steps of one composition on all records.

    The steps cost :math:`((1 - f)\epsilon, \delta)`, all of it for centre, scales, propensity and the outcomes of both
    arms; two sums of scores cost what is left beside them as one pure event, by exact composition: more than
    :math:`f \epsilon`. The clip of the scores is a released
    quantile times a public factor, which grows with n until noise is .35 of what sampling adds.
    """

    kind: ClassVar[str] = AVERAGE

    def _shares(self, choices: Sequence[str]) -> dict[str, float]:
        """See ``_Builder``: no step is for the effect, which leaves its share to the nuisances."""
        shares = super()._shares(choices)
        left = shares.pop("effect") + shares.pop("effect curvatures")
        regressions = [step for step in ("outcome", "propensity") if step in shares]
        total = math.fsum(shares[step] for step in regressions)
        for step in regressions:
            shares[step] *= 1 + left / total
        return shares

    def best_kept(self) -> int:
        """See ``_Builder``: all covariates that it may keep, for what is left out may confound.

        Where there are more, the number of least planned error of the outcome regression.
        """
        most, q = min(self.covariates, self.constants.most), self.covariates
        return q if q <= most or self.budget is None else min(range(1, most + 1), key=self._outcome_error)

    def _outcome_error(self, k: int) -> float:
        """Return the planned squared error of the outcome regression of k covariates, over that of none."""
        shares = self._shares((SCREENING,) if k < self.covariates else ())
        noise = self._noise_of_outcome(self.mu * math.sqrt(shares["outcome"]))
        return self._error(self._ask(self.constants.outcome_variance, noise), k)

    @property
    def propensity_slope(self) -> float:
        """See ``_Builder``: a fit that were clamped within the truth would be off elsewhere too."""
        return 1 - (self.overlap if self.least is None else min(self.overlap, self.least))

    @property
    def log_link(self) -> bool:
        """Never, for the interval counts the noise of a linear outcome regression."""
        return False

    @property
    def score_spread(self) -> float:
        r""":math:`\sqrt n\,\epsilon / 8` within bounds."""
        low, high = _average()["spreads"]
        if self.score_epsilon is None:
            return float(high)
        return float(min(max(math.sqrt(self.n) * self.score_epsilon / _average()["noise"], low), high))

    @property
    def clip_factor(self) -> float:
        """That of a binary outcome's are possible sizes: one."""
        normal = round(NormalDist().inv_cdf((1 + self.score_quantile) / 2), 6)
        return 1.0 if self.binary else self.score_spread / normal

    @property
    def score_quantile(self) -> float:
        r"""Quantile of the scores' sizes at which they are clipped, but for the factor.

        Its counts have the standard error :math:`\sqrt{l / s} / \mu`, l how many and s their share. Where n epsilon is
        little, the quantile stays ``score_margin`` of them below the largest size: a search whose counts all pass for
        too few ends at the largest clip, which is many times too large.
        """
        own, binary = _average(), self._scores["binary_quantile"]
        low, high = own["spreads"]
        rare = (own["rare"] / (1 - binary)) ** ((self.score_spread - low) / (high - low))
        wanted = float(1 - (1 - binary) * rare if self.binary else own["quantile"])
        if self.budget is None:
            return wanted
        levels, share = self.constants.quantile_levels, self.shares.shares["residual scale"]
        margin = self.constants.score_margin * math.sqrt(levels / share) / (self.mu * self.n)
        return min(wanted, max(1 - margin, own["least_quantile"]))


@dataclass(frozen=True)
class _PureBuilder(_Builder):
    r"""Finds a plan of pure events: quantiles, sums with K-norm noise and perturbed objectives.

    Steps cost :math:`\epsilon = \sum_k \epsilon_k`, so what serves nothing is left out: an outcome regression of a
    constant alone, which the released centre is already, and where no regression has a feature, covariates. A rule
    (constants of ``RuleConstants``) at small n epsilon has no outcome regression. Its effect is then one perturbed
    objective, or one event of sums (``private_sums``) with private or with public constants, whichever has the least
    planned regret.

    Args:
        asked: Steps that are asked for.
        way: How a rule's effect is found: ``OBJECTIVE``, ``SUMS``, or ``BARE`` for sums whose constants are all public.
    """

    kind: ClassVar[str] = PURE

    asked: tuple[str, ...] = ()
    way: str = OBJECTIVE  # type: ignore[misc]

    def __post_init__(self) -> None:
        PlanFacts.__post_init__(self)
        if self.intervals:
            raise InputError(
                "intervals = true: they rest on Gaussian noise; give privacy.delta above 0, for instance 1e-6, or "
                "leave intervals=auto"
            )

    def best(self) -> ComposedPlan:
        """See ``_Builder``: by the way of least planned regret."""
        rule, by_objective = self._rule, self._of_steps(OBJECTIVE)
        may = rule is not None and not self.binary and not self.constant_only and not self.shrinks
        if rule is None or not may or self.n * self.epsilon >= rule.sums_below:
            return by_objective
        if self._many and by_objective.rung != CONSTANT:
            return by_objective  # which leaves covariates out
        plans = [by_objective, *map(self._of_steps, (SUMS, BARE))]
        return max(plans, key=lambda plan: plan.sign.worth(plan.planned_correlation(), plan.rung == CONSTANT))

    def _of_steps(self, way: str) -> ComposedPlan:
        """Return the plan of the steps that serve something at their shares."""
        here = replace(self, way=way)
        if way == BARE:
            return replace(here, asked=here._later).build()
        screening = (SCREENING,) if not here._by_sums and here._screened < self.covariates else ()
        steps = (*here.quantiles[:2], *screening, "moments", *here._later)
        nuisances = [step for step in steps if step in ("outcome", "propensity")]
        while True:
            plan = replace(here, asked=steps).build()
            rich = {step: len(getattr(plan, step)().basis.features) > 0 for step in (*nuisances, "effect")}
            idle = set() if any(rich.values()) else {SCREENING, "moments"}
            idle |= set() if rich.get("outcome") or self.binary else {"outcome", "residual scale"}
            idle |= set() if rich["effect"] else {"effect curvatures"}
            if idle.isdisjoint(steps):
                return plan
            steps = tuple(step for step in steps if step not in idle)

    @property
    def _later(self) -> tuple[str, ...]:
        """The steps that follow the covariates' moments."""
        bare = self.way == BARE and self.n * self.epsilon < _pure()["half_below"]
        propensity = () if self.known_propensity or bare else ("propensity",)
        if self.lean:
            return (*propensity, "effect")
        return ("outcome", *propensity, *self.quantiles[2:], "effect curvatures", "effect")

    @property
    def epsilon(self) -> float:
        """What the steps divide."""
        assert self.budget is not None
        return self.budget.epsilon * self.part

    @cached_property
    def mu(self) -> float:
        """That of Gaussian steps with about as much noise."""
        return float(self.epsilon / _pure()["equivalent"])

    @property
    def _by_sums(self) -> bool:
        return self.way != OBJECTIVE

    @property
    def lean(self) -> bool:
        """Whether a rule has no outcome regression: at small n it would cost the sign more than it gains."""
        rule = isinstance(self.constants, RuleConstants)
        return self._by_sums or (rule and not self.binary and self.size < _pure()["lean_below"])

    @property
    def one_propensity(self) -> bool:
        return self._by_sums

    @property
    def log_link(self) -> bool:
        """Never: of losses whose curvature has no bound no objective can be perturbed."""
        return False

    @property
    def steps(self) -> int:
        """One event a regression."""
        return 1

    @property
    def warm(self) -> int:
        return 0

    @property
    def wandering(self) -> float:
        """The nuisances' noise is as large as the effect's own."""
        return float(_pure()["wandering"])

    @property
    def shrinking_variance(self) -> float:
        return float(_pure()["head"] * self.head_variance)

    @property
    def quantiles(self) -> tuple[str, ...]:
        """None where the outcome's constants are public."""
        return () if self.way == BARE else super().quantiles

    @cached_property
    def kept(self) -> int:
        """All, where none is looked at."""
        return self._screened if self._looks and not self._by_sums else self.covariates

    @cached_property
    def _screened(self) -> int:
        return replace(self, constant_only=False, asked=(), way=OBJECTIVE).best_kept()

    @property
    def _looks(self) -> bool:
        return "moments" in self.asked

    @cached_property
    def shares(self) -> EpsilonShares:
        """Share of each step, of epsilon."""
        of = self._parts
        fixed = dict.fromkeys(QUANTILES, self._quantile_share)
        fixed |= {SCREENING: of.screening, "moments": of.moments, "effect curvatures": of.curvatures}
        parts = {"outcome": of.outcome, "propensity": of.propensity, "effect": 1 - of.outcome - of.propensity}
        left = 1 - math.fsum(fixed[step] for step in self.asked if step in fixed)
        total = math.fsum(parts[step] for step in self.asked if step in parts)
        return EpsilonShares(
            self.epsilon, {step: fixed[step] if step in fixed else left * parts[step] / total for step in self.asked}
        )

    @property
    def _parts(self) -> PureShares:
        rule = isinstance(self.constants, RuleConstants)
        name = "sums" if self._by_sums else EFFECT if not rule else "lean_rule" if self.lean else RULE
        return PureShares(**of_kind(PURE)["shares"][name])

    @property
    def _quantile_share(self) -> float:
        # a quantile chosen by its rank is off by about twice the scale of its noise, 2 / epsilon
        wanted = 2 * math.sqrt(2) / (self.constants.rank_error * self.n * self.epsilon)
        return min(max(wanted, self._parts.quantiles[0]), self._parts.quantiles[1])

    def _effect_budget(self, k: int) -> float:
        of, later = self._parts, self._later
        quantiles = (2 + ("residual scale" in later)) * (not self.binary) * (self.way != BARE)
        moments = of.moments * (self.way != BARE)
        left = 1 - quantiles * self._quantile_share - moments - of.screening * (k < self.covariates)
        left -= of.curvatures * ("effect curvatures" in later)
        unused = of.outcome * ("outcome" not in later) + of.propensity * ("propensity" not in later)
        return self.epsilon * left * (1 - of.outcome - of.propensity) / (1 - unused)

    @property
    def _effect(self) -> Ask:
        if not self._by_sums:
            return super()._effect
        unit = 2 / (self._effect_budget(self.covariates) * self.n * self.inside * self.effect_weight)
        return self._ask(self._rules.linear_variance / self.covariates, unit)

    @property
    def _unshrunk_variance(self) -> float:
        return self._rules.linear_variance

    @cached_property
    def sign(self) -> Sign:
        """See ``_Builder``: over effects of the sizes that rules expect, whatever the way."""
        sizes = self._rule.effect_sizes if self._rule and self._rule.sums_below else (1.0,)
        return replace(self._tuned_sign, sizes=self._rules.effect_sizes if self._by_sums else sizes)

    @property
    def _tuned_sign(self) -> Sign:
        """That by which an objective's constants were tuned: of one size, and a choice that finds all."""
        rules = self._rules
        limit = {OBJECTIVE: 1.0, SUMS: rules.sums_correlation, BARE: rules.bare_correlation}[self.way]
        variance = self.shrinking_variance if self.shrinks else self._unshrunk_variance
        return Sign(rules, self.shrinks, variance, 1.0, _pure()["sign_noise"], limit, (1.0,))

    def _correlation(self, ask: Ask, k: int) -> float:
        return self._tuned_sign.correlation(ask.regression([False] * k), k, self.covariates)

    def _unit_noise(self, mu: float, weight: float, inside: float | None = None, slope: float = 1.0) -> float:
        """Return the variance of a function of energy one by one coefficient of a perturbed objective of epsilon."""
        return 2 * (2 * slope / (NOISE_SHARE * mu * self.n * (inside or self.inside) * weight)) ** 2

    @property
    def _filling(self) -> Any:
        return pure_filling


def composed_plan(
    n: int, budget: PrivacyBudget | None, covariates: int, kind: str = EFFECT, **facts: Any
) -> ComposedPlan:
    """Return the public plan of one composition on all records.

    Args:
        n: Number of records.
        budget: (epsilon, delta); with delta = 0 the plan of an effect has pure events.
        covariates: Number of encoded covariates.
        kind: Of plan.
        facts: Others of ``PlanFacts``.

    Raises:
        InputError: Facts that this kind of plan does not have.

    Example:
        >>> plan = composed_plan(16_000, PrivacyBudget(1.0, 1e-5), 6, overlap=0.1)
        >>> plan.kept, plan.rung, plan.steps, round(plan.huber_quantile, 3)
        (6, 'additive', 60, 0.74)
        >>> [composed_plan(n, PrivacyBudget(1.0, 0.0), 6).rung for n in (300, 300_000)]
        ['constant', 'additive']
        >>> plan = composed_plan(16_000, PrivacyBudget(1.0, 1e-5), 6, DOUBLY_ROBUST, overlap=0.1)
        >>> plan.both_arms().basis.contrast is None
        False
        >>> plan = composed_plan(16_000, PrivacyBudget(1.0, 1e-5), 6, ARMS, overlap=0.1, arms=3)
        >>> sorted(step for step in plan.shares.shares if step.startswith("propensity"))
        ['propensity 1', 'propensity 2', 'propensity 3', 'propensity curvatures']
    """
    builder = _PureBuilder if kind == EFFECT and budget is not None and budget.delta == 0 else _BUILDERS[kind]
    return builder(n, budget, covariates, **facts).best()


_BUILDERS: dict[str, type[_Builder]] = {
    builder.kind: builder for builder in (_Builder, _ScoreBuilder, _ArmsBuilder, _AverageBuilder)
}


def plan_within(
    n: int, budget: PrivacyBudget | None, domain: Domain, kind: str = EFFECT, **settings: Any
) -> ComposedPlan:
    """Return the plan for n records of a domain.

    Args:
        n: Number of records.
        budget: As of ``composed_plan``.
        domain: Public bounds.
        kind: As of ``composed_plan``.
        settings: Facts that are not the domain's.
    """
    known, numbers = domain.known_propensity is not None, domain.two_levels.count(False)
    binary, count = (domain.outcome_kind == outcome for outcome in ("binary", "count"))
    treated, design = domain.treated, domain.known_propensity
    if design is not None and design.bounds[0] == design.bounds[1]:
        treated = design.middle
    facts = {"overlap": domain.overlap, "known_propensity": known, "binary": binary, "count": count}
    return composed_plan(n, budget, domain.dimension, kind, **facts, numbers=numbers, treated=treated, **settings)


def average_plan(
    n: int,
    budget: PrivacyBudget | None,
    domain: Domain,
    constants: PlanConstants | None = None,
    least: float | None = None,
) -> ComposedPlan:
    """Return the plan of an average effect for n records of a domain, by the budget of all of it.

    Args:
        n: Number of records.
        budget: Of all steps and the sums; None without privacy.
        domain: Public bounds; its overlap is the clip of propensities in scores.
        constants: Of the plan.
        least: The least propensity, where it is below that clip.

    Raises:
        InputError: A budget without delta.

    Example:
        >>> domain = Domain([0.0] * 4, [1.0] * 4, 0.0, 1.0, overlap=0.1)
        >>> plan = average_plan(4_000, PrivacyBudget(1.0, 1e-5), domain)
        >>> list(plan.shares.shares)[-2:], round(plan.score_epsilon, 4), round(plan.clip_factor, 3)
        (['outcome', 'propensity'], 0.4217, 1.967)
    """
    if budget is not None and budget.delta == 0:
        raise InputError(
            "delta = 0: effect=composed has Gaussian steps, which are only (epsilon, delta)-private; give "
            "privacy.delta above 0, for instance 1e-5, or take effect=covariate_balancing, which is pure"
        )
    constants = constants or PlanConstants(**of_kind(AVERAGE)["settings"])
    steps = None if budget is None else PrivacyBudget((1 - _average()["part"]) * budget.epsilon, budget.delta)
    scores = None if budget is None else range_beside(total_mu(steps), budget, PureEvent)
    return plan_within(n, steps, domain, AVERAGE, constants=constants, least=least, score_epsilon=scores)


def plan_of_facts(facts: Mapping[str, Any], n: int, domain: Domain, kind: str = EFFECT) -> ComposedPlan:
    """Return the plan that a statement's facts describe; but that of an average effect.

    Args:
        facts: As ``ComposedPlan.facts`` returns them, among others.
        n: Number of records.
        domain: Public bounds.
        kind: Of plan.

    Raises:
        InputError: No plan has such facts.
    """
    constants = RuleConstants if facts.get("target") == RULE else PlanConstants
    return plan_within(
        n,
        PrivacyBudget(facts["requested_epsilon"], facts["requested_delta"]),
        domain,
        kind,
        constant_only=bool(facts["constant_only"]),
        intervals=bool(facts["intervals"]),
        constants=constants.from_text(facts["constants"]),
    )


def rebuilt(plan: ComposedPlan, **changes: Any) -> ComposedPlan:
    """Return the plan of the same facts but for some."""
    facts = {f.name: getattr(plan, f.name) for f in fields(PlanFacts)} | changes
    return composed_plan(kind=EFFECT if plan.kind == PURE else plan.kind, **facts)


def rank_noise(numbers: int, mu: float, n: int) -> float:
    r"""Return the standard deviation of the noise of a quantile's rank, over n.

    .. math:: \sqrt{2 q \cdot 8} / (n \mu)

    One record moves the counts of two quantiles of each of q covariates by one, :math:`\sqrt{2q}` in all.

    Args:
        numbers: q, of covariates that have windows.
        mu: Of the step.
        n: Of records.

    Example:
        >>> round(rank_noise(22, 0.0657, 4_000), 3)
        0.071
    """
    return math.sqrt(2 * numbers * HALVINGS) / (mu * n)


def _average() -> dict[str, Any]:
    found: dict[str, Any] = of_kind(AVERAGE)["average"]
    return found


def _pure() -> dict[str, float]:
    found: dict[str, float] = of_kind(PURE)["pure"]
    return found
