"""The paper's own mechanism, as printed. **It is not private**, and stands here for comparison alone.

K-norm gradient mechanism on R^d by the printed rejection sampler, four Laplace sums, a Laplace variance and 1.96
standard deviations. Theory note ``covariate_balancing``, section 4, says what is wrong with it: no epsilon holds for
such a density on R^d, the sampler's envelope fails, features are scaled by the sample's largest norm, and the interval
leaves out the noise of the sums. Nothing of it is in the library.

The paper gives the variance a share r of epsilon, 0.3 in its section 4.1 and a sixth in its supplement (``printed``);
neither gives its lengths at the clip that gives its errors. A tenth and the absolute value of a negative variance do,
0.70 / 0.50 / 0.22 at n = 5,000 (``BY_LENGTHS``).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

NOTE_VARIANCE = 0.6  # with which the note's lengths and coverages come out
MOST, LOOKED_AT = 64, 8  # proposals at a time, and of these gradients at a time
MOST_PROPOSALS = 2_000_000  # a run, before we give up


@dataclass(frozen=True)
class Shares:
    """Shares of epsilon.

    Attributes:
        stage_one: Of the weights.
        total: Of each of four sums.
        variance: Of the variance.
        absolute: Whether a variance that is not positive has its absolute value taken, not the printed bound.
    """

    stage_one: float
    total: float
    variance: float
    absolute: bool = False


def printed(r: float) -> Shares:
    """Return the printed shares, p = 0.2 and q = 0.25, where the variance gets r."""
    return Shares((1 - r) * 0.2, (1 - r) * 0.8 * 0.25, r)


BY_LENGTHS = Shares(1 / 6, 1 / 6, 1 / 10, absolute=True)
"""With which the published lengths come out; they add up to more than the budget."""


@dataclass(frozen=True)
class Literal:
    """What the printed mechanism returns, one entry a run.

    Attributes:
        estimate: Ratio estimate, not clipped.
        half: Half width of the printed interval.
        note_half: The same with less noise in the variance, as in the note's simulation.
        proposals: How many the sampler tried.
    """

    estimate: Tensor
    half: Tensor
    note_half: Tensor
    proposals: Tensor


class BalancingSum:
    """The unclipped balancing loss of the ATE of several runs: sum 1 + e^{-t g} - t g, t = 2z - 1, g = phi'theta."""

    def __init__(self, phi: Tensor, z: Tensor) -> None:
        self.phi, self.t = phi, 2 * z - 1

    def at(self, runs: Tensor) -> "BalancingSum":
        """Some of the runs."""
        return BalancingSum(self.phi[runs], (self.t[runs] + 1) / 2)

    def pulls(self, theta: Tensor) -> Tensor:
        """e^{-t g}, [runs, n, k], at theta [runs, k, d]."""
        return torch.exp((-self.t[:, :, None] * (self.phi @ theta.mT)).clamp_max(600))

    def gradient(self, theta: Tensor) -> Tensor:
        """The gradient, [runs, k, d]."""
        return (-self.t[:, :, None] * (self.pulls(theta) + 1)).mT @ self.phi

    def hessian(self, theta: Tensor) -> Tensor:
        """The Hessian, [runs, d, d], at theta [runs, d]."""
        return (self.phi * self.pulls(theta[:, None])).mT @ self.phi

    def minimiser(self) -> Tensor:
        """The minimiser, [runs, d]: damped Newton steps, for e^u grows by at most e while u grows by one."""
        theta = self.phi.new_zeros(len(self.phi), self.phi.shape[2])
        for _ in range(500):
            gradient = self.gradient(theta[:, None])[:, 0]
            if gradient.norm(dim=1).amax() <= 1e-8 * self.phi.shape[1]:
                return theta
            step = torch.linalg.solve(self.hessian(theta), gradient)
            most = (self.phi @ step[:, :, None]).abs().amax((1, 2))
            theta = theta - step / most.clamp_min(1)[:, None]
        raise RuntimeError("the balancing loss has no minimiser on these records: they can be separated")

    def least_gradient(self, hessian: Tensor, delta: Tensor, bound: float) -> Tensor:
        """A lower bound of ||gradient(theta + delta)||, [runs, k], from the Hessian [runs, d, d] at the minimiser.

        The gradient is at least delta'gradient(theta + delta) / ||delta||, a sum of e^{-t g} u (1 - e^{-u}), u = t
        phi'delta, and u (1 - e^{-u}) >= u^2 (1 - e^{-U}) / U where |u| <= U.
        """
        length = delta.norm(dim=2)
        most = bound * length
        return torch.einsum("rki,rij,rkj->rk", delta, hessian, delta) / length * (-torch.expm1(-most) / most)


