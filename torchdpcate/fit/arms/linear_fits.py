"""Ridge and logistic fits of the mean loss, to a stated gradient norm; those of neighbours; and what they shrink to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.causal.score import project_to_floor
from torchdpcate.data.records import CausalData
from torchdpcate.fit.arms.base import FittedNuisances, SelectionFacts
from torchdpcate.fit.arms.fixed import Numbers, constant_outcome, constant_propensity
from torchdpcate.fit.descent import newton
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.privacy.charge import ARMS
from torchdpcate.privacy.exact_sums import exact_sum
from torchdpcate.privacy.mechanisms import AdditiveMechanism, LaplaceMechanism, RootPolytopeMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

_NUMBERS = 2_000_000  # of probabilities in one batch of data sets


class ArmCoefficients(NamedTuple):
    """ArmCoefficients of linear nuisances; leading dimensions are data sets.

    Attributes:
        means: Of the outcome models, in ranges about their targets, [..., K, p].
        logits: Of the propensity: of K logits, or of the second arm's alone where K = 2, [..., C, p].
    """

    means: Tensor
    logits: Tensor


@dataclass(frozen=True, eq=False)
class CoefficientBlock:
    """Training records as fits see them.

    Attributes:
        psi: Features, float64 [m, p].
        z: Outcomes in ranges about the target of their arm, [m], in [-1, 1]; about the middle in [-1/2, 1/2].
        arm: Positions of the actions, int64 [m].
        arms: K.
        offset: What the K logits are without coefficients, [K, 1]; the first is zero.
    """

    psi: Tensor
    z: Tensor
    arm: Tensor
    arms: int
    offset: Tensor | float = 0.0

    @property
    def free(self) -> slice:
        """Which logits have coefficients: all, or of two arms the second."""
        return slice(1, 2) if self.arms == 2 else slice(0, self.arms)

    def take(self, index: Tensor) -> "CoefficientBlock":
        """Return the records at these positions."""
        return replace(self, psi=self.psi[index], z=self.z[index], arm=self.arm[index])


class RidgeFits:
    r"""Ridge fits of every arm, each the mean over all m records.

    .. math:: \Big(\frac1m \sum_{a_i = a} \psi_i \psi_i^\top + \lambda I\Big) b_a = \frac1m \sum_{a_i = a} \psi_i z_i

    Args:
        block: The training records.
        ridge: lambda.
    """

    def __init__(self, block: CoefficientBlock, ridge: float) -> None:
        self.block = block
        own = torch.nn.functional.one_hot(block.arm, block.arms).T.double()[:, :, None]  # [K, m, 1]
        weighted = own * block.psi
        m, p = block.psi.shape
        self.gram = weighted.mT @ block.psi / m + ridge * torch.eye(p).to(block.psi)
        self.pull = (weighted.mT @ block.z) / m

    def fit(self) -> Tensor:
        """Return the coefficients [K, p]."""
        return _solve(self.gram, self.pull)

    def refit(self, index: Tensor, records: CoefficientBlock) -> Tensor:
        """Return the coefficients [runs, K, p] with record ``index[r]`` replaced by ``records`` [runs] in run r."""
        gram, pull, m = self.gram[None], self.pull[None], len(self.block.z)
        for part, sign in ((self.block.take(index), -1 / m), (records, 1 / m)):
            own = sign * torch.nn.functional.one_hot(part.arm, part.arms).double()
            gram = gram + own[:, :, None, None] * (part.psi[:, :, None] * part.psi[:, None])[:, None]
            pull = pull + own[:, :, None] * (part.psi * part.z[:, None])[:, None]
        return _solve(gram, pull)

    def gradient_norm(self, found: Tensor) -> Tensor:
        """Return the largest gradient norm of coefficients [K, p]."""
        return ((self.gram @ found[..., None])[..., 0] - self.pull).norm(dim=-1).max()


class LogisticFits:
    r"""Logistic (K = 2) or multinomial fits of the propensity, by Newton steps.

    .. math:: \frac1m \sum_i -\log \mathrm{softmax}_{a_i}(o + \Theta \psi_i) + \tfrac\lambda2 \|\Theta\|^2

    Args:
        block: The training records.
        ridge: lambda.
        tolerance: Largest gradient norm.
    """

    def __init__(self, block: CoefficientBlock, ridge: float, tolerance: float) -> None:
        self.block, self.ridge, self.tolerance = block, ridge, tolerance
        self.size = (block.free.stop - block.free.start, block.psi.shape[1])

    def fit(self) -> Tensor:
        """Return the coefficients [C, p]."""
        start = self.block.psi.new_zeros(1, self.size[0] * self.size[1])
        return self._newton(self.evaluate, self._step, start).reshape(self.size)

    @cached_property
    def base(self) -> Tensor:
        """The coefficients of the data set itself, from which those of its neighbours start."""
        return self.fit().reshape(1, -1)

    def refit(self, index: Tensor, records: CoefficientBlock) -> Tensor:
        """Return the coefficients [runs, C, p] with record ``index[r]`` replaced by ``records`` [runs] in run r.

        Steps by the Hessian of the data set itself, which a neighbour's differs from by O(1/m), so that few are needed.
        """
        factor = torch.linalg.cholesky_ex(self._hessian(self.base)).L[0]
        gone, m = self.block.take(index), len(self.block.z)
        rows, parts = max(1, _NUMBERS // (m * self.block.arms)), []
        for start in range(0, len(index), rows):
            own = torch.arange(start, min(start + rows, len(index)))
            pair = (gone.take(own), -1 / m), (records.take(own), 1 / m)

            def evaluate(theta: Tensor, pair: tuple = pair) -> tuple[Tensor, Tensor, Tensor]:
                value, gradient, _ = self.evaluate(theta)
                for part, sign in pair:
                    loss, pull = _own_losses(theta.reshape(-1, *self.size), part)
                    value, gradient = value + sign * loss, gradient + sign * pull
                return value, gradient, theta

            def step(theta: Tensor, gradient: Tensor, _: Tensor) -> Tensor:
                return torch.cholesky_solve(gradient.mT, factor).mT

            parts.append(self._newton(evaluate, step, self.base.expand(len(own), -1)))
        return torch.cat(parts).reshape(-1, *self.size)

    def evaluate(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return values [runs], gradients [runs, C p] and theta again, for the curvature."""
        block = self.block
        logits = _logits(theta.reshape(-1, *self.size) @ block.psi.T, block.offset)
        logs = logits.log_softmax(1)  # [runs, K, m]
        value = -logs.gather(1, block.arm.expand(len(theta), 1, -1)).mean((1, 2))
        excess = logs.exp() - torch.nn.functional.one_hot(block.arm, block.arms).T
        gradient = (excess[:, block.free] @ block.psi).reshape(len(theta), -1) / len(block.z)
        return value + self.ridge / 2 * theta.square().sum(1), gradient + self.ridge * theta, theta

    def _step(self, theta: Tensor, gradient: Tensor, _: Tensor) -> Tensor:
        factor = torch.linalg.cholesky_ex(self._hessian(theta)).L
        return torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0]

    def _hessian(self, theta: Tensor) -> Tensor:
        """Return the Hessian [1, C p, C p] at one theta [1, C p]."""
        psi, (count, p) = self.block.psi, self.size
        logits = _logits(theta.reshape(-1, *self.size) @ psi.T, self.block.offset)
        e = logits.softmax(1)[0, self.block.free]  # [C, m]
        H = psi.new_empty(count, p, count, p)
        for c in range(count):
            for d in range(c + 1):
                H[c, :, d] = H[d, :, c] = (psi.T * (e[c] * (float(c == d) - e[d]))) @ psi / len(psi)
        return (H.reshape(count * p, -1) + self.ridge * torch.eye(count * p).to(psi))[None]

    def _newton(self, evaluate: Callable, step: Callable, start: Tensor) -> Tensor:
        def bounds() -> tuple[Tensor, Tensor]:
            # a softmax curves by half of ||psi||^2 at most (Boehning 1992): the steps have a bound that is public
            least = torch.full_like(start[:, 0], self.ridge)
            return least, least + FeatureMap.bound**2 / 2

        remedy = "raise propensity_ridge or tolerance"
        return newton(evaluate, step, start, self.tolerance, what="the propensity", remedy=remedy, bounds=bounds)[0]


