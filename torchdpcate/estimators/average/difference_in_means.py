"""The private difference in means: what any adjustment must beat, and what a trial needs."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from torchdpcate.erm.records import Batch, Records
from torchdpcate.estimators.average.effect_estimator import EffectFacts, Total, Weighted
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.outcome_table import EQUAL, OutcomeTable
from torchdpcate.estimators.average.peers import DifferenceInMeans
from torchdpcate.estimators.average.planned import planned_sums
from torchdpcate.estimators.average.planned_error import ErrorPrior, PlannedError
from torchdpcate.estimators.average.stated import AverageMechanism
from torchdpcate.privacy.budget import split_epsilon
from torchdpcate.privacy.session import FitSession

_TABLE = OutcomeTable()
CONFOUNDING = "whatever confounds, unless everybody was treated with one known probability"
"""What its planned error does not count."""


def equal_weights(records: Records) -> Total:
    """Return what sums over records that weigh the same."""

    def weighted(batch: Batch) -> Weighted:
        z, y = (part.reshape(-1, part.shape[-1]) for part in (batch.z, batch.y))
        w = EQUAL.at(torch.full_like(z, 0.5), z)
        return Weighted(z, y, w, torch.full_like(w, 0.5))

    return lambda terms: records.total(lambda batch: terms(weighted(batch)))


def difference_in_means(records: Records, epsilon: float, session: FitSession) -> NoisyEstimate:
    """Release the difference in means of each data set, for outcomes in [0, 1].

    Args:
        records: One data set, or several side by side.
        epsilon: What it costs.
        session: Pays, and draws the noise.
    """
    facts = EffectFacts(records.n, EQUAL)
    return _TABLE.run(equal_weights(records), facts, epsilons_of(epsilon), session)


def epsilons_of(epsilon: float) -> dict[str, float]:
    """Return the epsilon of the table and of the variance."""
    return split_epsilon(epsilon, _TABLE.parts)


def plain_difference(records: Records) -> NoisyEstimate:
    """Return the difference in means without noise. The curator's, never to be published."""
    return _TABLE.without_noise(equal_weights(records), EffectFacts(records.n, EQUAL))


@dataclass(eq=False, repr=False)
class DifferenceInMeansEffect(AverageEffectLearner):
    r"""Difference of the arms' mean outcomes, which adjusts for nothing.

    .. math:: \tau = \mu_1 - \mu_0, \quad \mu_z = \frac{\sum_{z_i = z} y_i}{\#\{z_i = z\}}

    In a randomised trial it estimates all four estimands; elsewhere it is what adjustment is held against, and its
    interval does not hold the effect.

    Guarantee:
        Certified, pure: an ``OutcomeTable`` with equal weights. Source: theory note ``covariate_balancing``, sections
        3.3 and 5; docs/guarantees/outcome_table.md.

    Example:
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000)
        >>> learner = DifferenceInMeansEffect(Domain([0, 0], [1, 1], 0.0, 1.0), PrivacyBudget(4.0, 0.0))
        >>> release = learner.fit(X, A, Y).release()
        >>> abs(release.estimate - 0.4) < 0.05, release.privacy.mechanism
        (True, 'difference_in_means')
    """

    mechanism: ClassVar[type[AverageMechanism]] = DifferenceInMeans

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``."""
        self.plan(n)

    def _fit_first(self, records: Records) -> None:
        pass

    def _release_estimate(self, records: Records, session: FitSession) -> NoisyEstimate:
        assert session.budget is not None
        return difference_in_means(records, session.budget.epsilon, session)

    def _without_noise(self, records: Records) -> NoisyEstimate:
        return plain_difference(records)

    def _public(self) -> dict[str, Any]:
        return self.plan(sum(self.sizes_.values()))

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """See ``AverageEffectLearner``; confounding, which it does not adjust for, is not counted."""
        prior = self._prior(prior)
        noise = 0.0
        if self.budget is not None:
            found = planned_sums(_TABLE, EffectFacts(n, EQUAL), epsilons_of(self.budget.epsilon), prior.treated)
            assert found is not None
            noise = found
        arms = 1 / (prior.treated * (1 - prior.treated))
        return PlannedError(
            "difference_in_means", noise, 0.0, prior.deviation * math.sqrt(arms / n), bias=CONFOUNDING
        ).in_units(self._unit())

    def plan(self, n: int) -> dict[str, Any]:
        """See ``AverageEffectLearner``: the scales by name."""
        if self.budget is None:
            return {}
        return _TABLE.public(EffectFacts(n, EQUAL), epsilons_of(self.budget.epsilon))
