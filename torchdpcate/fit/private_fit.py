"""Private fits of a linear predictor: what one record may change of a sum of losses, and the noise that hides it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.fit.gaussian_scale import CONVEX_LOSS, PARALLELOGRAM, TRIANGLE, Corners, gaussian_scale
from torchdpcate.fit.losses import Logistic, LossBounds
from torchdpcate.fit.minimise import default_tolerance
from torchdpcate.privacy.budget import PrivacyBudget, integer, positive
from torchdpcate.privacy.events import ApproximateEvent, Event, PureEvent
from torchdpcate.privacy.mechanisms import AdditiveMechanism, GaussianMechanism, KNormMechanism, Spread
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Curve

SOLVER_SHARE = 0.01
"""Share of the budget for the noise that hides the solver's stop and the grid, about 1e-3 of the objective noise."""

PERTURBATIONS = ("gamma", "box", "gaussian")
"""Laws of the objective noise: Euclidean K-norm noise, K-norm noise of the largest entry, Gaussian."""

_FLOAT = 89 * 2.0**-49  # of its scale, what float64 may move K-norm noise by for each unit of its length


@dataclass(frozen=True)
class WeightBounds:
    r"""Suprema over ordered pairs of neighbours that differ in record j (policy_learning, section 3).

    .. math::
        W_1 = \sum_{i \ne j} |w_i - w'_i| + w_j + w'_j, \qquad W_2 = \sum_{i \ne j} (w_i - w'_i)_+ + w_j

    They are computed from public facts, never from the weights of the data at hand.

    Attributes:
        most: w_max, the largest weight.
        first: W_1; a record moves the summed gradient by at most slope * W_1.
        second: W_2; a record raises the trace of the summed Hessian by at most curvature * W_2.
        own: Whether only the replaced record's own term changes, so that the Hessian moves by rank one.

    Raises:
        InputError: If a number is not positive, or the three contradict each other.

    Example:
        >>> WeightBounds.per_record(4.0)
        WeightBounds(most=4.0, first=8.0, second=4.0, own=True)
    """

    most: float
    first: float
    second: float
    own: bool

    def __post_init__(self) -> None:
        for name in ("most", "first", "second"):
            positive(f"bounds.{name}", getattr(self, name))
        if self.first < 2 * self.most or self.second < self.most:
            raise InputError(
                f"bounds.first = {self.first:g}, second = {self.second:g}: a replaced record of weight up to "
                f"{self.most:g} alone moves {2 * self.most:g} and {self.most:g}; give at least those"
            )

    @classmethod
    def per_record(cls, most: float) -> Self:
        """Weights in [0, most] by a public map of the record itself: W_1 = 2 w_max, W_2 = w_max."""
        return cls(most, 2 * most, most, own=True)

    def jacobian(self, curvature: float, gamma: float) -> float:
        r"""Return the largest log ratio J of the Hessians' determinants of two neighbours.

        .. math:: J = \ln(1 + w_{max}\lambda/\gamma) \text{ if only the own term changes, else } \lambda W_2/\gamma

        Args:
            curvature: lambda, of the loss in the linear predictor, with ||psi|| <= 1.
            gamma: Strong convexity of the sum.

        Raises:
            InputError: If an argument is not positive.

        Example:
            >>> round(WeightBounds.per_record(4.0).jacobian(1.0, 40.0), 7)
            0.0953102
            >>> round(WeightBounds(4.0, 29.908902, 25.908902, own=False).jacobian(1.0, 40.0), 7)
            0.6477226
        """
        ratio = positive("curvature", curvature) / positive("ridge", gamma)
        return math.log1p(self.most * ratio) if self.own else self.second * ratio

    def ridge_for(self, curvature: float, epsilon: float) -> float:
        r"""Return the ridge at which ``jacobian`` is epsilon.

        .. math:: \gamma = \frac{\lambda w_{max}}{e^\varepsilon - 1} \text{ if only the own term changes, else }
                  \gamma = \frac{\lambda W_2}{\varepsilon}

        Args:
            curvature: lambda, of the loss.
            epsilon: Positive.

        Example:
            >>> round(WeightBounds.per_record(4.0).ridge_for(1.0, 0.25) / 400, 8)
            0.03520812
        """
        spent = positive("epsilon", epsilon)
        return curvature * self.most * ridge_ratio(spent) if self.own else curvature * self.second / spent


