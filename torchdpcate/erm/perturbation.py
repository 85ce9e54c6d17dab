"""Objective and output perturbation of a weighted, strongly convex sum: how much noise, and the draw."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from torch import Tensor

from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.gaussian_scale import PARALLELOGRAM, TRIANGLE, Corners, gaussian_scale
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.solver import default_tolerance
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, integer, positive
from torchdpcate.privacy.events import ApproximateEvent, Event, PureEvent
from torchdpcate.privacy.mechanisms import AdditiveMechanism, GaussianMechanism, KNormMechanism, k_norm_deviation
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Curve

SOLVER_SHARE = 0.01
"""Share of the budget for the noise that hides the solver's stop and the grid, about 1e-3 of the objective noise."""

PERTURBATIONS = ("gamma", "box", "gaussian")
"""Laws of the objective noise: Euclidean K-norm noise, K-norm noise of the largest entry, Gaussian."""

_FLOAT = 89 * 2.0**-49  # of its scale, what float64 may move K-norm noise by for each unit of its length


def jacobian(bounds: WeightBounds, curvature: float, gamma: float) -> float:
    r"""Largest log ratio J of the Hessians' determinants of two neighbours.

    .. math:: J = \ln(1 + w_{max}\lambda/\gamma) \text{ if only the own term changes, else } \lambda W_2/\gamma

    Args:
        bounds: How the weights move.
        curvature: lambda, of the loss in the linear predictor, with ||psi|| <= 1.
        gamma: Strong convexity of the sum.

    Raises:
        InputError: If an argument is not positive.

    Example:
        >>> round(jacobian(WeightBounds.per_record(4.0), 1.0, 40.0), 7)
        0.0953102
        >>> round(jacobian(WeightBounds.with_indirect(4.0, 21.908902), 1.0, 40.0), 7)
        0.6477226
    """
    ratio = positive("curvature", curvature) / positive("ridge", gamma)
    return math.log1p(bounds.most * ratio) if bounds.own else bounds.second * ratio


def logistic_jacobian(epsilon: float, most: float, gamma: float, slope: float = 1.0) -> float:
    r"""What determinants cost the logistic loss beside its linear terms, with pure objective noise.

    .. math::
        J = \varepsilon - 2\zeta\beta w, \qquad
        \zeta\beta w + \max_{0 \le p \le \zeta}
        \Big[\beta w p + \ln\Big(1 + \frac{w p (1 - p)}{\gamma}\Big)\Big] = \varepsilon

    with w = ``most``: a record whose slope is p has the curvature p(1 - p), or none. With zeta = 1 J is 0 from
    beta gamma = 1 on. It is never more than ``jacobian``. Where only the replaced record's own term changes
    (docs/guarantees/objective_gamma.md).
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
    return epsilon - 2 * slope * float(brentq(excess, least, most_x, xtol=1e-15 * epsilon, rtol=1e-14))


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
        tolerance: The stop, public: largest norm of the summed gradient, or gradient mapping.
        solver: The noise that covers stop and grid.
        solver_scale: Its scale as released.
    """

    kind: str
    event: Event
    size: int
    scale: float
    jacobian: float
    tolerance: float
    solver: AdditiveMechanism
    solver_scale: float

    @property
    def public(self) -> dict[str, Any]:
        """Public constants, for the statement."""
        return {"perturbation": self.kind, "tilt_scale": self.scale, "epsilon_jacobian": self.jacobian}

    @property
    def deviation(self) -> float:
        r"""Standard deviation of each entry of b.

        .. math:: s\sqrt{(p+1)(p+2)/3} \text{ (box)}, \quad s\sqrt{p+1} \text{ (gamma)}, \quad \sigma \text{ (gaussian)}
        """
        if self.kind == "gaussian":
            return self.scale
        return self.scale * k_norm_deviation(self.size, math.inf if self.kind == "box" else 2.0)

    def curve(self, shift: float, corners: Corners) -> Curve:
        r"""Return delta at every epsilon of Gaussian noise, of which ``event`` charges one point.

        .. math:: \delta_b(\varepsilon - J - .01 \varepsilon_0; \xi/\sigma) + .01 \delta_0

        with (epsilon_0, delta_0) what is charged: the solver's noise composes by sums.

        Args:
            shift: xi.
            corners: Between which the shift lies.
        """
        assert isinstance(self.event, ApproximateEvent)
        spent, failure = self.event.epsilon * SOLVER_SHARE + self.jacobian, self.event.delta * SOLVER_SHARE

        def deltas(factor: float, epsilons: np.ndarray) -> np.ndarray:
            return np.minimum(corners.delta(factor * shift / self.scale, epsilons - spent) + failure, 1.0)

        return deltas

    def draw(self, noise: NoiseSource, runs: int) -> Tensor:
        """Return independent b, float64 [runs, p] on the CPU."""
        step = noise.tilt_grid(self.scale)
        if self.kind == "gaussian":
            return noise.gaussian(runs * self.size, self.scale, step).reshape(runs, self.size)
        return noise.k_norm(runs, self.size, self.scale, math.inf if self.kind == "box" else 2.0, step)

    def release(self, minimise: Callable[[Tensor], Tensor], noise: NoiseSource, runs: int) -> Tensor:
        """Return independent runs of the mechanism, float64 [runs, p] on the CPU; charge ``event`` for each first.

        Args:
            minimise: Linear terms [runs, p] -> minimisers [runs, p], each within ``tolerance`` (it raises otherwise).
            noise: Where the noise comes from.
            runs: How many.
        """
        return self.solver.add_noise(minimise(self.draw(noise, runs)), noise)


