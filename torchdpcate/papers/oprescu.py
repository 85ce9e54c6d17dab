"""Dataset 1 and Dataset 2 of Oprescu et al. (2019), with known effects."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData, public_generator
from torchdpcate.data.study import GeneratedStudy


@dataclass(frozen=True, eq=False)
class Coefficients:
    """The draw of beta (treatment) and gamma (outcome), each float64 [p], zero off their support."""

    beta: Tensor
    gamma: Tensor


class OprescuGenerator(GeneratedStudy):
    r"""Partially linear model with a known effect, after Oprescu, Syrgkanis and Wu (2019), section 6.

    .. math::
        X \sim U[0, 1]^p, \quad A = 1\{X^\top\beta \ge \eta\}, \quad
        Y = \theta(X) A + X^\top\gamma + \varepsilon, \quad \eta, \varepsilon \sim U[-1, 1],

    where beta and gamma share a random support of :math:`k = \min(p, 5)` coordinates (as in the
    authors' code), with entries from U[0, 0.3] and U[0, 1].

    The domain holds public facts of this law, true for every seed: covariates in [0, 1], and the
    tightest outcome bounds over all draws of beta, gamma, X, A and epsilon, with the outcome's
    standard deviation over these. The propensity is
    :math:`\pi(x) = (1 + \min(x^\top\beta, 1)) / 2 \ge 1/2`; as x'beta may reach 1.5, it has no
    bound below 1 that holds for every draw, so the overlap of 0.05 is a clip, not a fact
    (:math:`\pi > 0.95` needs x'beta > 0.9, which is rare).
    """

    dimension: int
    support_size: int
    deviation: float
    treatment_coefficient = 0.3
    outcome_coefficient = 1.0
    overlap = 0.05

    @abstractmethod
    def outcome_bounds(self) -> tuple[float, float]:
        """Return the infimum and supremum of Y over all draws, in closed form."""

    def coefficients(self) -> Coefficients:
        """Draw beta and gamma from the seed."""
        generator = public_generator(self.seed, "coefficients")
        support = torch.randperm(self.dimension, generator=generator)[: self.support_size]
        u = torch.rand(2, self.support_size, generator=generator, dtype=torch.float64)
        beta, gamma = torch.zeros(2, self.dimension, dtype=torch.float64)
        beta[support] = self.treatment_coefficient * u[0]
        gamma[support] = self.outcome_coefficient * u[1]
        return Coefficients(beta, gamma)

    def propensity(self, x: Tensor) -> Tensor:
        """Return P(A = 1 | x) = (1 + min(x'beta, 1)) / 2, of shape [n]."""
        return (1.0 + (x @ self.coefficients().beta).clamp(max=1.0)) / 2.0

    def domain(self) -> Domain:
        """Return the public facts of the law of these data."""
        low, high = self.outcome_bounds()
        box = [0.0] * self.dimension, [1.0] * self.dimension
        sd, origin = self.deviation, self._origin()
        return Domain(*box, low, high, self.overlap, origin=origin, better="higher", outcome_sd=sd)

    def draw(self, n: int, generator: torch.Generator) -> CausalData:
        """Return n samples: covariates, then both noises, of each."""
        u = torch.rand(n, self.dimension + 2, generator=generator, dtype=torch.float64)
        x, noise = u[:, : self.dimension], 2.0 * u[:, self.dimension :] - 1.0
        draw = self.coefficients()
        a = (x @ draw.beta >= noise[:, 0]).to(torch.float64)
        return CausalData(x, a, self.effect(x) * a + x @ draw.gamma + noise[:, 1])


class Dataset1(OprescuGenerator):
    r"""Dataset 1 of Oprescu et al. (2019): p = 2, :math:`\theta(x) = e^{2 x_0} + 3 \sin(4 x_0)`.

    Example:
        >>> study = Dataset1(n=3000, seed=0).load()
        >>> study.records.x.shape, study.queries.shape
        (torch.Size([2700, 2]), torch.Size([300, 2]))
    """

    dimension = 2
    support_size = 2
    deviation = 2.49

    def effect(self, x: Tensor) -> Tensor:
        """Return exp(2 x0) + 3 sin(4 x0)."""
        return torch.exp(2.0 * x[:, 0]) + 3.0 * torch.sin(4.0 * x[:, 0])

    def outcome_bounds(self) -> tuple[float, float]:
        r"""Return [-1, e^2 + 3 sin 4 + 3].

        theta is at least theta(0) = 1, so Y is lowest for A = 0 at x'gamma -> 0; theta(x) + x'gamma is
        highest at x = gamma = (1, 1), where x0's share, theta + x0, exceeds its inner peak.
        """
        return -1.0, math.exp(2.0) + 3.0 * math.sin(4.0) + 3.0


class Dataset2(OprescuGenerator):
    r"""Dataset 2 of Oprescu et al. (2019): p = 30, :math:`\theta(x) = e^{2 x_0} + 3 \sin(4 x_1)`.

    Example:
        >>> Dataset2(n=3000, seed=0).load().records.x.shape
        torch.Size([2700, 30])
    """

    dimension = 30
    support_size = 5
    deviation = 2.97

    def effect(self, x: Tensor) -> Tensor:
        """Return exp(2 x0) + 3 sin(4 x1)."""
        return torch.exp(2.0 * x[:, 0]) + 3.0 * torch.sin(4.0 * x[:, 1])

    def outcome_bounds(self) -> tuple[float, float]:
        r"""Return [3 sin 4, e^2 + 3 sin 4t + t + 5], where t = (pi - arccos(1/12)) / 4.

        Lowest: A = 1 at x0 = 0, x1 = 1, x'gamma -> 0, where theta = 1 + 3 sin 4. Highest: gamma = 1 on
        a support with x0, x1 and three others; x0 = 1 gives e^2 + 1, x1 = t, the peak of
        3 sin 4x + x, where 12 cos 4t = -1, and the others 3. The noise adds -1 and +1.
        """
        t = (math.pi - math.acos(1.0 / 12.0)) / 4.0
        return 3.0 * math.sin(4.0), math.exp(2.0) + 3.0 * math.sin(4.0 * t) + t + 5.0
