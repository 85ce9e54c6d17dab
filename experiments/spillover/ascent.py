"""Gradient ascent to worse neighbours, for learners whose refits are differentiable in the record that comes."""

import torch
from torch import Tensor

from experiments.spillover.refits import Refits
from experiments.spillover.replacements import Replacements

_STEPS = 40
_NUMBERS = 2**20  # probabilities of neighbours differentiated at once
_FIRST_STEP, _LAST_STEP = 0.2, 0.01  # of Adam, covariates scaled to [-1, 1]


def ascend(refits: Refits, start: Replacements, delta: Tensor) -> Replacements:
    r"""Move newcomers within the domain to where they pull two policies' utilities farthest apart.

    The two are those that a known neighbour moves farthest up and down, so that many policies cost no more than two:

    .. math:: \max_x \sum_i \big[\phi'_i(\pi_+(x_i)) - \phi'_i(\pi_-(x_i))\big]

    where :math:`\phi'` has the nuisances refitted to the neighbour. Its gradient is that of the minimisers by the
    implicit function theorem: Newton steps of the refit, differentiated in the newcomer.

    Args:
        refits: The learner; ``refits.batched``.
        start: Neighbours to start from; the actions, outcomes and records that leave stay.
        delta: DeltaU of the known neighbour, [M].

    Returns:
        As many neighbours.
    """
    domain = refits.facts.domain
    low, width = domain.covariate_low, domain.covariate_high - domain.covariate_low
    decisions = torch.cat(
        [refits.library.one(int(k)).decide(refits.score.x) for k in (delta.argmax(), delta.argmin())], 1
    )
    plus, minus = torch.nn.functional.one_hot(decisions.long(), refits.facts.arms).double().unbind(1)
    rows = max(1, _NUMBERS // (max(refits.train.n, refits.score.n) * refits.facts.arms))
    unit = domain.scale(start.x).requires_grad_()
    optimizer = torch.optim.Adam([unit], lr=_FIRST_STEP)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        for first in range(0, len(start), rows):  # what is differentiated is kept in memory
            batch = slice(first, first + rows)
            moved = Replacements(
                start.index[batch], low + (unit[batch] + 1) / 2 * width, start.arm[batch], start.y[batch]
            )
            (-((plus - minus) * refits.scores(refits.fits(moved))).sum() / refits.score.n).backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= (_LAST_STEP / _FIRST_STEP) ** (1 / _STEPS)
        with torch.no_grad():
            unit.clamp_(-1, 1)
    x = domain.clip_covariates(low + (unit.detach() + 1) / 2 * width)
    return Replacements(start.index, x, start.arm, start.y)
