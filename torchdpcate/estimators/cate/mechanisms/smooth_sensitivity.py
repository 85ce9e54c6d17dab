"""Finite queries of a squared linear or kernel head with noise scaled to its smooth sensitivity."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchdpcate.estimators.cate.head import Head, PlannedHead
from torchdpcate.estimators.cate.mechanisms.base import QUERIES, QueryMechanism, public_step
from torchdpcate.estimators.cate.mechanisms.worst_pairs import DOMAIN, FAR, NEAR, given_stage, queries, query_game
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.heads.kernel import KernelSecondStage, KernelStage
from torchdpcate.heads.kernel_influence import KernelInfluenceFunction
from torchdpcate.heads.linear import LinearProblem, squared_sensitivity, worst_pair
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.heads.stage import FittedStage, LinearStage, RKHSStage
from torchdpcate.laws import SecretScale
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.calibration import (
    SmoothNoise,
    analytic_gaussian_sigma,
    largest_smoothness,
    smooth_gaussian_curve,
    smooth_gaussian_multiplier,
)
from torchdpcate.privacy.events import ApproximateEvent
from torchdpcate.privacy.worst_case import Game, worst_case

_CLOSE = 1e-6  # by which noise may differ that two choices of smoothness promise


def smooth_bound(local: float, worst: float, condition: float, xi: float) -> float:
    r"""Return the xi-smooth bound GS (min(a, GS) / GS)^{min(1, xi / ln(1 + eta))}.

    Args:
        local: a(D), a bound of the local sensitivity that one record changes by at most 1 + eta.
        worst: GS, a bound of the global sensitivity.
        condition: eta = B^2 / (n ridge).
        xi: Smoothness wanted.

    Returns:
        Sigma(D) >= a bound of the local sensitivity, within e^xi of its value on every neighbour.
        Source: theory note ``dp_cate``, section 3.5.

    Example:
        >>> round(smooth_bound(0.2, 1.5, 0.06, 7.706246626e-4), 9)
        1.460556286
    """
    exponent = min(1.0, xi / math.log1p(condition))
    return worst * (min(local, worst) / worst) ** exponent


def local_sensitivity(problem: LinearProblem, J: Tensor) -> tuple[float, float]:
    r"""Return (a(D), GS) of the squared head's answers J theta at public queries.

    .. math:: a(D) = \|J A_D^{-1}\|\,c,\qquad
        GS = \|J\|\,c/\lambda,\qquad c = \tfrac{2BS}{n}\max_t \sin t\,(1+\tfrac\beta2\cos t)

    No answer moves by more than a(D), nor by more than a(D') of the neighbour, and a(D) is at most 1 + eta times that.
    Both include the gradient-norm stop of the fit, ||J|| tol / ridge. a(D) depends on the records.

    Args:
        problem: The squared regression.
        J: Features at the queries, [d, p].
    """
    norm = torch.linalg.matrix_norm(J, 2).item()
    return _sensitivities(problem, torch.linalg.matrix_norm(problem.solve_curvature(J), 2).item(), norm)


def kernel_local_sensitivity(stage: KernelStage, queries: Tensor) -> tuple[float, float]:
    r"""Return (a(D), GS) of the squared kernel head's answers: ||J A_D^{-1}|| = N(D), ||J||^2 = lambda_max(K_qq).

    Args:
        stage: The kernel stage with the squared loss.
        queries: Covariates of the queries, [d, q].
    """
    norm = math.sqrt(torch.linalg.eigvalsh(stage.covariance(queries, queries))[-1].item())
    return _sensitivities(stage, KernelInfluenceFunction(stage, queries).operator_norm(), norm)


def _sensitivities(problem: LinearProblem | KernelStage, N: float, norm: float) -> tuple[float, float]:
    """Return (a(D), GS) from N = ||J A_D^{-1}|| and ||J||."""
    step = problem.ridge * squared_sensitivity(problem.weight_bound, problem.target_bound, problem.ridge, problem.n)
    inexact = norm * problem.tolerance / problem.ridge
    return N * step + inexact, norm * step / problem.ridge + inexact


def _noise(budget: PrivacyBudget, answers: int, condition: float, n: int) -> SmoothNoise:
    return SmoothNoise(budget.epsilon, budget.delta, answers, condition, n)


def answer_axes(J: Tensor) -> Tensor:
    """Return an orthonormal basis of what J theta can be, [d, r]: all answers, or fewer where there are more of them.

    Args:
        J: Features at the queries, [d, p]; r = min(d, p).
    """
    d, p = J.shape
    return torch.linalg.qr(J).Q if d > p else torch.eye(d, dtype=J.dtype, device=J.device)


def known_smoothness(stated: float, noise: SmoothNoise) -> bool:
    """Return whether a stated smoothness is the one picked.

    Args:
        stated: By a release.
        noise: What its public numbers make of it.
    """
    most = largest_smoothness(noise.epsilon, noise.dimension)
    if not 0 < stated <= most * (1 + 1e-12):  # a logarithm's last bit
        return False
    # of two that promise the same noise, rounding may pick either
    return noise.expected(min(stated, most)) <= noise.expected(noise.smoothness) * (1 + _CLOSE)


class SmoothSensitivity(QueryMechanism):
    r"""Answers plus N(0, sd^2 U U'), sd = kappa Sigma(D), of which one record changes Sigma by at most e^xi.

    U, [d, r], spans what the answers of p coefficients can be: r = min(d, p), and r = d for kernels. kappa is the least
    that is (epsilon, delta)-private in r dimensions, of ``smooth_gaussian_multiplier``; xi is picked by public numbers
    (``SmoothNoise``).

    Guarantee:
        Certified (epsilon, delta) for every fixed value of the nuisances: the construction of Nissim,
        Raskhodnikova & Smith (2007) with the exact worst pair, ``docs/guarantees/smooth_sensitivity.md``. The scale
        depends on the records and stays secret. Source: theory note ``dp_cate``, row 6.

    Example:
        >>> SmoothSensitivity().name
        'smooth_sensitivity'
    """

    name = "smooth_sensitivity"
    formula = "sd = kappa Sigma(D), kappa least of the exact worst pair, Sigma smooth (secret); dp_cate row 6"
    source = "dp_cate row 6; Nissim, Raskhodnikova & Smith 2007"
    kinds = QUERIES
    # its sensitivity is of the targets' whole range instead of a Huber threshold; on 20 random laws, n = 16,000 and
    # epsilon = 4 (25 November 2026), errors were 77.99, 4.59, 1.55, 1.01 and .95 at .5, .05, .01, .002 and .001
    noise_ratio = 0.002
    accepts = (LinearSecondStage, KernelSecondStage)

    def fitted(self, stage: FittedStage) -> LinearStage | KernelStage:
        """See ``QueryMechanism``: with the squared loss."""
        return stage.squared() if isinstance(stage, KernelStage) else self.require_linear(stage).squared()

    def law(self, head: Head, budget: PrivacyBudget) -> SecretScale:
        """See ``Mechanism``."""
        return self._of_smoothness(_noise(budget, head.dimension, head.condition, head.n).smoothness, head, budget)

    @classmethod
    def stated_law(cls, public: Mapping[str, Any], head: Head, budget: PrivacyBudget) -> SecretScale:
        """See ``Mechanism``: of two that promise the same noise, rounding may have picked either."""
        noise, stated = _noise(budget, head.dimension, head.condition, head.n), as_number(public["smoothness"])
        known = known_smoothness(stated, noise)
        return cls._of_smoothness(stated if known else noise.smoothness, head, budget)

    @staticmethod
    def _of_smoothness(smoothness: float, head: Head, budget: PrivacyBudget) -> SecretScale:
        return SecretScale(ApproximateEvent(budget.epsilon, budget.delta), public_step(head.domain), smoothness)

    def exact(self, stage: FittedStage, queries: Tensor, law: SecretScale) -> tuple[Tensor, float, Tensor]:
        """See ``QueryMechanism``: answers along the axes that they can have, and the smooth scale of their noise."""
        assert isinstance(stage, LinearStage | KernelStage)
        problem: LinearProblem | KernelStage
        if isinstance(stage, KernelStage):
            problem = stage
            bounds, axes = kernel_local_sensitivity(stage, queries), torch.eye(len(queries), dtype=torch.float64)
        else:
            problem, J = stage.problem, stage.features(queries.to(stage.theta))
            bounds, axes = local_sensitivity(problem, J), answer_axes(J).cpu()
        rounding = math.sqrt(axes.shape[1]) * law.step
        local, worst = (bound + rounding for bound in bounds)
        xi, event = law.smoothness, law.event
        assert xi is not None
        multiplier = smooth_gaussian_multiplier(event.epsilon, event.delta, axes.shape[1], xi)
        scale = smooth_bound(local, worst, problem.condition, xi) * multiplier
        return axes.T @ stage.correction(queries).cpu(), scale, axes

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """See ``Mechanism``: the smooth bound at the planned curvature; linear heads."""
        if head.queries is None or head.curvature is None:
            return math.nan
        norm = torch.linalg.matrix_norm(head.queries, 2).item()
        N = torch.linalg.matrix_norm(torch.linalg.solve(head.curvature, head.queries.T), 2).item()
        step = head.ridge * squared_sensitivity(head.weight_bound, head.target_bound, head.ridge, head.n)
        eta = head.problem.condition
        d, dimension = len(head.queries), min(head.queries.shape)
        noise = _noise(budget, dimension, eta, head.n)
        scale = smooth_bound(N * step, norm * step / head.ridge, eta, noise.smoothness) * noise.multiplier
        return scale * math.sqrt(dimension / d)

    @worst_case(
        "smooth_sensitivity",
        pair="a record of the opposite target jumps across the line on which all others lie; queried across it",
    )
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        # at this ridge the answer moves by .9996 of the bound
        pair = worst_pair(weight_bound=0.9, target_bound=1.0, ridge=0.3, n=1_000)
        far, near = Identity().setup(DOMAIN)(torch.tensor([[FAR], [NEAR]], dtype=torch.float64))
        turn = torch.stack([far, near])  # orthonormal; the pair moves along the second axis
        stages = [
            given_stage(replace(problem, psi=torch.as_tensor(problem.psi) @ turn))
            for problem in (pair.first, pair.second)
        ]
        before, after = (SmoothSensitivity().prepare(stage, queries(1), budget) for stage in stages)
        means = [stage.correction(queries(1)) for stage in stages]
        xi = before.public["smoothness"]
        kappa = smooth_gaussian_multiplier(budget.epsilon, budget.delta, 1, xi)
        return query_game(
            (before, after),
            (means[0], means[1]),
            most_runs=1_000_000,
            curve=lambda factor, epsilons: smooth_gaussian_curve(epsilons, kappa / factor, 1, xi),
        )


def noise_at_queries(stage: RKHSStage, queries: Tensor, budget: PrivacyBudget) -> dict[str, float]:
    r"""Return the noise of an answer by two certified mechanisms, in outcome units; free, for nothing is looked at.

    ``function``: the function's own noise (output perturbation, Gaussian-process noise) restricted to the queries,
    root mean square of :math:`\Delta\,\sigma_{AG}\sqrt{K(x, x)}`, exact. ``smooth_sensitivity``: its secret scale is at
    least this, because :math:`A_D \preceq (\lambda + B^2) I` on every data set, so that
    :math:`a(D) \ge \|J\|\,c/(\lambda + B^2)`, c as in ``local_sensitivity``.

    Args:
        stage: The second stage; its records are not looked at.
        queries: Covariates [d, q].
        budget: What a release may spend.

    Returns:
        Noise by name.
        Source: theory note ``dp_cate``, rows 5 and 6.
    """
    kernel, bounds, n = stage.covariance(queries, queries), stage.block.bounds, len(stage.block.s)
    r = stage.sensitivity * analytic_gaussian_sigma(budget.epsilon, budget.delta)
    noise = {"function": r * kernel.diagonal().mean().sqrt().item()}
    norm = torch.linalg.eigvalsh(kernel)[-1].sqrt().item()
    eta, B = bounds.weight**2 / (n * stage.ridge), bounds.weight
    worst = norm * squared_sensitivity(B, bounds.target, stage.ridge, n)
    least = worst * stage.ridge / (stage.ridge + B**2)
    d = len(queries)
    dimension = min(d, stage.features.dimension) if isinstance(stage, LinearStage) else d
    smooth = SmoothNoise(budget.epsilon, budget.delta, dimension, eta, n)
    scale = smooth_bound(least, worst, eta, smooth.smoothness) * smooth.multiplier
    noise["smooth_sensitivity"] = scale * math.sqrt(dimension / d)
    return noise
