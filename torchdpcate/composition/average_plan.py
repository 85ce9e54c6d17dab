"""The public plan of an average effect by composed nuisances: Gaussian steps for these, a pure event for its scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, ClassVar, Self

from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.doubly_robust import DoublyRobustPlan
from torchdpcate.composition.expectations import PROPENSITY_CURVATURE
from torchdpcate.composition.priors import held_shares
from torchdpcate.composition.steps import SCREENING, Shares, total_mu
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.features.weighted_basis import all_features
from torchdpcate.privacy.bounded_range import range_beside
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent

SCORES = 0.4
"""Part of epsilon that the steps leave to the sums of scores, which exact composition makes more of."""
_QUANTILE = 0.97  # of the sizes of scores, where n epsilon is large enough for it
_BINARY = 0.95  # of the largest sizes that scores of a binary outcome may have
_TAIL = 10.0  # what is shrunk away of a confounder biases an average
_MARGIN = 3.0  # standard errors of a count that either quantile is below the largest size
_LEAST_QUANTILE = 0.75  # to which that may move them
_SPREADS = (3.0, 10.0)  # least and largest clip, in standard deviations of normal scores
_NOISE = 8.0  # root n epsilon over the clip's deviations: the noise is .35 of what sampling adds
_SPIKE = 0.05  # that a part of a logit is zero: what is drawn to zero confounds
_RARE = 0.01  # of the records whose correction may be clipped, at the largest clip of a binary outcome
_SEPARATOR = "; "  # of the constants, in one text


@dataclass(frozen=True)
class AveragePlan(DoublyRobustPlan):
    r"""Everything public about an average effect whose nuisances are steps of one composition on all records.

    The steps cost :math:`((1 - f)\epsilon, \delta)`, all of it for centre, scales, propensity and the outcomes of both
    arms; two sums of scores cost what is left beside them as one pure event, by exact composition: more than
    :math:`f \epsilon`. The clip of the scores is a released
    quantile times a public factor, which grows with n until noise is .35 of what sampling adds.

    Args:
        score_epsilon: Epsilon of the sums; None without privacy.
        least: Least propensity, where it is below ``overlap``, at which scores clip it.

    Raises:
        InputError: As ``DoublyRobustPlan``.

    Example:
        >>> domain = Domain([0.0] * 4, [1.0] * 4, 0.0, 1.0, overlap=0.1)
        >>> plan = AveragePlan.within(4_000, PrivacyBudget(1.0, 1e-5), domain)
        >>> list(plan.shares.shares)[-2:], round(plan.score_epsilon, 4), round(plan.clip_factor, 3)
        (['outcome', 'propensity'], 0.4217, 1.967)
    """

    chooses_modifiers: ClassVar[bool] = False
    has_pairs: ClassVar[bool] = False

    score_epsilon: float | None = None
    least: float | None = None

    @classmethod
    def within(
        cls,
        n: int,
        budget: PrivacyBudget | None,
        domain: Domain,
        constants: PlanConstants | None = None,
        least: float | None = None,
    ) -> Self:
        """Return the plan for n records of a domain, by the budget of all of it; None without privacy.

        Args:
            n: Number of records.
            budget: Of all steps and the sums.
            domain: Public bounds; its overlap is the clip of propensities in scores.
            constants: Of the plan.
            least: The least propensity, where it is below that clip.

        Raises:
            InputError: A budget without delta.
        """
        if budget is not None and budget.delta == 0:
            raise InputError(
                "delta = 0: effect=composed has Gaussian steps, which are only (epsilon, delta)-private; give "
                "privacy.delta above 0, for instance 1e-5, or take effect=covariate_balancing, which is pure"
            )
        settings = {
            "constants": constants or PlanConstants(spike=_SPIKE, score_margin=_MARGIN, tail_variance=_TAIL),
            "least": least,
        }
        if budget is None:
            return cls.of(n, None, domain, **settings)
        steps = PrivacyBudget((1 - SCORES) * budget.epsilon, budget.delta)
        scores = range_beside(total_mu(steps), budget, PureEvent)
        return cls.of(n, steps, domain, score_epsilon=scores, **settings)

    @cached_property
    def shares(self) -> Shares:
        """See ``ComposedPlan``: no step is for the effect, which leaves its share to the nuisances."""
        return Shares(self.mu, self._shares(tuple(self.choices)))

    def _shares(self, choices: Sequence[str]) -> dict[str, float]:
        shares = self._division.shares(choices)
        left = shares.pop("effect") + shares.pop("effect curvatures")
        regressions = [step for step in ("outcome", "propensity") if step in shares]
        total = math.fsum(shares[step] for step in regressions)
        for step in regressions:
            shares[step] *= 1 + left / total
        return shares

    def best_kept(self) -> int:
        """See ``ComposedPlan``: all covariates that it may keep, for what is left out may confound.

        Where there are more, the number of least planned error of the outcome regression.
        """
        most, q = min(self.covariates, self.constants.most), self.covariates
        return q if q <= most or self.budget is None else min(range(1, most + 1), key=self._outcome_error)

    def _outcome_error(self, k: int) -> float:
        """Return the planned squared error of the outcome regression of k covariates, over that of none."""
        features, constants = all_features([False] * k, self.constants.kinds), self.constants
        prior = self._prior(features, constants.outcome_variance) * held_shares(features, k, self.covariates)
        return self._fill(prior, self._outcome_noise_of(k)).error - float(prior.sum())

    def _outcome_noise_of(self, k: int) -> float:
        choices = (SCREENING,) if k < self.covariates else ()
        mu = self.mu * math.sqrt(self._shares(choices)["outcome"])
        return self._unit_noise(mu, 1.0, PROPENSITY_CURVATURE if self.binary else None)

    def logit_slope(self, step: str) -> float:
        """See ``ComposedPlan``: a fit that were clamped within the truth would be off elsewhere too."""
        if step == "outcome" or self.least is None:
            return super().logit_slope(step)
        return 1 - min(self.overlap, self.least)

    @property
    def log_link(self) -> bool:
        """See ``ComposedPlan``: never, for the interval counts the noise of a linear outcome regression."""
        return False

    @property
    def spread(self) -> float:
        r"""Clip of the scores in standard deviations of normal ones, :math:`\sqrt n\,\epsilon / 8` within bounds."""
        low, high = _SPREADS
        return (
            high if self.score_epsilon is None else min(max(math.sqrt(self.n) * self.score_epsilon / _NOISE, low), high)
        )

    @property
    def clip_factor(self) -> float:
        """Clip of the scores over their released quantile; that of a binary outcome's are possible sizes: one."""
        return 1.0 if self.binary else self.spread / round(NormalDist().inv_cdf((1 + self.score_quantile) / 2), 6)

    @property
    def score_quantile(self) -> float:
        r"""Quantile of the scores' sizes at which they are clipped, but for the factor.

        Its counts have the standard error :math:`\sqrt{l / s} / \mu`, l how many and s their share. Where n epsilon is
        little, the quantile stays ``score_margin`` of them below the largest size: a search whose counts all pass for
        too few ends at the largest clip, which is many times too large.
        """
        low, high = _SPREADS
        rare = (_RARE / (1 - _BINARY)) ** ((self.spread - low) / (high - low))
        wanted = 1 - (1 - _BINARY) * rare if self.binary else _QUANTILE
        if self.budget is None:
            return wanted
        levels, share = self.constants.quantile_levels, self.shares.shares["residual scale"]
        margin = self.constants.score_margin * math.sqrt(levels / share) / (self.mu * self.n)
        return min(wanted, max(1 - margin, _LEAST_QUANTILE))

    def facts(self) -> dict[str, Any]:
        """Return what the plan is made of beside n and the domain, and what it decides, as statements have it."""
        budget = self.budget
        return {
            "kept": self.kept,
            "steps": self.steps,
            "huber_quantile": self.huber_quantile,
            "steps_epsilon": None if budget is None else budget.epsilon,
            "steps_delta": None if budget is None else budget.delta,
            "constants": _SEPARATOR.join(self.constants.to_text()),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], n: int, domain: Domain, least: float | None = None) -> Self:
        """Return the plan that a statement's facts describe; see ``within``.

        Raises:
            InputError: No plan has such facts.
        """
        steps = PrivacyBudget(facts["steps_epsilon"], facts["steps_delta"])
        total = PrivacyBudget(steps.epsilon / (1 - SCORES), steps.delta)
        return cls.within(n, total, domain, PlanConstants.from_text(facts["constants"].split(_SEPARATOR)), least)
