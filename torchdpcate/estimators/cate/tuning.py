"""Private choice of the second stage on the nuisance block, which costs the second-stage block nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import scipy
import torch
from torch import Tensor

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.estimators.cate.mechanisms.perturbation import perturbed_head
from torchdpcate.fit.feature_maps import FeatureMap, Legendre, conditions_of
from torchdpcate.fit.gaussian_scale import gaussian_scale
from torchdpcate.fit.nuisances import NuisanceModel
from torchdpcate.heads.linear import LinearProblem, solve
from torchdpcate.heads.recipes import LinearSecondStage, SecondStage
from torchdpcate.heads.stage import SecondStageBlock
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Condition
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import generalised_select
from torchdpcate.registry import refuse_strings

_GRID = 2_000  # public points that stand in for the covariates' law
_GAP = 0.01  # of the sensitivity: how exactly a least risk is found
_VARIANCE = 1 / 3  # of residuals within the threshold, in squared thresholds: as if uniform


class Risk(NamedTuple):
    """A least risk in squared thresholds, and what replacing one record moves it by at most."""

    value: float
    sensitivity: float


def least_risk(problem: LinearProblem, radius: float) -> Risk:
    r"""Least regularised Huber risk over a ball of heads, targets clipped to the threshold.

    .. math::
        V(D) = \frac{1}{\tau^2} \min_{\|\theta\| \le \rho\tau} \frac1n \sum_i H_\tau(\bar s_i - v_i^\top\theta)
        + \lambda\|\theta\|^2, \quad \bar s = \mathrm{clip}(s, \pm\tau)

    A loss in the ball lies in [0, tau^2 (1 + 2 B rho)], as |s - v'theta| <= tau (1 + B rho). A minimum of sums moves
    by no more than the sums do, so replacing one record moves V by at most (1 + 2 B rho) / n, *however far the
    minimiser itself moves*; one hundredth of that is added for the gap to the exact minimum (weak duality).

    Args:
        problem: The regression; a Huber threshold, finite.
        radius: rho, public.

    Raises:
        NumericalError: It was not found to that gap; nothing may be chosen.

    Example:
        >>> psi = torch.ones(100, 1, dtype=torch.float64)
        >>> s = 0.5 * torch.ones(100, dtype=torch.float64)
        >>> risk = least_risk(LinearProblem(psi, s, torch.ones_like(s), 1e-6, 1.0, 1.0, 1.0), radius=2.0)
        >>> round(risk.value, 4), round(risk.sensitivity, 4)
        (0.0, 0.0505)
    """
    tau, n = problem.threshold, problem.n
    clipped = replace(problem, s=problem.s.clamp(-tau, tau))
    sensitivity = (1 + 2 * problem.weight_bound * radius) / n

    def head(multiplier: float) -> Tensor:
        return solve(replace(clipped, ridge=problem.ridge + multiplier)).theta / tau

    def excess_length(multiplier: float) -> float:
        return head(multiplier).norm().item() - radius

    # a ridge of 1 / (4 rho^2) keeps any head within the ball: ||theta|| <= tau / (2 sqrt(ridge))
    multiplier = 0.0 if excess_length(0.0) <= 0 else scipy.optimize.brentq(excess_length, 0.0, 1 / (4 * radius**2))
    theta = head(multiplier)
    length = theta.norm().item()
    # a head in the ball from above, the Lagrangian's minimum from below
    upper = _risk(clipped, theta * min(1.0, radius / max(length, radius)))
    lower = _risk(clipped, theta) + multiplier * (length**2 - radius**2)
    if upper - lower > _GAP * sensitivity:
        raise NumericalError("tune: a least risk was not found exactly enough; nothing is chosen; change tune.radius")
    return Risk(upper, sensitivity * (1 + _GAP))


def _risk(problem: LinearProblem, theta: Tensor) -> float:
    """Mean Huber loss plus ridge, in squared thresholds; theta in thresholds."""
    r = problem.s / problem.threshold - problem.w * problem.design.apply(theta[None])[0]
    clipped = r.clamp(-1, 1)
    return ((clipped * (2 * r - clipped)).mean() + problem.ridge * theta.square().sum()).item()


@dataclass(frozen=True)
class Tuning:
    r"""Chooses feature map and ridge of a linear second stage, all combinations of which are public.

    A candidate's score is minus the sum of its ``least_risk`` on the nuisance block and what public facts say of its
    release: the variance of its noise (as of objective perturbation) and of its fit, at a public grid of
    covariates, weighted as the risk weighs them. ``generalised_select`` then chooses.

    Guarantee:
        Certified, pure epsilon. It is the risk that is private, not the candidates' heads, which never leave: a
        head fitted to half of the block and judged on the other half would move by its certified sensitivity,
        about a quarter of a threshold *whatever n is*, since the ridge falls as 1/n.

    Args:
        features: Feature maps to choose from.
        noise_ratios: Noise ratios to choose from, see ``RidgeSecondStage``.
        share: Share of the nuisance block's epsilon that pays for it, in (0, 1).
        radius: Norm of the heads over which risks are compared, in thresholds.

    Raises:
        InputError: Nothing to choose from, or a value out of its range.

    Example:
        >>> tuning = Tuning(features=(Legendre(1), Legendre(2)), noise_ratios=(0.25, 0.5))
        >>> [(c.features.degree, c.noise_ratio) for c in tuning.candidates(LinearSecondStage())]
        [(1, 0.25), (1, 0.5), (2, 0.25), (2, 0.5)]
    """

    features: Sequence[FeatureMap] = field(default_factory=lambda: (Legendre(2), Legendre(3), Legendre(4)))
    noise_ratios: Sequence[float] = (0.5,)
    share: float = 0.05
    radius: float = 2.0

    def __post_init__(self) -> None:
        """Check the settings."""
        refuse_strings(type(self), vars(self))
        if not self.features or not self.noise_ratios:
            raise InputError("tune.features or tune.noise_ratios is empty: give candidates, or tune=none")
        if not 0 < self.share < 1:
            raise InputError(f"tune.share = {self.share}: give a number strictly in (0, 1)")
        if not 0 < self.radius < math.inf:
            raise InputError(f"tune.radius = {self.radius}: give a positive number of thresholds")

    def candidates(self, base: SecondStage) -> list[LinearSecondStage]:
        """Return the candidates: ``base`` with each feature map and noise ratio.

        Raises:
            InputError: ``base`` is no linear second stage with a Huber loss, or has its ridge given.
        """
        if not isinstance(base, LinearSecondStage) or base.loss != "huber":
            raise InputError("tune=private: chooses among linear heads with the Huber loss; use tune=none with others")
        if base.ridge is not None:
            raise InputError(f"second_stage.ridge = {base.ridge}: tune=private works it out; use null, or tune=none")
        pairs = product(self.features, self.noise_ratios)
        return [replace(base, features=features, noise_ratio=ratio) for features, ratio in pairs]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What the choice rests on beside its proof: the conditions of the candidates' feature maps."""
        return tuple(dict.fromkeys(condition for features in self.features for condition in conditions_of(features)))

    def event(self, budget: PrivacyBudget) -> PureEvent:
        """Return what the ledger is charged before ``choose``."""
        return PureEvent(self.share * budget.epsilon)

    def choose(
        self,
        base: SecondStage,
        block: SecondStageBlock,
        nuisances: NuisanceModel,
        *,
        threshold: float,
        n: int,
        budget: PrivacyBudget | None,
        epsilon: float | None,
        noise: NoiseSource,
    ) -> LinearSecondStage:
        """Return the chosen candidate; charge ``PureEvent(epsilon)`` first.

        Args:
            base: The second stage whose features and ridge are to be chosen.
            block: The records of the nuisance block with their regression.
            nuisances: Their nuisances.
            threshold: Huber threshold, public or paid for.
            n: Records of the second-stage block.
            budget: Budget of the release; None without privacy.
            epsilon: Privacy cost of the choice; None chooses without noise, for a learner without privacy.
            noise: Where the noise comes from.
        """
        candidates = self.candidates(base)
        bound, public = block.bounds.weight * FeatureMap.bound, _public_block(block, nuisances)
        risks, excess = [], []
        for candidate in candidates:
            fixed = replace(candidate, ridge=candidate.ridge_for(bound, n, budget))
            risks.append(least_risk(fixed.fit(block, nuisances, threshold=threshold).problem, self.radius))
            problem = fixed.fit(public, nuisances, threshold=threshold).problem
            excess.append(_excess(problem, len(block.s), n, budget))
        scores = -torch.tensor([r.value + e for r, e in zip(risks, excess, strict=True)], dtype=torch.float64)
        if epsilon is None:
            return candidates[int(scores.argmax())]
        sensitivities = torch.tensor([risk.sensitivity for risk in risks], dtype=torch.float64)
        return candidates[generalised_select(scores, sensitivities, epsilon, noise)]


