"""Sums of doubly robust scores that a composition ends in: what they request of the records, and at which noise."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.regressions import WorkedOut, arm_means, centred_arms
from torchdpcate.composition.rows import Rows
from torchdpcate.composition.steps import LINE_SQUARES, LINE_SUMS, NoisySteps, Statistic, propensity_of, summed
from torchdpcate.data.records import CausalData
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.fit.weighted_basis import simplex
from torchdpcate.release.averages import SLOPE, LineFacts, LineNumbers, Ruled, powers, tilts_of

_GRID = 4097  # propensities at which weights are looked at


@dataclass(frozen=True, eq=False, repr=False)
class Scored(CausalData):
    """Records with a score in the place of the outcome; the curator's.

    Attributes:
        effect: Released effect less the centre, [n].
        cells: Cell of each public partition, counted from 0 in each, int64 [n, partitions].
        lacks: What share of the weight of the reference, and of the arm, the overlap makes up for, [n, 2] in [0, 1].
    """

    effect: Tensor = field(kw_only=True)
    cells: Tensor = field(kw_only=True)
    lacks: Tensor = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class ScoredBy:
    r"""Makes scores of residuals: by a released effect, about a released centre.

    .. math:: x = \hat\tau - c + \frac{w\,(r - w \hat\tau)}{\hat e (1 - \hat e)}, \quad w = a - \hat e,\ r = y - \hat m

    Attributes:
        features: From encoded covariates to features of the effect.
        coefficients: Of them, [1 + p].
        bound: Largest size of an effect.
        centre: c.
        cells: Public cells of encoded covariates; None where there are none.
    """

    features: Callable[[Tensor], Tensor]
    coefficients: Tensor
    bound: float
    centre: float
    cells: Subgroups | None = None

    def effect(self, psi: Tensor) -> Tensor:
        """Return effects at features [n, 1 + p], [n]."""
        return (psi @ self.coefficients).clamp(-self.bound, self.bound)

    def __call__(self, batch: CausalData) -> Scored:
        assert isinstance(batch, WorkedOut)
        pi, tau, lacks = propensity_of(batch), self.effect(self.features(batch.x)), batch.lacks
        x = tau - self.centre + batch.a / (pi * (1 - pi)) * (batch.y - batch.a * tau)
        cells = torch.empty(batch.n, 0, dtype=torch.int64)
        if self.cells is not None:
            cells = torch.stack([partition.positions(batch.x) for partition in self.cells.partitions], 1)
        return _scored(batch.a, x, pi, tau - self.centre, batch.weight, cells, lacks)


@dataclass(frozen=True, eq=False)
class ArmScoredBy(ScoredBy):
    r"""Makes scores of one of more than two arms against the reference, about a released centre.

    .. math:: x = \mu_k - \mu_0 - c + \Big(\frac{1\{a = k\}}{\pi_k} - \frac{1\{a = 0\}}{\pi_0}\Big)(y - \mu_a)

    with the means of ``arm_means``.

    Attributes:
        arm: k.
    """

    arm: int = field(kw_only=True)

    def __call__(self, batch: CausalData) -> Scored:
        assert isinstance(batch, WorkedOut)
        pi, a, lacks = propensity_of(batch), batch.a.long(), batch.lacks[:, [0, self.arm]]
        functions = self.features(batch.x) @ self.coefficients.view(pi.shape[1] - 1, -1).T
        means = arm_means(torch.zeros_like(batch.y), functions, centred_arms(simplex(pi.shape[1]), pi))
        tau = (means[:, self.arm] - means[:, 0]).clamp(-self.bound, self.bound)
        mean = means.gather(1, a[:, None])[:, 0]
        sign = (a == self.arm).double() / pi[:, self.arm] - (a == 0).double() / pi[:, 0]
        score, cells = tau - self.centre + sign * (batch.y - mean), torch.empty(batch.n, 0, dtype=torch.int64)
        return _scored(sign, score, pi[:, self.arm], tau - self.centre, batch.weight, cells, lacks)


def weighted(batch: CausalData, each: Tensor) -> Tensor:
    """Return what each record adds, [n] or [n, d], times its weight."""
    if batch.weight is None:
        return each
    return each * batch.weight.view(-1, *[1] * (each.ndim - 1))


@dataclass(frozen=True, eq=False)
class Squares(Statistic):
    """The sum of squared scores over the square of a far clip: each in [0, 1].

    Attributes:
        clip: Of scores, outcome units.
    """

    clip: float

    def moved(self) -> tuple[float, float, float]:
        return 1.0, 1, 1.0

    def __call__(self, batch: CausalData) -> Tensor:
        return weighted(batch, (batch.y / self.clip).clamp(-1, 1)).square().sum()[None]


@dataclass(frozen=True)
class Block:
    """Numbers of one line, or of a partition of the records: some of what ``LineSums`` requests.

    Attributes:
        name: Of the block.
        size: How many numbers it has.
        sensitivity: How far one record moves them together, in the l2 norm, in the units of ``of``.
        of: From records to the numbers of each, [n, size].
        part: Of the mu^2 of all sums.
    """

    name: str
    size: int
    sensitivity: float
    of: Callable[[Scored], Tensor]
    part: float

    def unit(self, share: float) -> float:
        """Return what the block's numbers are divided by, where all parts add up to ``share``."""
        return self.sensitivity / math.sqrt(self.part / share)


