"""Exact draws of the K-norm gradient law, on sets of coefficients where no propensity is clipped."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.convex_sets import ConvexDomain, L1Ball
from torchdpcate.errors import InputError
from torchdpcate.fit.losses import BalancingLoss, Slopes
from torchdpcate.fit.minimise import linear_predictor
from torchdpcate.fit.stacked_records import Batch, Records, StackedRecords, Target
from torchdpcate.privacy.noise import NoiseSource


@dataclass(frozen=True)
class CoefficientSet(ConvexDomain):
    r"""The ball of a norm N around zero, public.

    .. math:: \{\theta : N(\theta) \le R\}, \qquad \|\theta\|_2 \le N(\theta) \le \sqrt p\, \|\theta\|_2

    so that it lies in the Euclidean ball of radius R, and a step of Euclidean length r from one of its points ends in
    the set 1 + r sqrt(p) / R times as large.

    Args:
        radius: R.

    Raises:
        InputError: If ``radius`` is not positive.
    """

    @abstractmethod
    def norm(self, theta: Tensor) -> Tensor:
        """Return N of each row of theta [runs, p], [runs]."""

    @abstractmethod
    def dual(self, slope: Tensor) -> Tensor:
        """Return the largest slope'theta over N(theta) <= 1 for each row of ``slope`` [runs, p], [runs]."""

    def holds(self, theta: Tensor) -> Tensor:
        """Return whether each row of theta [runs, p] lies in the set, [runs]."""
        return self.norm(theta) <= self.radius


class L1Set(CoefficientSet, L1Ball):
    r"""Coefficients with ||theta||_1 <= R: with entries of psi up to m, \|psi'theta\| is at most m R.

    Where psi is an intercept and covariates that fill a cube, all of size m, it holds all coefficients of which that
    is true.

    Example:
        >>> import torch
        >>> theta = torch.tensor([[1.0, -1.5]]).double()
        >>> L1Set(2.0).holds(theta).tolist(), L1Set(2.0).dual(theta).tolist()
        ([False], [1.5])
    """

    def norm(self, theta: Tensor) -> Tensor:
        """See ``CoefficientSet``."""
        return theta.abs().sum(1)

    def dual(self, slope: Tensor) -> Tensor:
        """See ``CoefficientSet``."""
        return slope.abs().amax(1)


_GAP = 0.01  # below the least log determinant that the bound may be: a proposal is kept 1 % less often
_MOST_STEPS = 1_000  # a bound that is still below that is as valid
_ROUNDING = 1e-9  # of log determinants in float64


def log_curvature(records: Records, loss: BalancingLoss, target: Target, ridge: float, theta: Tensor) -> Tensor:
    r"""Return ln det H [runs] at theta [runs, p].

    .. math:: H(\theta) = \sum_i \ell''(\psi_i^\top\theta, t_i)\, \psi_i \psi_i^\top + \gamma I

    Args:
        records: One data set, or one for each row of theta.
        loss: l.
        target: t.
        ridge: gamma.
        theta: Where.
    """
    return 2 * _factor(records, loss, target, ridge, theta).diagonal(dim1=1, dim2=2).log().sum(1)


