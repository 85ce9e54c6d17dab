"""The public plan of one composition of pure events: delta = 0, and epsilon is what its steps divide."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchdpcate.composition.perturbed_objective import NOISE_SHARE, least_ridge
from torchdpcate.composition.plan import QUANTILES, RULE, ComposedPlan, Regression
from torchdpcate.composition.shares import EpsilonShares
from torchdpcate.composition.water_filling import pure_filling
from torchdpcate.errors import InputError
from torchdpcate.features.weighted_basis import WeightedBasis
from torchdpcate.privacy.budget import PrivacyBudget

_EQUIVALENT = 4.0  # epsilon over the mu of Gaussian steps with about as much noise
_QUANTILE_SHARES = (0.03, 0.08)  # of epsilon, each
_SCREENING, _MOMENTS, _CURVATURES = 0.2, 0.12, 0.05
_WANDERING = 2.0  # measured on random laws: 1.5 to 3
_HEAD = 0.6  # of the constants' prior variance of the effect
_OUTCOME, _PROPENSITY = 0.25, 0.2  # of what is left, beside the effect


@dataclass(frozen=True)
class PurePlan(ComposedPlan):
    r"""A composition of pure events on all records: quantiles, sums with K-norm noise and perturbed objectives.

    Steps cost :math:`\epsilon = \sum_k \epsilon_k`, so what serves nothing is left out: an outcome regression of a
    constant alone, which the released centre is already, and where no regression has a feature, covariates.

    Args:
        asked: Steps that are asked for; None finds those that serve something.

    Example:
        >>> from torchdpcate.privacy.budget import PrivacyBudget
        >>> [PurePlan(n, PrivacyBudget(1.0, 0.0), 6).rung for n in (300, 300_000)]
        ['constant', 'additive']
    """

    has_intervals: ClassVar[bool] = False
    has_lean: ClassVar[bool] = False

    asked: tuple[str, ...] | None = field(default=None, repr=False, compare=False)

    def _check_budget(self) -> None:
        if self.budget is None or self.budget.delta != 0:
            raise InputError("budget: a pure plan has delta = 0; take ComposedPlan")
        if self.target == RULE:
            raise InputError(
                "delta = 0: the plan of a rule has Gaussian events; give privacy.delta above 0, for instance 1e-6, or "
                "use an OutcomeWeightedLearner or a TwoStageRule"
            )
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
        return self._kept if self._looks else self.covariates

    @cached_property
    def shares(self) -> EpsilonShares:
        """Share of each step, of epsilon."""
        steps = self._steps if self.asked is None else self.asked
        fixed = dict.fromkeys(QUANTILES, self._quantile_share)
        fixed |= {"screening": _SCREENING, "moments": _MOMENTS, "effect curvatures": _CURVATURES}
        parts = {"outcome": _OUTCOME, "propensity": _PROPENSITY, "effect": 1 - _OUTCOME - _PROPENSITY}
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

    @cached_property
    def _steps(self) -> tuple[str, ...]:
        """The steps that serve something at their shares."""
        screening = ("screening",) if self._kept < self.covariates else ()
        nuisances = ("outcome",) if self.known_propensity else ("outcome", "propensity")
        scale = self.quantiles
        steps = (*scale[:2], *screening, "moments", *nuisances, *scale[2:], "effect curvatures", "effect")
        while True:
            trial = replace(self, asked=steps)
            rich = {step: len(getattr(trial, step)().basis.features) > 0 for step in (*nuisances, "effect")}
            idle = set() if any(rich.values()) else {"screening", "moments"}
            idle |= set() if rich["outcome"] or self.binary else {"outcome", "residual scale"}
            idle |= set() if rich["effect"] else {"effect curvatures"}
            if idle.isdisjoint(steps):
                return steps
            steps = tuple(step for step in steps if step not in idle)

    @cached_property
    def _kept(self) -> int:
        return replace(self, constant_only=False, asked=()).best_kept()

    @property
    def _looks(self) -> bool:
        """Whether covariates are looked at."""
        return "moments" in self.shares.shares

    @property
    def _quantile_share(self) -> float:
        # a quantile chosen by its rank is off by about twice the scale of its noise, 2 / epsilon
        wanted = 2 * math.sqrt(2) / (self.constants.rank_error * self.n * self.epsilon)
        return min(max(wanted, _QUANTILE_SHARES[0]), _QUANTILE_SHARES[1])

    def _head_budget(self, k: int) -> float:
        left = (
            1 - len(self.quantiles) * self._quantile_share - _MOMENTS - _CURVATURES - _SCREENING * (k < self.covariates)
        )
        parts = 1 - _PROPENSITY * self.known_propensity
        return self.epsilon * left * (1 - _OUTCOME - _PROPENSITY) / parts

    def _unit_noise(self, mu: float, weight: float, inside: float | None = None) -> float:
        """Return the variance of a function of energy one by one coefficient of a perturbed objective of epsilon."""
        return 2 * (2 / (NOISE_SHARE * mu * self.n * (inside or self.inside) * weight)) ** 2

    def _energies(self, prior: Tensor, noise: float, constant: float = math.inf) -> tuple[float, float, Tensor]:
        return pure_filling(prior, noise)

    def _error(self, prior: Tensor, noise: float, constant: float = math.inf) -> float:
        variance, own, energies = pure_filling(prior, noise)
        return variance / own + float((prior * variance / (prior * energies + variance)).sum())

    @property
    def _head_variance(self) -> float:
        return _HEAD * super()._head_variance

    def _regression(
        self,
        two_levels: Sequence[bool] | None,
        variance: float,
        noise: float,
        kinds: str | None = None,
        constant_prior: float = math.inf,
        sampling: float = 0.0,
    ) -> Regression:
        return super()._regression(two_levels, variance, noise, kinds if self._looks else "", constant_prior, sampling)


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
