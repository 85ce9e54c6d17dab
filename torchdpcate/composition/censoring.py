"""The private curve of censoring: noisy counts of one histogram, and the weights that follow from it."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdpcate.composition.steps import CENSORING, NoisySteps, Statistic, Summed, summed
from torchdpcate.data.censoring import Censoring, censoring_curve
from torchdpcate.data.records import CausalData
from torchdpcate.data.weights import times_weight
from torchdpcate.errors import InputError


def given_follow_up(batch: CausalData) -> Tensor:
    """Return time and event of a batch, [n, 2].

    Raises:
        InputError: There are none.
    """
    if batch.follow_up is None:
        raise InputError("records have no time and event, and the domain has an outcome by a horizon; give them")
    return batch.follow_up


@dataclass(frozen=True, eq=False)
class FollowUpCells(Statistic):
    r"""How many records' follow-up ends in each part of the horizon, [curves ((1 + kinds) bins + 1)], in one histogram.

    Of each curve: those with the event, by part; those with one that competes, where it gives another outcome; those
    without, by part; and those that were followed to the horizon. A record is in one cell, and a weighted one adds its
    weight there: two differ by at most :math:`\sqrt2`.

    Attributes:
        outcome: What is public of it.
        arms: Number of arms.
    """

    outcome: Censoring
    arms: int = 2

    @property
    def curves(self) -> int:
        """How many curves there are."""
        return self.arms if self.outcome.by_arm else 1

    @property
    def size(self) -> int:
        """Number of cells."""
        return self.curves * self.width

    @property
    def width(self) -> int:
        """Number of cells of a curve."""
        return (self.outcome.known_ends + 1) * self.outcome.bins + 1

    def moved(self) -> tuple[float, float, float]:
        return math.sqrt(2), 2, 1.0

    def __call__(self, batch: CausalData) -> Tensor:
        time, event = given_follow_up(batch).double().cpu().unbind(1)
        bins, horizon, kinds = self.outcome.bins, self.outcome.horizon, self.outcome.known_ends
        part = (time / horizon * bins).long().clamp(0, bins - 1)
        cell = part + bins * torch.where(event > 0.5, event.long().clamp(1, kinds) - 1, kinds)
        cell = torch.where((time >= horizon) & (event < 0.5), self.width - 1, cell)
        if self.outcome.by_arm:
            cell = cell + batch.a.cpu().long().clamp(0, self.arms - 1) * self.width
        weight = times_weight(torch.ones_like(time), batch).cpu()
        return summed(lambda at, own: torch.bincount(at, own, minlength=self.size), cell, weight)


@dataclass(frozen=True, eq=False)
class CountedByFollowUp:
    """Records in which those whose outcome is known count for those like them whose follow-up ended before.

    Attributes:
        outcome: What is public of it.
        counts: Of ``FollowUpCells``, released.
    """

    outcome: Censoring
    counts: Tensor

    @cached_property
    def curve(self) -> Tensor:
        """Survival of censoring at the ends of all parts, [curves, bins + 1]; straight between them."""
        return censoring_curve(self.counts, self.outcome.bins, self.outcome.known_ends)

    @property
    def floor(self) -> float:
        """The public floor, or the least released survival where that is larger: weights are in [0, 1] with either."""
        return max(self.outcome.floor, float(self.curve.min()))

    def __call__(self, batch: CausalData) -> CausalData:
        """Return a batch so, with weights in [0, 1]."""
        follow_up = given_follow_up(batch)
        known = self.outcome.observed(follow_up).to(follow_up)
        weight = known * self.floor / self.at(follow_up[:, 0], batch.a).clamp_min(self.floor)
        return replace(batch, weight=times_weight(weight, batch), follow_up=None)

    def at(self, time: Tensor, a: Tensor) -> Tensor:
        """Return the survival of censoring at times [n] in the horizon, of records with arms a [n], [n]."""
        bins = self.outcome.bins
        place = time / self.outcome.horizon * bins
        part = place.long().clamp(0, bins - 1)
        own = a.long().clamp(0, len(self.curve) - 1) if self.outcome.by_arm else torch.zeros_like(part)
        curve = self.curve.to(time)
        low, high = curve[own, part], curve[own, part + 1]
        return low + (high - low) * (place - part).clamp(0, 1)


def private_follow_up(rows: Summed, outcome: Censoring, arms: int, steps: NoisySteps) -> CountedByFollowUp:
    """Return how records count by a released curve of censoring.

    Args:
        rows: The records.
        outcome: What is public of it.
        arms: Number of arms.
        steps: Pays, and draws noise.
    """
    return CountedByFollowUp(outcome, steps.total(CENSORING, rows, FollowUpCells(outcome, arms)))