def _logits(u: Tensor, offset: Tensor | float) -> Tensor:
    """Return K logits [runs, K, m] of the free ones: with one alone the first arm's is zero."""
    return offset + (torch.cat([torch.zeros_like(u), u], 1) if u.shape[1] == 1 else u)


def _own_losses(theta: Tensor, records: CoefficientBlock) -> tuple[Tensor, Tensor]:
    """Return loss [runs] and gradient [runs, C p] of record r at the coefficients theta[r], [runs, C, p]."""
    logs = _logits(theta @ records.psi[:, :, None], records.offset)[:, :, 0].log_softmax(1)
    excess = logs.exp() - torch.nn.functional.one_hot(records.arm, records.arms)
    gradient = (excess[:, records.free, None] * records.psi[:, None]).flatten(1)
    return -logs.gather(1, records.arm[:, None])[:, 0], gradient


def _solve(gram: Tensor, pull: Tensor) -> Tensor:
    """Return the solutions [..., p] of positive definite systems."""
    return torch.cholesky_solve(pull[..., None], torch.linalg.cholesky_ex(gram).L)[..., 0]


def gradient_norms(block: CoefficientBlock, found: ArmCoefficients, ridge: float, propensity_ridge: float) -> Tensor:
    """Return the gradient norms [2] of the outcome models (the largest) and of the propensity."""
    fits = LogisticFits(block, propensity_ridge, 0.0)
    propensity = fits.evaluate(found.logits.reshape(1, -1))[1].norm()
    return torch.stack([RidgeFits(block, ridge).gradient_norm(found.means), propensity])


