"""The private curve of censoring: noisy counts of one histogram, and the weights that follow from it."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdpcate.composition.steps import CENSORING, NoisySteps, Statistic, Summed, summed
from torchdpcate.data.censoring import Censoring
from torchdpcate.data.records import CausalData
from torchdpcate.data.weights import times_weight
from torchdpcate.errors import InputError

_MOST_HAZARD = 0.9  # of one part of the horizon: what noise says of few records
_DRAWS = 200


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


def censoring_curve(counts: Tensor, bins: int, kinds: int = 1) -> Tensor:
    r"""Return the survival of censoring at the ends of all parts, [curves, bins + 1]: Kaplan-Meier of counts.

    .. math:: h_k = \mathrm{clip}\Big(\frac{c_k}{r_k - e_k / 2},\; 0, .9\Big), \qquad G_k = \prod_{j < k} (1 - h_j)

    with c those whose follow-up ended in part k without an event, e those with one, which count half, and r all that
    were followed into it.

    Args:
        counts: Of ``FollowUpCells``, with noise or without.
        bins: Parts of the horizon.
        kinds: Of events.

    Example:
        >>> counts = torch.tensor([0.0, 10.0, 20.0, 0.0, 70.0]).double()
        >>> censoring_curve(counts, 2).tolist()
        [[1.0, 0.8, 0.8]]
    """
    events, censored, beyond = counts.reshape(-1, (kinds + 1) * bins + 1).split([kinds * bins, bins, 1], 1)
    events = events.unflatten(1, (kinds, bins)).sum(1)
    at_risk = (events + censored).flip(1).cumsum(1).flip(1) + beyond
    hazard = (censored / (at_risk - events / 2).clamp_min(1)).clamp(0, _MOST_HAZARD)
    return torch.cat([torch.ones_like(beyond), (1 - hazard).cumprod(1)], 1)


def curve_errors(counts: Tensor, outcome: Censoring, noise: float, arms: int = 2) -> Tensor:
    r"""Return what noise in the curves does to the difference of each arm and the first, [arms - 1]; post-processing.

    It is the root mean square, over draws of fixed seed, of the change of

    .. math:: \hat\mu_a = \frac{\sum_k n_{ak}\, y_k / G_a(t_k)}{\sum_k n_{ak} / G_a(t_k)}

    where the curves are made of counts with as much noise again, and the n, of events in the middle of their parts and
    of those followed to the horizon, stay. One curve of all arms moves each of their means as much as that of all.

    Args:
        counts: Of ``FollowUpCells``, released.
        outcome: What is public of it.
        noise: Standard deviation of a count's noise.
        arms: Number of arms.

    Example:
        >>> counts = torch.tensor([10.0, 10.0, 20.0, 0.0, 60.0] * 2).double()
        >>> outcome = Censoring("t", "d", 2.0, "event_by_horizon", bins=2)
        >>> curve_errors(counts, outcome, 0.0).tolist()
        [0.0]
    """
    bins, kinds, random = outcome.bins, outcome.known_ends, torch.Generator().manual_seed(0)
    draws = noise * torch.randn(_DRAWS, len(counts), generator=random, dtype=torch.float64)
    curves = censoring_curve(torch.cat([counts[None], counts + draws]), bins, kinds).clamp_min(outcome.floor)
    counts = counts.clamp_min(0).reshape(-1, (kinds + 1) * bins + 1)
    events, _, beyond = counts.split([kinds * bins, bins, 1], 1)
    known = torch.cat([events, beyond], 1)
    middles = (torch.arange(bins, dtype=torch.float64) + 0.5) * outcome.horizon / bins
    ends = torch.cat([middles.repeat(kinds), middles.new_tensor([outcome.horizon])])
    kind = torch.cat([torch.arange(1.0, kinds + 1).repeat_interleave(bins), torch.zeros(1)])
    y = outcome.outcome(torch.stack([ends, kind.double()], 1))
    at = torch.cat([(curves[:, :-1] + curves[:, 1:]).repeat(1, kinds) / 2, curves[:, -1:]], 1)
    at = at.view(_DRAWS + 1, *known.shape)
    means = (known / at @ y) / (known / at).sum(2).clamp_min(1)
    change = means[1:] - means[:1]
    change = change[:, 1:] - change[:, :1] if outcome.by_arm else change.expand(-1, arms - 1)
    return change.square().mean(0).sqrt()


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