def curvature_floor(
    records: Records, loss: BalancingLoss, target: Target, ridge: float, region: CoefficientSet
) -> Tensor:
    r"""Return a lower bound m [sets] of ln det H over a set of coefficients on which no propensity is clipped.

    There l'' = exp(-t psi'theta) of one arm or both, so that by Cauchy and Binet det H is a sum of exponentials of
    linear functions and f = ln det H is convex. At any theta

    .. math::
        \min_{N(\vartheta) \le R} f(\vartheta) \ge f(\theta) - \nabla f(\theta)^\top\theta - R\, N^*(\nabla f(\theta)),
        \qquad \nabla f = -\sum_i t_i\, \ell''_i\, (\psi_i^\top H^{-1}\psi_i)\, \psi_i

    The best of these along accelerated projected gradient steps of length 1/(2p) is taken, for with
    :math:`q_i = \ell''_i\, \psi_i^\top H^{-1}\psi_i`, which add up to at most p,
    :math:`\nabla^2 f \preceq 2\sum_i q_i \psi_i\psi_i^\top \preceq 2p\,I`.

    Args:
        records: One data set, or several side by side.
        loss: Of the ATE, ATT or ATC.
        target: t.
        ridge: gamma, above 0.
        region: The set; \|psi'theta\| <= logit(1 - eta) on it.
    """
    p, sets = records.size, records.sets
    point = torch.zeros(sets, p, dtype=torch.float64)
    ahead, momentum, floor = point, torch.ones(sets, 1).double(), torch.full((sets,), -torch.inf).double()
    for _ in range(_MOST_STEPS):
        value, slope = _slope(records, loss, target, ridge, ahead)
        gap = (slope * ahead).sum(1) + region.radius * region.dual(slope)
        floor = torch.maximum(floor, value - gap)
        if bool((gap <= _GAP).all()):
            break
        new = region.project(ahead - slope / (2 * p))
        uphill = ((ahead - new) * (new - point)).sum(1, keepdim=True) > 0  # momentum that leads astray is dropped
        momentum = torch.where(uphill, 1.0, momentum)
        further = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
        ahead = region.project(new + (momentum - 1) / further * (new - point))
        point, momentum = new, further
    return floor - _ROUNDING


def _factor(records: Records, loss: BalancingLoss, target: Target, ridge: float, theta: Tensor) -> Tensor:
    """Cholesky factor of H, [runs, p, p]."""
    H = records.slopes(loss, target, theta)[2]
    H.diagonal(dim1=1, dim2=2).add_(ridge)
    return torch.linalg.cholesky(H)


