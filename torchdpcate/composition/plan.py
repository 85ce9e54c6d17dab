"""The public plan of one composition: what is asked of the records, by which steps, with which noise to expect."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from torch import Tensor

from torchdpcate.composition.constants import PlanConstants, RuleConstants
from torchdpcate.composition.expectations import (
    INSIDE,
    NUISANCES,
    PROPENSITY_CURVATURE,
    RESIDUAL_SCALE,
    SAMPLING,
    SAMPLING_BINARY,
    WANDERING,
    effect_curvature,
    logit_curvature,
)
from torchdpcate.composition.priors import (
    STEPS,
    Filling,
    Regression,
    asked_for,
    gaussian_filling,
    held_shares,
    matrix_noise,
    prior_variances,
    sampling_filling,
    sign_correlation,
)
from torchdpcate.composition.steps import (
    MATRIX,
    MODIFIERS,
    PROGNOSTIC,
    QUANTILES,
    SCREENING,
    Division,
    Shares,
    lean_shares,
    rank_noise,
    total_mu,
)
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.features.weighted_basis import Feature, all_features
from torchdpcate.privacy.budget import PrivacyBudget

EFFECT, RULE = "effect", "rule"
"""What an effect is asked for: its values, or its sign."""
CONSTANT, LINEAR, RICH = "constant", "linear", "additive"
"""What a plan asks of the effect: a constant, a linear function, or squares, products, waves and steps beside it."""

_MOST_WIDE = 300  # covariates: the curvatures of more are too many numbers
_WIDE = (5_000.0, 20_000.0)  # n mu between which intervals widen the Huber clip, to this quantile:
_WIDE_QUANTILE = 0.97
_SPREADS = ((800.0, 4.0), (3_000.0, 5.0), (10_000.0, 6.0), (math.inf, 8.0))
"""Clip of the mean's correction in standard deviations of normal residuals, by n mu."""


