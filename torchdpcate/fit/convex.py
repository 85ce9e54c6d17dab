"""Convex nuisances are fitted: logistic propensity and Huber outcomes in one jointly perturbed objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.gaussian_scale import CONVEX_LOSS, PARALLELOGRAM, Corners
from torchdpcate.fit.losses import Huber, Logistic, Loss
from torchdpcate.fit.minimise import minimise
from torchdpcate.fit.nuisance_kinds import ConvexNuisances
from torchdpcate.fit.nuisances import NuisanceRecipe
from torchdpcate.fit.private_fit import SOLVER_SHARE, ObjectiveNoise, calibrate_change, ridge_ratio
from torchdpcate.privacy.accounting import EventCount
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import JOINT, MEDIAN
from torchdpcate.privacy.events import ApproximateEvent, PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import chosen_quantile
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.registry import refuse_strings

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


_POINTS = 201  # of the public grid of the median
_LEAST_RIDGE = 1e-4  # of the mean objective, for conditioning
_TOLERANCE = 1e-11  # of a summed gradient, a record and gradient bound


def outcome_median(records: CausalData, domain: Domain, epsilon: float, noise: NoiseSource) -> float:
    """Median outcome, by `chosen_quantile` from a public grid of the outcome range; charge ``PureEvent(epsilon)``.

    Args:
        records: A block.
        domain: Public bounds.
        epsilon: Privacy cost.
        noise: Where the noise comes from.

    Example:
        >>> domain = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0)
        >>> y = torch.linspace(0, 1, 1000, dtype=torch.float64)
        >>> round(outcome_median(CausalData(y[:, None], y.round(), y), domain, 10.0, NoiseSource.system()), 1)
        0.5
    """
    grid = torch.linspace(domain.outcome_low, domain.outcome_high, _POINTS, dtype=torch.float64)
    return noise.released(chosen_quantile(records.y, grid, 0.5, epsilon, noise))


@dataclass(frozen=True)
class JointObjective:
    r"""The public constants of one jointly perturbed objective.

    .. math::
        \sum_i \alpha\,\ell(a_i, \psi_i^\top\theta_\pi) + H_\tau(y_i - m - \psi_i^\top\theta_{a_i})
        + \kappa_\pi \|\theta_\pi\|^2 + \kappa (\|\theta_0\|^2 + \|\theta_1\|^2) + b^\top\theta,
        \quad b \sim N(0, \sigma_b^2 I),

    with the cross-entropy l, the Huber loss H (slope at most 2 tau, curvature at most 2) and ||psi|| <= 1.

    A known propensity has no part in it: alpha is 0, and theta_pi has no entries.

    Attributes:
        alpha: weight of the propensity's loss, which bounds its gradient; 0 where it is not fitted.
        threshold: tau, in outcome units.
        ridges: (kappa_pi, kappa), summed over the records, not their mean.
        tolerance: largest norm of the summed gradient at the end.
        objective_noise: b, calibrated; None without privacy.
    """

    alpha: float
    threshold: float
    ridges: tuple[float, float]
    tolerance: float
    objective_noise: ObjectiveNoise | None

    @property
    def gradient_bound(self) -> float:
        """Largest norm of one record's gradient, sqrt(alpha^2 + 4 tau^2)."""
        return math.hypot(self.alpha, 2 * self.threshold)

    def minimise(self, psi: tuple[Tensor, Tensor], a: Tensor, s: Tensor, linear_terms: Tensor) -> Tensor:
        """Minimisers (theta_pi, theta_0, theta_1), one a row of ``linear_terms``, float64 [runs, p + 2 p'].

        The objective is a sum over the three once b is drawn; each is minimised alone.

        Args:
            psi: features of the propensity [n, p] and of the outcomes [n, p'].
            a: treatment [n].
            s: outcome less the median [n].
            linear_terms: b, [runs, p + 2 p'].

        Raises:
            NumericalError: the tolerance was not reached; nothing may be released.
        """
        treatment, outcome = psi
        parts = linear_terms.to(s).split([treatment.shape[1], outcome.shape[1], outcome.shape[1]], 1)
        first, second = (2 * ridge for ridge in self.ridges)

        def part(psi: Tensor, target: Tensor, weight: float, loss: Loss, gamma: float, linear_term: Tensor) -> Tensor:
            weights = torch.full_like(target, weight)
            return minimise(psi, target, weights, loss, gamma, linear_term, self.tolerance / math.sqrt(3))

        found = [] if self.alpha == 0 else [part(treatment, 2 * a.to(s) - 1, self.alpha, Logistic(), first, parts[0])]
        for arm in (0, 1):
            own = a == arm
            found.append(part(outcome[own], s[own], 1.0, Huber(self.threshold), second, parts[1 + arm]))
        return torch.cat(found, 1)

    def draw(self, psi: tuple[Tensor, Tensor], a: Tensor, s: Tensor, noise: NoiseSource, runs: int = 1) -> Tensor:
        """Independent runs of the mechanism: coefficients [runs, p + 2 p'] on the CPU. Arguments as in `minimise`."""
        if self.objective_noise is None:
            return self.minimise(psi, a, s, torch.zeros(runs, psi[0].shape[1] + 2 * psi[1].shape[1])).cpu()
        return self.objective_noise.release(lambda linear_terms: self.minimise(psi, a, s, linear_terms), noise, runs)


