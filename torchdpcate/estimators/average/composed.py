"""Average effects by one composition on all records: private nuisances, then sums of clipped doubly robust scores."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE, Estimand
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import propensity_noise
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.average.clipped_scores import SUMS, ClippedScores
from torchdpcate.estimators.average.effect_plan import EffectPlan
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.names import RECORDS
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.planned_error import ErrorPrior, PlannedError, laplace
from torchdpcate.estimators.average.sum_and_squares import sums_mechanism
from torchdpcate.estimators.weighted_balance import weighted_balance
from torchdpcate.privacy.charge import COMPOSED_SCORES
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.released_weights import BalanceTable

CLIPPED = "a bias where the nuisances' features do not follow the truth, or where scores beyond the clip do not cancel"
"""What its planned error does not count."""


@dataclass(eq=False, repr=False)
class ComposedAverageEffect(AverageEffectLearner):
    r"""Average effect by doubly robust scores (AIPW) of nuisances that one composition learns on all records.

    .. math:: \varphi_i = m_1(x_i) - m_0(x_i) + \frac{a_i - \pi_i}{\pi_i (1 - \pi_i)} (y_i - m_{a_i}(x_i)), \qquad
        \tau = c + \frac1n \sum_i \mathrm{clip}(\varphi_i - c, \pm S) + Lap

    Three fifths of epsilon pay for the nuisances, Gaussian events that add up in :math:`\mu^2`: the outcome's centre
    and scale, moments of the covariates, a propensity where the domain states none, and both arms' regression. The rest
    pays for the scores' sum; their sum of squares, for the interval, is free beside it. Since S is a private
    quantile of the scores' own sizes, noise follows the outcomes and not their public range.

    Guarantee:
        Certified (epsilon, delta) with delta > 0: (.6 epsilon, delta) for the steps, given which the sums are
        pure with the rest (docs/guarantees/clipped_scores.md). The interval counts sampling, all noise, what errors of
        both nuisances do together and what the clip makes of them, by released numbers. It does not count skewed
        scores beyond the clip, nor features that follow neither the propensity nor the outcomes, beyond their prior.
        Source: Robins, Rotnitzky & Zhao (1994), Dong, Roth & Su (2022); theory notes ``composed_estimator`` and
        ``composed_intervals``.

    Args:
        domain: See ``AverageEffectLearner``, and for all arguments not named here.
        budget: Of all of it, with delta > 0.
        estimand: ``ATE``.

    Attributes:
        nuisances_: Centre, clip and error, paid for, and the scores, which are the curator's.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000) + 0.1 * torch.rand(4000)
        >>> domain = Domain([0, 0], [1, 1], -10.0, 10.0, overlap=0.2)
        >>> release = ComposedAverageEffect(domain, PrivacyBudget(1.0, 1e-5)).fit(X, A, Y).release()
        >>> low, high = release.interval(0.95)
        >>> abs(release.estimate - 0.4) < 0.2, bool(low < release.estimate < high), release.privacy.mechanism
        (True, True, 'clipped_scores')
    """

    mechanism: ClassVar[type[EffectPlan]] = ClippedScores
    streams: ClassVar[bool] = False

    @classmethod
    def supports(cls, estimand: type[Estimand]) -> bool:
        """Whether it is the effect on everybody."""
        return estimand is ATE

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``; also refuses delta = 0."""
        self.plan(n).public()

    def plan(self, n: int) -> ClippedScores:
        """See ``AverageEffectLearner``."""
        return ClippedScores(**self._facts(n))

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """See ``AverageEffectLearner``: the prior says how far scores lie from their mean."""
        prior, plan = self._prior(prior), self.plan(n).steps
        deviation = planned_deviation(plan, prior)
        noise = nuisances = 0.0
        if plan.score_epsilon is not None:
            noise = laplace(planned_clip(plan, prior) * sums_mechanism(n, plan.score_epsilon).released_scale(2) / n)
            if not plan.known_propensity:
                nuisances = self._planned_nuisances(plan, prior)
        sampling = deviation / math.sqrt(n)
        return PlannedError("composed", noise, nuisances, sampling, bias=CLIPPED).in_units(self._unit())

    def _planned_nuisances(self, plan: ComposedPlan, prior: ErrorPrior) -> float:
        """Return what the product of both nuisances' errors is planned to add, in outcome ranges."""
        arms = plan.both_arms()
        size = len(arms.basis.energies)
        unit = prior.deviation if not plan.binary else 1.0
        noise = arms.noise / arms.basis.energies
        held = torch.cat([noise[:1], noise[1:] * arms.prior / (arms.prior + noise[1:])])
        outcome = unit * math.sqrt(float(held.sum()))
        return min(4 * propensity_noise(plan) * outcome / math.sqrt(size), prior.furthest)

    def _of(self, records: CausalData) -> CausalData:
        """See ``AverageEffectLearner``: in outcome units."""
        return records.copy()

    def _learnt_first(self, records: CausalData) -> Mapping[str, Tensor]:
        """Pay for the steps, and for the sums, which are part of the plan whose charges compose tightly."""
        plan = self._plan
        self.nuisances_ = plan.nuisances(records, self._session.scope([RECORDS], COMPOSED_SCORES))
        if plan.budget is None:
            return {}
        # a charge after the fit would pass the filter
        own = self._session.scope([RECORDS], plan.queries[SUMS].charge)
        answers: Mapping[str, Tensor] = plan.sums(self.nuisances_, own, {})
        self._paid = own.entries
        return answers

    def _sums(self, session: FitSession) -> Mapping[str, Tensor]:
        """See ``AverageEffectLearner``: the fit has paid for them."""
        session.entries.update(self._paid)
        return self._learnt

    def _without_noise(self, records: CausalData) -> NoisyEstimate:
        return self._plan.without_noise(self.nuisances_)  # type: ignore[no-any-return]

    def nonprivate_balance(self) -> BalanceTable:
        """Return the balance of all covariates before and after weighting by the propensity; the curator's.

        Raises:
            NotFittedError: Before ``fit``.
        """
        self._require_fitted("nonprivate_balance")
        return weighted_balance(self._plan.domain, self._records, self.nuisances_.propensity)


def planned_deviation(plan: ComposedPlan, prior: ErrorPrior) -> float:
    """Return the planned standard deviation of scores, in outcome ranges."""
    return 2 * prior.deviation * math.sqrt(prior.spread if not plan.known_propensity else 1.0)


def planned_clip(plan: ComposedPlan, prior: ErrorPrior) -> float:
    """Return the planned clip of scores, in outcome ranges."""
    return planned_deviation(plan, prior) * (plan.score_spread if not plan.binary else 2.0)
