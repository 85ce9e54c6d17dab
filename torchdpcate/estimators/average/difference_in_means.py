"""The private difference in means: what any adjustment must beat, and what a trial needs."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from torchdpcate.causal.estimand import ATE
from torchdpcate.erm.records import Batch, Records
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.outcome_table import OutcomeTable
from torchdpcate.estimators.average.readout import Conclusion, ReadoutFacts, Total, Weighted
from torchdpcate.privacy.session import FitSession

_EQUAL = ATE(0.5)  # all records weigh the same
_TABLE = OutcomeTable()
_ROUNDING = 1e-9  # of the budget, so that shares never add up to more


def equal_weights(records: Records) -> Total:
    """Return what sums over records that weigh the same."""

    def weighted(batch: Batch) -> Weighted:
        z, y = (part.reshape(-1, part.shape[-1]) for part in (batch.z, batch.y))
        w = _EQUAL.at(torch.full_like(z, 0.5), z)
        return Weighted(z, y, w, torch.full_like(w, 0.5))

    return lambda terms: records.total(lambda batch: terms(weighted(batch)))


def difference_in_means(records: Records, epsilon: float, session: FitSession) -> Conclusion:
    """Release the difference in means of each data set, for outcomes in [0, 1].

    Args:
        records: One data set, or several side by side.
        epsilon: What it costs.
        session: Pays, and draws the noise.
    """
    facts = ReadoutFacts(records.n, _EQUAL)
    return _TABLE.run(equal_weights(records), facts, prices_of(epsilon), session)


def prices_of(epsilon: float) -> dict[str, float]:
    """Return the epsilon of the table and of the variance."""
    whole = sum(_TABLE.parts.values()) * (1 + _ROUNDING)
    return {part: epsilon * share / whole for part, share in _TABLE.parts.items()}


def plain_difference(records: Records) -> Conclusion:
    """Return the difference in means without noise. The curator's, never to be published."""
    return _TABLE.without_noise(equal_weights(records), ReadoutFacts(records.n, _EQUAL))


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

    method: ClassVar[str] = "difference_in_means"
    formula: ClassVar[str] = (
        "root-polytope noise of radius 1/epsilon on the outcomes' table, then Laplace noise on the variance; "
        "covariate_balancing sections 3.3 and 5"
    )

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``."""
        self._constants(n)

    def _learn(self, records: Records) -> None:
        pass

    def _conclude(self, records: Records, session: FitSession) -> Conclusion:
        assert session.budget is not None
        return difference_in_means(records, session.budget.epsilon, session)

    def _without_noise(self, records: Records) -> Conclusion:
        return plain_difference(records)

    def _public(self) -> dict[str, Any]:
        return self._constants(sum(self.sizes_.values()))

    def _constants(self, n: int) -> dict[str, Any]:
        if self.budget is None:
            return {}
        return _TABLE.public(ReadoutFacts(n, _EQUAL), prices_of(self.budget.epsilon))