def joint_objective(
    n: int, size: int, threshold: float, budget: PrivacyBudget | None, *, share: float, jacobian_share: float
) -> JointObjective:
    r"""Constants of a joint objective of `n` records with `size` coefficients in all.

    .. math::
        \varepsilon_J = \ln\Big(1 + \frac{\alpha}{8\kappa_\pi}\Big) + \ln\Big(1 + \frac{1}{\kappa}\Big), \quad
        \sigma_b = 2 \sqrt{\alpha^2 + 4\tau^2}\; \sigma

    with the least sigma that ``joint_corners`` allow, or `erm.objective_sigma` in four dimensions where delta is too
    large for them. One hundredth of the budget pays for the solver. `jacobian_share` of the rest goes to epsilon_J,
    divided between propensity and outcomes as 1 to 4, from which the ridges follow.

    Args:
        n: records of the block.
        size: coefficients of propensity and both outcomes together.
        threshold: tau, in outcome units.
        budget: of the objective; None without privacy.
        share: alpha^2 / (alpha^2 + 4 tau^2), the propensity's share of the squared gradient bound; 0 for a propensity
            that is known, and then the outcomes have all of epsilon_J.
        jacobian_share: epsilon_J over epsilon.

    Example:
        >>> joint = joint_objective(1350, 15, 1.0, PrivacyBudget(1.0, 1e-5), share=0.2, jacobian_share=0.3)
        >>> round(joint.alpha, 6), round(joint.objective_noise.jacobian, 6), round(joint.objective_noise.scale, 6)
        (1.0, 0.297, 24.961932)
    """
    alpha = 2 * threshold * math.sqrt(share / (1 - share))
    gradient = math.hypot(alpha, 2 * threshold)
    tolerance, least = _TOLERANCE * n * gradient, _LEAST_RIDGE * n
    if budget is None:
        return JointObjective(alpha, threshold, (alpha * least, least), tolerance, None)
    epsilon = budget.epsilon * (1 - SOLVER_SHARE)
    first, second = (0.2, 0.8) if alpha else (0.0, 1.0)
    own = max(alpha / 8 * ridge_ratio(first * jacobian_share * epsilon), alpha * least) if alpha else 0.0
    ridges = (own, max(ridge_ratio(second * jacobian_share * epsilon), least))
    noise = calibrate_change(
        budget,
        kind="gaussian",
        size=size,
        shift=2 * gradient,
        jacobian=(math.log1p(alpha / (8 * own)) if alpha else 0.0) + math.log1p(1 / ridges[1]),
        gamma=2 * (min(ridges) if alpha else ridges[1]),
        tolerance=tolerance,
        # two records, each with a direction in the propensity's block, if it is fitted, and one in its arm's
        dimension=min(size, 4 if alpha else 2),
        corners=joint_corners(share),
    )
    return JointObjective(alpha, threshold, ridges, noise.tolerance, noise)


