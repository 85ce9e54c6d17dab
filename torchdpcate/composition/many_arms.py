"""The regressions of a composition for more than two arms: propensities, and by how much the arms differ."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.causal.score import project_to_floor
from torchdpcate.composition.linear_fit import HuberFit
from torchdpcate.composition.regressions import FittedEffect, Regressions
from torchdpcate.composition.summaries import private_curvatures


@dataclass(frozen=True, eq=False)
class ManyArmRegressions(Regressions):
    """Fits of a plan for K arms; see ``Regressions``."""

    def propensities(self, z: Tensor, a: Tensor) -> Tensor:
        """Return the probability of each arm at the records, [n, K]: within the overlap, adding up to one.

        Each arm is fitted against all others; the fits are divided by their sum and moved to the nearest probabilities
        that keep the overlap.

        Args:
            z: Standardised covariates [n, k].
            a: Positions of the arms, [n].
        """
        regression, plan = self.plan.propensity(self.two_levels), self.plan
        psi = regression.basis(z)
        weight = 1 / psi.norm(dim=1)
        d = self.nuisance_curvatures("propensity", regression, psi, weight)
        learner, found = self._learnt("propensity"), []
        for arm, step in enumerate(plan.propensity_steps):
            asked, shrink = self.logistic_plan(step, regression, d)
            fit = self.propensity_fit(psi, weight, (a == arm).double())
            found.append(torch.sigmoid(learner.learn(fit, asked, z, self.steps, shrink).scores(psi)))
        each = torch.stack(found, 1)
        return project_to_floor(each / each.sum(1, keepdim=True).clamp_min(1e-12), plan.overlap)

    def effects(self, z: Tensor, residual: Tensor, a: Tensor, pi: Tensor, scale: float) -> FittedEffect:
        r"""Return how the arms differ: the Huber regression of residuals on :math:`d \otimes \psi(z)`.

        .. math:: d = v_a - \sum_b \pi_b v_b, \qquad w = \frac{1}{|\psi| \max_b |v_b - \sum_c \pi_c v_c|}

        so that a record's gradient is at most S. Coefficients are those of the K - 1 functions, one after the other.

        Args:
            z: Standardised covariates [n, k].
            residual: y - m, [n].
            a: Positions of the arms, [n].
            pi: Probabilities of the arms, [n, K].
            scale: Released residual scale S.
        """
        regression, plan = self.plan.effect(self.two_levels), self.plan
        fit = arms_fit(regression.basis(z), residual, centred_arms(simplex(plan.arms), pi), a, scale)
        planned = (plan.effect_curvature * regression.basis.energies).repeat(plan.arms - 1)
        norm = math.sqrt((plan.arms - 1) / (2 * plan.arms))  # of an arm, one half of two arms
        d = private_curvatures(fit.predictors, fit.weights, planned, norm, "effect curvatures", self.steps)
        asked = self.effect_plan(regression, d, scale)
        return self.fitted_effect(regression, d, asked, self.solver.solution(fit, asked, self.steps), scale)


def centred_arms(points: Tensor, pi: Tensor) -> Tensor:
    """Return v_a less the mean of all arms at each record, [n, K, K - 1].

    Args:
        points: v, [K, K - 1].
        pi: Probabilities of the arms, [n, K].
    """
    return points - (pi @ points)[:, None]


def arms_fit(psi: Tensor, residual: Tensor, centred: Tensor, a: Tensor, scale: float) -> HuberFit:
    """Return the regression of how the arms differ, whose gradients are at most S; see ``ManyArmRegressions.effects``.

    Args:
        psi: Features [n, 1 + p].
        residual: y - m, [n].
        centred: As ``centred_arms`` returns them.
        a: Positions of the arms, [n].
        scale: S.
    """
    own = centred[torch.arange(len(a), device=a.device), a.long()]
    weight = 1 / (psi.norm(dim=1) * centred.norm(dim=2).amax(1))
    return HuberFit((own[:, :, None] * psi[:, None]).flatten(1), weight, residual, scale)


def arm_means(outcome: Tensor, functions: Tensor, centred: Tensor) -> Tensor:
    r"""Return the mean outcome of each arm, :math:`\mu_a = m + (v_a - \sum_b \pi_b v_b)^\top b`, [n, K].

    Args:
        outcome: m, [n].
        functions: b, [n, K - 1].
        centred: As ``centred_arms`` returns them.
    """
    return outcome[:, None] + (centred @ functions[:, :, None])[:, :, 0]


def simplex(arms: int) -> Tensor:
    """Return K points at distance one from each other, of mean zero, float64 [K, K - 1].

    Example:
        >>> simplex(2).round(decimals=9).tolist()
        [[-0.5], [0.5]]
        >>> [round(value, 6) for value in torch.pdist(simplex(4)).tolist()]
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    points = torch.zeros(arms, arms - 1, dtype=torch.float64)
    for column in range(arms - 1):
        # Helmert's contrast of arm column + 1 and the mean of all before it
        points[: column + 1, column] = -1 / (column + 1)
        points[column + 1, column] = 1
    return points / (points.norm(dim=0) * math.sqrt(2))
