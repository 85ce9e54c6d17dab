"""Gaussian-process function noise at finitely many queries: exact, by Cholesky."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.estimators.cate.head import Head
from torchdpcate.estimators.cate.mechanisms.base import QUERIES, SENSITIVITY, QueryMechanism
from torchdpcate.estimators.cate.mechanisms.worst_pairs import FAR, NEAR, linear_stage
from torchdpcate.estimators.cate.online.path import EXCESS, JITTER, LATTICE, answer_step
from torchdpcate.heads.linear import sensitivity
from torchdpcate.heads.recipes import RidgeSecondStage, SecondStage
from torchdpcate.heads.stage import FittedStage, RKHSStage
from torchdpcate.laws import FunctionNoise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.worst_case import Game, function_evidence, worst_case

ONLINE = "online"
"""What statements have under ``answers`` for those of a service."""


class GaussianProcess(QueryMechanism):
    r"""f(queries) + r U(queries), U ~ GP(0, K + jitter), r = Delta sigma(epsilon, delta).

    Guarantee:
        Certified (epsilon, delta) for every fixed value of the nuisances, whatever the number of queries: Delta
        bounds the replace-one change of f in the norm of the public kernel's space (``RKHSStage.sensitivity``),
        sigma is the analytic Gaussian of Balle & Wang (2018). Conditions: queries and kernel are public; real
        arithmetic. Source: theory note ``dp_cate``, row 5; Hall, Rinaldo & Wasserman (2013).

    The noise of the answer at x is r sqrt(K(x, x) + jitter), public. A query that is requested twice gets one answer.

    Example:
        >>> GaussianProcess().name
        'gaussian_process'
    """

    name = "gaussian_process"
    formula = f"r = Delta sigma_AG(epsilon, delta), {SENSITIVITY}; noise r GP(0, K); dp_cate row 5"
    source = "dp_cate row 5; Hall et al. 2013; Balle & Wang 2018"
    kinds = QUERIES
    jitter = JITTER
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

    def fitted(self, stage: FittedStage) -> RKHSStage:
        """See ``QueryMechanism``; refuses a loss without a bound."""
        rkhs = self.require_rkhs(stage)
        assert rkhs.sensitivity > 0
        return rkhs

    def law(self, head: Head, budget: PrivacyBudget, excess: float = 0.0) -> FunctionNoise:
        """See ``Mechanism``.

        Args:
            head: What is public of the second stage.
            budget: What the release may spend.
            excess: Share by which the variance is raised, for answers online.
        """
        return FunctionNoise(GaussianMechanism(budget, sensitivity(head.problem)), JITTER, LATTICE, excess)

    @classmethod
    def stated_law(cls, public: Mapping[str, Any], head: Head, budget: PrivacyBudget) -> FunctionNoise:
        """See ``Mechanism``."""
        return cls().law(head, budget, EXCESS if public.get("answers") == ONLINE else 0.0)

    def exact(self, stage: FittedStage, queries: Tensor, law: FunctionNoise) -> tuple[Tensor, Tensor, float, Tensor]:
        """See ``QueryMechanism``: values and kernel at different queries, and which of them each answer is of."""
        rkhs = self.require_rkhs(stage)
        rows, place = torch.unique(queries + 0.0, dim=0, return_inverse=True)  # + 0.0: there is one zero
        covariance = rkhs.covariance(rows, rows)
        covariance.diagonal().add_(JITTER)
        return rkhs.correction(rows).cpu(), _root(covariance), answer_step(rkhs.block.domain, law.scale), place

    def public(self, head: Head, law: FunctionNoise) -> dict[str, Any]:
        """See ``Mechanism``."""
        return {**law.constants(), "threshold": head.threshold, **({"answers": ONLINE} if law.excess else {})}

    def band(self, law: FunctionNoise) -> float:
        """See ``Mechanism``: exact."""
        return law.scale

    @worst_case(
        "gaussian_process",
        pair="one treated record apart from all others, its outcome at either end; queried there and beside",
    )
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        stages = [linear_stage((NEAR, y), n=100, ridge=0.1, threshold=0.01) for y in (-0.5, 0.5)]
        datasets = [GaussianProcess().prepare(stage, AUDITED, budget) for stage in stages]
        assert datasets[0].event is not None
        shift = stages[1].correction(AUDITED) - stages[0].correction(AUDITED)
        covariance = stages[0].covariance(AUDITED, AUDITED) + JITTER * torch.eye(len(AUDITED), dtype=torch.float64)
        return Game(
            draw=lambda dataset, runs, noise: datasets[dataset].draw(noise, runs),
            event=datasets[0].event,
            guarantee=datasets[0].guarantee,
            evidence=function_evidence(shift, covariance),
        )


def _root(covariance: Tensor) -> Tensor:
    """Lower Cholesky factor on the CPU.

    Raises:
        NumericalError: Not a covariance, even with the jitter.
    """
    factor, info = torch.linalg.cholesky_ex(covariance)
    if bool(info):
        raise NumericalError(
            f"the kernel of {len(covariance)} queries is not positive definite, even with a jitter of {JITTER:g}: "
            "request fewer queries; nothing was charged or released"
        )
    return factor.cpu()


AUDITED = torch.tensor([[NEAR], [0.5], [FAR], [0.25]], dtype=torch.float64)
"""Queries of the attacks: the replaced record's place, and others beside it."""
