r"""The paper's certified fits: ridge outcome models and a ridge logistic propensity, and what one record does to them.

On features psi of norm at most one, over all m training records of two actions, outcomes y in units of their range
about its middle,

.. math::
    \frac1m \sum_i 1\{a_i = a\} \tfrac12 (y_i - b_a^\top \psi_i)^2 + \tfrac\lambda2 \|b\|^2, \qquad
    \frac1m \sum_i \log(1 + e^{-t_i \theta^\top \psi_i}) + \tfrac\lambda2 \|\theta\|^2 .

All bounds are suprema over every data set in the public domain. Source: theory note ``policy_learning``, section 6.2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.causal.score import project_to_floor
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.descent import newton
from torchdpcate.fit.feature_maps import FeatureMap, on_domain

_STEPS = 200  # of fixed points and bisections: far beyond what float64 resolves
_PROVED = 1.5  # largest |theta'x| for which the distance of logistic gradients is proved
_PART = 0.1  # of what noise covers at no cost, that a training record may do by default
_RIDGES = 1e-9, 1e9  # between which a default is sought
_TOLERANCE = 1e-11  # gradient norm of a fit


def ridge_norm(radius: float, ridge: float) -> float:
    r"""Return the largest norm of ridge coefficients, :math:`\frac12 \max_{s \le R_x} \frac{s}{s^2 + \lambda}`.

    Args:
        radius: R_x, bound of the features' norm.
        ridge: lambda of the mean loss.

    Example:
        >>> ridge_norm(1.0, 1.0)
        0.25
    """
    s = min(radius, math.sqrt(ridge))
    return s / (2 * (s * s + ridge))


def ridge_gradient_bound(radius: float, ridge: float, localised: bool = False) -> float:
    r"""Return G_mu = R_x (1/2 + R_x ||b||), ||b|| by `ridge_norm` or, as printed, :math:`1/(2\sqrt\lambda)`.

    Example:
        >>> round(ridge_gradient_bound(21**0.5, 50.0), 6)
        3.776212
    """
    return radius * (0.5 + radius * (ridge_norm(radius, ridge) if localised else 1 / (2 * math.sqrt(ridge))))


def ridge_gradient_distance(radius: float, ridge: float) -> float:
    r"""Return the largest distance of two records' gradients at one minimiser, at most 2 G_mu.

    .. math:: R_x \max_\tau \sin\tau\, (1 + 2 z \cos\tau), \qquad z = R_x \|b\|

    Example:
        >>> round(ridge_gradient_distance(1.0, 1.0), 6)
        1.100917
    """
    z = radius * ridge_norm(radius, ridge)
    c = 4 * z / (1 + math.sqrt(1 + 32 * z * z))  # the root of cos + 2 z cos 2 tau = 0
    return radius * math.sqrt(1 - c * c) * (1 + 2 * z * c)


def logistic_norm(radius: float, ridge: float) -> float:
    r"""Return the largest norm of logistic coefficients.

    .. math:: \lambda r = R_x \sigma(- R_x r), \quad\text{or}\quad \lambda r^2 = \max_v v \sigma(- v) = v^* - 1

    where the first would have R_x r > v* = 1.27846...; attained by records that all agree.

    Example:
        >>> round(logistic_norm(21**0.5, 50.0) * 21**0.5, 6)
        0.190099
    """
    flattest = _root(lambda v: v * _sigmoid(v) - 1, 2.0)
    if ridge * flattest < radius**2 * _sigmoid(-flattest):
        return math.sqrt((flattest - 1) / ridge)
    return _root(lambda z: ridge * z - radius**2 * _sigmoid(-z), flattest) / radius


def logistic_gradient_distance(radius: float, ridge: float) -> float:
    r"""Return the largest distance of two records' gradients at one minimiser, at most 2 R_x.

    .. math:: 2 R_x \max_c \sqrt{1 - c^2}\, \sigma(z c), \qquad z = R_x r \le \min\{3/2, 16 \sigma(z)^2 \sigma(-z)\}

    with r of `logistic_norm`; beyond that 2 R_x sigmoid(z).

    Example:
        >>> round(logistic_gradient_distance(1.0, 1.0), 6)
        1.01918
    """
    z = radius * logistic_norm(radius, ridge)
    if z > min(_PROVED, 16 * _sigmoid(z) ** 2 * _sigmoid(-z)):
        return 2 * radius * _sigmoid(z)
    c = _root(lambda c: c - z * (1 - c * c) * _sigmoid(-z * c), 1.0)
    return 2 * radius * math.sqrt(1 - c * c) * _sigmoid(z * c)


def _sigmoid(u: float) -> float:
    return 1 / (1 + math.exp(-u)) if u >= 0 else math.exp(u) / (1 + math.exp(u))


def _root(increasing: Callable[[float], float], high: float) -> float:
    """Return the upper end of a bisection of [0, high] for the root of an increasing function."""
    low = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if increasing(middle) >= 0 else (middle, high)
    return high


@dataclass(frozen=True)
class IndirectBound:
    r"""What one replaced training record does to the sum of n scores, and what a scoring record does: public numbers.

    .. math::
        \text{indirect} = n \Big[\max\Big\{\Big(\frac1\zeta - 1\Big) \beta_\mu, \frac{\beta_\times}{\zeta}\Big\}
        + \frac{R\, \beta_e}{\zeta (\zeta + \beta_e)}\Big], \qquad S = R / \zeta, \qquad
        \Delta_{BR} = \max\{2S, \text{indirect}\}

    Args:
        beta_mu: Most movement of one arm's outcome model, in ranges of the outcome.
        crossing: The same of each of two arms' models, by a record that crosses between them.
        beta_e: Most movement of a propensity.
        overlap: zeta, least propensity.
        residual: R, the largest |y - mu|.

    Example:
        >>> bound = IndirectBound(4.614607e-4, 2.3073035e-4, 1.4e-4, overlap=0.1)
        >>> round(bound.paper(1500), 4), round(bound.range_sensitivity(1500), 4)
        (28.6141, 27.2004)
    """

    beta_mu: float
    crossing: float
    beta_e: float
    overlap: float
    residual: float = 1.0

    @property
    def rho(self) -> float:
        r"""The paper's rho* = (1 + 1/zeta) beta_mu + R beta_e / zeta^2 of one score."""
        return (1 + 1 / self.overlap) * self.beta_mu + self.residual * self.beta_e / self.overlap**2

    def paper(self, n: int) -> float:
        """Return the paper's Delta_cert = n rho*, a two-sided sensitivity: as a range it counts twice."""
        return n * self.rho

    def paper_range_sensitivity(self, n: int) -> float:
        """Return that of the paper's calibration, 2 max{2 B_psi, n rho*} with B_psi = R (1 + 1/zeta)."""
        return 2 * max(2 * self.residual * (1 + 1 / self.overlap), self.paper(n))

    @property
    def own(self) -> float:
        """S = R / zeta: how far one record's scores of its actions lie apart."""
        return self.residual / self.overlap

    def indirect(self, n: int) -> float:
        """Return the most by which a training record moves the sums of n scores apart."""
        outcomes = max((1 / self.overlap - 1) * self.beta_mu, self.crossing / self.overlap)
        return n * (outcomes + self.residual * self.beta_e / (self.overlap * (self.overlap + self.beta_e)))

    def range_sensitivity(self, n: int) -> float:
        """Return Delta_BR = max{2S, indirect}."""
        return max(2 * self.own, self.indirect(n))


