"""Scores of policies: the range of their sums, gains by composed scores, utilities."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.causal.score import dr_scores
from torchdpcate.composition.records import ComposedFit
from torchdpcate.composition.regressions import arm_means, centred_arms
from torchdpcate.composition.steps import propensity_of
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.weighted_basis import simplex
from torchdpcate.privacy.exact_sums import sum_grid

FEWEST = 8
"""Records from which on a step of the scores' grid is 2^-48 of the largest score, above what float64 is off by."""


def clipped_range(n: int, clip: float) -> float:
    """Return the range sensitivity of n gains within [-clip, clip] that are rounded to the grid of their sums.

    One record moves two policies apart by 2 C; each of its gains before and after is rounded by half a step at most,
    for either policy, and a step is for the last places.

    Args:
        n: Number of records.
        clip: C.
    """
    return 2 * clip + 3 * sum_grid(max(n, FEWEST), clip)


def score_step(n: int, domain: Domain, overlap: float) -> float:
    """Return the grid of the sums of n scores within R (1/2 + 1/zeta) of the middle of the outcome's bounds R.

    Args:
        n: Number of records.
        domain: Public bounds.
        overlap: zeta.
    """
    return sum_grid(max(n, FEWEST), domain.outcome_range * (0.5 + 1 / overlap))


def rounded_range(bound: float, n: int, domain: Domain, overlap: float) -> float:
    """Return the range sensitivity of sums of rounded scores.

    A number is rounded by half a step at most: two policies, two neighbours; and a step for their last places.

    Args:
        bound: Of the scores as they are.
        n: Number of records.
        domain: Public bounds.
        overlap: zeta.
    """
    return bound + 3 * score_step(n, domain, overlap)


class Scores(NamedTuple):
    """Doubly robust scores of all actions before their clip; the curator's.

    Attributes:
        values: By action, float64 [n, K], each record's up to a constant of its own.
        own: Positions of the actions that the records got, int64 [n].
        first: Of the first action as it is, [n].
    """

    values: Tensor
    own: Tensor
    first: Tensor

    @property
    def sizes(self) -> Tensor:
        """How far each record's scores of two actions lie apart at most, [n]."""
        return self.values.amax(1) - self.values.amin(1)

    def gains(self, clip: float) -> Tensor:
        """Return by what each action but the first is better, [n, K - 1], of ``clipped`` scores.

        Args:
            clip: C.
        """
        values = clipped(self.values, self.own, clip)
        return (values[:, 1:] - values[:, :1]).clamp(-clip, clip)


def clipped(values: Tensor, own: Tensor, clip: float) -> Tensor:
    r"""Return scores of which those of two actions lie at most C apart, [n, K].

    Scores of the actions that a record did not get, which are released functions of its covariates, are clipped to C/2
    about their middle; that of its own to within C of all of them. Of two actions it clips their difference to
    :math:`\pm C`.

    Args:
        values: Scores [n, K].
        own: Positions of the actions that the records got, int64 [n].
        clip: C.

    Example:
        >>> clipped(torch.tensor([[0.0, 1.0, 9.0]]).double(), torch.tensor([2]), 4.0).tolist()
        [[-0.5, 0.5, 3.5]]
    """
    at = own[:, None]
    inside = values.scatter(1, at, torch.inf).amin(1, keepdim=True)
    middle = (inside + values.scatter(1, at, -torch.inf).amax(1, keepdim=True)) / 2
    others = (values - middle).clamp(-clip / 2, clip / 2)
    low = others.scatter(1, at, -torch.inf).amax(1, keepdim=True) - clip
    high = others.scatter(1, at, torch.inf).amin(1, keepdim=True) + clip
    mine = torch.minimum(torch.maximum(values.gather(1, at) - middle, low), high)
    return others.scatter(1, at, mine)


def scores_of(fit: ComposedFit, records: CausalData, domain: Domain) -> Scores:
    """Return the doubly robust scores that a composition's released numbers make of records.

    Args:
        fit: What the composition found.
        records: A batch of its records, actions as positions.
        domain: Public bounds.
    """
    bound, u, worked = domain.outcome_range, domain.scale(records.x), fit.nuisances(records)
    m, pi = worked.outcome, propensity_of(worked)
    psi, theta = fit.features(u), fit.effect.shrunk
    if pi.ndim == 1:
        tau = (psi @ theta).clamp(-bound, bound)
        a = records.a
        residual = records.y - m - (a - pi) * tau
        gain = tau + (a - pi) / (pi * (1 - pi)) * residual
        first = m - pi * tau + (1 - a) / (1 - pi) * residual
        return Scores(torch.stack([torch.zeros_like(gain), gain], 1), a.long(), first)
    functions = (psi @ theta.reshape(-1, psi.shape[1]).T).clamp(-bound, bound)
    means = arm_means(m, functions, centred_arms(simplex(pi.shape[1]), pi))
    values = dr_scores(records.a.long(), records.y, pi, means)
    return Scores(values, records.a.long(), values[:, 0])


def gains_as_scores(gains: Tensor) -> Tensor:
    """Return scores of all actions, [n, K], of which the first is nothing, of gains [n, K - 1]."""
    return torch.cat([torch.zeros_like(gains[:, :1]), gains], 1)


_BLOCK = 2**21  # decisions in memory at once: some MB, which larger caches hold


def utilities(scores: Tensor, library: PolicyLibrary, x: Tensor) -> Tensor:
    r"""Return the sum of each policy's scores.

    .. math::
        U(\pi) = \sum_i \phi_i(\pi(x_i))
        = \sum_i \phi_i(0) + \sum_{a \ge 1} \sum_i 1\{\pi(x_i) = a\} (\phi_i(a) - \phi_i(0))

    one matrix product for each block of records and action but the first. Decisions of two million pairs of record and
    policy are in memory at once, however many there are.

    Args:
        scores: phi, float64 [..., n, K]; leading dimensions are nuisances side by side. On the grid of
            ``sum_grid(n, bound)`` all sums are exact; float32 would not do.
        library: The policies, set up on the domain.
        x: Encoded covariates [n, q].

    Returns:
        U, float64 [..., M]. The curator's.

    Raises:
        InputError: Scores and covariates of different records, or scores that are not float64.

    Example:
        >>> from torchdpcate.candidates.kinds import Thresholds
        >>> from torchdpcate.candidates.library import PolicyLibrary
        >>> from torchdpcate.data.domain import Domain
        >>> library = PolicyLibrary.of(Thresholds("x0", [0.3, 0.6])).setup(Domain([0.0], [1.0], -1, 1), (0, 1))
        >>> scores = torch.tensor([[0.0, 1.0], [0.0, 4.0]], dtype=torch.float64)
        >>> utilities(scores, library, torch.tensor([[0.5], [0.9]], dtype=torch.float64)).tolist()
        [5.0, 4.0]
    """
    if scores.dtype != torch.float64 or scores.shape[-2] != len(x):
        raise InputError(
            f"scores: {str(scores.dtype).removeprefix('torch.')} of shape {list(scores.shape)} for {len(x)} records; "
            "they must be float64, a row for each record"
        )
    gains = (scores[..., 1:] - scores[..., :1]).movedim(-1, 0)
    total = scores[..., 0].sum(-1, keepdim=True).repeat_interleave(len(library), -1)
    block = max(1, _BLOCK // len(library))
    for start in range(0, len(x), block):
        rows = slice(start, start + block)
        decisions = library.decide(x[rows])
        for action, gain in enumerate(gains, start=1):
            total += gain[..., rows] @ (decisions == action).double()
    return total
