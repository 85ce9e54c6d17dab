"""Exact draws of the K-norm gradient law, by solving for where the gradient is a random vector."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.erm.losses import BalancingLoss, Slopes
from torchdpcate.erm.records import Batch, Records, StackedRecords, Target
from torchdpcate.errors import InputError
from torchdpcate.experimental.coefficient_set import CoefficientSet
from torchdpcate.experimental.curvature_floor import curvature_floor, log_curvature
from torchdpcate.privacy.noise import NoiseSource

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
        inside = u.clamp(-self.estimand.reach, self.estimand.reach)
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
            asked = waiting[: max(1, _MOST_NUMBERS // (records.n * tries))]
            of = _chosen(records, asked) if several else records
            theta, chance = self.propose(of, target, noise, floor[asked].repeat(tries))
            coins = noise.uniform(tries * len(asked)).reshape(tries, -1)
            kept = coins < chance.reshape(coins.shape)
            found, first = kept.any(0), kept.int().argmax(0)
            proposals = theta.reshape(*coins.shape, -1)
            drawn[asked[found]] = proposals[first, torch.arange(len(asked))][found]
            waiting = torch.cat([asked[~found], waiting[len(asked) :]])
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
