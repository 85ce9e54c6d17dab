"""Weight rho and pseudo-outcome phi of the lambda(pi)-weighted orthogonal learners."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torchdpcate.data.domain import Domain
    from torchdpcate.nuisance.model import NuisanceValues


@dataclass(frozen=True)
class ScoreBounds:
    """Suprema over the public domain of the second-stage regression of s on w psi(x).

    Attributes:
        weight: Bound of |w|.
        target: Bound of |s|, in outcome units, for the offset zero or these nuisances' own mu1 - mu0; for another
            offset s is clipped to it.
        rho: Bound of rho = w^2.
        rho_phi: Bound of |rho phi|, in outcome units.
    """

    weight: float
    target: float
    rho: float
    rho_phi: float


class OrthogonalScore(ABC):
    r"""The score of one weight function lambda(pi).

    .. math::
        \rho = (a - \pi)\lambda'(\pi) + \lambda(\pi), \qquad
        \rho\,\phi = \frac{\lambda(\pi)}{\pi(1-\pi)}(a - \pi)(y - \mu_a) + \rho\,(\mu_1 - \mu_0)

    (Schroeder, Melnychuk & Feuerriegel 2025, eqs 4 and 5). A new learner states ``weight`` and
    ``derivative``, and ``ratio`` where the inverse propensity cancels.
    """

    @abstractmethod
    def weight(self, pi: Tensor) -> Tensor:
        """Return lambda(pi)."""

    @abstractmethod
    def derivative(self, pi: Tensor) -> Tensor:
        """Return lambda'(pi)."""

    def ratio(self, pi: Tensor) -> Tensor:
        """Return lambda(pi) / (pi (1 - pi))."""
        return self.weight(pi) / (pi * (1 - pi))

    def rho(self, a: Tensor, pi: Tensor) -> Tensor:
        """Return the weight rho of each record, shape [B]."""
        return (a - pi) * self.derivative(pi) + self.weight(pi)

    def rho_phi(self, a: Tensor, y: Tensor, values: "NuisanceValues") -> Tensor:
        """Return rho * phi of each record, shape [B], without dividing by rho."""
        pi, mu0, mu1 = values
        observed = a * mu1 + (1 - a) * mu0
        return self.ratio(pi) * (a - pi) * (y - observed) + self.rho(a, pi) * (mu1 - mu0)

    def pseudo_outcome(self, a: Tensor, y: Tensor, values: "NuisanceValues") -> Tensor:
        """Return phi, shape [B], in outcome units: for looking at, never for fitting."""
        return self.rho_phi(a, y, values) / self.rho(a, values.pi)

    def product(self, a: Tensor, y: Tensor, values: "NuisanceValues", g: Tensor) -> Tensor:
        """Return rho (phi - g), shape [B]: half the negative derivative of the loss rho (phi - g)^2."""
        return self.rho_phi(a, y, values) - self.rho(a, values.pi) * g


class RegressionScore(OrthogonalScore):
    """A score whose loss rho (phi - g)^2 is the least squares of s on w (g - offset)."""

    @abstractmethod
    def regression(
        self, a: Tensor, y: Tensor, values: "NuisanceValues", offset: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return (s, w), each [B], with (s - w f)^2 = rho (phi - offset - f)^2 for every f.

        Args:
            a: Treatment in {0, 1}, shape [B].
            y: Outcome, shape [B].
            values: Nuisances at the records, each [B], clipped to the domain.
            offset: g0 at the records, fixed before these records are touched.
        """

    @abstractmethod
    def bounds(self, domain: "Domain") -> ScoreBounds:
        """Return the suprema over the domain; all of them are attained."""


class RScore(RegressionScore):
    r"""R-learner: lambda = pi (1 - pi), rho = (a - pi)^2, no inverse propensity anywhere.

    .. math:: w = a - \pi,\quad s = y - \hat m - w\,g_0,\quad \hat m = \pi\mu_1 + (1-\pi)\mu_0

    Source: Nie & Wager (2021); bounds of the theory note ``dp_cate``, section 3.2.

    Example:
        >>> import torch
        >>> from torchdpcate.nuisance import NuisanceValues
        >>> one = lambda v: torch.tensor([v], dtype=torch.float64)
        >>> s, w = RScore().regression(one(1.0), one(0.8), NuisanceValues(one(0.3), one(0.2), one(0.6)))
        >>> round(s.item(), 6), round(w.item(), 6)
        (0.48, 0.7)
    """

    def weight(self, pi: Tensor) -> Tensor:
        """Return pi (1 - pi)."""
        return pi * (1 - pi)

    def derivative(self, pi: Tensor) -> Tensor:
        """Return 1 - 2 pi."""
        return 1 - 2 * pi

    def ratio(self, pi: Tensor) -> Tensor:
        """Return one: the inverse propensity cancels."""
        return pi.new_ones(pi.shape)

    def rho(self, a: Tensor, pi: Tensor) -> Tensor:
        """Return (a - pi)^2, equal to the general form for a in {0, 1} and never negative."""
        return (a - pi).square()

    def regression(
        self, a: Tensor, y: Tensor, values: "NuisanceValues", offset: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return s = y - m - w offset and w = a - pi, each [B]."""
        pi, mu0, mu1 = values
        w = a - pi
        return y - (pi * mu1 + (1 - pi) * mu0) - w * offset, w

    def bounds(self, domain: "Domain") -> ScoreBounds:
        """Return |w| <= c, |s| <= R, rho <= c^2, |rho phi| <= c R with c = 1 - least propensity of an arm."""
        c = 1 - domain.least_propensity
        return ScoreBounds(c, domain.outcome_range, c**2, c * domain.outcome_range)


class DRScore(RegressionScore):
    r"""DR-learner: lambda = 1, rho = 1, phi the doubly robust pseudo-outcome.

    .. math:: w = 1,\quad s = \phi - g_0,\quad
        \phi = \mu_1 - \mu_0 + \frac{a - \pi}{\pi(1-\pi)}(y - \mu_a)

    Source: Kennedy (2023); bounds of the theory note ``dp_cate``, section 3.2.

    Example:
        >>> import torch
        >>> from torchdpcate.nuisance import NuisanceValues
        >>> one = lambda v: torch.tensor([v], dtype=torch.float64)
        >>> s, _ = DRScore().regression(one(1.0), one(0.8), NuisanceValues(one(0.3), one(0.2), one(0.6)))
        >>> round(s.item(), 9)
        1.066666667
    """

    def weight(self, pi: Tensor) -> Tensor:
        """Return one."""
        return pi.new_ones(pi.shape)

    def derivative(self, pi: Tensor) -> Tensor:
        """Return zero."""
        return pi.new_zeros(pi.shape)

    def regression(
        self, a: Tensor, y: Tensor, values: "NuisanceValues", offset: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return s = phi - offset and w = 1, each [B]."""
        s = self.rho_phi(a, y, values) - offset
        return s, s.new_ones(s.shape)

    def bounds(self, domain: "Domain") -> ScoreBounds:
        """Return |w| = 1, |s| <= R / zeta, rho = 1, |rho phi| <= R / zeta with the least propensity zeta of an arm."""
        target = domain.outcome_range / domain.least_propensity
        return ScoreBounds(1.0, target, 1.0, target)