def indirect_bound(
    m: int, ridge: float, overlap: float, *, radius: float = 1.0, localised: bool = True, tolerance: float = 0.0
) -> IndirectBound:
    r"""Return what a replaced training record does to scores whose nuisances are ridge and logistic fits.

    With L the distance of two records' gradients at one minimiser, or as printed 2 G,

    .. math::
        \beta_\mu = \frac{R_x}{\lambda} \Big(\frac{L_\mu}m + 2 \tau\Big), \quad
        \beta_\times = \frac{R_x}{\lambda} \Big(\frac{G_\mu}m + 2 \tau\Big), \quad
        \beta_e = \frac{R_x}{4\lambda} \Big(\frac{L_e}m + 2\tau\Big) .

    Localised, what the fits can say at all takes the places of zeta and R, too: a propensity is at least
    :math:`\sigma(-R_x \|\theta\|)` and :math:`|y - \mu| \le 1/2 + R_x \|b\|`.

    Args:
        m: Training records.
        ridge: lambda of both.
        overlap: zeta, to which propensities are projected.
        radius: R_x, bound of the features' norm.
        localised: See above; else as printed.
        tolerance: tau, the largest gradient norm of a fit.

    Example:
        >>> round(indirect_bound(1500, 50.0, 0.1, radius=21**0.5, localised=False).range_sensitivity(1500), 6)
        27.200361
        >>> round(indirect_bound(1500, 50.0, 0.1, radius=21**0.5).range_sensitivity(1500), 6)
        2.862845
    """
    least, residual = overlap, 1.0
    bound = ridge_gradient_bound(radius, ridge, localised)
    distances = 2 * bound, 2 * radius
    if localised:
        far = radius * (logistic_norm(radius, ridge) + tolerance / ridge)
        least = max(overlap, 1 / (1 + math.exp(far)))
        residual = min(1.0, 0.5 + radius * (ridge_norm(radius, ridge) + tolerance / ridge))
        distances = ridge_gradient_distance(radius, ridge), logistic_gradient_distance(radius, ridge)
    means, crossing, logit = (
        radius * (size / m + 2 * tolerance) / ridge for size in (distances[0], bound, distances[1])
    )
    return IndirectBound(means, crossing, logit / 4, least, residual)


