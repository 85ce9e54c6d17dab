"""The law of a composed effect's error, from released numbers and public facts alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.composition.shrinkage import EmpiricalBayes
from torchdpcate.features.weighted_basis import WeightedBasis
from torchdpcate.release.effect_law import EffectLaw

TYPICAL = 0.95
"""Of a feature's mean square times 1/|psi|, in energies."""
_LEAST_EIGENVALUE = 0.12  # of a matrix scaled to a planned diagonal of ones
_TYPICAL_CORRELATION = 0.3  # prior size of a scaled matrix' entries about the plan's
_SPIKE = 0.5  # prior probability that all of them are as planned
_LEAST_INSIDE, _LEAST_PULL, _LEAST_SPREAD = 0.2, 0.1, 0.01  # of means of noisy counts in [0, 1]


@dataclass(frozen=True, eq=False)
class NoisyMatrix:
    """A symmetric matrix that was released with noise.

    Attributes:
        mean: Its posterior mean, [p, p], positive definite.
        variance: Posterior variance of each entry, [p, p].
    """

    mean: Tensor
    variance: Tensor


def posterior_matrix(noisy: Tensor, sd: float, planned: Tensor) -> NoisyMatrix:
    r"""Return what is known of a symmetric matrix from noisy entries and a planned diagonal.

    Entries are scaled by the plan, :math:`C_{jk} = M_{jk} / \sqrt{d_j d_k}`; those off the diagonal, and the
    diagonal's deviations from one, are drawn to zero by ``EmpiricalBayes``; eigenvalues are held above .12.

    Args:
        noisy: The released matrix, [p, p].
        sd: Of the diagonal's noise; that of other entries is sd / sqrt 2, as of one noise vector in Frobenius norm.
        planned: d, the planned diagonal, [p], positive.
    """
    root = planned.sqrt()
    scaled, variance = noisy / root.outer(root), torch.zeros_like(noisy)
    if sd > 0:
        unit, bayes = sd / root.outer(root), EmpiricalBayes(_SPIKE)
        row, column = torch.triu_indices(len(planned), len(planned), 1)
        size = _TYPICAL_CORRELATION * torch.ones_like(planned)
        off, off_variance = bayes.moments(
            scaled[row, column], unit[row, column].square() / 2, torch.full_like(unit[row, column], size[0].item())
        )
        own, own_variance = bayes.moments(scaled.diagonal() - 1, unit.diagonal().square(), size)
        scaled, variance = (1 + own).diag(), own_variance.diag()
        scaled[row, column] = scaled[column, row] = off
        variance[row, column] = variance[column, row] = off_variance
    value, vector = torch.linalg.eigh(scaled)
    scaled = (vector * value.clamp_min(_LEAST_EIGENVALUE)) @ vector.T
    return NoisyMatrix(scaled * root.outer(root), variance * planned.outer(planned))


def expected_product(variance: Tensor, middle: Tensor) -> Tensor:
    r"""Return :math:`E[\Delta B \Delta]` for a symmetric Delta of independent centred entries, [p, p].

    .. math:: E[\Delta B \Delta]_{jj} = \sum_k \tau_{jk} B_{kk}, \qquad E[\Delta B \Delta]_{jk} = \tau_{jk} B_{jk}

    Args:
        variance: tau, of the entries, [p, p].
        middle: B, symmetric, [p, p].
    """
    found = variance * middle
    return found - found.diagonal().diag() + (variance @ middle.diagonal()).diag()


def sandwich(inverse: Tensor, middle: Tensor, variance: Tensor) -> Tensor:
    r"""Return :math:`E[H^{-1} A H^{-1}]` over what is not known of H, to second order, [p, p].

    With :math:`H = \bar H + \Delta`, :math:`Q = \bar H^{-1}`, :math:`W = Q A Q`:

    .. math:: W + Q\,E[\Delta Q \Delta]\,W + W\,E[\Delta Q \Delta]\,Q + Q\,E[\Delta W \Delta]\,Q

    Args:
        inverse: Q.
        middle: A, symmetric.
        variance: Of the entries of Delta.
    """
    plain = inverse @ middle @ inverse
    once = inverse @ expected_product(variance, inverse) @ plain
    return plain + once + once.T + inverse @ expected_product(variance, plain) @ inverse