def joint_corners(share: float) -> tuple[Corners, ...]:
    r"""Return the points between which the difference of two records' gradients lies, at its worst.

    .. math::
        \delta \le 2 \sum_{q \in \{0, \alpha^2, \alpha^2, 4 \alpha^2\}}
        \big[ \delta_G(q) + \delta_G(q + 16 \tau^2) \big]

    by squared lengths, with those of xi^2 = 4 (alpha^2 + 4 tau^2): both records of one arm, on opposite features of
    the propensity and on one of the outcome (docs/guarantees/objective_perturbation.md).

    Args:
        share: s = alpha^2 / (alpha^2 + 4 tau^2); 0 where no propensity is fitted.

    Example:
        >>> [(count, round(length, 6)) for count, length in joint_corners(0.2)[0].points]
        [(2.0, 1.0), (4.0, 0.921954), (2.0, 0.894427), (2.0, 0.447214), (4.0, 0.223607)]
    """
    if share == 0:
        return PARALLELOGRAM, CONVEX_LOSS
    squared = ((2.0, 1.0), (4.0, 1 - 0.75 * share), (2.0, 1 - share), (2.0, share), (4.0, share / 4))
    return (Corners(tuple((count, math.sqrt(part)) for count, part in squared), least=1.0),)


_THRESHOLD = 1 / 16  # of the outcome's range, where it has more than two values
_ROUNDING = 1e-9  # of what is left, so that sums of shares never exceed the budget


