"""Average effects where the design makes the propensity known: weighted sums of centred outcomes."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from torchdpcate.data.propensity import KnownPropensity
from torchdpcate.data.records import CausalData, RecordStream
from torchdpcate.data.schema import TableSchema
from torchdpcate.erm.records import Batch, StackedRecords, make_batch
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.centred_sums import (
    CentredSums,
    contrast_epsilon,
    known_propensity,
    noise_scales,
)
from torchdpcate.estimators.average.effect_plan import EffectPlan
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.planned_error import ErrorPrior, PlannedError, laplace
from torchdpcate.features.maps import FeatureMap


class _Known(FeatureMap):
    """The known propensity as the one feature, so that records of any kind carry it."""

    def __init__(self, known: KnownPropensity) -> None:
        super().__init__()
        self.known = known

    @property
    def dimension(self) -> int:
        """One."""
        return 1

    def config(self) -> dict[str, Any]:
        """Return no settings: it is in no release."""
        return {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the propensity at x, [n, 1]."""
        return self.known.at(x)[:, None]


@dataclass(eq=False, repr=False)
class KnownPropensityEffect(AverageEffectLearner):
    r"""Average effect in a trial: outcomes centred at a private mean, weighted by the propensity of its design.

    .. math:: \tau = \frac{\sum_i t_i w_i (y_i - c)}{\sum_i h(e_i)}, \quad t = 2 z - 1, \quad
        w = h(e) \Big(\frac{z}{e} + \frac{1 - z}{1 - e}\Big)

    with the tilt h of the estimand. The mean of the numerator is that of :math:`h(e) \tau(x)` for every c, since
    :math:`E[t w \mid x] = 0`: the centre takes away variance alone. No budget is spent on the propensity, and the
    denominator is public for the ATE, and for all estimands where everybody has the same propensity. In a fair
    trial with outcomes about the middle the noise is .54 of that of the difference in means.

    Guarantee:
        Certified, pure: the epsilon of the sum of outcomes, and given it that of contrast and squares as one event;
        where the denominator is private, those of four sums one after the other, each with Laplace noise for its
        sensitivity given those before. The interval counts sampling and all noise; it rests on the propensity that the
        domain states. Source: Horvitz & Thompson (1952);
        docs/guarantees/known_propensity.md.

    Raises:
        InputError: The domain states no propensity.

    Example:
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000)
        >>> domain = Domain([0, 0], [1, 1], 0.0, 1.0, propensity=0.5)
        >>> release = KnownPropensityEffect(domain, PrivacyBudget(4.0, 0.0)).fit(X, A, Y).release()
        >>> abs(release.estimate - 0.4) < 0.05, release.privacy.mechanism
        (True, 'known_propensity')
    """

    mechanism: ClassVar[type[EffectPlan]] = CentredSums

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``; also refuses a domain without a known propensity."""
        self.plan(n).public()

    def features(self) -> FeatureMap:
        """Return the known propensity as the one feature."""
        return _Known(self._known())

    def plan(self, n: int) -> CentredSums:
        """See ``AverageEffectLearner``."""
        return CentredSums(**self._facts(n))

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """See ``AverageEffectLearner``."""
        prior, plan = self._prior(prior), self.plan(n)
        facts, noise = plan.facts, 0.0
        size = n * sum(facts.tilts) / 2
        if plan.budget is not None:
            total = torch.tensor([n * prior.mean], dtype=torch.float64)
            scales = noise_scales(facts, plan.epsilons, facts.centre(total, contrast_epsilon(plan.epsilons)))
            of_size = scales["size"].item() if "size" in scales else 0.0
            noise = laplace(scales["difference"].item() / size, prior.effect * of_size / size)
        return PlannedError("known_propensity", noise, 0.0, facts.planned_sampling(prior)).in_units(self._unit())

    def _of(self, records: CausalData) -> StackedRecords:
        """See ``AverageEffectLearner``: with the records' own propensity as their one feature."""
        domain = self.schema_.domain
        copied = CausalData(records.x.clone(), records.a.clone(), records.y)
        batch, known = make_batch(copied, super().features(), domain), self._known().of(records).clone()
        return StackedRecords(Batch(batch.x, known[:, None], batch.z, batch.y))

    def fit_stream(self, stream: RecordStream) -> Self:
        """See ``AverageEffectLearner``; a propensity that is a column of its own needs all records at once."""
        if self._known().column is not None:
            raise InputError(
                f"{type(self).__name__}: a propensity by column needs all records at once; use fit(X, A, Y)"
            )
        return super().fit_stream(stream)

    def _known(self) -> KnownPropensity:
        return known_propensity(TableSchema.of(self.domain))
