"""Neighbouring records on which the sums of clipped doubly robust scores are attacked."""

import torch
from torch import Tensor

from torchdpcate.estimators.average.clipped_scores import clipped_sums, release_clipped
from torchdpcate.estimators.average.composed import ComposedAverageEffect
from torchdpcate.estimators.average.sum_and_squares import sums_mechanism
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, k_norm_evidence, worst_case

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


def _no_error(square: float) -> float:
    return 0.0


@worst_case(
    "clipped_scores",
    ComposedAverageEffect,
    pair="one record whose doubly robust score is clipped above, or below; the sums of scores and of squares are shown",
)
def _clipped_scores(budget: PrivacyBudget) -> Game:
    worlds = opposed_scores()
    exact = clipped_sums(worlds, _CENTRE, _CLIP)
    scale = sums_mechanism(_RECORDS, budget.epsilon).released_scale(2)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        session = FitSession(noise)
        found = release_clipped(worlds[world], _CENTRE, _CLIP, _no_error, budget.epsilon, session, runs).released
        return torch.stack([found["difference"], found["spread"] / 2], 1)

    ratio = k_norm_evidence(exact[1] - exact[0], scale, 1.0)
    claim = Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0))
    return Game(draw, PureEvent(budget.epsilon), claim, lambda shown: ratio(shown - exact[0]))