def _slope(records: Records, loss: BalancingLoss, target: Target, ridge: float, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return f [runs] and its gradient [runs, p]."""
    factor = _factor(records, loss, target, ridge, theta)
    inverse = torch.cholesky_inverse(factor)

    def terms(batch: Batch) -> Tensor:
        t = target(batch)
        leverage = ((batch.psi @ inverse) * batch.psi).sum(-1)
        pull = t * loss(linear_predictor(batch.psi, theta), t).second * leverage
        return -(pull[:, None] @ batch.psi)[:, 0]

    return 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1), records.total(terms)


_MOST_TRIES = 32  # proposals at once for a run on one data set
_MOST_NUMBERS = 4_000_000  # predictors of proposals that are looked at together


class CurvedBalancingLoss(BalancingLoss):
    """The balancing loss, continued by parabolas where it is clipped.

    Where nothing is clipped it is the same but for a constant. Elsewhere it only shows that a solution lies outside,
    and a curvature that does not vanish lets the solver converge fast.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> loss, far = CurvedBalancingLoss(ATE(0.2)), torch.tensor([-3.0]).double()
        >>> [round(v, 9) for v in (loss(far, torch.ones(1)).second.item(), loss.curvature)]
        [4.0, 4.0]
    """

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """See ``Loss``; ``target`` is +1 for the treated and -1 for controls."""
        inside = u.clamp(-self.estimand.score_bound, self.estimand.score_bound)
        value, first, second = super().__call__(inside, target)
        beyond = u - inside
        value = value + (first + second / 2 * beyond) * beyond
        return Slopes(value, first + second * beyond, second)


@dataclass(frozen=True, eq=False)
class GradientSampler:
    r"""Sampler of coefficients on a set, by how far they are from stationary.

    .. math:: f(\theta) \propto e^{-\|G(\theta)\|_K / s}\, 1\{\theta \in \Theta\}, \qquad
        G(\theta) = \sum_i \ell'(\psi_i^\top\theta, t_i)\, \psi_i + \gamma\theta

    u has density proportional to exp(-||u|| / s), theta solves G(theta) = u, and is kept with probability
    exp(m - ln det G'(theta)) if it lies in the set, where ``curvature_floor`` m makes that at most 1. G maps one to
    one, so the determinant cancels. The loop ends with a proposal that is kept, however long it takes.

    Source: theory note ``covariate_balancing``, section 3.5.

    Attributes:
        loss: l, of the ATE, ATT or ATC; on the set nothing is clipped.
        ridge: gamma.
        region: Theta.
        scale: s.
        order: Of the norm: 2, or infinity for the largest entry.
        tolerance: The solver's stop.
    """

    loss: CurvedBalancingLoss
    ridge: float
    region: CoefficientSet
    scale: float
    order: float
    tolerance: float

    def draw(self, records: Records, target: Target, noise: NoiseSource, runs: int) -> Tensor:
        """Return independent draws [runs, p]: on one data set, or one on each of several side by side.

        Args:
            records: The data.
            target: t.
            noise: Where the noise comes from.
            runs: How many; of several data sets their number.

        Raises:
            InputError: Another number than there are data sets.
        """
        several = records.sets > 1
        if several and runs != records.sets:
            raise InputError(f"runs = {runs}: of {records.sets} data sets side by side each has one")
        records = records if several else _alone(records)
        floor = self.floor(records, target).expand(runs)
        drawn, waiting, tries = torch.empty(runs, records.size, dtype=torch.float64), torch.arange(runs), 1
        while len(waiting):
            requested = waiting[: max(1, _MOST_NUMBERS // (records.n * tries))]
            of = _chosen(records, requested) if several else records
            theta, chance = self.propose(of, target, noise, floor[requested].repeat(tries))
            coins = noise.uniform(tries * len(requested)).reshape(tries, -1)
            kept = coins < chance.reshape(coins.shape)
            found, first = kept.any(0), kept.int().argmax(0)
            proposals = theta.reshape(*coins.shape, -1)
            drawn[requested[found]] = proposals[first, torch.arange(len(requested))][found]
            waiting = torch.cat([requested[~found], waiting[len(requested) :]])
            tries = 1 if several else min(2 * tries, _MOST_TRIES)
        return drawn

    def floor(self, records: Records, target: Target) -> Tensor:
        """Return m of each data set."""
        return curvature_floor(records, self.loss, target, self.ridge, self.region)

    def propose(self, records: Records, target: Target, noise: NoiseSource, floor: Tensor) -> tuple[Tensor, Tensor]:
        """Return proposals [runs, p] and the probabilities [runs] with which they are kept.

        Args:
            records: One data set, or one for each proposal.
            target: t.
            noise: Where the noise comes from.
            floor: m of each proposal's data set, [runs].
        """
        u = self._gradients(len(floor), records.size, noise)
        theta = records.minimise(self.loss, target, self.ridge, -u, self.tolerance)
        curvature = log_curvature(records, self.loss, target, self.ridge, theta)
        return theta, (floor - curvature).exp().clamp_max(1.0) * self.region.holds(theta)

    def _gradients(self, runs: int, size: int, noise: NoiseSource) -> Tensor:
        """Draws of u [runs, p], uniform within the cells of the grid to which K-norm noise is rounded.

        On the grid itself u would show which data set's gradient at theta lies there.
        """
        cells = noise.uniform(runs * size).reshape(runs, size) - 0.5
        step = noise.grid(self.scale)
        return noise.k_norm(runs, size, self.scale, self.order, step) + step * cells


def cell_loss(size: int, order: float) -> float:
    """Return how much of the log density of u its grid's cells may even out: a cell's width in units of the scale.

    Example:
        >>> cell_loss(4, 2.0) == 2 * cell_loss(4, math.inf) == 2**-19
        True
    """
    return 2.0**-20 * (1.0 if order == math.inf else math.sqrt(size))


def _chosen(records: Records, rows: Tensor | int) -> StackedRecords:
    """Some of several data sets; by a number, one by itself."""
    assert isinstance(records, StackedRecords)
    return StackedRecords(Batch(*(part[rows] for part in records.batch)))


def _alone(records: Records) -> Records:
    """The one data set, without a leading dimension that many proposals would not fit."""
    stacked = isinstance(records, StackedRecords) and records.batch.z.ndim == 2
    return _chosen(records, 0) if stacked else records