def printed_sampler(
    total: BalancingSum, bound: float, eta: float, epsilon: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    r"""Draw from exp(-c max{||grad L(theta)||, lambda ||theta - theta_hat||}), c = epsilon eta / (4 C), by rejection.

    The printed envelope is exp(-c lambda ||theta - theta_hat||) with lambda = n eta / (1 - eta), accepted with
    probability exp(-c (||grad L|| - lambda ||.||)), or one where that is more: it is no envelope of the target.

    Args:
        total: The loss L.
        bound: C.
        eta: Clip, which only the constants see.
        epsilon: Nominal budget.
        generator: Of the noise.

    Returns:
        theta, [runs, d], and the number of proposals, [runs].
    """
    runs, n, d = total.phi.shape
    c, steep = epsilon * eta / (4 * bound), n * eta / (1 - eta)
    start, tried = total.minimiser(), torch.zeros(runs, dtype=torch.int64)
    hessian, found = total.hessian(start), start.clone()
    todo, at_once = torch.arange(runs), 1
    while len(todo):
        if tried.amax() > MOST_PROPOSALS:
            raise RuntimeError(f"the printed sampler accepts less than once in {MOST_PROPOSALS:,} proposals")
        shape = len(todo), at_once
        direction = torch.randn(*shape, d, generator=generator, dtype=torch.float64)
        length = torch.empty(*shape, d, dtype=torch.float64).exponential_(generator=generator).sum(2) / (c * steep)
        delta = direction / direction.norm(dim=2, keepdim=True) * length[:, :, None]
        most = steep * length - torch.rand(shape, generator=generator, dtype=torch.float64).log() / c
        hopeful = total.least_gradient(hessian[todo], delta, bound) <= most
        place = _first_accepted(total.at(todo), start[todo][:, None] + delta, most, hopeful)
        done = place < at_once
        rows = todo[done]
        found[rows] = start[rows] + delta[done, place[done]]
        tried[todo] += (place + 1).clamp_max(at_once)
        todo, at_once = todo[~done], min(MOST, 2 * at_once)
    return found, tried


def _first_accepted(total: BalancingSum, theta: Tensor, most: Tensor, hopeful: Tensor) -> Tensor:
    """Where the first proposal theta [runs, k, d] is whose gradient is at most ``most``, [runs]; k if there is none."""
    runs, k = most.shape
    place = torch.full((runs,), k)
    order = hopeful.double().argsort(dim=1, descending=True, stable=True)  # the hopeful first, in their order
    count = hopeful.sum(1)
    for first in range(0, int(count.amax()), LOOKED_AT):
        rows = ((place == k) & (count > first)).nonzero()[:, 0]
        if not len(rows):
            break
        at = order[rows, first : first + LOOKED_AT]
        chosen = theta[rows].gather(1, at[:, :, None].expand(-1, -1, theta.shape[2]))
        size = (total if len(rows) == runs else total.at(rows)).gradient(chosen).norm(dim=2)
        good = (size <= most[rows].gather(1, at)) & hopeful[rows].gather(1, at)
        place[rows] = torch.where(good, at, k).amin(1)
    return place


def literal(
    phi: Tensor,
    bound: float,
    z: Tensor,
    y: Tensor,
    eta: float,
    epsilon: float,
    generator: torch.Generator,
    shares: Shares = BY_LENGTHS,
) -> Literal:
    """Run the printed mechanism for the ATE on each data set. Not private.

    Args:
        phi: Features, [runs, n, d].
        bound: C, of their norms.
        z: Treatment, [runs, n].
        y: Outcome in [0, 1], [runs, n].
        eta: Clip.
        epsilon: Nominal budget.
        generator: Of the noise.
        shares: Of epsilon.
    """
    runs, n, _ = phi.shape
    theta, tried = printed_sampler(BalancingSum(phi, z), bound, eta, shares.stage_one * epsilon, generator)
    e = torch.sigmoid((phi @ theta[:, :, None])[:, :, 0]).clamp(eta, 1 - eta)
    sums = [(z * y / e).sum(1), (z / e).sum(1), ((1 - z) * y / (1 - e)).sum(1), ((1 - z) / (1 - e)).sum(1)]
    above, whole, below, rest = (total + laplace(runs, 1 / (shares.total * epsilon * eta), generator) for total in sums)
    variance = y.var(1) * (1 / (e * (1 - e))).sum(1) / n**2
    most, unit = 1 / (2 * n * eta), laplace(runs, 1.0, generator)
    extra = 1 / (2 * (epsilon * n * eta) ** 2)  # the paper's (15)
    noisy = variance + unit * most / (shares.variance * epsilon)
    positive = noisy.abs() + extra if shares.absolute else torch.where(noisy > 0, noisy, 1 / (4 * n * eta) + extra)
    note = (variance + unit * most / (NOTE_VARIANCE * epsilon)).abs() + extra
    half, note_half = 1.96 * positive.sqrt(), 1.96 * note.sqrt()
    return Literal(above / whole - below / rest, half, note_half, tried)


def laplace(size: int, scale: float, generator: torch.Generator) -> Tensor:
    """Laplace numbers of a generator whose seed is known: noise for a simulation, without any privacy."""
    first, second = torch.empty(2, size, dtype=torch.float64).exponential_(generator=generator)
    return scale * (first - second)


def hajek(phi: Tensor, z: Tensor, y: Tensor, eta: float = 0.0) -> tuple[Tensor, Tensor]:
    """The paper's estimator without privacy: estimates and half widths, [runs], V by the pooled sample variance.

    Args:
        phi: Features, [runs, n, d].
        z: Treatment, [runs, n].
        y: Outcome, [runs, n].
        eta: Clip of the fitted propensities; 0 leaves them as they are.
    """
    theta = BalancingSum(phi, z).minimiser()
    e = torch.sigmoid((phi @ theta[:, :, None])[:, :, 0]).clamp(eta, 1 - eta)
    means = [(w * y).sum(1) / w.sum(1) for w in (z / e, (1 - z) / (1 - e))]
    variance = y.var(1) * (1 / (e * (1 - e))).sum(1) / z.shape[1] ** 2
    return means[0] - means[1], 1.96 * variance.sqrt()
