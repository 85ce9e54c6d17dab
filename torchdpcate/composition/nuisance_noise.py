"""What the noise of an estimated propensity and outcome regression does to a composed effect, from released numbers."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdpcate.composition.interval_gate import GATE
from torchdpcate.composition.intervals import Estimates, inverse_within
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.regressions import logistic_variances, outcome_variances, weak_prior
from torchdpcate.data.split import public_generator
from torchdpcate.features.weighted_basis import MOST, Standardisation, WeightedBasis, lengths
from torchdpcate.release.effect_law import EffectLaw, NuisanceNumbers

_POINTS = 1000  # of a public population
_STEEPEST = 0.25  # of a sigmoid
_LARGEST_WEIGHT = 2.0  # times |psi|: 1 / max(pi, 1 - pi)
_LEAST_CORRELATION = 0.05  # eigenvalue


@dataclass(frozen=True, eq=False)
class Covariates:
    """Public facts and released numbers of the covariates in use.

    Attributes:
        standardisation: Released.
        two_levels: Whether each has two levels by its schema.
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
    r"""Return the covariance of estimates that are drawn to zero by a prior, [p, p]: A V^-1 A, A = (V^-1 + P^-1)^-1.

    Args:
        variances: V, of the estimates themselves, [p, p].
        prior: P, variances of the prior, [p].
    """
    inverse = torch.linalg.inv(variances)
    drawn = torch.linalg.inv(inverse + (1 / prior).diag())
    return drawn @ inverse @ drawn


def with_nuisances(law: EffectLaw, found: Estimates, noise: NuisanceNoise) -> EffectLaw | None:
    r"""Return the law with the errors of both nuisances; None where that of the propensity is beyond the gate.

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
    two = torch.tensor(covariates.two_levels)
    k, generator = len(two), public_generator(0, "covariates of nuisances")
    normal = torch.randn(_POINTS, k, generator=generator, dtype=torch.float64)
    normal = normal @ torch.linalg.cholesky(_correlations(basis, curvatures, k)).T
    mean = covariates.standardisation.mean
    # covariates of two levels, -1 and 1, are the sign of a normal number
    high = normal < torch.special.ndtri(((1 + mean) / 2).clamp(0.01, 0.99))
    values = torch.where(high, 1.0, -1.0).double()
    return torch.where(two, covariates.standardisation(values), normal).clamp(-MOST, MOST)


def _correlations(basis: WeightedBasis, curvatures: Tensor, k: int) -> Tensor:
    """Return correlations of k covariates, of those whose linear features a regression has."""
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
