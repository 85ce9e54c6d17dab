"""What both nuisances left over of squares and products: looked for once they are fitted, and added to them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

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
_MOST_TIMES, _GRID = 2.0, 101  # by which coefficients are multiplied, and how many such numbers are tried
_LEAST_REST = 0.3  # deviation of residuals without what is left over, over all of it
_MODEL = 0.08  # of a product of both coefficients: .28 of each may be wrong where residuals are as planned
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

    with the planned share q of residuals within the clip; they are shrunk by empirical Bayes, and multiplied by what
    the curves of probabilities and of clipped residuals make of large ones (``_times``). The errors of both make of
    the average, with posterior means of the product of both squared errors, and a part of both for the model,

    .. math:: \sum_j \Big(E\big[(\gamma_j - \hat\gamma_j)^2 (\beta_j - \hat\beta_j)^2\big]
        + (.08\, \hat\gamma_j \hat\beta_j)^2\Big)\, (E g_j^2)^2 .

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
    slopes, curves = (held, plan.inside / (_OUTCOMES * scale)), (partial(_treated, pi), partial(_outcomes, plan, scale))
    ends = shapes.bounded(g) @ means.T, g @ means.T
    each = zip(slopes, *(part.unbind(1) for part in ends), curves, strict=True)
    times = torch.tensor([_times(*of) for of in each], dtype=torch.float64)
    logit, outcome = times[:, None] * means
    error = times.prod() ** 2 * seconds + (_MODEL * logit * outcome).square()
    return LeftOver(shapes, logit, outcome, float(error @ square.square()))


def _treated(pi: Tensor, more: Tensor) -> Tensor:
    """Return mean residuals of the treatment where its logit has more than that of pi, [C, N]."""
    return torch.sigmoid(torch.logit(pi.clamp(_EDGE, 1 - _EDGE)) + more) - pi


def _outcomes(plan: ComposedPlan, scale: float, more: Tensor) -> Tensor:
    """Return mean clipped residuals over twice the clip where the outcome has more, [C, N]: normal ones otherwise."""
    if plan.binary:
        return plan.inside * more / (_OUTCOMES * scale)
    normal = torch.distributions.Normal(more.new_zeros(()), 1.0)
    total = scale / float(normal.icdf(more.new_tensor((1 + plan.inside) / 2)))
    rest = (total**2 - more.var(1, keepdim=True)).clamp_min((_LEAST_REST * total) ** 2).sqrt()
    low, high = ((end - more) / rest for end in (-scale, scale))
    inside, beyond = normal.cdf(high) - normal.cdf(low), 1 - normal.cdf(high) - normal.cdf(low)
    within = more * inside + rest * (normal.log_prob(low).exp() - normal.log_prob(high).exp())
    return (within / scale + beyond) / _OUTCOMES


def _times(slope: float, bounded: Tensor, along: Tensor, residuals: Callable[[Tensor], Tensor]) -> float:
    r"""Return by how much coefficients are to be multiplied for residuals that are not linear in them.

    It is the c in [1, 2] at which the public points have the sums that residuals with a constant slope have at one,

    .. math:: \bar E[(\gamma^\top f)\, r(c\, \gamma^\top g)] = s\, \bar E[(\gamma^\top f)(\gamma^\top g)]

    Args:
        slope: s.
        bounded: gamma'f, [N].
        along: gamma'g, [N].
        residuals: r, from c gamma'g [C, N] to mean residuals of the points, [C, N].
    """
    c = torch.linspace(1, _MOST_TIMES, _GRID, dtype=torch.float64)[:, None]
    found, wanted = residuals(c * along) @ bounded, slope * bounded @ along
    return float(c[int((found < wanted).sum().clamp_max(_GRID - 1)), 0])