@dataclass(frozen=True, eq=False)
class LineSums(Statistic):
    r"""Sums of all blocks as one vector, whose sensitivity is one.

    A record moves block b by at most :math:`\Delta_b`; divided by :math:`\Delta_b / \sqrt{p_b}` with parts that add up
    to one, it moves all of them by at most :math:`(\sum_b p_b)^{1/2} = 1`.

    Attributes:
        blocks: What is summed.
    """

    blocks: tuple[Block, ...]

    @property
    def share(self) -> float:
        """Sum of the parts."""
        return math.fsum(block.part for block in self.blocks)

    def moved(self) -> tuple[float, float, float]:
        return 1.0, math.sqrt(sum(block.size for block in self.blocks)), 1.0

    def __call__(self, batch: CausalData) -> Tensor:
        assert isinstance(batch, Scored)

        def terms(*columns: Tensor) -> Tensor:
            rows = _scored(*columns)
            found = [weighted(rows, block.of(rows)) / block.unit(self.share) for block in self.blocks]
            return torch.cat(found, 1).sum(0)

        weight = torch.ones_like(batch.y) if batch.weight is None else batch.weight
        return summed(terms, batch.a, batch.y, propensity_of(batch), batch.effect, weight, batch.cells, batch.lacks)

    def parts(self, sums: Tensor) -> Iterator[tuple[Block, Tensor]]:
        """Yield each block with its released numbers, in its units; the first blocks, where only those are there."""
        for block in self.blocks:
            part, sums = sums[: block.size], sums[block.size :]
            if len(part) < block.size:
                return
            yield block, part * block.unit(self.share)

    @property
    def units(self) -> dict[str, float]:
        """What each block's numbers are divided by, by its name."""
        return {block.name: block.unit(self.share) for block in self.blocks}


def _scored(
    a: Tensor, y: Tensor, pi: Tensor, effect: Tensor, weight: Tensor | None, cells: Tensor, lacks: Tensor
) -> Scored:
    return Scored(y.new_empty(len(y), 0), a, y, pi, weight=weight, effect=effect, cells=cells, lacks=lacks)


# -- terms of records


@dataclass(frozen=True, eq=False)
class Parts:
    """Disjoint cells of the records: by their released effect, or a public partition.

    Attributes:
        name: Of them.
        size: How many.
        cuts: Effects less the centre that separate the cells, ascending; None of a public partition ...
        place: ... and its position among these.
    """

    name: str
    size: int
    cuts: Tensor | None = None
    place: int = 0

    def of(self, rows: Scored) -> Tensor:
        """Return which cell each record is in, [n, size]."""
        if self.cuts is None:
            labels = rows.cells[:, self.place]
        else:
            labels = torch.bucketize(rows.effect.contiguous(), self.cuts.to(rows.effect.device), right=True)
        return torch.nn.functional.one_hot(labels, self.size).double()


BY_EFFECT, OVERLAP = "by effect", "overlap"


def parts_of(plan: ComposedPlan, facts: LineFacts) -> tuple[Parts, ...]:
    """Return the partitions of which a plan has lines: cells by effect, and public ones."""
    cuts = cuts_of(plan, facts)
    found = [Parts(BY_EFFECT, len(cuts) + 1, cuts)] if len(cuts) else []
    public = () if plan.cells is None else plan.cells.partitions
    return (*found, *(Parts(f"cells {place}", one.size, None, place) for place, one in enumerate(public)))


def clipped(clip: float, rows: Scored) -> Tensor:
    """Return scores within the clip, [n]."""
    return rows.y.clamp(-clip, clip)


def total_terms(clip: float, rows: Scored) -> Tensor:
    """Return the scores of all records, [n, 1]."""
    return clipped(clip, rows)[:, None]


def cell_terms(parts: Parts, clip: float, power: int, rows: Scored) -> Tensor:
    """Return scores, or their squares, by cells, [n, K]."""
    return parts.of(rows) * clipped(clip, rows).pow(power)[:, None]


def tail_terms(clip: float, rows: Scored) -> Tensor:
    """Return in which bin a score lies, [n, 4]: near and beyond the clip on both sides."""
    x = rows.y / clip
    return torch.stack([(x > 0.5) & (x <= 1), x > 1, (x < -0.5) & (x >= -1), x < -1], 1).double()


