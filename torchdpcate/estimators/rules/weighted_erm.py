"""One weighted empirical risk minimisation with public bounds: what every treatment rule comes down to."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.domains import ConvexDomain
from torchdpcate.erm.losses import Loss, Squared
from torchdpcate.erm.solver import default_tolerance, minimise
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.loss import MOST_TARGET, LossBounds
from torchdpcate.laws import Law, PerturbedObjective
from torchdpcate.privacy.guarantee import Condition


@dataclass(frozen=True, eq=False)
class PublicERM:
    """What is public of a weighted ERM: all that its noise depends on.

    Attributes:
        n: Number of terms.
        size: Number of coefficients p.
        loss: Bounds of the loss.
        bounds: How far one record moves the weights.
        ridge: Strong convexity of the total sum.
        largest_entry: Bound of |psi_j|.
        constrained: Whether a convex set confines the coefficients.
    """

    n: int
    size: int
    loss: LossBounds
    bounds: WeightBounds
    ridge: float
    largest_entry: float = 1.0
    constrained: bool = False

    @property
    def tolerance(self) -> float:
        """Bound that the gradient norm of a fit without objective noise keeps."""
        return default_tolerance(self.loss.slope, self.bounds.most)

    @property
    def reach(self) -> float:
        """Largest coefficient without noise: there the ridge's gradient is all that records can pull."""
        return self.n * self.loss.slope * self.bounds.most * max(self.largest_entry, 1.0) / self.ridge


@dataclass(frozen=True, eq=False)
class WeightedERM:
    r"""Weighted ERM of a linear predictor, with its public bounds.

    .. math:: F(\theta) = \sum_i w_i\, \ell(\psi_i^\top\theta, t_i) + \tfrac{\gamma}{2}\|\theta\|^2

    Attributes:
        psi: Features, float64 [n, p], rows of norm at most one.
        target: t, [n]: labels of 1 and -1, or numbers for the squared loss.
        weights: w, [n], each in [0, ``bounds.most``].
        loss: Convex loss with public bounds of its derivatives.
        ridge: Strong convexity of the total sum, public.
        bounds: How far one record moves the weights, public.
        largest_entry: Public bound of |psi_j|.
        domain: Public convex set of coefficients; None for all.
        conditions: What a guarantee rests on beside its proof.

    Raises:
        InputError: ridge not positive; weights below zero or above their bound.

    Example:
        >>> import torch
        >>> from torchdpcate.erm import HuberHinge
        >>> psi, target = torch.eye(2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
        >>> problem = WeightedERM(psi, target, torch.ones(2).double(), HuberHinge(), 4.0, WeightBounds.per_record(1.0))
        >>> [round(t, 6) for t in problem.minimiser.tolist()]
        [0.25, -0.25]
    """

    psi: Tensor
    target: Tensor
    weights: Tensor
    loss: Loss
    ridge: float
    bounds: WeightBounds
    largest_entry: float = 1.0
    domain: ConvexDomain | None = None
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.ridge < float("inf"):
            raise InputError(
                f"ridge = {self.ridge}: a rule of {self.size} coefficients from {self.n} records needs a positive, "
                "finite ridge; without one there is no bound of what one record moves"
            )
        low, high = self.weights.aminmax()
        if not bool((low >= 0) & (high <= self.bounds.most * (1 + 1e-9))):
            raise InputError(
                f"weights: some lie outside [0, {self.bounds.most:g}], where their public bound {self.bounds.most:g} "
                "keeps them; clip them, or state a larger bound"
            )

    @property
    def n(self) -> int:
        """Number of terms (public)."""
        return self.psi.shape[0]

    @property
    def size(self) -> int:
        """Number of coefficients p."""
        return self.psi.shape[1]

    @property
    def stakes(self) -> Tensor:
        """What each term's label weighs, in [0, ``bounds.most``]: magnitudes are in targets where the loss is squared.

        Such targets are at most ``MOST_TARGET``, so that a weight's bounds are those of its stake.
        """
        if not isinstance(self.loss, Squared):
            return self.weights
        return self.weights * (self.target.abs() / MOST_TARGET).clamp(max=1.0)

    @property
    def public(self) -> PublicERM:
        """What is public of it."""
        loss, constrained = LossBounds.of(self.loss), self.domain is not None
        return PublicERM(self.n, self.size, loss, self.bounds, self.ridge, self.largest_entry, constrained)

    @cached_property
    def minimiser(self) -> Tensor:
        """The rule without noise, [p]. The curator's, never to be published."""
        return self.solve(self.psi.new_zeros(1, self.size), self.public.tolerance)[0]

    def solve(self, linear_terms: Tensor, tolerance: float) -> Tensor:
        """Minimise F(theta) + b'theta for many linear terms b [runs, p] at once, [runs, p].

        Args:
            linear_terms: b.
            tolerance: Largest norm of the gradient at the end, or of the gradient mapping on a domain.

        Raises:
            NumericalError: The tolerance was not reached; nothing may be released.
        """
        data = self.psi, self.target, self.weights
        return minimise(*data, self.loss, self.ridge, linear_terms.to(self.psi), tolerance, domain=self.domain)

    def exact(self, law: Law) -> Any:
        """Return what a law draws from, the curator's: the map from linear terms to minimisers, or the minimiser."""
        if isinstance(law, PerturbedObjective):
            return lambda linear_terms: self.solve(linear_terms, law.objective.tolerance)
        return self.minimiser

    def with_ridge(self, ridge: float) -> "WeightedERM":
        """Return the same problem with another ridge."""
        return replace(self, ridge=ridge)