def offset(shares: Tensor) -> Tensor:
    """Return the K logits of these shares, [K, 1], the first of them zero."""
    return (shares / shares[0]).log()[:, None]


@dataclass(frozen=True, eq=False)
class LinearNuisances(FittedNuisances):
    """Functions of linear fits, of one data set or of many side by side: functions give [..., n, K].

    Attributes:
        facts: Public facts.
        features: The feature map, set up.
        coefficients: The curator's.
        shares: Starting values of the arms' shares, [K].
        means: Starting values of their mean outcomes, [K].
    """

    facts: SelectionFacts
    features: FeatureMap
    coefficients: ArmCoefficients
    shares: Tensor
    means: Tensor

    def propensity(self, x: Tensor) -> Tensor:
        """See ``FittedNuisances.propensity``: projected to the overlap for two arms, mixed with it for more."""
        u = self.features.product(self.coefficients.logits, x).mT
        arms, overlap = self.facts.arms, self.facts.overlap
        if arms == 2:
            u = torch.cat([torch.zeros_like(u), u], -1)
        e = (u + offset(self.shares)[:, 0]).softmax(-1)
        return project_to_floor(e, overlap) if arms == 2 else (1 - arms * overlap) * e + overlap

    def outcome(self, x: Tensor) -> Tensor:
        """See ``FittedNuisances.outcome``."""
        domain = self.facts.domain
        deviation = self.features.product(self.coefficients.means, x).mT
        return domain.clip_outcome(self.means + domain.outcome_range * deviation)


PRIVATE = "private"
"""Says that a target is to be taken from the training block, with noise."""

_NEVER_ZERO = 1e-9  # noise that is none
_REACH = 0.5  # of an outcome from the middle of its bounds, over their range
_OF_TABLE, _OF_LAPLACE = (6.0, 3.0), (8.0, 2.0)  # variances of a count and a sum, in squared scales


@dataclass(frozen=True)
class ShrinkageTarget:
    """Public numbers that nuisances deviate from; how good they are decides about accuracy, never about privacy.

    Args:
        propensity: P(A = second action) of two arms, or one number an arm; None takes 1 / K for each.
        outcome: Mean outcomes: one number for all arms, or one an arm; None takes the middle of the bounds.

    Example:
        >>> from torchdpcate.data import Domain
        >>> facts = SelectionFacts(Domain([0.0], [1.0], 0.0, 1.0), (0, 1), overlap=0.1, training=5, scoring=5)
        >>> [numbers.tolist() for numbers in ShrinkageTarget(0.25, [0.5, 0.75]).numbers(facts)]
        [[0.75, 0.25], [0.5, 0.75]]
    """

    propensity: Numbers = None
    outcome: Numbers = None

    def __post_init__(self) -> None:
        for name in ("propensity", "outcome"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))  # hashable, whatever a configuration gave

    def numbers(self, facts: SelectionFacts) -> tuple[Tensor, Tensor]:
        """Return propensities and outcomes of the arms, [K] each.

        Raises:
            InputError: Not as many as arms, shares below the overlap or not adding up to one, outcomes out of bounds.
        """
        return constant_propensity(self.propensity, facts), constant_outcome(self.outcome, facts)


