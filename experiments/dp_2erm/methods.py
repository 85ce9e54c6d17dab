"""Two-stage rules, the paper's and certified ones: first-stage weights, then a rule, on many data sets at once."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from experiments.convex_sets import L1Ball, minimise_within
from experiments.dp_2erm import printed
from experiments.dp_2erm.sample import Sample
from experiments.dp_werm.batch import Batch
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.outcome import SignedResidual
from torchdpcate.fit.losses import HuberHinge, Loss, Slopes
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.fit.weights import PrivateWeights, WeightScheme
from torchdpcate.privacy.budget import PrivacyBudget, positive
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

DELTA = 1e-5
SHARE = 0.05  # of epsilon that the ridge leaves to the change of curvature
HINGE = HuberHinge(0.5)


def ridge(epsilon: float | None, n: int, bounds: WeightBounds, curvature: float) -> float:
    """A public ridge at which the determinants cost 5 % of epsilon, at least 1e-3 n of the largest weight."""
    least = 1e-3 * n * bounds.most
    if epsilon is None:
        return least
    share = SHARE * epsilon
    needed = bounds.most * curvature / torch.expm1(torch.tensor(share)).item() if bounds.own else 0.0
    return max(least, needed, 0.0 if bounds.own else bounds.second * curvature / share)


@dataclass(frozen=True)
class Squared(Loss):
    """Squared loss (t - u)^2 on a bounded domain, where |t - u| <= ``most_residual``.

    Slope twice that, curvature 2. Without a bounded domain of theta it has no finite slope: use ``Huber``.

    Args:
        most_residual: Public bound of |t - u| over records and domain, for instance M_y + M_inf s on an l1 ball of
            radius s.

    Raises:
        InputError: If ``most_residual`` is not positive.

    Example:
        >>> Squared(3.0).slope
        6.0
    """

    targets: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    most_residual: float

    def __post_init__(self) -> None:
        """Refuse a bound that is not positive."""
        positive("most_residual", self.most_residual)

    @property
    def slope(self) -> float:  # type: ignore[override]
        """Twice the largest residual."""
        return 2 * self.most_residual

    curvature = 2.0

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """See ``Loss``."""
        r = target - u
        return Slopes(r.square(), -2 * r, torch.full_like(r, 2.0))


@dataclass(frozen=True, eq=False)
class Weighing:
    """First-stage weights over their largest value, and what is left for the rule.

    Attributes:
        sample: The records that the rule is fitted to.
        omega: Weights in [0, 1], [runs, n].
        bounds: Their public bounds.
        epsilon: What is left; None without privacy.
    """

    sample: Sample
    omega: Tensor
    bounds: WeightBounds
    epsilon: float | None


@dataclass(frozen=True, eq=False)
class FirstStage:
    """Weights of data sets, by the library's schemes, one data set after the other; what costs nothing is kept.

    Attributes:
        sample: The data sets.
        domain: Their public facts.
        noise: Where noise comes from.
    """

    sample: Sample
    domain: Domain
    noise: NoiseSource
    kept: dict = field(default_factory=dict)

    def weigh(self, scheme: WeightScheme | str, epsilon: float | None) -> Weighing:
        """Weights by ``known``, ``constant`` or a scheme of the library's."""
        if isinstance(scheme, str):
            return self._free(scheme, epsilon)
        if isinstance(scheme, PrivateWeights):
            return self._fit(scheme, epsilon)
        if scheme not in self.kept:
            self.kept[scheme] = self._fit(scheme, None)
        kept = self.kept[scheme]
        return Weighing(kept.sample, kept.omega, kept.bounds, epsilon)

    def _free(self, name: str, epsilon: float | None) -> Weighing:
        sample, least = self.sample, self.domain.overlap
        treated = sample.propensity.clamp(least, 1 - least)
        known = least / torch.where(sample.a == 1, treated, 1 - treated)
        omega = known if name == "known" else torch.ones_like(known)
        return Weighing(sample, omega, WeightBounds.per_record(1.0), epsilon)

    def _fit(self, scheme: WeightScheme, epsilon: float | None) -> Weighing:
        sample, left, budget, found = self.sample, epsilon, None, []
        if epsilon is not None and scheme.budget_fraction:
            budget = PrivacyBudget(epsilon * scheme.budget_fraction, 0.0)
            left = epsilon * (1 - scheme.budget_fraction)
        for run in range(len(self.sample.a)):
            records = sample.records(run, self.domain)
            fitted = scheme.fit(records, self.domain, budget=budget, session=FitSession(self.noise))
            found.append(fitted.weights(records) / fitted.bounds.most)
        # over its own bound every data set's sum has largest weight one, and the same noise
        most, bounds = fitted.bounds.most, fitted.bounds
        bounds = replace(bounds, most=1.0, first=bounds.first / most, second=bounds.second / most)
        return Weighing(sample, torch.stack(found), bounds, left)


