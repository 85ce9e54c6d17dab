"""The law of a composed effect's error, from released numbers and public facts alone."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdpcate.composition.fit_plans import logistic_variances, outcome_variances, weak_prior
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import GATE
from torchdpcate.composition.priors import EmpiricalBayes
from torchdpcate.data.records import public_generator
from torchdpcate.fit.weighted_basis import MOST, Levels, Standardisation, WeightedBasis, absent, lengths
from torchdpcate.release.effect_law import EffectLaw, NuisanceNumbers

TYPICAL = 0.95
"""Of a feature's mean square times 1/|psi|, in weights."""
_LEAST_EIGENVALUE = 0.02  # of a matrix scaled to a planned diagonal of ones
_LEAST_DIRECTION = 0.5  # of a combination of features for which intervals are requested
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
    diagonal's deviations from one, are shrunk by ``EmpiricalBayes``; eigenvalues are held above .02.

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


def sandwich(directions: Tensor, h: Tensor, middle: Tensor, variance: Tensor) -> Tensor:
    r"""Return :math:`E[G A G]`, :math:`G = B (B^\top H B)^{-1} B^\top`, over what is not known of H, [p, p].

    With :math:`H = \bar H + \Delta`, G that of the mean, :math:`W = G A G`, to second order

    .. math:: W + G\,E[\Delta G \Delta]\,W + W\,E[\Delta G \Delta]\,G + G\,E[\Delta W \Delta]\,G

    Args:
        directions: B, [p, a].
        h: The mean of H, [p, p].
        middle: A, symmetric, [p, p].
        variance: Of the entries of Delta, [p, p].
    """
    g = inverse_within(directions, h)
    plain = g @ middle @ g
    once = g @ expected_product(variance, g) @ plain
    return plain + once + once.T + g @ expected_product(variance, plain) @ g


def inverse_within(directions: Tensor, h: Tensor) -> Tensor:
    r"""Return :math:`B (B^\top H B)^{-1} B^\top`, [p, p]."""
    return directions @ torch.linalg.solve(directions.T @ h @ directions, directions.T)


def interval_directions(matrix: Tensor, planned: Tensor) -> Tensor:
    """Return combinations of features for which intervals are requested, [p, a]: the constant, and eigenvectors.

    The eigenvectors are those of the posterior matrix of the other features, scaled to the planned diagonal, whose
    eigenvalue is at least .5: what hardly varies over the records cannot be told at their noise.

    Args:
        matrix: Posterior mean of the mean matrix, [p, p].
        planned: Its planned diagonal, [p].
    """
    found = torch.zeros(len(planned), 1, dtype=torch.float64)
    found[0] = 1
    if len(planned) == 1:
        return found
    root = planned[1:].sqrt()
    value, vector = torch.linalg.eigh(matrix[1:, 1:] / root.outer(root))
    strong = torch.zeros(len(planned), int((value >= _LEAST_DIRECTION).sum()), dtype=torch.float64)
    strong[1:] = vector[:, value >= _LEAST_DIRECTION] / root[:, None]
    return torch.cat([found, strong], 1)


@dataclass(frozen=True, eq=False)
class IntervalPlan:
    r"""Public facts of the interval steps; noise scales are standard deviations of released sums.

    Attributes:
        n: Number of records, or the sum of their weights: squares of these are at most the weights, so that sampling is
            not understated by it.
        basis: The effect's features.
        weight: Planned mean of min(pi, 1 - pi).
        scale: S, released, at which residuals are clipped in the gradients.
        spread: S2, at which they are clipped in the correction.
        treatment: Largest \|a - pi\|.
        overlaps: Least and largest pi (1 - pi) that a record may have.
        bound: At which psi't is clipped in the average; what follows t, hence not known before it.
        gradient_noise: Of a coordinate of the mean of the late gradients.
        matrix_noise: Of the matrix' diagonal.
        counts_noise: Of a count.
        correction_noise: Of the sum of (a - pi) clip(r, S2).
        average_noise: Of the sum of h clip(psi't), per unit of bound.
        per_person: k, records of each person: a sum over all records, whatever those of one person have to do with each
            other, has at most k times the variance that independent ones would give it, and intervals count that.
    """

    n: float
    basis: WeightedBasis
    weight: float
    scale: float
    spread: float
    treatment: float
    overlaps: tuple[float, float]
    gradient_noise: float
    matrix_noise: float
    counts_noise: float
    correction_noise: float
    average_noise: float
    per_person: int = 1

    @property
    def planned(self) -> Tensor:
        """Planned diagonal of the mean matrix, [p]."""
        return TYPICAL * self.weight * self.basis.feature_weights