def interval_features(basis: WeightedBasis, sd: float, planned: Tensor, most: float) -> tuple[int, ...]:
    r"""Return the positions of the features that intervals are asked for, public.

    Constant and linear features, then kinds in the order of their energies while the matrix' noise, scaled to the
    planned diagonal, has a spectral norm of about :math:`2\sqrt{p}` times its root mean square of at most ``most``.

    Args:
        basis: The effect's features.
        sd: Of the noise of the released mean matrix.
        planned: Its planned diagonal.
        most: Of that norm.
    """

    def edge(positions: Sequence[int]) -> float:
        d = planned[list(positions)]
        squares = (sd**2 / d.outer(d)) * (0.5 + 0.5 * torch.eye(len(d), dtype=torch.float64))
        return 2 * math.sqrt(float(squares.mean()) * len(d))

    asked = [0]
    parts = sorted(basis.parts.items(), key=lambda part: (part[0] != "1", -float(basis.energies[part[1]].mean())))
    for kind, positions in parts:
        if kind != "1" and edge(asked + positions) > most:
            break
        asked += positions
    return tuple(sorted(asked))


@dataclass(frozen=True, eq=False)
class IntervalPlan:
    r"""Public facts of the interval steps; noise scales are standard deviations of released sums.

    Attributes:
        n: Number of records.
        basis: The effect's features.
        weight: Planned mean of min(pi, 1 - pi).
        features: Positions of the features that intervals are asked for.
        scale: S, released, at which residuals are clipped in the gradients.
        spread: S2, at which they are clipped in the correction.
        treatment: Largest \|a - pi\|.
        overlaps: Least and largest pi (1 - pi) that a record may have.
        reach: At which psi't is clipped in the average; what follows t, hence not known before it.
        gradient_noise: Of a coordinate of the mean of the late gradients.
        matrix_noise: Of the matrix' diagonal.
        counts_noise: Of a count.
        correction_noise: Of the sum of (a - pi) clip(r, S2).
        average_noise: Of the sum of h clip(psi't), per unit of reach.
    """

    n: int
    basis: WeightedBasis
    weight: float
    features: tuple[int, ...]
    scale: float
    spread: float
    treatment: float
    overlaps: tuple[float, float]
    gradient_noise: float
    matrix_noise: float
    counts_noise: float
    correction_noise: float
    average_noise: float

    @property
    def planned(self) -> Tensor:
        """Planned diagonal of the mean matrix, [p]."""
        return TYPICAL * self.weight * self.basis.energies


@dataclass(frozen=True, eq=False)
class Estimates:
    """Unshrunk estimates and their covariance, with what they were made of.

    Attributes:
        t: [p]; zero for features that intervals leave out.
        covariance: [p, p].
        matrix: Posterior mean of E[w h psi psi'], [p, p].
        overlap: Mean of pi (1 - pi).
    """

    t: Tensor
    covariance: Tensor
    matrix: Tensor
    overlap: float


