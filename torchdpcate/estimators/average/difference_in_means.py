"""The private difference in means: what any adjustment must beat, and what a trial needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.erm.records import Batch, Records
from torchdpcate.estimators.average.effect_estimator import EffectFacts, Total, Weighted
from torchdpcate.estimators.average.effect_plan import EffectPlan
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.outcome_table import EQUAL, OutcomeTable
from torchdpcate.estimators.average.planned import planned_sums
from torchdpcate.estimators.average.planned_error import ErrorPrior, PlannedError
from torchdpcate.plan import Query
from torchdpcate.privacy.budget import split_epsilon
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.release import Release

CONFOUNDING = "whatever confounds, unless everybody was treated with one known probability"
"""What its planned error does not count."""


@dataclass(frozen=True, eq=False)
class DifferenceInMeans(EffectPlan):
    """The plan of an outcome table of records that weigh the same; see ``EffectPlan``."""

    name: ClassVar[str] = "difference_in_means"
    formula: ClassVar[str] = (  # type: ignore[override]
        "root-polytope noise of radius 1/epsilon on the outcomes' table, then Laplace noise on the variance; "
        "covariate_balancing sections 3.3 and 5"
    )
    assumption: ClassVar[str] = (
        "treatment was randomised with one probability for everybody; where it was not, the estimate is biased and the "
        "interval may never hold the effect"
    )

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """See ``Plan``: the table, and the variance about its means."""
        return {} if self.budget is None else self.summed(OutcomeTable.laws(self.facts, self.epsilons))

    @property
    def facts(self) -> EffectFacts:
        """What is public of the table."""
        return EffectFacts(self.n, EQUAL)

    @property
    def epsilons(self) -> dict[str, float]:
        """Epsilon of the table and of the variance."""
        assert self.budget is not None
        return split_epsilon(self.budget.epsilon, OutcomeTable.parts)

    def own_settings(self) -> dict[str, Any]:
        """See ``EffectPlan``."""
        return {} if self.budget is None else _TABLE.public(self.facts, self.epsilons)

    @classmethod
    def stated_settings(cls, release: AverageEffectRelease) -> dict[str, Any]:
        """See ``EffectPlan``."""
        return {}

    def sums(
        self, records: Records, session: FitSession, learnt: Mapping[str, Tensor], runs: int = 1
    ) -> Mapping[str, Tensor]:
        """See ``EffectPlan``."""
        ask = partial(self.ask_each, session, runs)
        return OutcomeTable.ask(equal_weights(records), self.facts, self.epsilons, ask)

    def estimate(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """See ``EffectPlan``."""
        return OutcomeTable.estimate(answers, self.facts, self.epsilons)

    def answers(self, release: Release) -> dict[str, Tensor]:
        """See ``Plan``."""
        assert isinstance(release, AverageEffectRelease)
        places = OutcomeTable.places(release.numbers, self.facts, self.epsilons)
        return {name: self.placed(name, numbers) for name, numbers in places.items()}

    def without_noise(self, records: Records) -> NoisyEstimate:
        """See ``EffectPlan``."""
        return plain_difference(records)


_TABLE = OutcomeTable()


def equal_weights(records: Records) -> Total:
    """Return what sums over records that weigh the same."""

    def weighted(batch: Batch) -> Weighted:
        z, y = (part.reshape(-1, part.shape[-1]) for part in (batch.z, batch.y))
        w = EQUAL.at(torch.full_like(z, 0.5), z)
        return Weighted(z, y, w, torch.full_like(w, 0.5))

    return lambda terms: records.total(lambda batch: terms(weighted(batch)))


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

    mechanism: ClassVar[type[EffectPlan]] = DifferenceInMeans

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``."""
        _ = self.plan(n).queries  # which refuse noise that no number could carry

    def plan(self, n: int) -> DifferenceInMeans:
        """See ``AverageEffectLearner``."""
        return DifferenceInMeans(**self._facts(n))

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """See ``AverageEffectLearner``; confounding, which it does not adjust for, is not counted."""
        prior, plan = self._prior(prior), self.plan(n)
        noise = 0.0
        if plan.budget is not None:
            found = planned_sums(_TABLE, plan.facts, plan.epsilons, prior.treated)
            assert found is not None
            noise = found
        arms = 1 / (prior.treated * (1 - prior.treated))
        return PlannedError(
            "difference_in_means", noise, 0.0, prior.deviation * math.sqrt(arms / n), bias=CONFOUNDING
        ).in_units(self._unit())