@dataclass(frozen=True, eq=False)
class Estimates:
    """Unshrunk estimates and their covariance, with what they were made of.

    Attributes:
        t: [p], in the span of the directions.
        covariance: [p, p].
        directions: Combinations of features for which intervals are requested, [p, a].
        matrix: Posterior mean of E[w h psi psi'], [p, p].
        overlap: Mean of pi (1 - pi).
    """

    t: Tensor
    covariance: Tensor
    directions: Tensor
    matrix: Tensor
    overlap: float


def estimates(point: Tensor, gradient: Tensor, matrix: Tensor, counts: Tensor, plan: IntervalPlan) -> Estimates:
    r"""Return the estimates of the projection that the late gradients point to, and their covariance.

    With theta the mean of the late iterates, g that of their noisy gradients, B the directions requested:

    .. math::
        t = G (H \theta - g), \quad G = B (B^\top H B)^{-1} B^\top, \quad H = n \kappa M, \qquad
        V = E\big[G\,(\Sigma + \nu^2 I + D)\,G\big], \qquad
        \Sigma = n\,(q S^2 + \bar h\, d^\top M' d)\, M / \mathrm{tr}\, M,

    which no ridge, scaling or late start enters to first order: whatever theta is, H theta - g is what solves the
    regression's equations, plus the mean of the noise. D = E[Delta v v' Delta], v = theta - t, counts what is not known
    of H, and d, what of theta the directions leave out, joins the residuals.

    Args:
        point: theta, [p].
        gradient: g, [p], without ridge.
        matrix: Released mean of w h psi psi', w = 1 / (|psi| max(pi, 1 - pi)), [p, p].
        counts: Released means, [3]: kappa, the share of residuals that are not clipped; q, of
            ((a - pi) / max(pi, 1 - pi))^2 clip(r / S)^2, the squared length of a record's gradient over S; and h.
        plan: Public facts.
    """
    n, (low, high) = plan.n, plan.overlaps
    inside, pull = counts[0].clamp(_LEAST_INSIDE, 1), counts[1].clamp(_LEAST_PULL, 1)
    overlap = float(counts[2].clamp(low, high))
    posterior = posterior_matrix(matrix, plan.matrix_noise / n, plan.planned)
    m, h, tau = posterior.mean, n * inside * posterior.mean, (n * inside).square() * posterior.variance
    directions = interval_directions(m, plan.planned)
    g = inverse_within(directions, h)
    t, left = g @ (h @ point - gradient), point - g @ h @ point
    misfit = float(left @ m @ left) / (TYPICAL * plan.weight)
    sampling = plan.per_person * n * m / m.trace() * (pull * plan.scale**2 + overlap * misfit)
    unknown = expected_product(tau, (point - t).outer(point - t))
    middle = sampling + plan.gradient_noise**2 * torch.eye(len(t), dtype=torch.float64) + unknown
    return Estimates(t, sandwich(directions, h, middle, tau), directions, m, overlap)


def effect_clip(t: Tensor, plan: IntervalPlan, deviations: float, most: float) -> float:
    """Return where psi't without the constant is clipped for the average: so many of its planned deviations.

    Args:
        t: Estimates, [p].
        plan: Public facts.
        deviations: How many.
        most: Range of the outcome.
    """
    deviation = math.sqrt(float((t[1:].square() * plan.basis.feature_weights[1:]).sum()))
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
    variance = (plan.correction_noise**2 + plan.per_person * squares) / total**2
    t, root = found.t, float(plan.basis.feature_weights[0]) ** 0.5
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
        directions=found.directions,
        centre=centre,
        correction=c,
        correction_variance=variance,
        average=float(t[0]) * root + d + c,
        average_variance=variance
        + (plan.average_noise * bound / total) ** 2
        + plan.per_person * spread / plan.n
        + ratio**2,
    )