def private_target(
    train: CausalData, facts: SelectionFacts, epsilon: float | None, session: FitSession | None = None
) -> ShrinkageTarget:
    r"""Return the shares of the arms and their mean outcomes in a training block, with noise.

    A record's part is :math:`z = (y - \text{middle}) / R \in [-1/2, 1/2]` in its own arm. Of two arms it adds
    :math:`(1/2 + z, 1/2 - z)` to two cells of its arm, which are never negative and add up to one, and the four cells
    have root-polytope noise of W = 1 (scale b = 1 / epsilon): a sum of z is half the difference of an arm's cells, of
    variance :math:`3 b^2`, and as m is public, a count is half of m and of the arms' difference, of variance
    :math:`6 b^2`. Of more arms released are halves of counts and K sums with Laplace noise: a replaced record moves two
    counts by one, or none, and sums by at most one in all, which is 2 in l1; the variances are :math:`2 b^2` of a sum
    and :math:`8 b^2` of a count, b = 2 / epsilon. Sums are exact (``exact_sum``), and a half lies on their grid:
    rounding adds nothing. What follows is post-processing, linear Bayes for shares and a common mean that are uniform
    over their ranges (variance 1/12) and arms that differ from it by a tenth of the range, so that noise which
    dominates the records pulls to equal shares, alike arms and the middle:

    .. math::
        \hat e_a = \frac{m \hat n_a + k_n^2 / K}{m^2 + k_n^2}, \quad
        \bar z = \frac{m \sum_a \hat s_a}{m^2 + K k_s^2}, \quad
        \hat z_a = \frac{m \hat e_a \hat s_a + l^2 \bar z}{(m \hat e_a)^2 + l^2}, \qquad
        k_n^2 = 12 v_n, \quad k_s^2 = 12 v_s, \quad l^2 = 100 v_s

    with :math:`v_n, v_s` the variances of a count and a sum and the shares projected to the simplex; at last they are
    projected to the overlap, and the means clipped to the bounds.

    Guarantee:
        Certified, pure epsilon for the training block, charged before the noise is drawn. Source: docs/guarantees/
        noise.md and stable_nuisances.md.

    Args:
        train: The training block, actions as positions.
        facts: Public facts.
        epsilon: What it costs; None takes the exact numbers, without privacy.
        session: Pays, and draws the noise.

    Raises:
        BudgetError: The block cannot pay.

    Example:
        >>> from torchdpcate.data import Domain
        >>> facts = SelectionFacts(Domain([0.0], [1.0], 0.0, 1.0), (0, 1), overlap=0.1, training=4, scoring=4)
        >>> x, a, y = torch.zeros(4, 1), torch.tensor([0, 0, 0, 1]), torch.tensor([0.0, 0.25, 0.5, 0.75])
        >>> target = private_target(CausalData(x.double(), a.double(), y.double()), facts, None)
        >>> [[round(number, 6) for number in numbers] for numbers in (target.propensity, target.outcome)]
        [[0.75, 0.25], [0.25, 0.75]]
    """
    domain, K, m = facts.domain, facts.arms, facts.training
    middle = (domain.outcome_low + domain.outcome_high) / 2
    own = torch.nn.functional.one_hot(train.a.long(), K).double()
    sums = exact_sum(((train.y - middle) / domain.outcome_range)[:, None] * own, m, _REACH, dim=0)
    value, scale = _table(own.sum(0), sums), _NEVER_ZERO
    if epsilon is not None:
        mechanism, scale = target_mechanism(epsilon, facts)
        session = session or FitSession(NoiseSource.system())
        session.pay(mechanism.event, charge=ARMS)
        value = mechanism.release(value, session.noise)
    counts, sums = _counts_and_sums(value, m)
    of_count, of_sum = _OF_TABLE if K == 2 else _OF_LAPLACE
    shares = (m * counts + 12 * of_count * scale**2 / K) / (m * m + 12 * of_count * scale**2)
    shares = project_to_floor(shares, 0.0)
    overall, counts = m * sums.sum() / (m * m + 12 * K * of_sum * scale**2), m * shares
    l2 = 100 * of_sum * scale**2
    z = ((counts * sums + l2 * overall) / (counts**2 + l2)).clamp(-0.5, 0.5)
    means = domain.clip_outcome(middle + domain.outcome_range * z)
    return ShrinkageTarget(project_to_floor(shares, facts.overlap).tolist(), means.tolist())


def target_mechanism(epsilon: float, facts: SelectionFacts) -> tuple[AdditiveMechanism, float]:
    """Return the mechanism of a private target, and the scale of its noise.

    Raises:
        InputError: So little epsilon that rounding would matter.
    """
    two = facts.arms == 2
    mechanism = RootPolytopeMechanism(epsilon, bound=1.0) if two else LaplaceMechanism(epsilon, 2.0)
    return mechanism, mechanism.released_scale(2 * facts.arms)


def _table(counts: Tensor, sums: Tensor) -> Tensor:
    """Return what gets noise: of two arms (high, low) cells of each, of more the halves of counts and the sums."""
    if len(counts) == 2:
        return torch.stack([counts / 2 + sums, counts / 2 - sums], 1).flatten()
    return torch.cat([counts / 2, sums])


def _counts_and_sums(value: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return counts and sums of the arms, with the noise of the table."""
    if len(value) == 4:
        high, low = value.unflatten(0, (2, 2)).unbind(1)
        counts = high + low
        return (m + counts - counts.flip(0)) / 2, (high - low) / 2
    counts, sums = value.chunk(2)
    return 2 * counts, sums
