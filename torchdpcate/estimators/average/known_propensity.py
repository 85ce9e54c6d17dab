"""Average effects where the design makes the propensity known: weighted sums of centred outcomes."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from torchdpcate.data.propensity import KnownPropensity
from torchdpcate.data.record_stream import RecordStream
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.erm.records import Batch, Records, StackedRecords, make_batch
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.centred_sums import (
    CentredSums,
    DesignFacts,
    contrast_epsilon,
    epsilons_of,
    noise_scales,
    public_constants,
    release_centred,
    without_noise,
)
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.planned_error import ErrorPrior, PlannedError, laplace
from torchdpcate.estimators.average.stated import AverageMechanism
from torchdpcate.features.maps import FeatureMap
from torchdpcate.privacy.session import FitSession


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

    mechanism: ClassVar[type[AverageMechanism]] = CentredSums

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``; also refuses a domain without a known propensity."""
        self.plan(n)

    def features(self) -> FeatureMap:
        """Return the known propensity as the one feature."""
        return _Known(self._known())

    def facts(self, n: int) -> DesignFacts:
        """Return what is public before anything is released."""
        low, high = self._known().bounds
        return DesignFacts(n, self.target, low, high)

    def plan(self, n: int) -> dict[str, Any]:
        """See ``AverageEffectLearner``: the noise scales, the contrast's with a centre of 1/2."""
        facts = self.facts(n)
        if self.budget is None:
            return {}
        epsilons, half = epsilons_of(self.budget.epsilon, facts), torch.full((1,), 0.5, dtype=torch.float64)
        scales = noise_scales(facts, epsilons, half)
        return {f"scale_{part}": scale.item() for part, scale in scales.items()}

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """See ``AverageEffectLearner``."""
        prior, facts = self._prior(prior), self.facts(n)
        noise = 0.0
        size = n * sum(facts.tilts) / 2
        if self.budget is not None:
            epsilons = epsilons_of(self.budget.epsilon, facts)
            total = torch.tensor([n * prior.mean], dtype=torch.float64)
            scales = noise_scales(facts, epsilons, facts.centre(total, contrast_epsilon(epsilons)))
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

    def _fit_first(self, records: Records) -> None:
        self._facts = self.facts(records.n)

    def _release_estimate(self, records: Records, session: FitSession) -> NoisyEstimate:
        assert session.budget is not None
        return release_centred(records, self._facts, epsilons_of(session.budget.epsilon, self._facts), session)

    def _without_noise(self, records: Records) -> NoisyEstimate:
        return without_noise(records, self._facts)

    def _public(self) -> dict[str, Any]:
        facts = self._facts
        constants: dict[str, Any] = {"propensity_range": [facts.low, facts.high]}
        if self.budget is None:
            return constants
        epsilons = epsilons_of(self.budget.epsilon, facts)
        return (
            constants | {f"epsilon_{part}": own for part, own in epsilons.items()} | public_constants(facts, epsilons)
        )

    def _known(self) -> KnownPropensity:
        known = TableSchema.of(self.domain).domain.known_propensity
        if known is None:
            raise InputError(
                "propensity: the domain states none; give propensity (a number, a column, or one for each level of a "
                "covariate) where the design of the study makes it known, or take effect=covariate_balancing"
            )
        return known