def calibrate_objective(
    budget: PrivacyBudget,
    *,
    kind: str,
    slope: float,
    bounds: WeightBounds,
    curvature: float,
    gamma: float,
    size: int,
    largest_entry: float = 1.0,
    constrained: bool = False,
    tolerance: float | None = None,
    logistic: bool = False,
    remedy: str = "mechanism=output",
    monotone: bool = False,
) -> ObjectiveNoise:
    r"""Calibrate objective perturbation of sum w_i l(psi_i'theta, t_i) + (gamma/2)||theta||^2 + b'theta.

    .. math::
        \xi = \zeta W_1, \qquad \beta = (\varepsilon - J)/\xi \text{ (gamma)}, \qquad
        \beta = (\varepsilon - J)/(\xi \max_j|\psi_j|) \text{ (box)}

    and ``gaussian_scale``, where only the own term changes with k = min(p, 2) and the parallelogram of two records'
    gradients for corners, or the triangle of a monotone loss, else with k = p and none. All with 99 % of the budget;
    the rest is for stop and grid.

    Args:
        budget: What one run may spend; a pure law ignores its delta.
        kind: One of ``PERTURBATIONS``.
        slope: zeta of the loss.
        bounds: How the weights move.
        curvature: lambda of the loss.
        gamma: Strong convexity of the sum.
        size: Number of coefficients p.
        largest_entry: Public bound of |psi_j|, at most 1.
        constrained: Whether theta is confined to a convex set, where the same stop leaves it twice as far off.
        tolerance: The stop; None takes ``default_tolerance`` plus a tenth of ``grid_move``, which costs next to nothing
            and needs no decrease of the objective that float64 could not resolve.
        logistic: Whether the loss is ``Logistic`` or ``CrossEntropy``: pure noise is then that of ``logistic_jacobian``
            where only the own term changes.
        remedy: What to use instead where the determinants spend all of epsilon, for the error.
        monotone: Whether the loss's slope never changes its sign; see ``Loss``.

    Raises:
        InputError: If J >= epsilon, if the budget has no delta for a Gaussian, or an argument is outside its range.

    Example:
        >>> noise = calibrate_objective(PrivacyBudget(1 / 0.99, 0.0), kind="gamma", slope=1.0, curvature=1.0,
        ...                             gamma=40.0, bounds=WeightBounds.per_record(4.0), size=3)
        >>> round(noise.jacobian, 7), round(1 / noise.scale, 7)
        (0.0953102, 0.1130862)
    """
    if kind not in PERTURBATIONS:
        raise InputError(f"perturbation = {kind}: choose one of {', '.join(PERTURBATIONS)}")
    size = integer("size", size, least=1)
    spent, epsilon = jacobian(bounds, curvature, gamma), budget.epsilon * (1 - SOLVER_SHARE)
    if spent >= epsilon:
        half = epsilon / 2
        needed = bounds.most * curvature * ridge_ratio(half) if bounds.own else curvature * bounds.second / half
        raise InputError(
            f"ridge = {gamma:.4g}: objective perturbation spends J = {spent:.4g} of epsilon = {epsilon:.4g}; give a "
            f"ridge of at least {needed:.3g}, or {remedy}"
        )
    if logistic and bounds.own and kind != "gaussian":
        spent = logistic_jacobian(epsilon, bounds.most * curvature / Logistic.curvature, gamma, slope)
    return calibrate_change(
        budget,
        kind=kind,
        size=size,
        shift=positive("slope", slope) * bounds.first,
        jacobian=spent,
        gamma=gamma,
        tolerance=default_tolerance(slope, bounds.most) if tolerance is None else positive("tolerance", tolerance),
        on_grid=tolerance is None,
        dimension=min(size, 2) if bounds.own else size,
        corners=_corners(bounds, monotone),
        largest_entry=largest_entry,
        distance=2.0 if constrained else 1.0,
    )