_POINTS = 1000  # of a public population
_STEEPEST = 0.25  # of a sigmoid
_LARGEST_WEIGHT = 2.0  # times |psi|: 1 / max(pi, 1 - pi)
_LEAST_CORRELATION = 0.05  # eigenvalue


@dataclass(frozen=True, eq=False)
class Covariates:
    """Public facts and released numbers of the covariates in use.

    Attributes:
        standardisation: Released.
        two_levels: Whether each has two levels by its schema; ``Levels`` where values may be missing.
    """

    standardisation: Standardisation
    two_levels: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class NuisanceNoise:
    r"""Errors of the nuisances at points that stand for the records, as released covariances have them.

    Attributes:
        psi: The effect's features, [N, p].
        weight: 1 / (\|psi\| max(pi, 1 - pi)), [N].
        pi: Released propensity, [N].
        propensity: Covariances of its errors, [N, N].
        outcome: Covariances of the outcome regression's, [N, N].
    """

    psi: Tensor
    weight: Tensor
    pi: Tensor
    propensity: Tensor
    outcome: Tensor

    @property
    def size(self) -> float:
        """Root mean squared error of the propensity that its noise and sampling make."""
        return math.sqrt(float(self.propensity.diagonal().mean()))


def nuisance_noise(
    numbers: NuisanceNumbers, plan: ComposedPlan, basis: WeightedBasis, covariates: Covariates, per_person: int = 1
) -> NuisanceNoise:
    """Return the errors to expect of the nuisances, at points of a public seed.

    Points are normal with the released correlations, clipped like the records, and of two values where covariates are.

    Args:
        numbers: What the nuisances' regressions released.
        plan: The public plan.
        basis: The effect's features.
        covariates: Those in use.
        per_person: Records of each person, see ``IntervalPlan``.
    """
    propensity, outcome = plan.propensity(covariates.two_levels), plan.outcome(covariates.two_levels)
    z = public_points(propensity.basis, numbers.propensity_curvatures, covariates)
    psi, phi, chi = basis(z), propensity.basis(z), outcome.basis(z)
    pi = torch.sigmoid(phi @ numbers.propensity).clamp(plan.overlap, 1 - plan.overlap)
    slope = pi * (1 - pi)
    rows = slope[:, None] * phi
    scale = float(numbers.outcome_scale)
    of_pi = logistic_variances(plan, "propensity", numbers.propensity_curvatures, per_person)
    if plan.binary:  # the slope of the outcome's sigmoid is at most a quarter
        of_m = logistic_variances(plan, "outcome", numbers.outcome_curvatures, per_person) * (_STEEPEST * scale) ** 2
        prior = weak_prior(outcome, "logit", 1.0) * (_STEEPEST * scale) ** 2
    else:
        of_m = outcome_variances(plan, numbers.outcome_curvatures, scale, per_person)
        prior = weak_prior(outcome, "outcome", scale)
    return NuisanceNoise(
        psi,
        1 / (lengths(psi) * torch.maximum(pi, 1 - pi)),
        pi,
        rows @ drawn_to_zero(of_pi, weak_prior(propensity, "logit", 1.0)) @ rows.T,
        chi @ drawn_to_zero(of_m, prior) @ chi.T,
    )


def drawn_to_zero(variances: Tensor, prior: Tensor) -> Tensor:
    r"""Return the covariance of estimates that are shrunk by a prior, [p, p]: A V^-1 A, A = (V^-1 + P^-1)^-1.

    Args:
        variances: V, of the estimates themselves, [p, p].
        prior: P, variances of the prior, [p].
    """
    inverse = torch.linalg.inv(variances)
    drawn = torch.linalg.inv(inverse + (1 / prior).diag())
    return drawn @ inverse @ drawn


