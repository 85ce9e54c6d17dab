"""Ridge and logistic fits of the mean loss, to a stated gradient norm; those of neighbours; and their functions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.causal.score import project_to_floor
from torchdpcate.erm.descent import newton
from torchdpcate.features.maps import FeatureMap
from torchdpcate.nuisance.arms.base import FittedNuisances, SelectionFacts

_NUMBERS = 2_000_000  # of probabilities in one batch of data sets


class Coefficients(NamedTuple):
    """Coefficients of linear nuisances; leading dimensions are data sets.

    Attributes:
        means: Of the outcome models, in ranges about their targets, [..., K, p].
        logits: Of the propensity: of K logits, or of the second arm's alone where K = 2, [..., C, p].
    """

    means: Tensor
    logits: Tensor


@dataclass(frozen=True, eq=False)
class Block:
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

    def take(self, index: Tensor) -> "Block":
        """Return the records at these positions."""
        return replace(self, psi=self.psi[index], z=self.z[index], arm=self.arm[index])


class RidgeFits:
    r"""Ridge fits of every arm, each the mean over all m records.

    .. math:: \Big(\frac1m \sum_{a_i = a} \psi_i \psi_i^\top + \lambda I\Big) b_a = \frac1m \sum_{a_i = a} \psi_i z_i

    Args:
        block: The training records.
        ridge: lambda.
    """

    def __init__(self, block: Block, ridge: float) -> None:
        self.block = block
        own = torch.nn.functional.one_hot(block.arm, block.arms).T.double()[:, :, None]  # [K, m, 1]
        weighted = own * block.psi
        m, p = block.psi.shape
        self.gram = weighted.mT @ block.psi / m + ridge * torch.eye(p).to(block.psi)
        self.pull = (weighted.mT @ block.z) / m

    def fit(self) -> Tensor:
        """Return the coefficients [K, p]."""
        return _solve(self.gram, self.pull)

    def refit(self, index: Tensor, records: Block) -> Tensor:
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

    def __init__(self, block: Block, ridge: float, tolerance: float) -> None:
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

    def refit(self, index: Tensor, records: Block) -> Tensor:
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


def _own_losses(theta: Tensor, records: Block) -> tuple[Tensor, Tensor]:
    """Return loss [runs] and gradient [runs, C p] of record r at the coefficients theta[r], [runs, C, p]."""
    logs = _logits(theta @ records.psi[:, :, None], records.offset)[:, :, 0].log_softmax(1)
    excess = logs.exp() - torch.nn.functional.one_hot(records.arm, records.arms)
    gradient = (excess[:, records.free, None] * records.psi[:, None]).flatten(1)
    return -logs.gather(1, records.arm[:, None])[:, 0], gradient


def _solve(gram: Tensor, pull: Tensor) -> Tensor:
    """Return the solutions [..., p] of positive definite systems."""
    return torch.cholesky_solve(pull[..., None], torch.linalg.cholesky_ex(gram).L)[..., 0]


def gradient_norms(block: Block, found: Coefficients, ridge: float, propensity_ridge: float) -> Tensor:
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
    coefficients: Coefficients
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
