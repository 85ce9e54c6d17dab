"""The public plan of one composition of pure events: delta = 0, and epsilon is what its steps divide."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdpcate.composition.plan import CONSTANT, RULE, ComposedPlan
from torchdpcate.composition.priors import Filling, Regression, pure_filling
from torchdpcate.composition.pure_fits import (
    BARE,
    NOISE_SHARE,
    OBJECTIVE,
    SUMS,
    clip_slopes,
    least_ridge,
    places_of,
    sums_regression,
)
from torchdpcate.composition.steps import QUANTILES, SCREENING, EpsilonShares
from torchdpcate.errors import InputError
from torchdpcate.features.weighted_basis import Feature, WeightedBasis
from torchdpcate.privacy.budget import PrivacyBudget

_EQUIVALENT = 4.0  # epsilon over the mu of Gaussian steps with about as much noise
_WANDERING = 2.0  # measured on random laws: 1.5 to 3
_HEAD = 0.6  # of the constants' prior variance of the effect


class _Parts(NamedTuple):
    """Shares of epsilon: of each quantile at least and at most, of others, and of what is left; the effect's the rest.

    Those of rules were tuned on random laws, as ``RuleConstants``.
    """

    quantiles: tuple[float, float] = (0.03, 0.08)
    screening: float = 0.2
    moments: float = 0.12
    curvatures: float = 0.05
    outcome: float = 0.25
    propensity: float = 0.2


_EFFECT = _Parts()
_SIGN = _Parts(moments=0.1, propensity=0.15)
_LEAN = _Parts(quantiles=(0.03, 0.1), moments=0.1, propensity=0.1)
_BY_SUMS = _Parts(quantiles=(0.03, 0.1), moments=0.1, propensity=0.05)
_HALF_BELOW = 100.0  # n epsilon, below which an estimated propensity is noise: sums take one half
_LEAN_BELOW = 250.0  # n mu, below which an outcome regression costs a rule's sign more than it gains
_SIGN_NOISE = 1.0  # of a score over the effect's own: by random laws, with it no rule is constant too early


@dataclass(frozen=True)
class PurePlan(ComposedPlan):
    r"""A composition of pure events on all records: quantiles, sums with K-norm noise and perturbed objectives.

    Steps cost :math:`\epsilon = \sum_k \epsilon_k`, so what serves nothing is left out: an outcome regression of a
    constant alone, which the released centre is already, and where no regression has a feature, covariates. A rule
    (constants of ``RuleConstants``) at small n epsilon has no outcome regression. Its effect is then one perturbed
    objective, or one event of sums (``EffectSums``) with private or with public constants, whichever has the least
    planned regret.

    Args:
        asked: Steps that are asked for; None finds those that serve something.
        way_asked: How a rule's effect is found; None takes the way of least planned regret.

    Example:
        >>> from torchdpcate.privacy.budget import PrivacyBudget
        >>> [PurePlan(n, PrivacyBudget(1.0, 0.0), 6).rung for n in (300, 300_000)]
        ['constant', 'additive']
    """

    has_intervals: ClassVar[bool] = False
    has_windows: ClassVar[bool] = False
    has_pairs: ClassVar[bool] = False

    asked: tuple[str, ...] | None = field(default=None, repr=False, compare=False)
    way_asked: str | None = field(default=None, repr=False, compare=False)

    def _check_budget(self) -> None:
        if self.budget is None or self.budget.delta != 0:
            raise InputError("budget: a pure plan has delta = 0; take ComposedPlan")
        if self.intervals:
            raise InputError(
                "intervals = true: they rest on Gaussian noise; give privacy.delta above 0, for instance 1e-6, or "
                "leave intervals=auto"
            )

    @property
    def epsilon(self) -> float:
        """What the steps divide."""
        assert self.budget is not None
        return self.budget.epsilon * self.part

    @cached_property
    def mu(self) -> float:
        """That of Gaussian steps with about as much noise."""
        return self.epsilon / _EQUIVALENT

    @cached_property
    def way(self) -> str:
        """How the effect is found: ``OBJECTIVE``, ``SUMS``, or ``BARE`` for sums whose constants are all public."""
        if self.way_asked is not None or not self._may_be_sums:
            return self.way_asked or OBJECTIVE
        ways = [replace(self, way_asked=way, asked=None) for way in (OBJECTIVE, SUMS, BARE)]
        if self._many and ways[0].rung != CONSTANT:
            return OBJECTIVE  # which leaves covariates out
        return max(ways, key=lambda plan: plan._worth(plan.planned_correlation, plan.rung == CONSTANT)).way

    @property
    def by_sums(self) -> bool:
        """Whether the effect is one event of sums."""
        return self.way != OBJECTIVE

    @property
    def _may_be_sums(self) -> bool:
        rule = self._rule
        if rule is None or self.binary or self.constant_only:
            return False
        return self.n * self.epsilon < rule.sums_below and not self.shrinks

    def effect(self, two_levels: Sequence[bool] | None = None, pairs: Sequence[Feature] | None = None) -> Regression:
        """See ``ComposedPlan``; by sums it is linear in all covariates, or a constant."""
        if not self.by_sums:
            return super().effect(two_levels, pairs)
        levels, rule = self._levels(two_levels), self.rules
        unit = 2 / (self._effect_budget(self.covariates) * self.n * self.inside * self.effect_weight)
        alone, linear = (
            sums_regression(kept, unit, rule.linear_variance / self.covariates) for kept in ((), tuple(levels))
        )
        found = [self._mean_correlation(regression, self.covariates) for regression in (alone, linear)]
        return linear if self._worth(found[1], False) >= self._worth(found[0], True) else alone

    def _worth(self, correlation: float, constant: bool) -> float:
        """Return what falls with a rule's planned regret: a constant rule's correlation counts for less."""
        return correlation / (self.rules.constant_gain if constant else 1.0)

    def sum_slopes(self, two_levels: Sequence[bool]) -> Tensor:
        """Return the mean of z times its clipped value, one a covariate in use, as planned; see ``clip_slopes``."""
        return clip_slopes(two_levels, looked_at=self._looks)

    def places(self, step: str) -> Tensor | None:
        """Return which of a quantile's candidates a step looks at; None for all."""
        return places_of(step == QUANTILES[0], 2**self.constants.quantile_levels) if self.by_sums else None

    @property
    def planned_correlation(self) -> float:
        """See ``ComposedPlan``; over effects of the sizes that rules expect, whatever the way."""
        if self._rule is None or not self._rule.sums_below:
            return super().planned_correlation
        effect, sizes = self.effect(), self._rule.effect_sizes
        return math.fsum(s * self.sign_correlation(effect, self.kept, s) for s in sizes) / math.fsum(sizes)

    @property
    def quantiles(self) -> tuple[str, ...]:
        """See ``ComposedPlan``; none where the outcome's constants are public."""
        return () if self.way == BARE else super().quantiles

    def facts(self) -> dict[str, Any]:
        """See ``ComposedPlan``."""
        return super().facts() | ({"effect_by": self.way} if self.by_sums else {})

    @property
    def log_link(self) -> bool:
        """See ``ComposedPlan``: of losses whose curvature has no bound no objective can be perturbed."""
        return False

    @property
    def steps(self) -> int:
        """One event a regression."""
        return 1

    @property
    def warm(self) -> int:
        """None."""
        return 0

    @cached_property
    def kept(self) -> int:
        """Number of covariates that are kept; all, where none is looked at."""
        return self._kept if self._looks and not self.by_sums else self.covariates

    @cached_property
    def shares(self) -> EpsilonShares:
        """Share of each step, of epsilon."""
        steps, of = self._steps if self.asked is None else self.asked, self._parts
        fixed = dict.fromkeys(QUANTILES, self._quantile_share)
        fixed |= {SCREENING: of.screening, "moments": of.moments, "effect curvatures": of.curvatures}
        parts = {"outcome": of.outcome, "propensity": of.propensity, "effect": 1 - of.outcome - of.propensity}
        left = 1 - math.fsum(fixed[step] for step in steps if step in fixed)
        total = math.fsum(parts[step] for step in steps if step in parts)
        return EpsilonShares(
            self.epsilon, {step: fixed[step] if step in fixed else left * parts[step] / total for step in steps}
        )

    def outcome(self, two_levels: Sequence[bool] | None = None) -> Regression:
        """See ``ComposedPlan``; a constant of no noise where the released centre is all."""
        if "outcome" in self.shares.shares:
            return super().outcome(two_levels)
        return Regression(WeightedBasis((), torch.ones(1).double()), torch.zeros(0).double(), 0.0, 0.0)

    def gradient_noise(self, step: str, slope: float, size: int) -> float:
        """See ``ComposedPlan``: that of the objective's linear term."""
        return super().gradient_noise(step, slope, size) / NOISE_SHARE

    @property
    def wandering(self) -> float:
        """See ``ComposedPlan``: the nuisances' noise is as large as the effect's own."""
        return _WANDERING

    def least_ridge(self, step: str, curvature: float) -> float:
        """See ``ComposedPlan``."""
        return least_ridge(self.shares.of(step), curvature)

    @property
    def shrinking_variance(self) -> float:
        """See ``ComposedPlan``."""
        return _HEAD * super().shrinking_variance

    @property
    def lean(self) -> bool:
        """Whether a rule has no outcome regression: at small n it would cost the sign more than it gains."""
        return self.by_sums or (self.target == RULE and not self.binary and self.size < _LEAN_BELOW)

    @property
    def effect_sizes(self) -> tuple[float, ...]:
        """See ``ComposedPlan``: an objective's constants were tuned with one."""
        return self.rules.effect_sizes if self.by_sums else (1.0,)

    @property
    def found_share(self) -> float:
        """See ``ComposedPlan``: its constants were tuned with all."""
        return 1.0

    @property
    def one_propensity(self) -> bool:
        """See ``ComposedPlan``: by sums."""
        return self.by_sums

    @property
    def _sign_limit(self) -> float:
        rule = self.rules
        return {OBJECTIVE: 1.0, SUMS: rule.sums_correlation, BARE: rule.bare_correlation}[self.way]

    @property
    def _may_be_lean(self) -> bool:
        return False  # as ``lean`` says, at all events

    @property
    def sign_noise(self) -> float:
        """See ``ComposedPlan``."""
        return _SIGN_NOISE

    @property
    def _parts(self) -> _Parts:
        if self.by_sums:
            return _BY_SUMS
        return _EFFECT if self.target != RULE else _LEAN if self.lean else _SIGN

    @cached_property
    def _steps(self) -> tuple[str, ...]:
        """The steps that serve something at their shares."""
        if self.way == BARE:
            return self._later
        screening = (SCREENING,) if not self.by_sums and self._kept < self.covariates else ()
        steps = (*self.quantiles[:2], *screening, "moments", *self._later)
        nuisances = [step for step in steps if step in ("outcome", "propensity")]
        while True:
            trial = replace(self, asked=steps, way_asked=self.way)
            rich = {step: len(getattr(trial, step)().basis.features) > 0 for step in (*nuisances, "effect")}
            idle = set() if any(rich.values()) else {SCREENING, "moments"}
            idle |= set() if rich.get("outcome") or self.binary else {"outcome", "residual scale"}
            idle |= set() if rich["effect"] else {"effect curvatures"}
            if idle.isdisjoint(steps):
                return steps
            steps = tuple(step for step in steps if step not in idle)

    @property
    def _later(self) -> tuple[str, ...]:
        """The steps that follow the covariates' moments."""
        known = self.known_propensity or (self.way == BARE and self.n * self.epsilon < _HALF_BELOW)
        propensity = () if known else ("propensity",)
        if self.lean:
            return (*propensity, "effect")
        return ("outcome", *propensity, *self.quantiles[2:], "effect curvatures", "effect")

    @cached_property
    def _kept(self) -> int:
        return replace(self, constant_only=False, asked=(), way_asked=OBJECTIVE).best_kept()

    @property
    def _looks(self) -> bool:
        """Whether covariates are looked at."""
        return "moments" in self.shares.shares

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

    def _unit_noise(self, mu: float, weight: float, inside: float | None = None, slope: float = 1.0) -> float:
        """Return the variance of a function of energy one by one coefficient of a perturbed objective of epsilon."""
        return 2 * (2 * slope / (NOISE_SHARE * mu * self.n * (inside or self.inside) * weight)) ** 2

    def _fill(self, prior: Tensor, noise: float, constant: float = math.inf) -> Filling:
        return pure_filling(prior, noise, constant)


def kind_of_plan(budget: PrivacyBudget | None, kind: type[ComposedPlan] | None = ComposedPlan) -> type[ComposedPlan]:
    """Return the kind of plan that a budget has: of pure events where delta is 0, else of Gaussian ones.

    Args:
        budget: Of the composition.
        kind: The learner's, with Gaussian events; of others than ``ComposedPlan`` there are none by pure events.

    Example:
        >>> kind_of_plan(PrivacyBudget(1.0, 0.0)).__name__, kind_of_plan(None).__name__
        ('PurePlan', 'ComposedPlan')
    """
    kind = kind or ComposedPlan
    return PurePlan if kind is ComposedPlan and budget is not None and budget.delta == 0 else kind
