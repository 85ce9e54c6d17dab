"""A law with a known average effect and confounding that must be adjusted for (theory note covariate_balancing)."""

import itertools
from functools import cache

import numpy as np
import torch
from torch import Tensor

from torchdpcate.causal.estimand import make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.study import GeneratedStudy

_NODES = 12  # Gauss-Legendre nodes a covariate: averages are exact to 1e-12


class Confounded(GeneratedStudy):
    r"""A binary outcome whose causes also decide who is treated.

    .. math::
        X \sim U[-1, 1]^4, \quad \text{logit } P(A = 1 | x) = 0.1 + 0.8 x_0 + 0.8 x_1 - 0.5 x_2 - 0.6 x_3, \quad
        \text{logit } P(Y = 1 | x, a) = -0.3 + x_0 + 0.8 x_1 - 0.6 x_2 + 0.5 x_3 + 0.8 a

    The ATE is 0.16958 (the theory note's 0.16964 is a simulation's); a plain difference of the arms' means tends to
    0.0905 more. Propensities lie in [0.069, 0.943]. Source: theory note ``covariate_balancing``, section 6.

    Example:
        >>> study = Confounded(n=1000, seed=0).load()
        >>> study.records.n, study.domain.outcome_range, round(study.average("ATE"), 5)
        (900, 1.0, 0.16958)
    """

    _treated = (0.1, 0.8, 0.8, -0.5, -0.6)  # intercept and slopes of the propensity's logit
    _outcome = (-0.3, 1.0, 0.8, -0.6, 0.5)
    _shift = 0.8

    def domain(self) -> Domain:
        """Return the public facts of the law."""
        return Domain(
            [-1.0] * 4, [1.0] * 4, 0.0, 1.0, 0.05, origin=self._origin(), better="higher", outcome_kind="binary"
        )

    def propensity(self, x: Tensor) -> Tensor:
        """Return P(A = 1 | x), of shape [...], at x [..., 4]."""
        return torch.sigmoid(_linear(x, self._treated))

    def outcome(self, x: Tensor) -> Tensor:
        """Return P(Y = 1 | x, a), [..., 2], at x [..., 4]: of the untreated and of the treated."""
        untreated = _linear(x, self._outcome)
        return torch.sigmoid(torch.stack([untreated, untreated + self._shift], -1))

    def effect(self, x: Tensor) -> Tensor:
        """Return P(Y = 1 | x, 1) - P(Y = 1 | x, 0), [...], at x [..., 4]."""
        untreated, treated = self.outcome(x).unbind(-1)
        return treated - untreated

    def average_effect(self, estimand: str) -> float:
        """Return the true effect of an estimand under the law, by quadrature.

        Raises:
            InputError: No such estimand.

        Example:
            >>> {name: round(Confounded().average_effect(name), 5) for name in ("ATT", "ATC", "ATO")}
            {'ATT': 0.16846, 'ATC': 0.1708, 'ATO': 0.17143}
        """
        of = make_estimand(estimand, 0.5)
        x, mass = _cube(_NODES, 4)
        mass = mass * of.tilt(self.propensity(x))
        return float((mass * self.effect(x)).sum() / mass.sum())

    def draw(self, n: int, generator: torch.Generator) -> CausalData:
        """Return n samples.

        Args:
            n: How many.
            generator: Draws covariates, treatment and outcome together.
        """
        u = torch.rand(n, 6, generator=generator, dtype=torch.float64)
        x = 2.0 * u[:, :4] - 1.0
        a = u[:, 4] < self.propensity(x)
        untreated, treated = self.outcome(x).unbind(-1)
        y = u[:, 5] < torch.where(a, treated, untreated)
        return CausalData(x, a.to(torch.float64), y.to(torch.float64))


def _linear(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Return intercept + x'slopes, [...], at x [..., q]."""
    intercept, *slopes = coefficients
    return intercept + x @ torch.tensor(slopes, dtype=x.dtype)


@cache
def _cube(nodes: int, dimension: int) -> tuple[Tensor, Tensor]:
    """Return the nodes [m, q] and weights [m] of a product Gauss-Legendre rule on [-1, 1]^q."""
    where, mass = np.polynomial.legendre.leggauss(nodes)
    points = np.array(list(itertools.product(where, repeat=dimension)))
    weights = np.array(list(itertools.product(mass, repeat=dimension))).prod(1)
    return torch.from_numpy(points), torch.from_numpy(weights)
