"""Neighbours of a training block: which record leaves, and which comes instead."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import SelectionFacts

_NEIGHBOURS = 10  # among as many nearest records of its arm a rare record is far from the last
_PLACES = 256  # scoring records tried as places of a newcomer


@dataclass(frozen=True, eq=False)
class Replacements:
    """R neighbours of one training block: record ``index`` leaves and (x, arm, y) comes. The curator's.

    Attributes:
        index: Positions of the records that leave, int64 [R].
        x: Covariates of those that come, [R, q].
        arm: Positions of their actions, int64 [R].
        y: Their outcomes, [R].

    Example:
        >>> train = CausalData(torch.zeros(3, 1), torch.zeros(3), torch.zeros(3))
        >>> pair = Replacements(torch.tensor([1]), torch.ones(1, 1), torch.tensor([1]), torch.ones(1))
        >>> pair.neighbour(train, 0).y.tolist(), len(pair)
        ([0.0, 1.0, 0.0], 1)
    """

    index: Tensor
    x: Tensor
    arm: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Tensor | slice) -> "Replacements":
        return Replacements(self.index[rows], self.x[rows], self.arm[rows], self.y[rows])

    def neighbour(self, train: CausalData, k: int) -> CausalData:
        """Return the training block with replacement ``k`` made."""
        i = self.index[k : k + 1]
        return CausalData(
            train.x.index_copy(0, i, self.x[k : k + 1].to(train.x)),
            train.a.index_copy(0, i, self.arm[k : k + 1].to(train.a)),
            train.y.index_copy(0, i, self.y[k : k + 1].to(train.y)),
        )

    @staticmethod
    def join(parts: Sequence["Replacements"]) -> "Replacements":
        """Return all of them, one after the other."""
        fields = zip(*((part.index, part.x, part.arm, part.y) for part in parts), strict=True)
        return Replacements(*(torch.cat(field) for field in fields))


def random_neighbours(train: CausalData, score: CausalData, count: int, generator: torch.Generator) -> Replacements:
    """Neighbours that chance brings: any record leaves, any record of the same population comes.

    Args:
        train: The training block, its actions as positions.
        score: Records that newcomers are copies of.
        count: R.
        generator: Of the choice.
    """
    leavers = torch.randint(train.n, (count,), generator=generator)
    comers = score.subset(torch.randint(score.n, (count,), generator=generator))
    return Replacements(leavers, comers.x, comers.a.long(), comers.y)


def any_neighbours(
    train: CausalData, score: CausalData, facts: SelectionFacts, count: int, generator: torch.Generator
) -> Replacements:
    """Starts of a search: as by chance, but the newcomers have every action and end of the outcome in turn."""
    chance = random_neighbours(train, score, count, generator)
    arms, outcomes = _ends(facts)
    rows = torch.arange(count) % len(arms)
    return Replacements(chance.index, chance.x, arms[rows], outcomes[rows])


def targeted_neighbours(
    train: CausalData,
    score: CausalData,
    facts: SelectionFacts,
    propensity: Tensor,
    count: int,
    rare: Mapping[str, tuple[float, float]] | None = None,
) -> Replacements:
    """Neighbours where one record weighs most, of outcomes at the ends of their bounds.

    Half of them turn a rare record where it is to any action: records in the region that the user named, first those
    far from others of their arm and those whose own action is the least likely. The other half move the most common
    record to places where it would be the nearest of its new arm to most scoring records.

    Args:
        train: The training block, its actions as positions.
        score: The scoring block.
        facts: Public facts.
        propensity: Fitted propensities of the training records, [m, K].
        count: Most neighbours.
        rare: Intervals of covariates that make a region, by name.

    Raises:
        InputError: A region of unknown covariates, or without a scoring record.
    """
    inside = [in_region(block.x, facts.domain, rare) for block in (train, score)]
    isolation = _isolation(train, facts)
    combinations = 2 * facts.arms
    turned = _rarest(train, isolation, propensity, inside[0], max(1, math.ceil(count / 2 / combinations)))
    arms, outcomes = _ends(facts)
    repeat, each = len(turned), len(arms)
    here = Replacements(
        turned.repeat_interleave(each),
        train.x[turned].repeat_interleave(each, 0),
        arms.repeat(repeat),
        outcomes.repeat(repeat),
    )
    moved = _moved(train, score, facts, int(isolation.argmin()), inside[1], max(1, count - len(here)))
    return Replacements.join([here, moved])


def in_region(x: Tensor, domain: Domain, rare: Mapping[str, tuple[float, float]] | None) -> Tensor:
    """Return which records lie in all intervals, bool [n]; all of them where no region is named.

    Raises:
        InputError: A covariate that the domain does not have.
    """
    inside = torch.ones(len(x), dtype=torch.bool)
    for name, (low, high) in (rare or {}).items():
        if name not in domain.names:
            raise InputError(f"rare: {name!r} is no covariate; the domain has {', '.join(domain.names[:12])}")
        column = x[:, domain.names.index(name)]
        inside &= (column >= low) & (column <= high)
    return inside


def _ends(facts: SelectionFacts) -> tuple[Tensor, Tensor]:
    """Every action with either end of the outcome's bounds: [2 K] each."""
    ends = torch.tensor([facts.domain.outcome_low, facts.domain.outcome_high], dtype=torch.float64)
    return torch.arange(facts.arms).repeat_interleave(2), ends.repeat(facts.arms)


