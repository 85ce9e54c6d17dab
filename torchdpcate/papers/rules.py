"""A trial with a known best rule, for rules and policies."""

from abc import abstractmethod

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.study import GeneratedStudy


class GaussianRuleStudy(GeneratedStudy):
    r"""Uniform covariates in a box, a Gaussian outcome around :math:`m(x) + (A - 1/2)\,\tau(x)`.

    .. math::
        X \sim U(\text{box}), \quad A \sim \text{Bernoulli}(\pi(X)), \quad
        Y = \text{clip}\{m(X) + (A - 1/2)\,\tau(X) + \sigma \varepsilon\}, \quad \varepsilon \sim N(0, 1).

    A Gaussian outcome has no bound, so it is clipped to public ones. The best rule stays 1{tau(x) > 0}: noise of one
    law in both arms makes the better arm stochastically larger, and clipping is increasing. ``effect`` is tau, of the
    outcome before clipping.
    """

    low: float
    high: float
    dimension: int
    noise_sd: float
    outcome_bounds: tuple[float, float]
    """Public bounds to which outcomes are clipped."""
    trial_propensity: float | None
    """P(A = 1) where a coin that knows nothing of the covariates decides on the treatment; else None."""
    overlap: float
    """A bound that pi and 1 - pi keep everywhere."""

    @abstractmethod
    def baseline(self, x: Tensor) -> Tensor:
        """Return m(x), [n], the mean over both arms."""

    def domain(self) -> Domain:
        """Return the public facts of the law of these data."""
        box = ([self.low] * self.dimension, [self.high] * self.dimension)
        trial = self.trial_propensity
        bounds = *box, *self.outcome_bounds
        return Domain(*bounds, self.overlap, origin=self._origin(), propensity=trial, better="higher")

    def draw(self, n: int, generator: torch.Generator) -> CausalData:
        """Return n samples.

        Args:
            n: How many.
            generator: Draws covariates, treatment and outcome, in this order.
        """
        u = torch.rand(n, self.dimension + 1, generator=generator, dtype=torch.float64)
        x = self.low + (self.high - self.low) * u[:, :-1]
        a = (u[:, -1] < self.propensity(x)).to(torch.float64)
        noise = self.noise_sd * torch.randn(n, generator=generator, dtype=torch.float64)
        y = self.baseline(x) + (a - 0.5) * self.effect(x) + noise
        return CausalData(x, a, y.clamp(*self.outcome_bounds))


class OWL(GaussianRuleStudy):
    r"""The randomised trial of Giddens et al. (2023): a linear rule on four covariates.

    .. math::
        X \sim U[0, 1]^4, \quad A \sim \text{Bernoulli}(1/2), \quad f(x) = 1 + x_0 + x_1 - 1.8 x_2 - 2.2 x_3, \quad
        Y \sim N(0.01 + 0.02 x_3 + 3 (2A - 1) f(x),\ 0.5^2),

    so that tau = 6 f. The paper shifts outcomes by the least of the sample, which leaks; here they are clipped to
    [-7.5, 7.5], whose range of 15 gives the weights the paper's bound of 30 at a propensity of 1/2. A fair coin keeps
    any overlap below 1/2; the domain says 0.4.

    Example:
        >>> study = OWL(n=1000, seed=0).load()
        >>> study.records.n, study.domain.outcome_range, study.name
        (900, 15.0, 'owl')
    """

    low, high, dimension, noise_sd = 0.0, 1.0, 4, 0.5
    outcome_bounds = (-7.5, 7.5)  # 2.7 standard deviations of 3 f
    overlap = 0.4
    trial_propensity = 0.5

    def effect(self, x: Tensor) -> Tensor:
        """Return 6 f(x)."""
        return 6.0 * (1.0 + x[..., 0] + x[..., 1] - 1.8 * x[..., 2] - 2.2 * x[..., 3])

    def baseline(self, x: Tensor) -> Tensor:
        """Return 0.01 + 0.02 x3."""
        return 0.01 + 0.02 * x[..., 3]

    def propensity(self, x: Tensor) -> Tensor:
        """Return 1/2."""
        return torch.full_like(x[..., 0], 0.5)