@dataclass(frozen=True)
class ConvexNuisanceConfig(NuisanceRecipe):
    """Convex nuisances by objective perturbation.  All of it is public and chosen without looking at the records.

    With few covariates they need far less noise than networks: their noise grows with the number of features.

    Guarantee:
        Certified (epsilon, delta): a pure share releases the median outcome (`outcome_median`), the rest pays one joint
        objective perturbation (`joint_objective`; docs/guarantees/objective_perturbation.md).

    Args:
        degree: of the outcomes' Legendre polynomials, at least 1.
        propensity_degree: of the propensity's, at least 0.
        threshold: Huber threshold in outcome units; None takes a sixteenth of the outcome range, of a binary outcome
            all of it, for the Huber loss would aim at its mode.
        propensity_share: the propensity's share of the squared gradient bound, in (0, 1).
        jacobian_share: share of epsilon that pays for small ridges, in (0, 1).
        median_share: share of epsilon that releases the median, in (0, 1).

    Raises:
        InputError: a value out of its range.

    Example:
        >>> ConvexNuisanceConfig(degree=3).propensity_degree
        1
    """

    degree: int = 2
    propensity_degree: int = 1
    threshold: float | None = None
    propensity_share: float = 0.2
    jacobian_share: float = 0.3
    median_share: float = 0.05

    def __post_init__(self) -> None:
        refuse_strings(type(self), vars(self))
        for name, least in (("degree", 1), ("propensity_degree", 0)):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= least):
                raise InputError(f"nuisance.{name}={value!r} must be a whole number, at least {least}")
        for name in ("propensity_share", "jacobian_share", "median_share"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise InputError(f"nuisance.{name}={value!r} must lie strictly between 0 and 1")
        if self.threshold is not None and not 0 < self.threshold < math.inf:
            raise InputError(f"nuisance.threshold={self.threshold!r} must be above 0 and finite, or null")

    def check(self, n: int, domain: Domain, budget: PrivacyBudget | None, also: Sequence[EventCount]) -> None:
        """Refuse a budget that other charges use up; see `NuisanceRecipe.check`."""
        if budget is not None:
            self._prices(budget, also)

    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        also: Sequence[EventCount] = (),
        session: FitSession,
        trainer: Callable[..., Trainer] | None = None,
        seed: int = 0,
    ) -> ConvexNuisances:
        """Return fitted nuisances; see `NuisanceRecipe.fit`. No trainer and no seed are needed."""
        model = ConvexNuisances(domain, self.degree, self.propensity_degree)
        known = domain.known_propensity is not None
        fitted = 0 if known else len(model.propensity)
        size = fitted + model.outcomes.numel()
        if budget is None:
            joint = self._objective(records.n, size, domain, None)
            median = records.y.median().item()
        else:
            first, second = self._prices(budget, also)
            joint = self._objective(records.n, size, domain, second)
            session.pay(PureEvent(first), charge=MEDIAN)
            session.pay(ApproximateEvent(second.epsilon, second.delta), charge=JOINT)
            median = outcome_median(records, domain, first, session.noise)
        treatment, outcome = model.features(records.x)
        draw = joint.draw((treatment[:, :fitted], outcome), records.a, records.y - median, session.noise)
        theta = session.noise.released(draw[0])
        model.median.fill_(median)
        model.propensity[:fitted] = theta[:fitted]
        model.outcomes.copy_(theta[fitted:].reshape(2, -1))
        return model.eval()

    def _prices(self, budget: PrivacyBudget, also: Sequence[EventCount]) -> tuple[float, PrivacyBudget]:
        """Return the median's epsilon and the joint objective's budget: what other charges leave."""
        if not all(isinstance(event, PureEvent) for event, _ in also):
            raise InputError("nuisance=convex: shares its budget with pure events alone; use nuisance=mlp")
        pure = sum(event.epsilon * count for event, count in also if isinstance(event, PureEvent))
        left = (budget.epsilon - pure) * (1 - _ROUNDING)
        if left <= 0:
            raise InputError(
                f"epsilon = {budget.epsilon:g}: other charges on the nuisances' block take {pure:g} of it; lower their "
                "shares"
            )
        return left * self.median_share, PrivacyBudget(left * (1 - self.median_share), budget.delta)

    def _objective(self, n: int, size: int, domain: Domain, budget: PrivacyBudget | None) -> JointObjective:
        part = 1.0 if domain.outcome_kind == "binary" else _THRESHOLD
        threshold = self.threshold or domain.outcome_range * part
        share = 0.0 if domain.known_propensity is not None else self.propensity_share
        return joint_objective(n, size, threshold, budget, share=share, jacobian_share=self.jacobian_share)


@worst_case(
    "convex_nuisances",
    ConvexNuisances,
    attacks=[JOINT],
    pair="a trial: one treated record apart from all others, its outcome at either end of the interval",
)
def _convex(budget: PrivacyBudget) -> Game:
    domain = Domain([0.0], [1.0], outcome_low=-0.5, outcome_high=0.5)
    # no propensity is fitted, of which this pair would show nothing, and little of the claim goes to determinants
    joint = joint_objective(2, 4, 0.01, budget, share=0.0, jacobian_share=1e-3)
    x = a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    features, outcomes = ConvexNuisances(domain, degree=1).features(x[:, None])[1], torch.zeros(2, 2).double()
    psi = features[:, :0], features
    outcomes[:, 0] = torch.tensor([-0.5, 0.5])
    zero = torch.zeros(1, 4, dtype=torch.float64)
    direction = (joint.minimise(psi, a, outcomes[1], zero) - joint.minimise(psi, a, outcomes[0], zero))[0]

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        return joint.draw(psi, a, outcomes[dataset], noise, runs)

    event = ApproximateEvent(budget.epsilon, budget.delta)
    guarantee = Guarantee(Level.CERTIFIED, budget)
    assert joint.objective_noise is not None
    curve = joint.objective_noise.curve(2 * joint.gradient_bound, joint_corners(0.0))
    return Game(draw, event, guarantee, evidence=lambda theta: theta @ direction, most_runs=400_000, curve=curve)
