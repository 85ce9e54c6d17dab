"""The public plan of one composition: what is asked of the records, by which steps, with which noise to expect."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from torchdpcate.composition.constants import PlanConstants, RuleConstants
from torchdpcate.composition.shares import Shares, total_mu
from torchdpcate.composition.water_filling import expected_error, water_filling
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.features.weighted_basis import KINDS, Feature, WeightedBasis, all_features
from torchdpcate.privacy.budget import PrivacyBudget

EFFECT, RULE = "effect", "rule"
"""What an effect is asked for: its values, or its sign."""
CONSTANT, LINEAR, RICH = "constant", "linear", "additive"
"""What a plan asks of the effect: a constant, a linear function, or squares, products and waves beside it."""
RESIDUAL_SCALE = 1 / 14
"""Residual scale that plans expect, in outcome ranges."""
LEAST_SCALE = 1 / 200
"""Least clip of residuals or scores, in outcome ranges."""
QUANTILES = ("centre", "outcome scale", "residual scale")
"""Steps that find a private quantile."""

MATRIX, COUNTS, CORRECTION, AVERAGE = (f"interval {name}" for name in ("matrix", "counts", "correction", "average"))
"""Steps that intervals take."""

_WIDE = (5_000.0, 20_000.0)  # n mu between which intervals widen the Huber clip, to this quantile:
_WIDE_QUANTILE = 0.97
_SPREADS = ((800.0, 4.0), (3_000.0, 5.0), (10_000.0, 6.0), (math.inf, 8.0))
"""Clip of the mean's correction in standard deviations of normal residuals, by n mu."""
_INSIDE = 0.04  # residuals within the clip beyond its quantile, which is that of the residuals before
_SAMPLING, _SAMPLING_BINARY = 0.6, 0.2  # variance of a record's clipped residual, in squared scales
NUISANCES = 1.3  # noise of the effect over that of its own steps
LOGIT_PRIOR, LOGIT_CONSTANT = 3.0, 4.0
"""Prior variance of a logit's features over the planned one, by their weak ridge, and that of its constant."""
WANDERING = 1.1
"""Variance of what is released over that of the late steps' noise: the warm steps' share is lost."""
_HEAD_WEIGHT = 0.3  # mean of min(pi, 1 - pi), planned
_PROPENSITY_CURVATURE = 0.2


