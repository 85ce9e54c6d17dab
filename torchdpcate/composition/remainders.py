"""What both nuisances left over of squares and products: looked for once they are fitted, and added to them."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdpcate.composition.constants import EXPECTED
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.priors import EmpiricalBayes
from torchdpcate.composition.regressions import WorkedOut, lacking, within_overlap
from torchdpcate.composition.rows import Rows
from torchdpcate.composition.steps import LOOKED_FOR, REMAINDERS, NoisySteps, Statistic, propensity_of, summed
from torchdpcate.data.records import CausalData
from torchdpcate.data.weights import times_weight
from torchdpcate.fit.weighted_basis import Levels, WeightedBasis, all_features

_OUTCOMES = 2.0  # residuals of the outcome over those of the treatment, whose noise is larger: both in their bounds
_CLIPPED = 0.5  # variance of a clipped residual, in squared clips
_SPIKE = 0.2  # prior probability that nothing is left over: a confounder is what one looks for
_RIDGE = 1e-6
_LEAST = 1e-6  # mean square of a shape: one that does not vary over the points tells nothing
_EDGE = 1e-9  # of a propensity
_NORM = 0.5  # of features, in the root of their number


@dataclass(frozen=True, eq=False)
class Shapes:
    r"""Squares and products of covariates less what lines have of them.

    .. math:: g(z) = \psi(z) - B^\top (1, z), \qquad
        f(z) = g(z) \min\Big(1, \frac{R}{\|g(z)\|}\Big), \quad R = \sqrt p / 2

    Sums are of f, whose norm is bounded; at half of the usual norm they tell more of their noise than at all of it.

    Attributes:
        basis: psi, of features of weight one, after a constant.
        lines: Of the covariates, after a constant.
        less: B, [1 + k, p].
    """

    basis: WeightedBasis
    lines: WeightedBasis
    less: Tensor

    @classmethod
    def of(cls, levels: Levels, heads: int | None, points: Tensor) -> "Shapes | None":
        """Return those of covariates, uncorrelated with lines over public points; None where there are none.

        Args:
            levels: Whether each covariate has two levels.
            heads: How many of them, the first ones, have such features; None: all.
            points: Public, with the released correlations, [N, k].
        """
        features, linear = all_features(levels, LOOKED_FOR, heads), all_features(levels, "1", heads)
        if not features:
            return None
        one = torch.ones(1 + max(len(features), len(linear)), dtype=torch.float64)
        basis, lines = (WeightedBasis(own, one[: 1 + len(own)]) for own in (features, linear))
        psi, z = basis(points)[:, 1:], lines(points)
        gram = z.T @ z + _RIDGE * len(z) * torch.eye(z.shape[1], dtype=torch.float64)
        return cls(basis, lines, torch.linalg.solve(gram, z.T @ psi))

    @property
    def bound(self) -> float:
        """R."""
        return _NORM * math.sqrt(len(self.basis.features))

    def __call__(self, z: Tensor) -> Tensor:
        """Return g [n, p] of standardised covariates z [n, k]."""
        return self.basis(z)[:, 1:] - self.lines(z) @ self.less.to(z)

    def bounded(self, g: Tensor) -> Tensor:
        """Return f [n, p]."""
        return g * (self.bound / g.norm(dim=1, keepdim=True).clamp_min(self.bound))


@dataclass(frozen=True, eq=False)
class Remainders(Statistic):
    r"""Sums of residuals times shapes, [2 p]: of the treatment, and of the outcome within its clip.

    .. math:: \sum_i f(z_i)\, (a_i - \hat e_i), \qquad
        \sum_i f(z_i)\, \frac{\mathrm{clip}((y_i - \hat m_i) / S)}{2}

    A record's part is at most :math:`R \sqrt{1 + 1/4}` long.

    Attributes:
        shapes: f.
        scale: S.
    """

    shapes: Shapes
    scale: float

    def moved(self) -> tuple[float, float, float]:
        bound, length = self.shapes.bound, math.hypot(1, 1 / _OUTCOMES)
        return 2 * bound * length, 2 * length, bound  # rounding of sums errs by a part of all lengths together

    def __call__(self, batch: CausalData) -> Tensor:
        def terms(z: Tensor, both: Tensor) -> Tensor:
            return (both.T @ self.shapes.bounded(self.shapes(z))).flatten()

        rest = (batch.y / self.scale).clamp(-1, 1) / _OUTCOMES
        both = torch.stack([times_weight(batch.a.clamp(-1, 1), batch), times_weight(rest, batch)], 1)
        return summed(terms, batch.x, both).cpu()


@dataclass(frozen=True, eq=False)
class LeftOver:
    """What is added to nuisances: functions of shapes, and what they may still err by.

    Attributes:
        shapes: g.
        logit: Coefficients of the propensity's logit, [p].
        outcome: Of the outcome's mean, outcome units, [p].
        error: Variance of what the errors of both make of the average, squared outcome units.
    """

    shapes: Shapes
    logit: Tensor
    outcome: Tensor
    error: float

    def __call__(self, bounds: tuple[float, float], overlap: float, worked: WorkedOut) -> WorkedOut:
        """Return what the nuisances with these make of records.

        Args:
            bounds: Of the outcome.
            overlap: Public bound of the propensity.
            worked: What they made without.
        """
        g, pi = self.shapes(worked.x), propensity_of(worked)
        reference, arm = worked.lacks.unbind(1)
        learnt = (pi - pi * arm + (1 - pi) * reference).clamp(_EDGE, 1 - _EDGE)  # without the overlap
        learnt = torch.logit(learnt) + g @ self.logit.to(g)
        more = torch.sigmoid(learnt)
        bounded = within_overlap(more, overlap)
        mean = (worked.outcome + g @ self.outcome.to(g)).clamp(*bounds)
        a, y = worked.a + pi - bounded, worked.y + worked.outcome - mean
        return replace(worked, a=a, y=y, propensity=bounded, outcome=mean, lacks=lacking(more, bounded))


def left_over(
    rows: Rows,
    plan: ComposedPlan,
    steps: NoisySteps,
    levels: Levels,
    points: Tensor,
    at_points: WorkedOut,
    scale: float,
) -> LeftOver | None:
    r"""Return what nuisances left over of squares and products, by one noisy vector of sums.

    .. math:: \hat\gamma_j = \frac{\hat s_j}{n\,E[e(1-e)]\,E f_j g_j}, \qquad
        \hat\beta_j = \frac{2 S\, \hat t_j}{n\, q\, E f_j g_j}

    with the planned share q of residuals within the clip; they are shrunk by empirical Bayes. The errors of both make
    of the average, with posterior means of the product of both squared errors,

    .. math:: \sum_j E\big[(\gamma_j - \hat\gamma_j)^2 (\beta_j - \hat\beta_j)^2\big]\, (E g_j^2)^2 .

    Args:
        rows: ``residuals`` with standardised covariates.
        plan: The public plan.
        steps: Pays, and draws noise.
        levels: Whether each covariate has two levels.
        points: Public, with the released correlations, [N, k].
        at_points: What the nuisances make of them.
        scale: S, released.
    """
    shapes = Shapes.of(levels, plan.heads, points)
    if shapes is None:
        if steps.private:
            steps.pay(REMAINDERS)
        return None
    statistic = Remainders(shapes, scale)
    found, n = steps.total(REMAINDERS, rows, statistic) / plan.mass, plan.mass
    noise = steps.scale(REMAINDERS, steps.sensitivity(statistic, rows.n)) / n
    g, pi = shapes(points), propensity_of(at_points)
    held, unit = float((pi * (1 - pi)).mean()), (shapes.bounded(g) * g).mean(0).clamp_min(_LEAST)
    p, square = len(unit), g.square().mean(0).clamp_min(_LEAST)
    curvature = torch.tensor([held, plan.inside / (_OUTCOMES * scale)]).double()[:, None] * unit
    sampling = torch.tensor([held, _CLIPPED / _OUTCOMES**2]).double()[:, None] * unit / n
    size = torch.tensor([EXPECTED.logit_size, scale]).double()[:, None] / (p * square).sqrt()
    bayes = EmpiricalBayes(_SPIKE)
    means, seconds = bayes.together(found.view(2, p) / curvature, (noise**2 + sampling) / curvature.square(), size)
    logit, outcome = means
    return LeftOver(shapes, logit, outcome, float(seconds @ square.square()))