class Method(ABC):
    """A way to a rule, without intercept, on each of many data sets."""

    @abstractmethod
    def __call__(self, first: FirstStage, epsilon: float | None) -> Tensor:
        """Return the rules [runs, p] at this epsilon; None is without privacy."""


@dataclass(frozen=True)
class Certified(Method):
    """Huber hinge on signed outcomes, objective perturbation; certified with noise from the system.

    Attributes:
        weights: ``known``, ``constant`` or a weighting scheme.
        kind: Law of the objective noise.
        outcome: Public centre and clip.
    """

    weights: WeightScheme | str
    kind: str
    outcome: SignedResidual

    def __call__(self, first: FirstStage, epsilon: float | None) -> Tensor:
        """See `Method`."""
        weighing = first.weigh(self.weights, epsilon)
        sample = weighing.sample
        magnitude, sign = self.outcome.transform(sample.y, first.domain)
        target, weights = (2 * sample.a - 1) * sign, weighing.omega * magnitude
        psi = sample.features
        batch = Batch(psi, target, weights, weighing.bounds, psi.shape[2] ** -0.5, HINGE)
        return _release(batch, self.kind, weighing, first.noise)


def _release(batch: Batch, kind: str, weighing: Weighing, noise: NoiseSource) -> Tensor:
    epsilon = weighing.epsilon
    gamma = ridge(epsilon, batch.psi.shape[1], batch.bounds, batch.loss.curvature)
    if epsilon is None:
        return batch.fit(gamma)
    budget = PrivacyBudget(epsilon, DELTA if kind == "gaussian" else 0.0)
    return batch.release(gamma, "objective", kind, budget, noise)


@dataclass(frozen=True)
class Printed(Method):
    """DP-2ERM as printed: weights that sum to n, squared loss on an l1 ball, (3.8) or (3.9). No level holds.

    Attributes:
        weights: First stage; ``ipw`` is the paper's 1 / pi(1|x) for everybody, from the scheme's propensity.
        movement: What it says one record moves.
        most_outcome: M_y.
        radius: s.
        kind: gamma or gaussian.
        delta: Of Gaussian noise.
    """

    weights: WeightScheme | str
    movement: Callable[[int], printed.Movement]
    most_outcome: float
    radius: float
    kind: str = "gamma"
    delta: float = DELTA

    def __call__(self, first: FirstStage, epsilon: float | None) -> Tensor:
        """See `Method`."""
        sample, x = first.sample, first.sample.x
        runs, n, p = x.shape
        omega = first.weigh(self.weights, None).omega
        omega = omega * n / omega.sum(1, keepdim=True)
        target = 2 * (2 * sample.a - 1) * sample.y.clamp(-self.most_outcome, self.most_outcome)
        movement, norm = self.movement(n), p**0.5
        slope = printed.slope(norm, self.most_outcome, self.radius)
        linear_terms, gamma = x.new_zeros(runs, p), 1e-3 * n
        if epsilon is not None:
            gamma = printed.ridge(epsilon, norm, movement)
            linear_terms = self._linear_terms(first.noise, epsilon, slope, movement, runs, n, p)
        loss = Squared(2 * self.most_outcome + self.radius)
        stop = 1e-6 * slope * n
        return minimise_within(x, target, omega, loss, gamma, linear_terms, stop, L1Ball(self.radius))

    def _linear_terms(
        self, noise: NoiseSource, epsilon: float, slope: float, movement: printed.Movement, runs: int, n: int, p: int
    ) -> Tensor:
        if self.kind == "gamma":
            return noise.k_norm(runs, p, printed.gamma_scale(epsilon, slope, movement))
        scale = printed.gaussian_scale(epsilon, self.delta, slope, movement, n, p)
        return noise.gaussian(runs * p, scale).reshape(runs, p)