@dataclass(frozen=True)
class ComposedPlan:
    r"""Everything public about one composition of Gaussian events on all records.

    Made of n, the budget, and facts of the domain; no record is looked at. Budgets of steps are shares of mu^2.

    Args:
        n: Number of records.
        budget: (epsilon, delta), delta > 0; None without privacy.
        covariates: Number of encoded covariates q.
        overlap: Public bound of the propensity.
        known_propensity: Whether the propensity is a public fact, on which nothing is spent.
        constant_only: Whether the effect is to be one number.
        constants: Constants of the plan.
        intervals: Whether the numbers are asked for that intervals rest on.
        binary: Whether the outcome has two values: its regression is logistic, and no residual is clipped.
        count: Whether the outcome is a count: its regression may have a logarithmic link.
        numbers: Number of covariates that have more than two levels; None: all.
        treated: Public share of the treated, or the one propensity that is known; None expects about half.
        part: Share of the budget's mu^2 that the steps have together; the rest is for what follows on their answers.
        lean_asked: Whether it is lean; None takes what has less planned regret.

    Raises:
        InputError: delta = 0, or no records.

    Example:
        >>> plan = ComposedPlan(16_000, PrivacyBudget(1.0, 1e-5), 6, overlap=0.1)
        >>> plan.kept, plan.rung, plan.steps, round(plan.huber_quantile, 3)
        (6, 'additive', 60, 0.74)
    """

    score_scale: ClassVar[float] = 1.0
    """Clip of the effect's residuals over the outcome's residual scale S, planned."""
    has_intervals: ClassVar[bool] = True
    """Whether such a plan may ask for what intervals rest on."""
    has_lean: ClassVar[bool] = True
    """Whether such a plan of a rule may be lean where that has less planned regret."""
    has_windows: ClassVar[bool] = True
    """Whether such a plan may scale covariates by private windows."""
    chooses_modifiers: ClassVar[bool] = True
    """Whether such a plan chooses covariates for its effect."""
    has_pairs: ClassVar[bool] = True
    """Whether such a plan may choose products of two covariates for its effect."""

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
    lean_asked: bool | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.n < 1 or self.covariates < 1:
            raise InputError(f"n = {self.n}, covariates = {self.covariates}: give at least one of each")
        self._check_budget()

    def _check_budget(self) -> None:
        if self.budget is not None and self.budget.delta == 0:
            raise InputError(
                f"delta = 0: no Gaussian event of a {type(self).__name__} has it; give privacy.delta above 0, for "
                "instance 1e-6, or use learner=r (RLearner), which has pure ones"
            )

    @cached_property
    def mu(self) -> float:
        """The Gaussian that costs all of the steps' part of the budget; infinite without privacy."""
        return total_mu(self.budget) * math.sqrt(self.part)

    @property
    def size(self) -> float:
        """N mu, on which the plan depends; at most 1e9."""
        return min(self.n * self.mu, 1e9)

    @property
    def target(self) -> str:
        """What the effect is asked for: ``effect``, or ``rule`` where it is its sign, which its constants say."""
        return RULE if self._rule else EFFECT

    @property
    def shrinks(self) -> bool:
        """Whether coefficients are drawn to zero by their noise; those of a rule are not below some n mu."""
        return self._rule is None or self.size >= self._rule.linear_below

    @property
    def lean(self) -> bool:
        """Whether it has no outcome regression, a propensity of one number, and all covariates.

        Of a rule at small n mu, where that has less planned regret: what is left out would cost its effect more than it
        gains.
        """
        return self._is_lean

    @cached_property
    def _is_lean(self) -> bool:
        if self.lean_asked is not None or not self._may_be_lean:
            return bool(self.lean_asked)
        full, lean = (replace(self, lean_asked=lean) for lean in (False, True))
        return lean.planned_correlation > full.planned_correlation

    @property
    def _may_be_lean(self) -> bool:
        rule = self._rule
        if rule is None or not self.has_lean or self.budget is None or self._many:
            return False
        if self.binary or self.intervals or self.constant_only:
            return False
        return self.size < min(rule.lean_below, rule.linear_below)

    @property
    def huber_quantile(self) -> float:
        """Quantile of absolute residuals at which they are clipped."""
        low, high = self.constants.huber_quantiles
        quantile = float(min(max(low + (high - low) * math.log(self.size / 100) / math.log(300), low), high))
        if not self.intervals:
            return quantile
        # the clip weighs records by how likely it leaves them alone: much data see that, so it opens
        start, end = _WIDE
        opened = min(max(math.log(self.size / start) / math.log(end / start), 0.0), 1.0)
        return quantile + opened * (_WIDE_QUANTILE - quantile)

    @property
    def interval_spread(self) -> float:
        """Clip of the mean's correction, in standard deviations of normal residuals."""
        return next(spread for size, spread in _SPREADS if self.size < size)

    @property
    def by_sums(self) -> bool:
        """Whether the effect is one event of sums, which Gaussian ones never are."""
        return False

    def places(self, step: str) -> Tensor | None:
        """Return which candidates of a private quantile a step looks at, by position; None for all.

        Args:
            step: Of the quantile.
        """
        return None

    def sum_slopes(self, two_levels: Sequence[bool]) -> Tensor:
        """Return the planned slopes of an effect by sums, [k], which this plan has not.

        Args:
            two_levels: Whether each covariate has two levels.
        """
        raise NotImplementedError

    @property
    def quantiles(self) -> tuple[str, ...]:
        """Steps that find a private quantile."""
        return () if self.binary else QUANTILES[:2] if self.lean else QUANTILES

    @property
    def propensity_steps(self) -> tuple[str, ...]:
        """Steps that fit the propensity, where it is not known."""
        return ("propensity",)

    def logit_slope(self, step: str) -> float:
        """Return the bound of a record's gradient in a logistic regression: of a propensity, one less the overlap.

        Args:
            step: The regression's.
        """
        return 1.0 if step == "outcome" else 1 - self.overlap

    @property
    def log_link(self) -> bool:
        """Whether the outcome regression is one of logarithms: of counts, but where intervals count its noise."""
        return self.count and not self.estimates_propensity

    @property
    def effect_curvature(self) -> float:
        """Planned mean curvature of the effect's features, over their energies."""
        return self.effect_weight

    @property
    def effect_weight(self) -> float:
        """Planned mean curvature by which the effect's features are asked for, over their energies."""
        return effect_curvature(self.treated, self.known_propensity)

    @property
    def interval_reach(self) -> float:
        """Clip of the effect in the average, in its planned standard deviations: wider where noise is small."""
        return self.constants.interval_reach * self.interval_spread / _SPREADS[0][1]

    @property
    def sampling(self) -> float:
        """Planned variance of a record's clipped residual, in squared scales."""
        return SAMPLING_BINARY if self.binary else SAMPLING

    @property
    def inside(self) -> float:
        """Planned share of residuals that are not clipped."""
        if self.binary:
            return 1.0
        return min(self.huber_quantile + INSIDE, (1 + self.huber_quantile) / 2)

    @property
    def steps(self) -> int:
        """Steps of each regression."""
        if self.lean and self._rule:
            return self._rule.lean_steps
        low, high = self.constants.step_bounds
        return round(min(max(self.constants.steps * math.sqrt(self.size / 1000), low), high))

    @property
    def warm(self) -> int:
        """Steps among them that only move to the solution."""
        return round(self.constants.warm * self.steps)

    @cached_property
    def kept(self) -> int:
        """Number of covariates that are kept; see ``best_kept``."""
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
        features = all_features([False] * k, self.constants.kinds)
        prior = self._prior(features, self.priors.choice_variance) * held_shares(features, k, self.covariates)
        noise = self._unit_noise(self._effect_budget(k), self.effect_weight)
        return self._fill(prior, noise).error - float(prior.sum())

    def _regret_of(self, k: int) -> float:
        """Return what falls with the expected regret of the sign of an effect of k covariates."""
        return -self._mean_correlation(self._unshrunk(k), k)

    @property
    def screens(self) -> bool:
        """Whether covariates are left out by a private choice."""
        return self.kept < self.covariates

    @cached_property
    def windows(self) -> bool:
        """Whether covariates are scaled by private windows: where the noise of their quantiles' ranks is small.

        It may be twice as large where the propensity is estimated: what a plan leaves out confounds there.
        """
        constants = self.constants
        if not (constants.window_rank and self.has_windows) or self.lean or self.estimates_propensity:
            return False
        mu = self.mu * math.sqrt(constants.window_share)
        noise = 0.0 if self.budget is None else rank_noise(self._numbers, mu, self.n)
        most = constants.window_rank * (1 if self.known_propensity else 2)
        return noise <= most and self.covariates <= _MOST_WIDE

    @property
    def wide(self) -> bool:
        """Whether nuisances are of all covariates, and the effect of those that are kept."""
        return self.windows and self.screens

    @property
    def choices(self) -> dict[str, int]:
        """How many covariates each step chooses, by step.

        A wide plan chooses half of those that its effect has for the outcome, which have features of all kinds in the
        nuisances, and the others for the effect: what tells of the outcome often changes the effect, in ways that no
        slope or hump of the effect shows.
        """
        if not self.wide:
            return {SCREENING: self.kept} if self.screens else {}
        if self.constant_only or not self.chooses_modifiers:
            return {PROGNOSTIC: self.kept}
        heads = (self.kept + 1) // 2
        return {PROGNOSTIC: heads, **({MODIFIERS: self.kept - heads} if self.kept > heads else {})}

    @property
    def heads(self) -> int | None:
        """How many covariates have features of all kinds in the nuisances; None: all that are kept."""
        return self.choices[PROGNOSTIC] if self.wide else None

    @property
    def pairs(self) -> int:
        """How many products of a covariate with a step of another are chosen for the effect."""
        may = self.has_pairs and not self.constant_only and self._rule is None and self.covariates > 1
        return self.constants.pairs if may and self.size >= self.constants.pair_size else 0

    @cached_property
    def shares(self) -> Shares:
        """Share of each step."""
        if self.lean and self._rule:
            return Shares(self.mu, lean_shares(self._rule, self.known_propensity))
        return Shares(self.mu, self._division.shares(tuple(self.choices)))

    def outcome(self, two_levels: Sequence[bool] | None = None) -> Regression:
        """Return the outcome regression: of the kept covariates, or of all in a wide plan, the chosen ones first.

        Args:
            two_levels: Whether each has two levels; None takes none.
        """
        levels, variance = self._nuisance_levels(two_levels), self.constants.outcome_variance
        return self._regression(levels, variance, self._outcome_noise, heads=self.heads)

    def propensity(self, two_levels: Sequence[bool] | None = None) -> Regression:
        """Return the regression of the treatment; see ``outcome``."""
        mu = self.shares.of(self.propensity_steps[0])
        noise = self._unit_noise(mu, 1.0, logit_curvature(self.treated), self.logit_slope("propensity"))
        variance = 0.0 if self.one_propensity else self.constants.propensity_variance
        return self._regression(self._nuisance_levels(two_levels), variance, noise, heads=self.heads)

    @property
    def one_propensity(self) -> bool:
        """Whether a propensity that is not known is estimated as one number."""
        return self.lean

    @property
    def estimates_propensity(self) -> bool:
        """Whether intervals are asked for beside a propensity that is estimated."""
        return self.intervals and not self.known_propensity

    def effect(self, two_levels: Sequence[bool] | None = None, pairs: Sequence[Feature] | None = None) -> Regression:
        """Return that of the effect; see ``outcome``.

        Squares, products and waves whose prior variance is below what sampling leaves of them are not asked for, at
        any budget: where effects do not vary, hundreds of them would err by more than a constant. With intervals it has
        linear features, and further kinds as far as their matrix of second moments can be told from its noise.

        Args:
            two_levels: As of ``outcome``.
            pairs: Products with a step that were chosen, at most ``pairs``; None plans for so many.
        """
        levels, kinds = self._levels(two_levels), self._effect_kinds
        if not self.shrinks:
            return self._unshrunk(self.kept, levels)
        chosen = all_features(levels, STEPS)[: self.pairs] if pairs is None else tuple(pairs)
        kinds += STEPS if chosen else ""
        found = self._effect(levels, kinds, chosen)
        while self.intervals and len(kinds) > 1 and self._matrix_noise(found) > self.constants.interval_edge:
            kinds = kinds[:-1]
            found = self._effect(levels, kinds, chosen)
        return found

    def _effect(self, levels: Sequence[bool], kinds: str, pairs: tuple[Feature, ...]) -> Regression:
        """Return the regression of an effect that is shrunk, of features of these kinds."""
        variance = 0.0 if self.constant_only else self.shrinking_variance
        least = self._unit_sampling(self.effect_weight)
        noise = self._unit_noise(self.shares.of("effect"), self.effect_weight)
        return self._regression(levels, variance, noise, kinds, self._constant_variance, least, pairs=pairs)

    def _unshrunk(self, k: int, levels: Sequence[bool] | None = None) -> Regression:
        """Return that of k covariates that is not shrunk: linear where its sign is worth it, else a constant."""
        noise, constant = self._unit_noise(self._effect_budget(k), self.effect_weight), self._constant_variance
        levels = [False] * k if levels is None else levels
        alone = self._regression(levels, 0.0, noise, constant_prior=constant)
        if self._rule is None or self.constant_only:
            return alone
        kinds = self._effect_kinds[:1]
        linear = self._regression(levels, self._unshrunk_variance, noise, kinds, constant)
        least = max(self._mean_correlation(alone, k), self._rule.least_correlation)
        return linear if self._mean_correlation(linear, k) > least else alone

    @property
    def _effect_kinds(self) -> str:
        """Kinds of features that the effect may have."""
        kinds, constants = self.constants.kinds, self.constants
        return "".join(kind for kind in kinds if kind in constants.interval_kinds) if self.intervals else kinds

    def sign_correlation(self, effect: Regression, k: int, size: float = 1.0) -> float:
        """Return the planned correlation of the effect and its estimate; see ``sign_correlation``.

        Args:
            effect: The effect's regression.
            k: Number of covariates that it is of, which hold their share of a linear rule's prior variance.
            size: Standard deviation of the effect over that of the prior.
        """
        rules = self.rules
        variance = self.shrinking_variance if self.shrinks else self._unshrunk_variance
        held = effect.prior * (rules.linear_variance / variance)
        held = held * held_shares(effect.basis.features, k, self.covariates, 1.0 if self.shrinks else self.found_share)
        noise = (self.sign_noise / size) ** 2 * effect.noise / effect.basis.energies
        return self._sign_limit * sign_correlation(held, noise, rules, self.shrinks)

    @property
    def planned_correlation(self) -> float:
        """That of its effect, averaged over effects of the sizes that rules expect, with the size as weight."""
        return self._mean_correlation(self.effect(), self.kept)

    def _mean_correlation(self, effect: Regression, k: int) -> float:
        sizes = self.effect_sizes
        return math.fsum(size * self.sign_correlation(effect, k, size) for size in sizes) / math.fsum(sizes)

    @property
    def effect_sizes(self) -> tuple[float, ...]:
        """Standard deviations of effects that a rule expects, over that of their prior."""
        return (1.0,) if self._many else self.rules.effect_sizes

    @property
    def found_share(self) -> float:
        """Of the best choice of covariates beyond one at random, what that of a linear rule holds."""
        return 1.0 if self._many else self.rules.found_share

    @property
    def _many(self) -> bool:
        # of more covariates than a plan keeps few are asked for: on random laws all of them cost more than they gain
        return self.covariates > self.constants.most

    def _matrix_noise(self, effect: Regression) -> float:
        """Return the planned noise of the interval steps' matrix, scaled to its planned diagonal."""
        unit = math.sqrt(2) * self.constants.interval_norm / (self.shares.of(MATRIX) * self.n)
        return matrix_noise(effect.basis, unit)

    @cached_property
    def rung(self) -> str:
        """What is asked of the effect: a constant, a linear function, or more."""
        kinds = {feature.kind for feature in self.effect().basis.features}
        return RICH if kinds - {"1"} else LINEAR if kinds else CONSTANT

    @property
    def residual_scale(self) -> float:
        """Residual scale to expect, in outcome ranges; that of a binary outcome is the range."""
        return 1.0 if self.binary else RESIDUAL_SCALE

    def gradient_noise(self, step: str, slope: float, size: int) -> float:
        """Return the standard deviation of the noise in a regression's summed gradient; zero without privacy.

        Args:
            step: The regression's.
            slope: Bound of a record's gradient.
            size: Number of coefficients.
        """
        return 2 * slope * self.shares.deviation(step, size)

    def least_ridge(self, step: str, curvature: float) -> float:
        """Return the least ridge of a coefficient.

        Args:
            step: The regression's.
            curvature: Of its loss, at most.
        """
        return 0.0

    @property
    def wandering(self) -> float:
        """Variance of the effect's estimates by noise, over that of one event of all that its step has."""
        return WANDERING

    @property
    def sign_noise(self) -> float:
        """Noise of a rule's score over that of the effect's own steps, where its regret is planned."""
        return self._rule.lean_noise if self.lean and self._rule else NUISANCES

    def constant(self) -> Self:
        """Return the same plan with the effect as one number."""
        return replace(self, constant_only=True)

    def facts(self) -> dict[str, Any]:
        """Return what the plan is made of beside n and the domain, and what it decides, as statements have it."""
        budget = self.budget
        return {
            "rung": self.rung,
            "kept": self.kept,
            "steps": self.steps,
            "huber_quantile": self.huber_quantile,
            "requested_epsilon": None if budget is None else budget.epsilon,
            "requested_delta": None if budget is None else budget.delta,
            "constant_only": self.constant_only,
            "intervals": self.intervals,
            **({"target": RULE} if self._rule else {}),
            "constants": self.constants.to_text(),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], n: int, domain: Domain) -> Self:
        """Return the plan that a statement's facts describe.

        Args:
            facts: As ``facts`` returns them, among others.
            n: Number of records.
            domain: Public bounds.

        Raises:
            InputError: No plan has such facts.
        """
        constants = RuleConstants if facts.get("target") == RULE else PlanConstants
        return cls.of(
            n,
            PrivacyBudget(facts["requested_epsilon"], facts["requested_delta"]),
            domain,
            constant_only=bool(facts["constant_only"]),
            intervals=bool(facts["intervals"]),
            constants=constants.from_text(facts["constants"]),
        )

    @classmethod
    def of(cls, n: int, budget: PrivacyBudget | None, domain: Domain, **settings: Any) -> Self:
        """Return the plan for n records of a domain; settings: those of the class that are not the domain's."""
        known, numbers = domain.known_propensity is not None, domain.two_levels.count(False)
        binary, count = (domain.outcome_kind == kind for kind in ("binary", "count"))
        facts = n, budget, domain.dimension, domain.overlap, known
        treated, design = domain.treated, domain.known_propensity
        if design is not None and design.bounds[0] == design.bounds[1]:
            treated = design.middle
        return cls(*facts, binary=binary, count=count, numbers=numbers, treated=treated, **settings)

    @property
    def shrinking_variance(self) -> float:
        """Prior variance of the effect's features by which it is shrunk, in units of S^2."""
        return self.priors.head_variance

    @cached_property
    def priors(self) -> PlanConstants:
        """The constants, with the prior variances that effects on this kind of outcome have, in units of its S^2."""
        return self.constants.of_binary() if self.binary else self.constants

    @cached_property
    def rules(self) -> RuleConstants:
        """Those of rules with such variances, of an effect's plan too."""
        return self._rule or (RuleConstants().of_binary() if self.binary else RuleConstants())

    @property
    def effect_size(self) -> float:
        """Standard deviation that parts of effects on this kind of outcome have, in units of S, over that of others."""
        return math.sqrt(self.constants.binary_part) if self.binary else 1.0

    @property
    def _rule(self) -> RuleConstants | None:
        return self.priors if isinstance(self.priors, RuleConstants) else None

    @property
    def _unshrunk_variance(self) -> float:
        """Prior variance of the features of an effect that is not shrunk, in units of S^2."""
        rules = self.rules
        return rules.lean_variance if self._is_lean else rules.linear_variance

    @property
    def _sign_limit(self) -> float:
        """Correlation of a score without noise, over that of one with all steps."""
        return self._rule.lean_correlation if self._is_lean and self._rule else 1.0

    @property
    def _constant_variance(self) -> float:
        """Prior variance of the effect's constant, in units of S^2."""
        return self._rule.constant_variance if self._rule else math.inf

    @property
    def _looks(self) -> bool:
        """Whether covariates are looked at."""
        return True

    def _levels(self, two_levels: Sequence[bool] | None) -> Sequence[bool]:
        return [False] * self.kept if two_levels is None else two_levels

    def _nuisance_levels(self, two_levels: Sequence[bool] | None) -> Sequence[bool]:
        return [False] * self.covariates if self.wide and two_levels is None else self._levels(two_levels)

    @property
    def _numbers(self) -> int:
        return self.covariates if self.numbers is None else self.numbers

    @cached_property
    def _division(self) -> Division:
        windows = self._numbers if self.windows else None
        facts = self.constants, self.size, self.quantiles, self.known_propensity, self.intervals
        return Division(*facts, windows, pairs=self.pairs > 0)

    def _effect_budget(self, k: int) -> float:
        """Return mu of the effect where k covariates are kept."""
        if self.lean:
            return self.shares.of("effect")
        return self.mu * math.sqrt(self._division.effect(k < self.covariates))

    @property
    def _outcome_noise(self) -> float:
        return self._unit_noise(self.shares.of("outcome"), 1.0, PROPENSITY_CURVATURE if self.binary else None)

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

    def _prior(self, features: Sequence[Feature], variance: float, heads: int | None = None) -> Tensor:
        return prior_variances(features, variance, self.constants, self.size, heads, not self.known_propensity)

    def _fill(self, prior: Tensor, noise: float, constant: float = math.inf) -> Filling:
        """Return energies; without privacy features are held against sampling alone."""
        return (sampling_filling if self.budget is None else gaussian_filling)(prior, noise, constant)

    def _regression(
        self,
        levels: Sequence[bool],
        variance: float,
        noise: float,
        kinds: str | None = None,
        constant_prior: float = math.inf,
        least: float = 0.0,
        heads: int | None = None,
        pairs: tuple[Feature, ...] = (),
    ) -> Regression:
        """Return what a regression asks for.

        Args:
            levels: Whether each of its covariates has two levels.
            variance: Prior variance of its features.
            noise: Variance of the noise of a function of energy one.
            kinds: Kinds of features that it may have; None takes the plan's.
            constant_prior: Prior variance of its constant.
            least: Prior variance that its features must exceed, but for linear ones.
            heads: How many covariates have features of all kinds; None: all.
            pairs: Products with a step beside them.
        """
        features = all_features(levels, self.constants.kinds, heads) + pairs if variance else ()
        kinds = (self.constants.kinds if kinds is None else kinds) if self._looks else ""

        def fill(prior: Tensor, constant: float) -> Filling:
            return self._fill(prior, noise, constant)

        return asked_for(features, self._prior(features, variance, heads), fill, kinds, constant_prior, least)