def _isolation(train: CausalData, facts: SelectionFacts) -> Tensor:
    """Distance [m] of each record to the farthest of its nearest records of the same arm, covariates scaled."""
    from sklearn.neighbors import NearestNeighbors

    x = facts.domain.scale(train.x).numpy()
    far = torch.full((train.n,), math.inf, dtype=torch.float64)
    for arm in range(facts.arms):
        own = torch.nonzero(train.a == arm)[:, 0]
        if len(own) > 1:
            nearest = NearestNeighbors(n_neighbors=min(_NEIGHBOURS, len(own) - 1)).fit(x[own])
            far[own] = torch.from_numpy(nearest.kneighbors()[0][:, -1])
    return far


def _rarest(train: CausalData, isolation: Tensor, propensity: Tensor, inside: Tensor, count: int) -> Tensor:
    """Positions of at most ``count`` rare records, by both measures in turn."""
    candidates = torch.nonzero(inside)[:, 0] if bool(inside.any()) else torch.arange(train.n)
    own = propensity[candidates].gather(1, train.a[candidates].long()[:, None])[:, 0]
    orders = [isolation[candidates].argsort(descending=True), own.argsort()]
    alternating = candidates[torch.stack(orders, 1).flatten()].tolist()
    return torch.tensor(list(dict.fromkeys(alternating))[:count])


def _moved(
    train: CausalData, score: CausalData, facts: SelectionFacts, leaver: int, inside: Tensor, count: int
) -> Replacements:
    """The most common record moved to the places of the largest reach."""
    if not bool(inside.any()):
        raise InputError("rare: no scoring record lies in the region; widen it")
    candidates = torch.nonzero(inside)[:, 0]
    places = candidates[torch.linspace(0, len(candidates) - 1, min(_PLACES, len(candidates))).long()]
    reach = torch.stack([_reachable(train, score, facts, places, arm) for arm in range(facts.arms)])
    order = reach.flatten().argsort(descending=True)[: math.ceil(count / 2)].repeat_interleave(2)[:count]
    ends = torch.tensor([facts.domain.outcome_low, facts.domain.outcome_high], dtype=torch.float64)
    return Replacements(
        torch.full((len(order),), leaver),
        score.x[places[order % len(places)]],
        order // len(places),
        ends.repeat(math.ceil(len(order) / 2))[: len(order)],
    )


def _reachable(train: CausalData, score: CausalData, facts: SelectionFacts, places: Tensor, arm: int) -> Tensor:
    """Scoring records [P] to which a newcomer of this arm at each place would be nearer than any that it has."""
    from sklearn.neighbors import NearestNeighbors

    x, own = facts.domain.scale(score.x), facts.domain.scale(train.x[train.a == arm])
    if len(own) == 0:
        return torch.full((len(places),), score.n)
    nearest = torch.from_numpy(NearestNeighbors(n_neighbors=1).fit(own.numpy()).kneighbors(x.numpy())[0][:, 0])
    return torch.stack([(torch.linalg.vector_norm(x - x[place], dim=1) < nearest).sum() for place in places])
