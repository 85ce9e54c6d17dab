"""Gaussian-process function noise at finitely many queries: exact, by Cholesky."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.estimators.cate.mechanisms.base import (
    QUERIES,
    SENSITIVITY,
    QueryMechanism,
    effects_stated,
)
from torchdpcate.estimators.cate.mechanisms.worst_pairs import FAR, NEAR, linear_stage
from torchdpcate.estimators.cate.online.path import EXCESS, JITTER, LATTICE, answer_step
from torchdpcate.estimators.cate.planned_head import PlannedHead
from torchdpcate.estimators.cate.recompute import EffectFacts
from torchdpcate.estimators.mechanism import Prepared
from torchdpcate.estimators.recompute import charged_gaussian
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, function_evidence, worst_case
from torchdpcate.second_stage.kernel import KernelStage
from torchdpcate.second_stage.linear import sensitivity
from torchdpcate.second_stage.recipes import RidgeSecondStage, SecondStage
from torchdpcate.second_stage.stage import FittedStage, RKHSStage


class GaussianProcess(QueryMechanism):
    r"""f(queries) + r U(queries), U ~ GP(0, K + jitter), r = Delta sigma(epsilon, delta).

    Guarantee:
        Certified (epsilon, delta) for every fixed value of the nuisances, whatever the number of queries: Delta
        bounds the replace-one change of f in the norm of the public kernel's space (``RKHSStage.sensitivity``),
        sigma is the analytic Gaussian of Balle & Wang (2018). Conditions: queries and kernel are public; real
        arithmetic. Source: theory note ``dp_cate``, row 5; Hall, Rinaldo & Wasserman (2013).

    The noise of the answer at x is r sqrt(K(x, x) + jitter), public. A query that is asked twice gets one answer.

    Example:
        >>> GaussianProcess().name
        'gaussian_process'
    """

    name = "gaussian_process"
    formula = f"r = Delta sigma_AG(epsilon, delta), {SENSITIVITY}; noise r GP(0, K); dp_cate row 5"
    states = effects_stated(
        formula,
        QUERIES,
        "sensitivity",
        "noise_scale",
        "jitter",
        "threshold",
        may=("answers",),
    )
    loss = "huber"
    accepts = (RidgeSecondStage,)
    online = True
    gaussian = True
    noise_ratio = 0.1  # as output perturbation

    def check(self, recipe: SecondStage, weight_bound: float, n: int, budget: PrivacyBudget) -> None:
        """Refuse a loss without a bound; arguments and errors are the base class's."""
        super().check(recipe, weight_bound, n, budget)
        if getattr(recipe, "loss", None) == "truncated_squared":
            raise InputError(
                "second_stage.loss = truncated_squared: it is not convex, so no bound holds of what one record moves; "
                f"use second_stage.loss=huber with mechanism={self.name}"
            )

    def calibrate(self, stage: FittedStage, budget: PrivacyBudget) -> tuple[RKHSStage, GaussianMechanism]:
        """Return the stage as one with a kernel, and the mechanism whose scale is r.

        Raises:
            InputError: A second stage without a sensitivity bound.
        """
        rkhs = self.require_rkhs(stage)
        return rkhs, GaussianMechanism(budget, rkhs.sensitivity)

    def guarantee(self, budget: PrivacyBudget) -> Guarantee:
        """Return the level and its source."""
        return Guarantee(Level.CERTIFIED, budget, source="dp_cate row 5; Hall et al. 2013; Balle & Wang 2018")

    def prepare(self, stage: FittedStage, queries: Tensor, budget: PrivacyBudget) -> Prepared:
        """Return the mechanism on f at the queries; the arguments and errors are the base class's."""
        rkhs, mechanism = self.calibrate(stage, budget)
        rows, place = torch.unique(queries + 0.0, dim=0, return_inverse=True)  # + 0.0: there is one zero
        covariance = rkhs.covariance(rows, rows)
        covariance.diagonal().add_(JITTER)
        scales = mechanism.scale * covariance.diagonal().sqrt().cpu()
        step = answer_step(rkhs.block.domain, mechanism.scale)
        draw = _draw(rkhs.correction(rows).cpu(), mechanism.scale, _root(covariance), step)
        return Prepared(
            event=mechanism.event,
            guarantee=self.guarantee(budget),
            draw=lambda noise, runs: draw(noise, runs)[:, place],
            public=public_constants(rkhs, mechanism.sensitivity, mechanism.scale),
            noise_scales=scales[place],
        )

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """See ``Mechanism``: exact but for the threshold and the kernel's diagonal, which is at most one."""
        return GaussianMechanism(budget, sensitivity(head.problem)).scale * math.hypot(head.length, math.sqrt(JITTER))

    @classmethod
    def problems(cls, facts: EffectFacts) -> Iterator[str]:
        """Return what does not follow from public facts; see the base class."""
        moved, online = facts.sensitivity, facts.privacy.public.get("answers") == "online"
        scale = charged_gaussian(facts.event, moved).scale * ((1 + EXCESS) ** 0.5 if online else 1.0)
        yield from facts.once()
        yield from facts.stated(sensitivity=moved, noise_scale=scale, jitter=JITTER)
        yield from facts.band(scale, JITTER)

    @worst_case(
        "gaussian_process",
        pair="one treated record apart from all others, its outcome at either end; queried there and beside",
    )
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        stages = [linear_stage((NEAR, y), n=100, ridge=0.1, threshold=0.01) for y in (-0.5, 0.5)]
        worlds = [GaussianProcess().prepare(stage, AUDITED, budget) for stage in stages]
        assert worlds[0].event is not None
        shift = stages[1].correction(AUDITED) - stages[0].correction(AUDITED)
        covariance = stages[0].covariance(AUDITED, AUDITED) + JITTER * torch.eye(len(AUDITED), dtype=torch.float64)
        return Game(
            draw=lambda world, runs, noise: worlds[world].draw(noise, runs),
            event=worlds[0].event,
            guarantee=worlds[0].guarantee,
            evidence=function_evidence(shift, covariance),
        )


def public_constants(stage: RKHSStage, sensitivity: float, scale: float) -> dict[str, Any]:
    """Return what statements say of function noise.

    Args:
        stage: The fitted second stage.
        sensitivity: Delta.
        scale: r.
    """
    threshold = stage.loss.threshold if isinstance(stage, KernelStage) else getattr(stage, "threshold", math.inf)
    return {"sensitivity": sensitivity, "noise_scale": scale, "jitter": JITTER, "threshold": threshold}


def _root(covariance: Tensor) -> Tensor:
    """Lower Cholesky factor on the CPU.

    Raises:
        NumericalError: Not a covariance, even with the jitter.
    """
    factor, info = torch.linalg.cholesky_ex(covariance)
    if bool(info):
        raise NumericalError(
            f"the kernel of {len(covariance)} queries is not positive definite, even with a jitter of {JITTER:g}: "
            "ask for fewer queries; nothing was charged or released"
        )
    return factor.cpu()


def _draw(values: Tensor, scale: float, root: Tensor, step: float) -> Callable[[NoiseSource, int], Tensor]:
    """Return the draw of values [d] plus scale GP noise, rounded to the public grid once all is added."""

    def draw(noise: NoiseSource, runs: int) -> Tensor:
        paths = noise.gaussian(runs * len(values), 1.0, LATTICE).reshape(runs, -1) @ root.T
        return torch.round((values + scale * paths) / step) * step

    return draw


AUDITED = torch.tensor([[NEAR], [0.5], [FAR], [0.25]], dtype=torch.float64)
"""Queries of the attacks: the replaced record's place, and others beside it."""