def _public_block(block: SecondStageBlock, nuisances: NuisanceModel) -> SecondStageBlock:
    """Return a block of public covariates, with the weights that records there have on average."""
    x = block.domain.grid(_GRID).to(block.x)
    y = torch.full((_GRID,), block.domain.outcome_low).to(x)
    with torch.no_grad():
        pi = nuisances.predict(x).pi
        squares = [block.regression(x, torch.full_like(y, arm), y)[1].square() for arm in (0.0, 1.0)]
    w = ((1 - pi) * squares[0] + pi * squares[1]).sqrt()
    return replace(block, x=x, s=torch.zeros_like(w), w=w)


def _excess(problem: LinearProblem, tuned: int, n: int, budget: PrivacyBudget | None) -> float:
    r"""Risk that release and fit add, in squared thresholds, by public facts alone.

    .. math:: (\sigma_b / 2n)^2\, \overline{\|A^{-1}v\|^2} + \overline{v^\top A^{-1}v}\,(1/n + 1/n') / 3

    with sigma_b that of objective perturbation and n' the records whose least risk is too low by what the fit adapted
    to them.
    """
    v = problem.v
    solved = torch.cholesky_solve(v.T, torch.linalg.cholesky(problem.curvature)).T
    variance = (v * solved).sum(1).mean().item() * _VARIANCE * (1 / n + 1 / tuned)
    if budget is None:
        return variance
    head = perturbed_head(n, problem.ridge, problem.weight_bound, threshold=1.0)
    jacobian = head.bounds.jacobian(head.loss.curvature, head.ridge)
    noise_scale = gaussian_scale(budget.epsilon, budget.delta, head.shift, jacobian, 2, head.corners)
    return variance + (noise_scale / (2 * n)) ** 2 * solved.square().sum(1).mean().item()
