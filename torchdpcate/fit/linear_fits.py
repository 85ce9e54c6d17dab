"""Private fits of a linear predictor by objective perturbation, prepared on public facts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.losses import Loss, LossBounds
from torchdpcate.fit.private_fit import (
    SOLVER_SHARE,
    ObjectiveNoise,
    PrivateFit,
    WeightBounds,
    ridge_ratio,
)
from torchdpcate.fit.stacked_records import Records, Target
from torchdpcate.privacy.budget import PrivacyBudget, probability
from torchdpcate.privacy.events import Event, PureEvent
from torchdpcate.privacy.mechanisms import k_norm_deviation
from torchdpcate.privacy.noise import NoiseSource


@dataclass(frozen=True, eq=False)
class PreparedFit:
    """A private fit about to run; everything here but ``draw`` is public.

    Attributes:
        event: What one run costs.
        public: Public constants, for the statement.
        draw: (records, target, noise, runs) -> coefficients [runs, p], float64: independent runs on one data set, or
            one run on each of several.
        imbalance: Standard deviation of each entry of sum l'(g) phi at the released coefficients, phi the features
            scaled to largest entry 1: how far they are from stationary, by the noise. For a balancing loss it is the
            imbalance that the noise leaves (theory note, section 3.1).
        ridge: Ridge of the sum, which shrinks: the mean of that gradient is -ridge * theta (in psi's scale).
    """

    event: Event
    public: dict[str, Any]
    draw: Callable[[Records, Target, NoiseSource, int], Tensor]
    imbalance: float
    ridge: float


_STEEP_SHARE, _FLAT_SHARE = 0.6, 0.85
_FLAT = 0.25  # curvature of the logistic loss, up to which little of epsilon need go to the ridge
_LEAST_RIDGE = 1e-3  # of the curvature; below it the noise that hides the solver's stop would outgrow the other


@dataclass(frozen=True)
class ObjectiveFit:
    r"""Objective perturbation: argmin sum_i l(g_i) + (gamma/2) ||theta||^2 + V'theta, a record in one term alone.

    .. math::
        \gamma = \frac{\kappa}{e^{(1-q)\varepsilon} - 1}, \qquad
        p(V) \propto e^{-(\varepsilon - J) \|V\|_\infty / \Delta}, \quad \Delta = 2 \zeta \max|\psi_j|

    in the scale of psi, with zeta the loss's slope (W) and kappa its curvature; epsilon is 99 % of the budget's, of
    which the rest hides the solver's stop. J is ``logistic_jacobian`` for logistic losses, (1 - q) epsilon for all
    others. The released coefficients leave sum l'(g) psi = -(V + gamma theta). V, noise of the largest entry, is least
    where covariates fill a cube.

    Guarantee:
        Certified: pure epsilon. Source: theory note ``covariate_balancing``, sections 3.1 and 3.2; Chaudhuri et al.
        (2011), Awan & Slavkovic (2021); docs/guarantees/objective_perturbation.md.

    Args:
        share: q in (0, 1), share of epsilon that the largest curvature alone leaves, from which the ridge follows. None
            takes 0.6, and 0.85 for losses as flat as the logistic one.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> from torchdpcate import Domain
        >>> from torchdpcate.fit.losses import Logistic
        >>> from torchdpcate.fit.feature_maps import on_domain
        >>> features = on_domain(None, Domain([0.0], [1.0], 0.0, 1.0))
        >>> fit = ObjectiveFit().prepare(Logistic(), 5000, features, PrivacyBudget(1 / 0.99, 0.0))
        >>> round(2 * fit.ridge, 8), round(math.sqrt(2) * fit.public["perturbation_scale"], 8)  # of phi = sqrt(2) psi
        (3.08958099, 2.01408538)
    """

    name: ClassVar[str] = "objective"

    share: float | None = None

    def __post_init__(self) -> None:
        """Refuse a share out of range."""
        if self.share is not None:
            probability("share", self.share, above_zero=True, why="the noise needs a share of epsilon, and the ridge")

    def prepare(self, loss: Loss, n: int, features: FeatureMap, budget: PrivacyBudget) -> PreparedFit:
        """Calibrate the mechanism on public facts; everything that can be refused is refused here.

        Args:
            loss: Of a record.
            n: Number of records; it does not move what is released.
            features: Feature map, set up: ||psi|| <= 1, |psi_j| <= ``largest_entry``.
            budget: What one run may cost; its delta is not used.

        Raises:
            InputError: Settings that cannot be released.
        """
        q = self.share_of(loss)
        ridge = ridge_of(loss.curvature, (1 - q) * (1 - SOLVER_SHARE) * budget.epsilon)
        once, size = WeightBounds.per_record(1.0), features.dimension
        fit = PrivateFit(LossBounds.of(loss), once, ridge, size, features.largest_entry)
        objective = fit.objective(budget, "box")

        # beside V, what the solver's noise adds along the intercept, where the sum is most curved; from 10^8 records on
        stray = objective.solver_scale * k_norm_deviation(objective.size)
        added = n * typical_curvature(loss) * stray * features.largest_entry
        imbalance = math.hypot(objective.spread.deviation / features.largest_entry, added)
        public = {"fitter": self.name, "share": q, "ridge": ridge, **objective.public}
        return PreparedFit(objective.event, public, partial(_perturbed, objective, loss, ridge), imbalance, ridge)

    @classmethod
    def recompute(
        cls, public: Mapping[str, Any], event: Event | None, loss: Loss, n: int, features: FeatureMap
    ) -> PreparedFit:
        """Return the fit that has this share among its public constants and was charged this event.

        Verification compares its constants, its noise and its charge with those that are stated.

        Args:
            public: Public constants as stated, by the names of ``PreparedFit.public``; each may be forged.
            event: What was charged.
            loss: Of a record.
            n: Number of records.
            features: Feature map.

        Raises:
            InputError: No fit has this share and this charge.
        """
        if not isinstance(event, PureEvent):
            raise InputError(f"charge = {event}: none of objective perturbation")
        return cls(public["share"]).prepare(loss, n, features, PrivacyBudget(event.epsilon, 0.0))

    def share_of(self, loss: Loss) -> float:
        """Return q for a loss.

        Example:
            >>> from torchdpcate.fit.losses import HuberHinge, Logistic
            >>> ObjectiveFit().share_of(Logistic()), ObjectiveFit().share_of(HuberHinge(0.5))
            (0.85, 0.6)
        """
        if self.share is not None:
            return float(self.share)
        return _FLAT_SHARE if loss.curvature <= _FLAT else _STEEP_SHARE


def _perturbed(
    objective: ObjectiveNoise,
    loss: Loss,
    ridge: float,
    records: Records,
    target: Target,
    noise: NoiseSource,
    runs: int,
) -> Tensor:
    """Return minimisers of the perturbed sum, [runs, p]; a module's function, so that a prepared fit pickles."""

    def minimise(linear_terms: Tensor) -> Tensor:
        return records.minimise(loss, target, ridge, linear_terms, objective.tolerance)

    return objective.release(minimise, noise, runs)


def typical_curvature(loss: Loss) -> float:
    """Return a bound of a record's mean curvature at the true propensity; no claim rests on it.

    That of balancing losses is 1 for the ATE, e for the ATT and 1 - e for the ATC, far below its bound kappa.

    Example:
        >>> from torchdpcate.fit.losses import Logistic
        >>> typical_curvature(Logistic())
        0.25
    """
    return min(loss.curvature, 1.0)


def ridge_of(curvature: float, epsilon: float) -> float:
    r"""Return the ridge with which the change of one record's curvature costs at most epsilon.

    .. math:: \gamma = \kappa / (e^\varepsilon - 1)

    Example:
        >>> round(2 * ridge_of(9.0, 0.4), 8)
        36.59840607
    """
    return curvature * max(ridge_ratio(epsilon), _LEAST_RIDGE)