def logistic_jacobian(epsilon: float, most: float, gamma: float, slope: float = 1.0) -> float:
    r"""What determinants cost the logistic loss beside its linear terms, with pure objective noise.

    .. math::
        J = \varepsilon - 2\zeta\beta w, \qquad
        \zeta\beta w + \max_{0 \le p \le \zeta}
        \Big[\beta w p + \ln\Big(1 + \frac{w p (1 - p)}{\gamma}\Big)\Big] = \varepsilon

    with w = ``most``: a record whose slope is p has the curvature p(1 - p), or none. With zeta = 1 J is 0 from
    beta gamma = 1 on. It is never more than ``jacobian``. Where only the replaced record's own term changes
    (docs/guarantees/objective_perturbation.md).
    What a record adds to a Hessian may have another bound than what it adds to a gradient: w is then the former, in
    curvatures of the loss, and beta w in J is what gradients cost.

    Args:
        epsilon: What both cost together, above ln(1 + w / (4 gamma)).
        most: Largest weight.
        gamma: Strong convexity of the sum.
        slope: zeta, largest slope of a record, in (1/2, 1].

    Example:
        >>> round(logistic_jacobian(1.0, 1.0, 1.5), 7), logistic_jacobian(1.0, 1.0, 2.0)
        (0.0087238, 0.0)
    """
    k = most / gamma

    def excess(x: float) -> float:  # x = beta w; the maximum over p is where a quadratic vanishes, or at the slope
        root = math.sqrt(1 + 4 / k + 4 / x**2)
        p = min((1 - 2 / x + root) / 2 if x > 2 else 2 * (1 / k + 1 / x) / (root + 2 / x - 1), slope)
        return x * (slope + p) + math.log1p(k * p * (1 - p)) - epsilon

    if slope == 1 and epsilon / 2 >= k:
        return 0.0
    least, most_x = ((epsilon - cost) / (2 * slope) for cost in (math.log1p(k / 4), 0.0))
    return epsilon - 2 * slope * float(scipy.optimize.brentq(excess, least, most_x, xtol=1e-15 * epsilon, rtol=1e-14))


def ridge_ratio(epsilon: float) -> float:
    r"""Least ridge, over what one record adds to a Hessian, at which the ratio of determinants costs at most epsilon.

    .. math:: \frac1{e^\varepsilon - 1} = \frac{e^{-\varepsilon}}{1 - e^{-\varepsilon}}

    of which the second form overflows nowhere; at least 1e-300.

    Args:
        epsilon: Positive.

    Example:
        >>> round(ridge_ratio(1.0), 6), ridge_ratio(1e8)
        (0.581977, 1e-300)
    """
    return max(math.exp(-epsilon) / -math.expm1(-epsilon), 1e-300)


@dataclass(frozen=True, eq=False)
class ObjectiveNoise:
    r"""Objective perturbation, calibrated: minimise a strongly convex sum plus b'theta with b at random.

    Guarantee:
        Certified, by ``event``, in real arithmetic: the minimiser's law on two neighbours differs by the law of b and
        by the determinants (policy_learning, section 3), and ``solver`` hides, at ``SOLVER_SHARE`` of the budget, how
        far the stop and the grid of b leave it from the exact minimiser (Iyengar et al. 2019).

    Attributes:
        kind: Law of b, one of ``PERTURBATIONS``.
        event: What one run is charged.
        size: Number of coefficients p.
        scale: sigma of each entry (gaussian), or 1/beta of the density exp(-beta ||b||) (gamma, box).
        jacobian: J, what the determinants cost.
        tolerance: The stop, public: largest norm of the summed gradient.
        gamma: Strong convexity of the sum.
        solver: The noise that covers stop and grid.
        solver_scale: Its scale as released.
    """

    kind: str
    event: Event
    size: int
    scale: float
    jacobian: float
    tolerance: float
    gamma: float
    solver: AdditiveMechanism
    solver_scale: float

    @property
    def public(self) -> dict[str, Any]:
        """Public constants, for the statement."""
        return {
            "perturbation": self.kind,
            "perturbation_scale": self.scale,
            "epsilon_jacobian": self.jacobian,
            "solver_scale": self.solver_scale,
        }

    @property
    def order(self) -> float:
        """Norm of the noise: infinity of ``box``, else 2."""
        return math.inf if self.kind == "box" else 2.0

    @property
    def spread(self) -> Spread:
        """How far b reaches."""
        return Spread(self.scale, self.size, None if self.kind == "gaussian" else self.order)

    def curve(self, shift: float, corners: Sequence[Corners]) -> Curve:
        r"""Return delta at every epsilon of Gaussian noise, of which ``event`` charges one point.

        .. math:: \delta_b(\varepsilon - J - .01 \varepsilon_0; \xi/\sigma) + .01 \delta_0

        with (epsilon_0, delta_0) what is charged: the solver's noise composes by sums.

        Args:
            shift: xi.
            corners: Of hulls in all of which the shift lies.
        """
        assert isinstance(self.event, ApproximateEvent)
        spent, failure = self.event.epsilon * SOLVER_SHARE + self.jacobian, self.event.delta * SOLVER_SHARE

        def deltas(factor: float, epsilons: np.ndarray) -> np.ndarray:
            proven = [one.delta(factor * shift / self.scale, epsilons - spent) for one in corners]
            return np.minimum(np.min(proven, axis=0) + failure, 1.0)

        return deltas

    def draw(self, noise: NoiseSource, runs: int) -> Tensor:
        """Return independent b, float64 [runs, p] on the CPU."""
        step = noise.tilt_grid(self.scale)
        if self.kind == "gaussian":
            return noise.gaussian(runs * self.size, self.scale, step).reshape(runs, self.size)
        return noise.k_norm(runs, self.size, self.scale, self.order, step)

    def release(self, minimise: Callable[[Tensor], Tensor], noise: NoiseSource, runs: int) -> Tensor:
        """Return independent runs of the mechanism, float64 [runs, p] on the CPU; charge ``event`` for each first.

        Args:
            minimise: Linear terms [runs, p] -> minimisers [runs, p], each within ``tolerance`` (it raises otherwise).
            noise: Where the noise comes from.
            runs: How many.
        """
        return self.solver.add_noise(minimise(self.draw(noise, runs)), noise)