def calibrate_change(
    budget: PrivacyBudget,
    *,
    kind: str,
    size: int,
    shift: float,
    jacobian: float,
    gamma: float,
    tolerance: float,
    on_grid: bool = True,
    dimension: int = 2,
    corners: Sequence[Corners] = (),
    largest_entry: float = 1.0,
    distance: float = 1.0,
) -> ObjectiveNoise:
    r"""Calibrate the noise b of any strongly convex objective by what one record changes.

    .. math:: \beta = \frac{\varepsilon - J}{\xi} \text{ (gamma)}, \quad
        \beta = \frac{\varepsilon - J}{\xi \max_j|\psi_j|} \text{ (box)}, \qquad
        r = \frac{c\tau + m}{\gamma}, \quad \text{noise for the sensitivity } 2r

    and ``gaussian_scale``, at 99 % of the budget; the rest is for the stop and b's grid, with m = ``grid_move`` and
    what float64 may do to K-norm noise: b is a continuous draw moved by that, and the minimiser moves by 1/gamma of it.

    Args:
        budget: What one run may spend in all; a pure law ignores its delta.
        kind: One of ``PERTURBATIONS``.
        size: Number of coefficients p.
        shift: xi, the largest change of the summed gradient.
        jacobian: J, the largest log ratio of the determinants, below 99 % of epsilon.
        gamma: Strong convexity of the sum.
        tolerance: tau, the stop.
        on_grid: Whether a tenth of m is added to tau: it costs next to nothing, and needs no decrease of the objective
            that float64 could not resolve.
        dimension: See ``gaussian_scale``.
        corners: See ``gaussian_scale``.
        largest_entry: Public bound of |psi_j|, at most 1.
        distance: c, so that the minimiser lies within c tau / gamma.

    Raises:
        InputError: If the budget has no delta for a Gaussian, or an argument is outside its range.
    """
    epsilon = budget.epsilon * (1 - SOLVER_SHARE)
    if kind == "gaussian":
        delta = _delta(budget) * (1 - SOLVER_SHARE)
        scale = gaussian_scale(epsilon, delta, shift, jacobian, dimension, corners)
        rest = PrivacyBudget(budget.epsilon * SOLVER_SHARE, budget.delta * SOLVER_SHARE)
        event: Event = ApproximateEvent(budget.epsilon, budget.delta)
    else:
        scale = shift * (positive("largest_entry", largest_entry) if kind == "box" else 1.0) / (epsilon - jacobian)
        event = PureEvent(budget.epsilon)
    move = grid_move(size, scale) + _float_move(kind, size, scale)
    stop = tolerance + move / 10 if on_grid else tolerance
    stray = (distance * stop + move) / gamma
    solver: AdditiveMechanism
    if kind == "gaussian":
        solver = GaussianMechanism(rest, 2 * stray)
    else:
        solver = KNormMechanism(budget.epsilon * SOLVER_SHARE, 2 * stray)
    # refuses more coefficients than can be released, before anything is charged
    return ObjectiveNoise(kind, event, size, scale, jacobian, stop, solver, solver.released_scale(size))


def _corners(bounds: WeightBounds, one_slope: bool) -> tuple[Corners, ...]:
    """Return between which points the change of the gradient lies."""
    if not bounds.own:
        return ()
    return (PARALLELOGRAM, TRIANGLE) if one_slope else (PARALLELOGRAM,)


def grid_move(size: int, scale: float) -> float:
    """How far rounding to its public grid moves noise of ``size`` numbers: half a step each, together sqrt(p) g/2."""
    return math.sqrt(size) * NoiseSource.tilt_grid(scale) / 2


def _float_move(kind: str, size: int, scale: float) -> float:
    """How far float64 may move a draw besides: not at all where it is discrete."""
    return 0.0 if kind == "gaussian" else math.sqrt(size) * _FLOAT * (size + 1) * scale


def output_mechanism(
    budget: PrivacyBudget,
    *,
    kind: str,
    slope: float,
    bounds: WeightBounds,
    gamma: float,
    tolerance: float,
    constrained: bool = False,
) -> AdditiveMechanism:
    r"""Noise on the minimiser of the same sum without objective noise.

    .. math:: \Delta = \zeta W_1 / \gamma + 2 r, \qquad r = \tau/\gamma, \text{ on a convex set } 2\tau/\gamma

    Certified; attained but for r (policy_learning, section 5.1). Fit to the same ``tolerance`` tau on every data set.

    Args:
        budget: What one run may spend.
        kind: gamma (pure, Euclidean K-norm noise) or gaussian.
        slope: zeta of the loss.
        bounds: How the weights move.
        gamma: Strong convexity of the sum.
        tolerance: tau, public.
        constrained: Whether theta is confined to a convex set.

    Raises:
        InputError: If the budget has no delta for a Gaussian, or an argument is outside its range.

    Example:
        >>> bounds = WeightBounds.per_record(30.0)
        >>> noise = output_mechanism(PrivacyBudget(1.0, 0.0), kind="gamma", slope=1.0, bounds=bounds, gamma=141.0,
        ...                          tolerance=1e-12)
        >>> round(noise.sensitivity, 6)
        0.425532
    """
    distance = 2.0 if constrained else 1.0
    tau = positive("tolerance", tolerance)
    sensitivity = (positive("slope", slope) * bounds.first + 2 * distance * tau) / positive("ridge", gamma)
    if kind == "gamma":
        return KNormMechanism(budget.epsilon, sensitivity)
    if kind == "gaussian":
        _delta(budget)
        return GaussianMechanism(budget, sensitivity)
    raise InputError(f"perturbation = {kind}: output noise is gamma or gaussian")


def _delta(budget: PrivacyBudget) -> float:
    if budget.delta == 0:
        raise InputError("delta = 0: perturbation = gaussian needs privacy.delta above 0, or use gamma or box")
    return budget.delta
