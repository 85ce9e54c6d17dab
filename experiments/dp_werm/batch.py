"""Many data sets at once: weighted rules fitted and released side by side, one data set a run."""

from dataclasses import dataclass

from torch import Tensor

from torchdpcate.fit.losses import HuberHinge, Loss, LossBounds
from torchdpcate.fit.minimise import minimise
from torchdpcate.fit.private_fit import SOLVER_SHARE, PrivateFit, WeightBounds
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

HINGE = HuberHinge(0.5)


@dataclass(frozen=True, eq=False)
class Batch:
    """Weighted problems of one kind, one a run; the bounds are public and the same for all.

    Attributes:
        psi: Features [runs, n, p], rows of norm at most one.
        target: Labels [runs, n].
        weights: Weights [runs, n], at most ``bounds.most``.
        bounds: How far one record moves the weights.
        largest_entry: Public bound of |psi_j|.
        loss: Convex loss.
    """

    psi: Tensor
    target: Tensor
    weights: Tensor
    bounds: WeightBounds
    largest_entry: float = 1.0
    loss: Loss = HINGE

    def fit(self, gamma: float, linear_terms: Tensor | None = None, tolerance: float | None = None) -> Tensor:
        """Minimisers [runs, p] of the sums, perturbed by b [runs, p]."""
        linear_terms = (
            self.psi.new_zeros(self.psi.shape[0], self.psi.shape[2]) if linear_terms is None else linear_terms
        )
        stop = tolerance or self.public(gamma).stop
        return minimise(self.psi, self.target, self.weights, self.loss, gamma, linear_terms, stop)

    def public(self, gamma: float) -> PrivateFit:
        """What is public of each sum with this ridge."""
        facts = LossBounds.of(self.loss), self.bounds, gamma, self.psi.shape[2], self.largest_entry
        return PrivateFit(*facts)

    def affordable(self, gamma: float, way: str, epsilon: float) -> bool:
        """Whether the determinants leave something of epsilon (objective perturbation)."""
        spent = self.bounds.jacobian(self.loss.curvature, gamma)
        return way == "output" or spent < 0.99 * (1 - SOLVER_SHARE) * epsilon

    def release(self, gamma: float, way: str, kind: str, budget: PrivacyBudget, noise: NoiseSource) -> Tensor:
        """One release of each run's rule, [runs, p], each paid for by ``budget``."""
        if way == "output":
            return self.public(gamma).output(budget, kind).add_noise(self.fit(gamma), noise)
        objective = self.public(gamma).objective(budget, kind)
        return objective.release(lambda b: self.fit(gamma, b, objective.tolerance), noise, self.psi.shape[0])


def scores(psi: Tensor, theta: Tensor) -> Tensor:
    """Linear predictors [runs, m] of features [runs, m, p] (or [m, p], shared) and rules [runs, p]."""
    return (psi @ theta[:, :, None])[:, :, 0]


def accuracy(psi: Tensor, theta: Tensor, effect: Tensor) -> Tensor:
    """Share of decisions [runs] that are those of the best rule, for true effects of the shape of the scores."""
    return ((scores(psi, theta) > 0) == (effect > 0)).double().mean(1)


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Mean over runs and its standard error."""
    return values.mean().item(), (values.std() / len(values) ** 0.5).item()