@dataclass(frozen=True)
class StableFits:
    """Both fits, with the bound that covers them.

    Args:
        domain: Public bounds of covariates and of the outcome.
        overlap: zeta.
        training: Records m that are fitted.
        scoring: Records n that are scored.
        given: lambda; None takes the smallest with which a training record does a tenth of what a scoring one does.

    Raises:
        InputError: A ridge that is not positive.

    Example:
        >>> stable = StableFits(Domain([0.0], [1.0], 0.0, 1.0), 0.1, training=1500, scoring=1500)
        >>> round(stable.ridge, 3), round(stable.bound.range_sensitivity(1500), 3)
        (7.584, 2.307)
    """

    domain: Domain
    overlap: float
    training: int
    scoring: int
    given: float | None = None

    def __post_init__(self) -> None:
        if self.given is not None and not self.given > 0:
            raise InputError(f"ridge = {self.given:g}: give a number above 0")

    @property
    def ridge(self) -> float:
        """Lambda."""
        if self.given is not None:
            return self.given
        low, high = _RIDGES
        for _ in range(_STEPS):
            middle = math.sqrt(low * high)
            bound = self._bound(middle)
            enough = bound.indirect(self.scoring) <= _PART * 2 * bound.own
            low, high = (low, middle) if enough else (middle, high)
        return high

    @property
    def bound(self) -> IndirectBound:
        """What one record does at most."""
        return self._bound(self.ridge)

    def _bound(self, ridge: float) -> IndirectBound:
        return indirect_bound(self.training, ridge, self.overlap, radius=FeatureMap.bound, tolerance=_TOLERANCE)

    def fit(self, records: CausalData) -> "LinearFunctions":
        """Return the functions that were fitted to the training records.

        Raises:
            NumericalError: A gradient norm above the tolerance.
        """
        psi, ridge = on_domain(None, self.domain)(records.x), self.ridge
        z = (records.y - self.domain.outcome_middle) / self.domain.outcome_range
        means = ridge_fit(psi, z, records.a.long(), ridge)
        return LinearFunctions(self.domain, self.overlap, means, logistic_fit(psi, records.a, ridge))


@dataclass(frozen=True, eq=False)
class LinearFunctions:
    """Functions of the covariates.

    Attributes:
        domain: Public bounds.
        overlap: zeta.
        means: Coefficients of the outcome models, [2, p].
        logit: Of the propensity, [p].
    """

    domain: Domain
    overlap: float
    means: Tensor
    logit: Tensor

    def propensity(self, x: Tensor) -> Tensor:
        """Return P(second action | x), [n]."""
        u = on_domain(None, self.domain).product(self.logit, x)
        rows = torch.stack([torch.zeros_like(u), u], -1).softmax(-1)
        return project_to_floor(rows, self.overlap)[..., 1]

    def outcome(self, x: Tensor) -> Tensor:
        """Return mean outcomes, [n, 2]."""
        deviation = on_domain(None, self.domain).product(self.means, x).mT
        return self.domain.clip_outcome(self.domain.outcome_middle + self.domain.outcome_range * deviation)


def ridge_fit(psi: Tensor, z: Tensor, arm: Tensor, ridge: float) -> Tensor:
    r"""Return the outcome models' coefficients, [2, p].

    .. math:: \Big(\frac1m \sum_{a_i = a} \psi_i \psi_i^\top + \lambda I\Big) b_a = \frac1m \sum_{a_i = a} \psi_i z_i

    Args:
        psi: Features [m, p].
        z: Outcomes [m].
        arm: 0 or 1, [m].
        ridge: lambda.

    Raises:
        NumericalError: A gradient norm above the tolerance.
    """
    m, p = psi.shape
    weighted = torch.nn.functional.one_hot(arm, 2).T.double()[:, :, None] * psi
    gram = weighted.mT @ psi / m + ridge * torch.eye(p).to(psi)
    pull = weighted.mT @ z / m
    found = torch.cholesky_solve(pull[..., None], torch.linalg.cholesky_ex(gram).L)
    if not bool(((gram @ found)[..., 0] - pull).norm(dim=-1).max() <= _TOLERANCE):
        raise NumericalError("outcome models: a gradient norm is above the tolerance; raise the ridge")
    return found[..., 0]


def logistic_fit(psi: Tensor, a: Tensor, ridge: float) -> Tensor:
    """Return the propensity's coefficients, [p], by Newton steps.

    Args:
        psi: Features [m, p].
        a: 0 or 1, [m].
        ridge: lambda.

    Raises:
        NumericalError: A gradient norm above the tolerance.
    """
    m, p = psi.shape

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u = theta @ psi.T
        value = (torch.nn.functional.softplus(u) - a * u).mean(1) + ridge / 2 * theta.square().sum(1)
        return value, (u.sigmoid() - a) @ psi / m + ridge * theta, theta

    def step(theta: Tensor, gradient: Tensor, _: Tensor) -> Tensor:
        e = (theta @ psi.T).sigmoid()[0]
        hessian = (psi.T * (e * (1 - e))) @ psi / m + ridge * torch.eye(p).to(psi)
        return torch.cholesky_solve(gradient[..., None], torch.linalg.cholesky_ex(hessian).L)[..., 0]

    def bounds() -> tuple[Tensor, Tensor]:
        least = torch.full((1,), ridge, dtype=psi.dtype)
        return least, least + FeatureMap.bound**2 / 4

    start = psi.new_zeros(1, p)
    return newton(evaluate, step, start, _TOLERANCE, what="the propensity", remedy="raise the ridge", bounds=bounds)[0][
        0
    ]
