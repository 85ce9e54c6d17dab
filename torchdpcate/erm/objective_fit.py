"""Stage one by default: the minimiser of a randomly perturbed objective."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.losses import CrossEntropy, Logistic, Loss
from torchdpcate.erm.perturbation import PERTURBATIONS, SOLVER_SHARE, ObjectiveNoise, calibrate_objective
from torchdpcate.erm.private_fit import PreparedFit, PrivateLinearFit
from torchdpcate.erm.records import Records, Target
from torchdpcate.errors import InputError
from torchdpcate.features.maps import FeatureMap
from torchdpcate.privacy.budget import PrivacyBudget, probability
from torchdpcate.privacy.events import ApproximateEvent, Event, PureEvent
from torchdpcate.privacy.noise import NoiseSource

_STEEP_SHARE, _FLAT_SHARE = 0.6, 0.85
_FLAT = 0.25  # curvature of the logistic loss, up to which little of epsilon need go to the ridge
_LOGISTIC = (Logistic, CrossEntropy)
_LEAST_RIDGE = 1e-3  # of the curvature; below it the noise that hides the solver's stop would outgrow the other


@dataclass(frozen=True)
class ObjectiveFit(PrivateLinearFit):
    r"""Objective perturbation: argmin sum_i l(g_i) + (gamma/2) ||theta||^2 + V'theta, a record in one term alone.

    .. math::
        \gamma = \frac{\kappa}{e^{(1-q)\varepsilon} - 1}, \qquad
        p(V) \propto e^{-(\varepsilon - J) \|V\|_K / \Delta_K}, \quad \Delta_\infty = 2 \zeta \max|\psi_j|, \;
        \Delta_2 = 2 \zeta

    in the scale of psi, with zeta the loss's slope (W) and kappa its curvature; epsilon is 99 % of the budget's, of
    which the rest hides the solver's stop. J is ``logistic_jacobian`` for logistic losses with ``box`` and ``gamma``,
    (1 - q) epsilon for all others. The released coefficients leave sum l'(g) psi = -(V + gamma theta).

    Guarantee:
        Certified: pure epsilon (``box``, ``gamma``), (epsilon, delta) (``gaussian``). Source: theory note
        ``covariate_balancing``, sections 3.1 and 3.2; Chaudhuri et al. (2011), Awan & Slavkovic (2021);
        docs/guarantees/balancing_objective.md.

    Args:
        perturbation: Law of V: ``box`` (K-norm noise of the largest entry, least where covariates fill a cube),
            ``gamma`` (Euclidean K-norm noise) or ``gaussian``.
        share: q in (0, 1), share of epsilon that the largest curvature alone leaves, from which the ridge follows. None
            takes 0.6, and 0.85 for losses as flat as the logistic one.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> from torchdpcate import Domain
        >>> from torchdpcate.erm import Logistic
        >>> from torchdpcate.features.user_maps import on_domain
        >>> features = on_domain(None, Domain([0.0], [1.0], 0.0, 1.0))
        >>> fit = ObjectiveFit("gamma").prepare(Logistic(), 5000, features, PrivacyBudget(1 / 0.99, 0.0))
        >>> round(2 * fit.ridge, 8), round(math.sqrt(2) * fit.public["tilt_scale"], 8)  # of phi = sqrt(2) psi
        (3.08958099, 2.84834685)
    """

    name: ClassVar[str] = "objective"

    perturbation: str = "box"
    share: float | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown perturbation, and a share out of range."""
        if self.perturbation not in PERTURBATIONS:
            raise InputError(f"perturbation = {self.perturbation!r}: choose one of {', '.join(PERTURBATIONS)}")
        if self.share is not None:
            probability("share", self.share, above_zero=True, why="the noise needs a share of epsilon, and the ridge")

    def prepare(self, loss: Loss, n: int, features: FeatureMap, budget: PrivacyBudget) -> PreparedFit:
        """See ``PrivateLinearFit``; n does not move what is released."""
        q = self.share_of(loss)
        ridge = ridge_of(loss.curvature, (1 - q) * (1 - SOLVER_SHARE) * budget.epsilon)
        objective = calibrate_objective(
            budget,
            kind=self.perturbation,
            slope=loss.slope,
            bounds=WeightBounds.per_record(1.0),
            curvature=loss.curvature,
            gamma=ridge,
            size=features.dimension,
            largest_entry=features.largest_entry,
            logistic=type(loss) in _LOGISTIC,
            monotone=loss.monotone,
        )

        draw = partial(_draw, loss, ridge, objective)
        # beside V, what the solver's noise adds along the intercept, where the sum is most curved; from 10^8 records on
        stray = objective.solver_scale * (1.0 if self.perturbation == "gaussian" else math.sqrt(objective.size + 1))
        added = n * typical_curvature(loss) * stray * features.largest_entry
        imbalance = math.hypot(objective.deviation / features.largest_entry, added)
        constants = {"share": q, "ridge": ridge, **objective.public, "solver_scale": objective.solver_scale}
        public = {"fitter": self.name, **constants}
        return PreparedFit(objective.event, public, draw, imbalance, ridge)

    @classmethod
    def recompute(
        cls, public: Mapping[str, Any], event: Event, count: int, loss: Loss, n: int, features: FeatureMap
    ) -> PreparedFit:
        """See ``PrivateLinearFit``."""
        if not isinstance(event, PureEvent | ApproximateEvent):
            raise InputError(f"charge = {event}: none of objective perturbation")
        fit = cls(public["perturbation"], public["share"])
        return fit.prepare(loss, n, features, PrivacyBudget(event.epsilon, getattr(event, "delta", 0.0)))

    def share_of(self, loss: Loss) -> float:
        """Return q for a loss.

        Example:
            >>> from torchdpcate.erm import HuberHinge, Logistic
            >>> ObjectiveFit().share_of(Logistic()), ObjectiveFit().share_of(HuberHinge(0.5))
            (0.85, 0.6)
        """
        if self.share is not None:
            return float(self.share)
        return _FLAT_SHARE if loss.curvature <= _FLAT else _STEEP_SHARE


def _draw(
    loss: Loss,
    ridge: float,
    objective: ObjectiveNoise,
    records: Records,
    target: Target,
    noise: NoiseSource,
    runs: int,
) -> Tensor:
    """Return the minimisers of so many perturbed sums, or of one for each data set; see ``PreparedFit.draw``."""

    def fit(linear_terms: Tensor) -> Tensor:
        return records.minimise(loss, target, ridge, linear_terms, objective.tolerance)

    return objective.release(fit, noise, runs)


def typical_curvature(loss: Loss) -> float:
    """Return a bound of a record's mean curvature at the true propensity; no claim rests on it.

    That of balancing losses is 1 for the ATE, e for the ATT and 1 - e for the ATC, far below its bound kappa.

    Example:
        >>> from torchdpcate.erm import Logistic
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
    return curvature * max(math.exp(-epsilon) / -math.expm1(-epsilon), _LEAST_RIDGE)