@dataclass(frozen=True, eq=False)
class PrivateFit:
    r"""A weighted sum of losses of a linear predictor with a ridge: what is public of it, on which its noise rests.

    .. math:: F(\theta) = \sum_i w_i\,\ell(\psi_i^\top\theta, t_i) + \tfrac\gamma2\|\theta\|^2, \qquad \|\psi_i\| \le 1

    Attributes:
        loss: Bounds of the loss.
        bounds: How far one record moves the weights.
        ridge: gamma, strong convexity of the sum.
        size: Number of coefficients p.
        largest_entry: Public bound of |psi_j|, at most 1.
        tolerance: Stop of a fit without objective noise; None takes ``default_tolerance``.
        n: Number of records; None where it bounds nothing.
    """

    loss: LossBounds
    bounds: WeightBounds
    ridge: float
    size: int
    largest_entry: float = 1.0
    tolerance: float | None = None
    n: int | None = None

    @property
    def stop(self) -> float:
        """Bound that the gradient norm of a fit without objective noise keeps."""
        if self.tolerance is None:
            return default_tolerance(self.loss.slope, self.bounds.most)
        return positive("tolerance", self.tolerance)

    @property
    def shift(self) -> float:
        r"""Largest change of the summed gradient, :math:`\xi = \zeta W_1`."""
        return positive("slope", self.loss.slope) * self.bounds.first

    @property
    def corners(self) -> tuple[Corners, ...]:
        """Between which points the change of the gradient lies."""
        if not self.bounds.own:
            return ()
        return (PARALLELOGRAM, CONVEX_LOSS, *([TRIANGLE] if self.loss.monotone else []))

    def objective(
        self,
        budget: PrivacyBudget,
        kind: str,
        *,
        remedy: str = "mechanism=output",
        argument: str = "ridge",
        unit: float = 1.0,
    ) -> ObjectiveNoise:
        r"""Calibrate objective perturbation: the minimiser of F(theta) + b'theta.

        .. math::
            \beta = (\varepsilon - J)/\xi \text{ (gamma)}, \qquad
            \beta = (\varepsilon - J)/(\xi \max_j|\psi_j|) \text{ (box)}

        and ``gaussian_scale``, with k = min(p, 2) and ``corners`` where only the own term changes, else with k = p and
        none. All with 99 % of the budget; the rest is for the stop and b's grid, by noise for the sensitivity
        2 (stop + m)/gamma, with m = ``grid_move`` and what float64 may do to K-norm noise: b is a continuous draw moved
        by that, and the minimiser moves by 1/gamma of it. A logistic loss has J by ``logistic_jacobian`` with pure
        noise, where only the own term changes. To a stop that is not given a tenth of m is added: it costs next to
        nothing, and needs no decrease of the objective that float64 could not resolve.

        Args:
            budget: What one run may spend; a pure law ignores its delta.
            kind: One of ``PERTURBATIONS``.
            remedy: What to use instead where the determinants spend all of epsilon, for the error.
            argument: What users call the ridge, for the error.
            unit: Ridge of the sum where that argument is one.

        Raises:
            InputError: If J >= epsilon, if the budget has no delta for a Gaussian, or a fact is outside its range.

        Example:
            >>> from torchdpcate.fit.losses import HuberHinge
            >>> fit = PrivateFit(LossBounds.of(HuberHinge()), WeightBounds.per_record(4.0), 40.0, size=3)
            >>> noise = fit.objective(PrivacyBudget(1 / 0.99, 0.0), "gamma")
            >>> round(noise.jacobian, 7), round(1 / noise.scale, 7)
            (0.0953102, 0.1130862)
        """
        if kind not in PERTURBATIONS:
            raise InputError(f"perturbation = {kind}: choose one of {', '.join(PERTURBATIONS)}")
        loss, bounds, size = self.loss, self.bounds, integer("size", self.size, least=1)
        spent, epsilon = bounds.jacobian(loss.curvature, self.ridge), budget.epsilon * (1 - SOLVER_SHARE)
        if spent >= epsilon:
            needed = bounds.ridge_for(loss.curvature, epsilon / 2) / unit
            raise InputError(
                f"{argument} = {self.ridge / unit:.4g}: objective perturbation spends J = {spent:.4g} of "
                f"epsilon = {epsilon:.4g}; give a ridge of at least {needed:.3g}, or {remedy}"
            )
        if loss.logistic and bounds.own and kind != "gaussian":
            most = bounds.most * loss.curvature / Logistic.curvature
            spent = logistic_jacobian(epsilon, most, self.ridge, loss.slope)
        event: Event
        if kind == "gaussian":
            event, delta = ApproximateEvent(budget.epsilon, budget.delta), _delta(budget) * (1 - SOLVER_SHARE)
            dimension = min(size, 2) if bounds.own else size
            scale = gaussian_scale(epsilon, delta, self.shift, spent, dimension, self.corners)
        else:
            entry = positive("largest_entry", self.largest_entry) if kind == "box" else 1.0
            event, scale = PureEvent(budget.epsilon), self.shift * entry / (epsilon - spent)
        move = grid_move(size, scale)
        if kind != "gaussian":  # a Gaussian draw is discrete: float64 does not move it
            move += math.sqrt(size) * _FLOAT * (size + 1) * scale
        stop = self.stop + move / 10 if self.tolerance is None else self.stop
        moved, share = 2 * (stop + move) / self.ridge, SOLVER_SHARE
        solver: AdditiveMechanism = KNormMechanism(budget.epsilon * share, moved)
        if kind == "gaussian":
            solver = GaussianMechanism(PrivacyBudget(budget.epsilon * share, budget.delta * share), moved)
        # refuses more coefficients than can be released, before anything is charged
        return ObjectiveNoise(kind, event, size, scale, spent, stop, self.ridge, solver, solver.released_scale(size))

    def output(self, budget: PrivacyBudget, kind: str) -> AdditiveMechanism:
        r"""Return noise on the minimiser of F itself.

        .. math:: \Delta = \zeta W_1 / \gamma + 2 r, \qquad r = \tau/\gamma

        Certified; attained but for r (policy_learning, section 5.1). Fit to the same ``stop`` tau on every data set.

        Args:
            budget: What one run may spend.
            kind: gamma (pure, Euclidean K-norm noise) or gaussian.

        Raises:
            InputError: If the budget has no delta for a Gaussian, or a fact is outside its range.

        Example:
            >>> from torchdpcate.fit.losses import HuberHinge
            >>> fit = PrivateFit(LossBounds.of(HuberHinge()), WeightBounds.per_record(30.0), 141.0, size=5)
            >>> round(fit.output(PrivacyBudget(1.0, 0.0), "gamma").sensitivity, 6)
            0.425532
        """
        sensitivity = (self.shift + 2 * self.stop) / positive("ridge", self.ridge)
        if kind == "gamma":
            return KNormMechanism(budget.epsilon, sensitivity)
        if kind == "gaussian":
            _delta(budget)
            return GaussianMechanism(budget, sensitivity)
        raise InputError(f"perturbation = {kind}: output noise is gamma or gaussian")


def grid_move(size: int, scale: float) -> float:
    """How far rounding to its public grid moves noise of ``size`` numbers: half a step each, together sqrt(p) g/2."""
    return math.sqrt(size) * NoiseSource.tilt_grid(scale) / 2


def _delta(budget: PrivacyBudget) -> float:
    if budget.delta == 0:
        raise InputError("delta = 0: perturbation = gaussian needs privacy.delta above 0, or use gamma or box")
    return budget.delta
