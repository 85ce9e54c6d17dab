"""Neighbouring records on which the sums of clipped doubly robust scores are attacked."""

import torch
from torch import Tensor

from torchdpcate.estimators.average.clipped_scores import clipped_sums, noise_of
from torchdpcate.estimators.average.composed import ComposedAverageEffect
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.worst_case import Game, worst_case

_CENTRE, _CLIP, _RECORDS = 0.1, 0.3, 50
_FAR = 10.0  # of a score


def opposed_scores() -> Tensor:
    """Return the scores of both worlds, [2, n]: one record's is far above all others', or far below.

    Example:
        >>> sums = clipped_sums(opposed_scores(), _CENTRE, _CLIP)
        >>> (sums[1] - sums[0]).tolist()
        [2.0, 0.0]
    """
    scores = torch.full((2, _RECORDS), _CENTRE, dtype=torch.float64)
    scores[:, 0] = torch.tensor([-_FAR, _FAR])
    return scores


@worst_case(
    "clipped_scores",
    ComposedAverageEffect,
    pair="one record whose doubly robust score is clipped above, or below; the sums of scores and of squares are shown",
)
def _clipped_scores(budget: PrivacyBudget) -> Game:
    exact = clipped_sums(opposed_scores(), _CENTRE, _CLIP)
    law = noise_of(_RECORDS, budget.epsilon)
    claim = Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0))
    return Game(
        draw=lambda world, runs, noise: law.draw(noise, runs, exact[world]),
        event=law.event,
        guarantee=claim,
        evidence=law.evidence(*exact),
    )
