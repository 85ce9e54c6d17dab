"""A new learner: the doubly robust regression with every record at half its weight."""

from torch import Tensor

from torchdpcate.causal.score import RegressionScore, ScoreBounds
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.cate.learner import CATELearner
from torchdpcate.fit.nuisances import NuisanceValues


class HalfScore(RegressionScore):
    """lambda = 1/2, hence rho = 1/2, and half the squares of the DR-learner."""

    def weight(self, pi: Tensor) -> Tensor:
        """Return 1/2."""
        return pi.new_full(pi.shape, 0.5)

    def derivative(self, pi: Tensor) -> Tensor:
        """Return zero."""
        return pi.new_zeros(pi.shape)

    def regression(
        self, a: Tensor, y: Tensor, values: NuisanceValues, offset: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return s = w (phi - offset) and w = sqrt(1/2)."""
        w = y.new_full(y.shape, 0.5**0.5)
        return w * (2 * self.rho_phi(a, y, values) - offset), w

    def bounds(self, domain: Domain) -> ScoreBounds:
        """Return the suprema over the domain."""
        most = domain.outcome_range / domain.overlap
        return ScoreBounds(0.5**0.5, 0.5**0.5 * most, 0.5, 0.5 * most)


class HalfLearner(CATELearner):
    """DR-learner at half weight. See ``CATELearner``."""

    regression_score = HalfScore()