def with_nuisances(law: EffectLaw, found: Estimates, noise: NuisanceNoise) -> EffectLaw | None:
    r"""Return the law with the errors of both nuisances; None where that of the propensity is beyond the limit.

    In the weights of the released propensity the estimating equations are off by
    :math:`B = \delta\pi\,(\delta m + (1 - 2\hat\pi)\,\psi^\top\delta t - \delta\pi\,\psi^\top t)` at a record, hence
    the interval's middle at psi by

    .. math:: E\Big[B\,\Big(\frac{1}{\bar h} + (\psi - \bar\psi)^\top G\, w \psi_x\Big)\Big], \qquad
        G = (E[w h \psi\psi^\top])^{-1},

    over records x. Its mean is taken off, and its variance is that of B's covariances
    :math:`C_\pi \circ (C_m + (1 - 2\hat\pi)(1 - 2\hat\pi')\,\psi^\top V \psi') + 2\, C_\pi \circ C_\pi \circ
    (\psi^\top t)(\psi'^\top t)`.

    Args:
        law: Of everything else.
        found: Estimates that it was made of.
        noise: Of the nuisances.
    """
    if noise.size > GATE:
        return None
    psi, pull = noise.psi, inverse_within(found.directions, found.matrix)
    pulls = (noise.weight[:, None] * psi) @ pull  # G w psi_x
    rows = pulls.clone()
    rows[:, 0] += (1 / found.overlap - pulls @ law.centre) / psi[:, 0]  # what is alike at all psi
    odd, effect = 1 - 2 * noise.pi, psi @ found.t
    own = noise.propensity
    kernel = own * (noise.outcome + odd.outer(odd) * (psi @ found.covariance @ psi.T))
    kernel = kernel + 2 * own.square() * effect.outer(effect)
    lost = own.diagonal() * effect  # of B, in the mean
    moved = lost @ pulls / len(psi)
    mean = float(lost.mean()) / found.overlap
    return replace(
        law,
        estimates=law.estimates + moved,
        correction=law.correction + mean - float(law.centre @ moved),
        average=law.average + mean,
        average_variance=law.average_variance + float(kernel.mean()) / found.overlap**2,
        nuisances=rows.T @ kernel @ rows / len(psi) ** 2,
        pull=found.overlap * _LARGEST_WEIGHT * pull,
    )


def public_points(basis: WeightedBasis, curvatures: Tensor, covariates: Covariates) -> Tensor:
    """Return standardised covariates [N, k] of a public population with the released correlations.

    Args:
        basis: Features of a regression.
        curvatures: Released mean curvatures of these, [1 + p, 1 + p].
        covariates: Those in use.
    """
    return correlated_points(released_correlations(basis, curvatures, len(covariates.two_levels)), covariates)


def correlated_points(correlations: Tensor, covariates: Covariates) -> Tensor:
    """Return standardised covariates [N, k] of a public population with correlations [k, k]; see ``public_points``."""
    two, generator = torch.tensor(covariates.two_levels), public_generator(0, "covariates of nuisances")
    normal = torch.randn(_POINTS, len(two), generator=generator, dtype=torch.float64)
    normal = normal @ torch.linalg.cholesky(correlations).T
    mean = covariates.standardisation.mean
    # covariates of two levels, -1 and 1, are the sign of a normal number
    high = normal < torch.special.ndtri(((1 + mean) / 2).clamp(0.01, 0.99))
    values = torch.where(high, 1.0, -1.0).double()
    z = torch.where(two, covariates.standardisation(values), normal).clamp(-MOST, MOST)
    gone = absent(values, None, Levels.of(covariates.two_levels).observed_by)
    return z if gone is None else z.masked_fill(gone, 0.0)


def released_correlations(basis: WeightedBasis, curvatures: Tensor, k: int) -> Tensor:
    """Return correlations of k covariates, of those whose linear features a regression has, by its curvatures."""
    found = torch.eye(k, dtype=torch.float64)
    linear = [(position, f.i) for position, f in enumerate(basis.features, 1) if f.kind == "1"]
    if not linear:
        return found
    at, covariates = (torch.tensor(values) for values in zip(*linear, strict=True))
    block = curvatures[at][:, at]
    unit = block.diagonal().sqrt()
    found[covariates[:, None], covariates] = block / unit.outer(unit)
    value, vector = torch.linalg.eigh(found)
    found = (vector * value.clamp_min(_LEAST_CORRELATION)) @ vector.T
    unit = found.diagonal().sqrt()
    return found / unit.outer(unit)
