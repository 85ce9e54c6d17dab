"""The public plan of a composition whose effect is a regression of doubly robust scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchdpcate.composition.division import QUANTILES
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.errors import InputError
from torchdpcate.features.weighted_basis import ArmBasis, WeightedBasis, all_features

_BINARY_QUANTILE = 0.95


@dataclass(frozen=True)
class ArmRegression:
    """What the regression of both arms asks for, and what it may expect: a ``Regression`` with an ``ArmBasis``."""

    basis: ArmBasis
    prior: Tensor
    noise: float
    error: float


@dataclass(frozen=True)
class DoublyRobustPlan(ComposedPlan):
    r"""Everything public about one composition whose effect is regressed on doubly robust scores.

    .. math:: \varphi = m_1(x) - m_0(x) + \frac{a - \pi(x)}{\pi(x) (1 - \pi(x))} (y - m_a(x))

    The arms come from one regression on :math:`(\psi, (2a - 1)\psi)`, the effect is a Huber regression of
    :math:`\varphi` on :math:`\psi` with weights :math:`1/|\psi|`. A score's clip is planned at twice the residual
    scale, as it is where :math:`\pi = 1/2`. All else is as in a ``ComposedPlan``, the planned noise and error too.

    Raises:
        InputError: As ``ComposedPlan``; or intervals, which this composition has none of.

    Example:
        >>> from torchdpcate.privacy.budget import PrivacyBudget
        >>> plan = DoublyRobustPlan(16_000, PrivacyBudget(1.0, 1e-5), 6, overlap=0.1)
        >>> plan.kept, plan.rung, plan.arms().basis.contrast is None
        (6, 'additive', False)
    """

    score_scale: ClassVar[float] = 2.0
    has_intervals: ClassVar[bool] = False
    has_lean: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.intervals:
            raise InputError("intervals = true: doubly robust scores have none; use learner=r (RLearner)")

    @property
    def quantiles(self) -> tuple[str, ...]:
        """See ``ComposedPlan``: of a binary outcome that of the inverse propensities is left."""
        return QUANTILES[2:] if self.binary else QUANTILES

    @property
    def score_quantile(self) -> float:
        """Quantile at which scores are clipped about the difference of the arms; of inverse propensities if binary."""
        return _BINARY_QUANTILE if self.binary else self.huber_quantile

    @property
    def effect_curvature(self) -> float:
        """See ``ComposedPlan``: every record counts alike."""
        return 0.95

    def arms(self, two_levels: Sequence[bool] | None = None) -> ArmRegression:
        """Return the outcome regression of both arms; see ``outcome``.

        Half the difference of the arms has a quarter of the effect's prior variance.
        """
        constants, noise = self.constants, self._outcome_noise
        features = all_features(self._nuisance_levels(two_levels), constants.kinds, self.heads)
        shared = self._prior(features, constants.outcome_variance, self.heads)
        contrast = self._prior(features, constants.head_variance / 4, self.heads)
        one = contrast.new_tensor([max([constants.head_variance, *contrast.tolist()])])  # no feature without it
        prior = torch.cat([shared, one, contrast])
        found = self._fill(prior, noise)
        energies, there, p = found.energies, found.energies > 0, len(features)

        def part(first: float, of: Tensor) -> WeightedBasis:
            asked = torch.nonzero(of > 0).flatten().tolist()
            return WeightedBasis(tuple(features[j] for j in asked), torch.cat([of.new_tensor([first]), of[asked]]))

        differ = part(float(energies[p]), energies[p + 1 :]) if there[p] else None
        basis = ArmBasis(part(found.constant, energies[:p]), differ)
        return ArmRegression(basis, prior[there], noise, found.error)