def lacking_terms(parts: Parts | None, rows: Scored) -> Tensor:
    """Return what share of either arm's weight the overlap makes up for, 1 at most, [n, 2] or by cells [n, 2 K]."""
    reference, arm = rows.lacks.clamp(0, 1).unbind(1)
    lacks = torch.stack([reference, torch.minimum(arm, 1 - reference)], 1)
    return lacks if parts is None else (parts.of(rows)[:, :, None] * lacks[:, None]).flatten(1)


def tilt(name: str, e: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`h = e^a (1 - e)^b` and its slope at propensities e, of their shape.

    Args:
        name: Of the average of people weighted by it.
        e: Propensities.
    """
    of = powers(name)
    assert of is not None
    a, b = of
    return e**a * (1 - e) ** b, a * e ** (a - 1) * (1 - e) ** b - b * e**a * (1 - e) ** (b - 1)


def largest_weight(name: str, low: float, high: float) -> float:
    r"""Return the largest :math:`h + h' (a - e)` of a record with a propensity within bounds.

    Args:
        name: As of ``tilt``.
        low: Least propensity.
        high: Largest propensity.

    Example:
        >>> [round(largest_weight(name, 0.1, 0.9), 4) for name in ("ATT", "ATO", "beta:0.5:0.5")]
        [1.0, 0.81, 1.5]
    """
    e = torch.linspace(low, high, _GRID, dtype=torch.float64)
    h, slope = tilt(name, e)
    return float(torch.maximum(h + slope * (1 - e), h - slope * e).max())


def tilt_terms(name: str, clip: float, most: float, rows: Scored) -> Tensor:
    r"""Return the efficient score of a tilted average over twice its clip, and what it is divided by, [n, 2].

    .. math:: s = h\,x + h' (a - e)(\tau - c), \qquad d = h + h' (a - e)

    The second is within [0, 1], over the largest there is.
    """
    w, (h, slope) = rows.a, tilt(name, propensity_of(rows))
    score = (h * rows.y + slope * w * rows.effect).clamp(-clip, clip)
    return torch.stack([score / (2 * clip), (h + slope * w).clamp(0, most) / most], 1)


def slope_terms(deviation: float, clip: float, rows: Scored) -> Tensor:
    """Return scores times effects, and squared effects, each over what one record moves it, [n, 2]."""
    g = (rows.effect / deviation).clamp(-2, 2)
    return torch.stack([g * clipped(clip, rows) / (4 * clip), g.square() / 4], 1)


# -- what a plan requests


def cuts_of(plan: ComposedPlan, facts: LineFacts) -> Tensor:
    """Return effects less the centre that separate cells by effect, ascending, [K - 1]: of groups, and of a rule."""
    cuts = facts.cuts - facts.centre
    if facts.rule is not None and facts.effect_deviation > 0:
        cuts = torch.cat([cuts, cuts.new_tensor([facts.rule.at - facts.centre])])
    return cuts.unique(sorted=True)


def line_blocks(plan: ComposedPlan, facts: LineFacts, clip: float) -> tuple[Block, ...]:
    """Return what is summed over the scores, at their clip.

    The average, each partition, each tilted average and the slope have equal parts of what tails and the spreads of
    cells leave; of a partition's part a tenth is for counts. Where the propensity is estimated a small part says how
    much of it the overlap makes up for, half of which is for cells.

    Args:
        plan: The public plan.
        facts: Released.
        clip: C, outcome units.
    """
    own, partitions = plan.line_constants, parts_of(plan, facts)
    tilts = tilts_of(plan.requested_lines)
    slope = SLOPE in plan.requested_lines and facts.effect_deviation > 0
    rest = 1 - own.tails - own.spreads * bool(partitions) - own.overlap * (not plan.known_propensity)
    each = rest / (1 + len(partitions) + len(tilts) + slope)
    one = math.sqrt(2)  # record leaves a cell, and one enters
    blocks = [
        Block("total", 1, 2 * clip, partial(total_terms, clip), each),
        Block("tails", 4, one, partial(tail_terms, clip), own.tails),
    ]
    if not plan.known_propensity:
        half = own.overlap / (2 if partitions else 1)
        blocks.append(Block(OVERLAP, 2, one, partial(lacking_terms, None), half))
    for cells in partitions:
        sums, squares = (partial(cell_terms, cells, clip, power) for power in (1, 2))
        share, name, k = 1 / len(partitions), cells.name, cells.size
        blocks += [
            Block(f"{name}: scores", k, 2 * clip, sums, (1 - own.counts) * each),
            Block(f"{name}: counts", k, one, cells.of, own.counts * each),
            Block(f"{name}: squares", k, one * clip**2, squares, share * own.spreads),
        ]
        if not plan.known_propensity:
            lacks = partial(lacking_terms, cells)
            blocks.append(Block(f"{name}: {OVERLAP}", 2 * k, one, lacks, share * own.overlap / 2))
    for name, (size, most) in zip(tilts, facts.tilts.tolist(), strict=True):
        of = partial(tilt_terms, name, tilted_clip(facts, size, clip), most)
        blocks.append(Block(name, 2, math.sqrt(2), of, each))
    if slope:
        blocks.append(Block(SLOPE, 2, math.sqrt(2), partial(slope_terms, facts.effect_deviation, clip), each))
    return tuple(blocks)


def tilted_clip(facts: LineFacts, size: float, clip: float) -> float:
    """Return the clip of a tilted average's scores: as many of their deviations as that of scores has.

    Args:
        facts: Released.
        size: Mean of h^2 / (e (1 - e)).
        clip: Of scores.
    """
    return clip * math.sqrt(size / facts.inverse)


def far_clip(plan: ComposedPlan, facts: LineFacts) -> float:
    """Return the clip of scores in their squares, which the clip of their sums follows from; outcome units."""
    least, usual, first, second = plan.line_constants.far
    size = plan.line_size
    wide = usual * max(least / usual, min(math.sqrt(size / first), 1.0), math.sqrt(size / second))
    far = wide * facts.deviation
    return min(far, 1.05 * facts.largest) if plan.reaches_bounds else far


def score_deviation(plan: ComposedPlan, facts: LineFacts, square: float) -> float:
    """Return the deviation of scores by their released squares, within a factor of the planned one; outcome units."""
    far = math.sqrt(facts.hidden) * far_clip(plan, facts)
    return float(min(max(math.sqrt(max(square, 0.0)) * far, facts.deviation / 2), far))


def line_clip(plan: ComposedPlan, facts: LineFacts, square: float) -> float:
    r"""Return the clip C of scores in their sums, outcome units.

    .. math:: C = c\,\hat\sigma_\varphi \max\Big(\frac{\hat\sigma_\varphi}{\sigma_\varphi}, 1\Big)\, \rho

    with ``line_clip`` c, ``rarity`` rho, and the planned deviation in the denominator: the more scores vary beyond what
    residuals of a normal law make of them, the heavier are their tails.

    Scores of an outcome that often is at its bounds are hardly more than its range over the propensity: nothing is
    gained beyond it, and much is lost below half of it.
    """
    deviation = score_deviation(plan, facts, square)
    clip = plan.line_clip * deviation * max(deviation / facts.deviation, 1.0)
    if plan.budget is None:
        clip = 1e3 * facts.deviation  # nothing is clipped
    elif not plan.reaches_bounds:
        share = min(facts.treated, 1 - facts.treated)
        clip *= plan.line_constants.rarity(1 / (facts.inverse * (1 - share)), facts.inverse)
    return min(max(clip, facts.largest / 2), 1.05 * facts.largest) if plan.reaches_bounds else clip


EVERYBODY = 2
"""Blocks of everybody's scores and their tails, which come first."""


def private_lines(
    rows: Rows,
    plan: ComposedPlan,
    steps: NoisySteps,
    by: Callable[[CausalData], Scored],
    facts: LineFacts,
    ruled: Callable[[LineNumbers], LineFacts] | None = None,
) -> LineNumbers:
    """Run the steps of lines: squares of scores, which their clip follows from, then all sums.

    They are one event; of a rule two, with the same noise in each block: the sums of everybody, which say at which
    effect it decides, then the others.

    Args:
        rows: The records.
        plan: The public plan.
        steps: Pays, and draws noise.
        by: Makes scores of a batch.
        facts: Released.
        ruled: Adds the effect at which a rule decides, by the sums of everybody; None: no values of a rule.
    """
    scored, part = rows.then(by), 1 / (plan.arms - 1)
    squares = steps.total(LINE_SQUARES, scored, Squares(far_clip(plan, facts)), part)
    square = float(squares[0] / steps.mass(rows.n))
    clip = line_clip(plan, facts, square)
    if ruled is None:
        sums = steps.total(LINE_SUMS, scored, LineSums(line_blocks(plan, facts, clip)), part)
        return LineNumbers(facts, square, sums)

    def summed_of(of: LineSums, whole: float) -> Tensor:
        return steps.total(LINE_SUMS, scored, of, part * of.share / whole) * math.sqrt(of.share / whole)

    before = line_blocks(plan, replace(facts, rule=Ruled(0.0, 0.0)), clip)
    whole = LineSums(before).share
    first = summed_of(LineSums(before[:EVERYBODY]), whole)
    facts = ruled(LineNumbers(facts, square, first))
    rest = line_blocks(plan, facts, clip)[EVERYBODY:]
    return LineNumbers(facts, square, torch.cat([first, summed_of(LineSums(rest), whole)]) if rest else first)