def estimates(point: Tensor, gradient: Tensor, matrix: Tensor, counts: Tensor, plan: IntervalPlan) -> Estimates:
    r"""Return the estimates of the projection that the late gradients point to, and their covariance.

    With b = H theta - g, theta the mean of the late iterates, g that of their noisy gradients, A what is asked for:

    .. math::
        t_A = H_{AA}^{-1} b_A, \qquad H = n \kappa M, \qquad
        V_A = E\big[H_{AA}^{-1}\big(\Sigma_{AA} + \nu^2 I + D\big) H_{AA}^{-1}\big], \qquad
        \Sigma = n S^2 q\, M / \mathrm{tr}\, M,

    which no ridge, scaling or late start enters to first order: whatever theta is, H theta - g is what solves the
    regression's equations, plus the mean of the noise. D counts what is not known of M, once by the distance from
    theta to t and once by the coefficients that the target leaves out, whose misfit enters Sigma.

    Args:
        point: theta, [p].
        gradient: g, [p], without ridge.
        matrix: Released mean of w h psi psi', w = 1 / (|psi| max(pi, 1 - pi)), [p, p].
        counts: Released means, [3]: kappa, the share of residuals that are not clipped; q, of
            ((a - pi) / max(pi, 1 - pi))^2 clip(r / S)^2, the squared length of a record's gradient over S; and h.
        plan: Public facts.
    """
    n, asked = plan.n, list(plan.features)
    left = [j for j in range(len(point)) if j not in set(asked)]
    low, high = plan.overlaps
    inside, pull = counts[0].clamp(_LEAST_INSIDE, 1), counts[1].clamp(_LEAST_PULL, 1)
    overlap = float(counts[2].clamp(low, high))
    posterior = posterior_matrix(matrix, plan.matrix_noise / n, plan.planned)
    m, h, tau = posterior.mean, n * inside * posterior.mean, (n * inside).square() * posterior.variance
    inverse = torch.linalg.inv(h[asked][:, asked])
    residual = h[asked][:, left] @ point[left] - gradient[asked]
    own = inverse @ residual
    # the coefficients left out are misfit of the projection, (a - pi) times which joins the residuals
    unit = m[left][:, left] / (TYPICAL * plan.weight)
    misfit = float(point[left] @ unit @ point[left]) if left else 0.0
    sampling = n * m[asked][:, asked] / m.trace() * (pull * plan.scale**2 + overlap * misfit)
    unknown = tau[asked][:, asked] @ (inverse @ gradient[asked]).square() + tau[asked][:, left] @ point[left].square()
    middle = sampling + plan.gradient_noise**2 * torch.eye(len(asked), dtype=torch.float64) + unknown.diag()
    t, covariance = torch.zeros_like(point), torch.zeros_like(matrix)
    t[asked] = point[asked] + own
    rows = torch.tensor(asked)
    covariance[rows[:, None], rows] = sandwich(inverse, middle, tau[asked][:, asked])
    return Estimates(t, covariance, m, overlap)


def reach(t: Tensor, plan: IntervalPlan, deviations: float, most: float) -> float:
    """Return where psi't without the constant is clipped for the average: so many of its planned deviations.

    Args:
        t: Estimates, [p].
        plan: Public facts.
        deviations: How many.
        most: Range of the outcome.
    """
    deviation = math.sqrt(float((t[1:].square() * plan.basis.energies[1:]).sum()))
    return min(max(deviations * deviation, plan.scale / 20), most)


def effect_law(found: Estimates, correction: Tensor, average: Tensor, bound: float, plan: IntervalPlan) -> EffectLaw:
    r"""Return the law that intervals rest on.

    .. math::
        c = \frac{C}{n \bar h}, \qquad
        \mathrm{var}(c) = \frac{\sigma_C^2 + \sum_i ((a_i - \pi_i)\,\mathrm{clip}(r_i, S_2))^2}{(n \bar h)^2},
        \qquad \text{average} = \psi_0 t_0 + \frac{D}{n \bar h} + c

    Args:
        found: Estimates.
        correction: Released sums of v and of v^2, v = (a - pi) clip(r, S2) / (treatment S2), [2].
        average: Released sum of h clip(psi't) without the constant, [1].
        bound: At which psi't was clipped.
        plan: Public facts.
    """
    unit, total = plan.treatment * plan.spread, plan.n * found.overlap
    squares = float(correction[1].clamp_min(_LEAST_SPREAD * plan.n)) * unit**2
    c = float(correction[0]) * unit / total
    variance = (plan.correction_noise**2 + squares) / total**2
    t, root = found.t, float(plan.basis.energies[0]) ** 0.5
    centre = found.matrix[:, 0] / found.matrix[0, 0] * root
    d = float(average[0]) / total
    varied = t.clone()
    varied[0] = t[0] - float(centre @ t) / root  # psi't about its mean
    spread = float(varied @ found.matrix @ varied) / (TYPICAL * plan.weight)
    # a propensity that varies has a released mean h, whose noise moves both sums alike
    ratio = (c + d) * plan.counts_noise * (plan.overlaps[1] - plan.overlaps[0]) / total
    return EffectLaw(
        estimates=t,
        covariance=found.covariance,
        centre=centre,
        correction=c,
        correction_variance=variance,
        average=float(t[0]) * root + d + c,
        average_variance=variance + (plan.average_noise * bound / total) ** 2 + spread / plan.n + ratio**2,
    )