@dataclass(frozen=True)
class Regression:
    """What one regression of the plan asks for, and what it may expect.

    Attributes:
        basis: Its features, with energies.
        prior: Prior variance of each feature's part of the function, [p], in units of its squared scale.
        noise: Variance of the noise of a function of energy one, in units of its squared scale.
        error: Expected squared error, in units of its squared scale.
    """

    basis: WeightedBasis
    prior: Tensor
    noise: float
    error: float


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
        part: Share of the budget's mu^2 that the steps have together; the rest is for what follows on their answers.
        lean_asked: Whether it is lean; None takes what has the least planned regret.

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
    """Whether such a plan of a rule may leave out its outcome regression."""

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

    @cached_property
    def lean(self) -> bool:
        """Whether it has no outcome regression, a propensity of one number, and all covariates as they are.

        Of a rule at small n mu, where that has the least planned regret: what is left out would cost its effect more
        than it gains.
        """
        if self.lean_asked is not None or not self.may_be_lean:
            return bool(self.lean_asked)
        full, lean = (replace(self, lean_asked=lean) for lean in (False, True))
        return lean.planned_correlation > full.planned_correlation

    @property
    def may_be_lean(self) -> bool:
        """Whether a lean plan is considered."""
        rule = self._rule
        if rule is None or not self.has_lean or self.budget is None:
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
    def quantiles(self) -> tuple[str, ...]:
        """Steps that find a private quantile."""
        return () if self.binary else QUANTILES[:2] if self.lean else QUANTILES

    @property
    def log_link(self) -> bool:
        """Whether the outcome regression is one of logarithms: of counts, but where intervals count its noise."""
        return self.count and not self.estimates_propensity

    @property
    def effect_curvature(self) -> float:
        """Planned mean curvature of the effect's features, over their energies."""
        return _HEAD_WEIGHT

    @property
    def interval_reach(self) -> float:
        """Clip of the effect in the average, in its planned standard deviations: wider where noise is small."""
        return self.constants.interval_reach * self.interval_spread / _SPREADS[0][1]

    @property
    def sampling(self) -> float:
        """Planned variance of a record's clipped residual, in squared scales."""
        return _SAMPLING_BINARY if self.binary else _SAMPLING

    @property
    def inside(self) -> float:
        """Planned share of residuals that are not clipped."""
        if self.binary:
            return 1.0
        return min(self.huber_quantile + _INSIDE, (1 + self.huber_quantile) / 2)

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

        def error(k: int) -> float:
            if not self.shrinks:
                return -self._mean_correlation(self._linear(k), k)
            features = all_features([False] * k, self.constants.kinds)
            there = self._prior(features, self.constants.choice_variance)
            there = there * self.found(features, k)
            noise = self._unit_noise(self._head_budget(k), self._head_weight)
            return self._error(there, noise) - float(there.sum())

        return min(range(1, most + 1), key=error)

    def found(self, features: Sequence[Feature], k: int) -> Tensor:
        """Return the shares of prior variances that features of k chosen covariates hold, [p].

        The r-th covariate's weight is 1/r; a product needs both of its own. Of a linear rule they hold a public part
        of what that is beyond a choice at random.
        """
        weight = 1 / torch.arange(1.0, self.covariates + 1, dtype=torch.float64)
        share = float(weight[:k].sum() / weight.sum())
        if self._rule and not self.shrinks:
            by_chance = k / self.covariates
            share = by_chance + self._rule.found_share * (share - by_chance)
        return torch.tensor([share ** (1 + (feature.kind == "x")) for feature in features], dtype=torch.float64)

    @property
    def screens(self) -> bool:
        """Whether covariates are left out by a private choice."""
        return self.kept < self.covariates

    @cached_property
    def shares(self) -> Shares:
        """Share of each step."""
        if self.lean and self._rule:
            return self._lean_shares(self._rule)
        constants, quantile = self.constants, self._quantile_share
        left = self._left(self.screens, self.kept)
        head = left * self._head_part
        shares = {
            **dict.fromkeys(self.quantiles, quantile),
            **({"screening": constants.screening_share} if self.screens else {}),
            "moments": constants.moment_share,
        }
        regressions = ("outcome", "effect") if self.known_propensity else ("outcome", "propensity", "effect")
        for name in regressions:
            shares[f"{name} curvatures"] = constants.curvature_share / len(regressions)
        if self.intervals:
            shares |= dict(zip((MATRIX, COUNTS, CORRECTION, AVERAGE), constants.interval_shares, strict=True))
        nuisances = left - head
        propensity = 0.0 if self.known_propensity else constants.propensity_share
        shares["outcome"] = nuisances * (1 - propensity)
        if propensity:
            shares["propensity"] = nuisances * propensity
        return Shares(self.mu, shares | {"effect": head})

    def _lean_shares(self, rule: RuleConstants) -> Shares:
        fixed = dict.fromkeys(self.quantiles, rule.lean_quantile_share) | {"moments": rule.lean_moment_share}
        if not self.known_propensity:
            fixed["propensity"] = rule.lean_propensity_share
        return Shares(self.mu, fixed | {"effect": 1 - math.fsum(fixed.values())})

    def outcome(self, two_levels: Sequence[bool] | None = None) -> Regression:
        """Return the outcome regression of the kept covariates.

        Args:
            two_levels: Whether each has two levels; None takes none.
        """
        return self._regression(two_levels, self.constants.outcome_variance, self._outcome_noise)

    def propensity(self, two_levels: Sequence[bool] | None = None) -> Regression:
        """Return the regression of the treatment; see ``outcome``."""
        noise = self._unit_noise(self.shares.of("propensity"), 1.0, _PROPENSITY_CURVATURE)
        return self._regression(two_levels, 0.0 if self.lean else self.constants.propensity_variance, noise)

    @property
    def estimates_propensity(self) -> bool:
        """Whether intervals are asked for beside a propensity that is estimated."""
        return self.intervals and not self.known_propensity

    @cached_property
    def propensity_noise(self) -> float:
        r"""Root mean squared noise and sampling error to expect of the estimated propensity; public.

        .. math:: 0.2\, \Big(\sum_j \frac{v_j}{(1 + v_j / g_j)^2}\Big)^{1/2}, \quad
            v_j = \frac{1.1\,\sigma^2}{e_j} + \frac{5}{n}

        over the features of its regression, g_j their prior variances by its ridge.
        """
        regression = self.propensity()
        variance = WANDERING * regression.noise / regression.basis.energies + 1 / (_PROPENSITY_CURVATURE * self.n)
        if self.budget is None:  # where sampling is what features are held against, and counted
            variance = variance.new_full(variance.shape, 1 / (_PROPENSITY_CURVATURE * self.n))
        prior = torch.cat([variance.new_tensor([LOGIT_CONSTANT]), LOGIT_PRIOR * regression.prior])
        return _PROPENSITY_CURVATURE * math.sqrt(float((variance / (1 + variance / prior).square()).sum()))

    def effect(self, two_levels: Sequence[bool] | None = None) -> Regression:
        """Return that of the effect; see ``outcome``.

        Squares, products and waves whose prior variance is below what sampling leaves of them are not asked for, at
        any budget: where effects do not vary, hundreds of them would err by more than a constant. With intervals it has
        linear features, and further kinds as far as their matrix of second moments can be told from its noise.
        """
        variance = 0.0 if self.constant_only else self._head_variance
        noise, kinds = self._unit_noise(self.shares.of("effect"), self._head_weight), self.constants.kinds
        sampling = self._unit_sampling(self._head_weight)
        if self.intervals:
            kinds = "".join(kind for kind in kinds if kind in self.constants.interval_kinds)
        if not self.shrinks:
            kinds, variance = kinds[:1], variance and self._effect_variance
        constant = self._rule.constant_variance if self._rule else math.inf
        found = self._regression(two_levels, variance, noise, kinds, constant, sampling)
        while self.intervals and len(kinds) > 1 and self._matrix_edge(found.basis) > self.constants.interval_edge:
            kinds = kinds[:-1]
            found = self._regression(two_levels, variance, noise, kinds, constant, sampling)
        if self._rule and not self.shrinks and variance:
            alone = self._regression(two_levels, 0.0, noise, kinds, constant, sampling)
            least = max(self._mean_correlation(alone, self.kept), self._rule.least_correlation)
            return found if self._mean_correlation(found, self.kept) > least else alone
        return found

    def _linear(self, k: int) -> Regression:
        """Return what an effect of k covariates that is not shrunk would ask for: a linear function, or a constant."""
        plan = replace(self, lean_asked=False)
        plan.__dict__["kept"] = k
        return plan.effect()

    def sign_correlation(self, effect: Regression, k: int, size: float = 1.0) -> float:
        r"""Return the planned correlation of the effect and its estimate, which its sign follows.

        .. math:: \rho^2 = \frac{1}{G} \sum_j \frac{g_j^2}{g_j + v_j} \;\text{ or }\;
            \frac{(\sum_j g_j)^2}{G \sum_j (g_j + v_j)}

        of shrunk and of unshrunk coefficients, with the noise v_j and the prior of a linear rule, of which the kept
        covariates hold their share.

        Args:
            effect: The effect's regression.
            k: Number of covariates that it is of.
            size: Standard deviation of the effect over that of the prior.
        """
        rules, features = self._rule or RuleConstants(), effect.basis.features
        first, total = rules.constant_variance, rules.constant_variance + rules.linear_variance
        held = effect.prior * (rules.linear_variance / self._effect_variance) * self.found(features, k)
        prior = torch.cat([held.new_tensor([first]), held])
        spread, most = (rules.lean_noise, rules.lean_correlation) if self.lean else (NUISANCES, 1.0)
        noise = (spread / size) ** 2 * effect.noise / effect.basis.energies
        if self.shrinks:
            return math.sqrt(min(float((prior.square() / (prior + noise)).sum()) / total, 1.0))
        return most * math.sqrt(float(prior.sum().square() / (prior + noise).sum()) / total)

    @property
    def planned_correlation(self) -> float:
        """That of its effect, averaged over effects of the sizes that rules expect, with the size as weight."""
        return self._mean_correlation(self.effect(), self.kept)

    def _mean_correlation(self, effect: Regression, k: int) -> float:
        sizes = (self._rule or RuleConstants()).effect_sizes
        return math.fsum(size * self.sign_correlation(effect, k, size) for size in sizes) / math.fsum(sizes)

    def _matrix_edge(self, basis: WeightedBasis) -> float:
        r"""Return the planned noise of the interval steps' matrix, scaled to its planned diagonal.

        Its spectral norm is about :math:`2\sqrt{p}` times the root mean square of the entries' noise.
        """
        unit = math.sqrt(2) * self.constants.interval_norm / (self.shares.of(MATRIX) * self.n)
        p, inverse = basis.dimension, 1 / basis.energies
        squares = inverse.outer(inverse) * (0.5 + 0.5 * torch.eye(p, dtype=torch.float64))
        return 2 * unit * math.sqrt(float(squares.mean()) * p)

    @cached_property
    def rung(self) -> str:
        """What is asked of the effect: a constant, a linear function, or more."""
        kinds = {feature.kind for feature in self.effect().basis.features}
        return RICH if kinds - {"1"} else LINEAR if kinds else CONSTANT

    @property
    def expected_error(self) -> float:
        """Expected root mean squared error of the effect that noise and prior leave, in residual scales S."""
        return math.hypot(*self.expected_errors)

    @property
    def expected_errors(self) -> tuple[float, float]:
        r"""That of the constant, and that of how the effect varies.

        .. math:: \sqrt{v_0}, \quad \Big(g - \sum_j \big(f_j g_j (2 w_j - w_j^2) - v_j w_j^2\big)\Big)^{1/2}, \quad
            w_j = \frac{p_j}{p_j + v_j}

        with the prior variance g of all that varies, whether it is asked for or not, its parts g_j, of which the kept
        covariates hold the shares f_j, and the prior variances p_j by which the plan shrinks. An effect that is one
        number in any case does not vary.
        """
        effect, variance = self.effect(), self.constants.head_variance
        noise = effect.noise / effect.basis.energies
        if self.constant_only:
            return math.sqrt(float(noise[0])), 0.0
        weight = effect.prior / (effect.prior + noise[1:])
        held = self.found(effect.basis.features, self.kept) * effect.prior * variance / self._head_variance
        explained = held * (2 * weight - weight**2) - noise[1:] * weight**2
        return math.sqrt(float(noise[0])), math.sqrt(max(variance - float(explained.sum()), 0.0))

    @property
    def noise(self) -> float:
        r"""Standard deviation of the effect's noise before it is shrunk, in residual scales S; public.

        .. math:: 1.3\, \sigma \Big(\sum_j 1/e_j\Big)^{1/2}

        over records like those that were fitted; the factor is for the nuisances' noise, and for propensities away
        from one half (``experiments/defaults/noise.py``).
        """
        return math.hypot(*self.noise_parts)

    @property
    def noise_parts(self) -> tuple[float, float]:
        """That of the constant, and that of all other features."""
        regression = self.effect()
        each = NUISANCES * (regression.noise / regression.basis.energies).sqrt()
        return float(each[0]), float(each[1:].norm())

    def planned_noise(self, outcome_range: float, scale: float | None = None) -> float:
        """Return the noise to expect of the effect before it is shrunk, in outcome units; public.

        Args:
            outcome_range: Of the domain.
            scale: The effect's scale as released, in outcome units, if it is known; None takes a fourteenth of the
                range for that of residuals, which may be off by a factor of three.
        """
        return self.noise * self._in_outcome_units(outcome_range, scale)

    def planned_error(self, outcome_range: float, scale: float | None = None) -> float:
        """Return the error to expect of the effect, in outcome units; it falls as n and the budget grow; public.

        The effect's own noise after shrinkage, and what the plan does not ask for, by its priors.

        Args:
            outcome_range: Of the domain.
            scale: As of ``planned_noise``.
        """
        return self.expected_error * self._in_outcome_units(outcome_range, scale)

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
        known = domain.known_propensity is not None
        binary, count = (domain.outcome_kind == kind for kind in ("binary", "count"))
        return cls(n, budget, domain.dimension, domain.overlap, known, binary=binary, count=count, **settings)

    def _in_outcome_units(self, outcome_range: float, scale: float | None) -> float:
        """Return the residual scale S: planned, or by the effect's released one."""
        return outcome_range * self.residual_scale if scale is None else scale / self.score_scale

    @property
    def _outcome_noise(self) -> float:
        return self._unit_noise(self.shares.of("outcome"), 1.0, _PROPENSITY_CURVATURE if self.binary else None)

    @property
    def _rule(self) -> RuleConstants | None:
        return self.constants if isinstance(self.constants, RuleConstants) else None

    @property
    def _effect_variance(self) -> float:
        """Prior variance of the effect's features, in units of S^2."""
        if self._rule and not self.shrinks:
            return self._rule.lean_variance if self.lean else self._rule.linear_variance
        return self.constants.head_variance

    @property
    def _head_part(self) -> float:
        """The effect's share of what regressions get."""
        constants = self.constants
        outcome = constants.nuisance_share * (1 - constants.propensity_share)
        return 1 - outcome if self.known_propensity else 1 - constants.nuisance_share

    @property
    def _head_variance(self) -> float:
        return self.constants.head_variance

    def _head_budget(self, k: int) -> float:
        """Return mu of the effect where k covariates are kept."""
        return self.mu * math.sqrt(self._left(k < self.covariates, k) * self._head_part)

    @property
    def _head_weight(self) -> float:
        return _HEAD_WEIGHT

    @property
    def _quantile_share(self) -> float:
        constants = self.constants
        wanted = constants.quantile_levels / (constants.rank_error * self.size) ** 2
        return min(max(wanted, constants.quantile_shares[0]), constants.quantile_shares[1])

    def _left(self, screens: bool, k: int) -> float:
        """Return the share that is left for regressions on k covariates."""
        constants = self.constants
        spent = len(self.quantiles) * self._quantile_share + constants.moment_share + constants.curvature_share
        spent += sum(constants.interval_shares) * self.intervals
        return 1 - spent - constants.screening_share * screens

    def _prior(self, features: Sequence[Feature], variance: float) -> Tensor:
        """Return each feature's prior variance: its kind's share, evenly."""
        kinds, share = [feature.kind for feature in features], self._part_share
        return torch.tensor([variance * share(kind) / kinds.count(kind) for kind in kinds], dtype=torch.float64)

    def _part_share(self, kind: str) -> float:
        """Return a kind's share in a prior variance: what bends and interacts enters as n mu grows."""
        low, high = self.constants.rough_sizes
        rough = min(max(math.log(self.size / low) / math.log(high / low), 0.01), 1.0)
        return self.constants.part_share(kind) * (1.0 if kind == "1" else rough)

    def _unit_noise(self, mu: float, weight: float, inside: float | None = None) -> float:
        """Return the variance of a function of energy one: sensitivity 2, curvature n inside weight; or by sampling."""
        if self.budget is None:
            return self._unit_sampling(weight, inside)
        return (2 / (mu * self.n * (inside or self.inside) * weight)) ** 2

    def _unit_sampling(self, weight: float, inside: float | None = None) -> float:
        """Return the variance of a feature's part of the function by sampling, whatever its energy."""
        return self.sampling / (self.n * (inside or self.inside) ** 2 * weight)

    def _energies(self, prior: Tensor, noise: float, constant: float = math.inf) -> tuple[float, float, Tensor]:
        """Return noise and energies by ``water_filling``; without privacy features are held against sampling alone."""
        if self.budget is not None:
            return noise, *water_filling(prior, noise, constant)
        asked = (prior > noise).double()
        constant = 1 / (1 + float(asked.sum()))
        return noise, constant, constant * asked

    def _error(self, prior: Tensor, noise: float, constant: float = math.inf) -> float:
        """Return the expected squared error of features of these prior variances."""
        return sum(expected_error(prior, noise, constant))

    def _regression(
        self,
        two_levels: Sequence[bool] | None,
        variance: float,
        noise: float,
        kinds: str | None = None,
        constant_prior: float = math.inf,
        sampling: float = 0.0,
    ) -> Regression:
        """Return what is asked for: linear features, and others of prior variances above sampling's, by energies."""
        levels = [False] * self.kept if two_levels is None else two_levels
        features = all_features(levels, self.constants.kinds) if variance else ()
        prior = self._prior(features, variance)
        among = self.constants.kinds if kinds is None else kinds
        kinds_asked = [feature.kind in among for feature in features]
        clear = [feature.kind == KINDS[0] or float(v) > sampling for feature, v in zip(features, prior, strict=True)]
        kept = [j for j, (asked, told) in enumerate(zip(kinds_asked, clear, strict=True)) if asked and told]
        left_out = float(prior.sum() - prior[kept].sum())
        features, prior = tuple(features[j] for j in kept), prior[kept]
        largest = max([constant_prior, *prior.tolist()])  # the constant is always asked for
        spread, constant, energies = self._energies(prior, noise, largest)
        asked = torch.nonzero(energies > 0).flatten().tolist()
        basis = WeightedBasis(
            tuple(features[j] for j in asked), torch.cat([torch.tensor([constant]).double(), energies[asked]])
        )
        return Regression(basis, prior[asked], spread, self._error(prior, noise, largest) + left_out)
