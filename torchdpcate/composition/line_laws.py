"""Lines of a composition from released numbers: estimates, and the variances of their errors."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.composition.lines import (
    BY_EFFECT,
    LineSums,
    cuts_of,
    far_clip,
    largest_weight,
    line_blocks,
    line_clip,
    parts_of,
    tilt,
    tilted_clip,
)
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import Lost, lost_of
from torchdpcate.composition.regressions import WorkedOut
from torchdpcate.composition.steps import LINE_SQUARES, LINE_SUMS, propensity_of
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.fit.weighted_basis import Levels
from torchdpcate.release.lines import (
    ARM,
    AVERAGE,
    PARTS,
    SLOPE,
    VALUES,
    LineFacts,
    LineNumbers,
    Lines,
    Ruled,
    level_of,
    tilts_of,
)

PEOPLE = 1024
"""Public people over whom the effect and the nuisances are averaged."""
_LARGEST = 0.9  # quantile of inverse propensities
_LEAST_RATE = 0.002  # of a binary outcome, whose residuals vary by it
_LEAST_SPREAD = 1e-9  # of effects, over their range: less is none
_OWN = 0.5  # prior deviation of a cell's variance of scores about that of all, over it
_LEAST_KEPT = 0.25  # of the noise of a tail's counts, however few they are
_FEWEST = 10.0  # records of a line
_LEAST_GROUP = 0.3  # of an equal share of the records, which each group has
_LEAST_PART = 0.75  # of an equal share of the people, which each group has


def line_facts(
    people: Tensor,
    tau: Tensor,
    nuisances: Callable[[CausalData], WorkedOut],
    domain: Domain,
    plan: ComposedPlan,
    scale: float,
    arm: int = 1,
) -> LineFacts:
    """Return what the sums of scores are planned by; post-processing of released numbers.

    Args:
        people: Encoded rows of public people, [N, q].
        tau: The released effect there, [N].
        nuisances: The released nuisances.
        domain: Public bounds.
        plan: The public plan.
        scale: S, the released clip of residuals.
        arm: Position of the arm that is compared with the reference.
    """
    none = people.new_zeros(len(people))
    own = _known(domain, people, plan.arms)
    far = nuisances(CausalData(people, none, none + domain.outcome_low, own, weight=none + 1))
    m, y_range, pi = far.outcome, domain.outcome_range, propensity_of(far)
    e, other = (pi, 1 - pi) if plan.arms == 2 else (pi[:, arm], pi[:, 0])
    inverse, known = float((1 / e + 1 / other).mean()), domain.known_propensity
    bounds = (domain.overlap, 1 - domain.overlap) if known is None else known.bounds
    if plan.binary:
        rate = (m - domain.outcome_low) / y_range
        residual = y_range * math.sqrt(max(float((rate * (1 - rate)).mean()), _LEAST_RATE))
        mean = min(max(float(rate.mean()), _LEAST_RATE), 1 - _LEAST_RATE)
        spread = y_range * math.sqrt(mean * (1 - mean))
    else:
        quantile = torch.special.ndtri(torch.tensor((1 + plan.huber_quantile) / 2, dtype=torch.float64)).item()
        residual = min(scale / quantile, y_range / 2)
        spread = math.hypot(residual, float(m.std()))
    deviation = float(tau.std())
    varies = deviation > _LEAST_SPREAD * y_range
    return LineFacts(
        centre=float(tau.mean()),
        deviation=residual * math.sqrt(inverse),
        inverse=inverse,
        residual=residual,
        largest=y_range * float(torch.quantile(1 / torch.minimum(e, other), _LARGEST)),
        outcome=float(m.mean()),
        treated=float((e / (e + other)).mean()),
        outcome_deviation=spread,
        effect_deviation=deviation if varies else 0.0,
        tilts=torch.tensor([_tilted(name, e, bounds) for name in tilts_of(plan.requested_lines)]).double().view(-1, 2),
        cuts=group_cuts(tau, plan.line_groups) if varies else tau.new_zeros(0),
    )


def _tilted(name: str, e: Tensor, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the mean of h^2 / (e (1 - e)) over public people of propensities e, and the largest weight."""
    h = tilt(name, e)[0]
    return float((h.square() / (e * (1 - e))).mean()), largest_weight(name, *bounds)


def group_cuts(tau: Tensor, groups: int) -> Tensor:
    """Return effects that separate equal groups, ascending; of fewer groups where many people have the same effect.

    Args:
        tau: Effects of public people, [N].
        groups: How many at most.

    Example:
        >>> group_cuts(torch.arange(6).double(), 3).tolist()
        [1.6666666666666665, 3.333333333333333]
        >>> group_cuts(torch.tensor([0, 0, 0, 0, 0, 1]).double(), 3).tolist()
        []
    """
    for count in range(groups, 1, -1):
        cuts = torch.quantile(tau, torch.arange(1, count, dtype=torch.float64) / count)
        sizes = torch.bincount(torch.bucketize(tau, cuts, right=True), minlength=count)
        if float(sizes.min()) * count >= _LEAST_PART * len(tau):
            return cuts
    return tau[:0]


def _known(domain: Domain, people: Tensor, arms: int) -> Tensor | None:
    """Return the propensities of public people, where the design knows them: the middle of their bounds if a column."""
    known = domain.known_propensity
    if known is None:
        return None
    if known.column is not None:
        return people.new_full((len(people),), known.middle)
    none = people.new_zeros(len(people))
    return known.at(people) if arms == 2 else known.arms_of(CausalData(people, none, none))


class _Tail(NamedTuple):
    """What a clip took of a sum of scores: by its counts, with the variance of that, and the size on both sides."""

    taken: float
    variance: float
    size: float


def tail_of(counts: Tensor, noise: float, clip: float, most: float, model: float) -> _Tail:
    r"""Return what the clip took of a sum, by counts in (C/2, C] and beyond C on either side.

    .. math:: b = C \sum_\pm \pm \frac{N_\pm}{\alpha_\pm - 1} \kappa_\pm, \quad
        \alpha_\pm = \log_2 \frac{M_\pm + N_\pm}{N_\pm} \in [2, 8], \quad \kappa = \frac{N^2}{N^2 + s^2}

    of a tail by Pareto's law, with the variance of its noise, and of its model: a part of it, and a third of that part
    of what cancels between the sides.

    Args:
        counts: Near and beyond the clip above, then below, [4].
        noise: s, of a count.
        clip: C.
        most: Largest mean excess.
        model: Part of the correction that is taken for its own standard error.

    Example:
        >>> found = tail_of(torch.tensor([30.0, 10.0, 0.0, 0.0]).double(), 0.0, 1.0, math.inf, 0.5)
        >>> round(found.taken, 3), round(found.variance, 3)
        (10.0, 27.778)
    """
    taken, variance, size = 0.0, 0.0, 0.0
    near_above, above, near_below, below = counts.tolist()
    for sign, near, far in ((1, near_above, above), (-1, near_below, below)):
        beyond = max(far, noise)
        if beyond <= 0:
            continue
        alpha = min(max(math.log2((max(near, beyond) + beyond) / beyond), 2.0), 8.0)
        shown = max(far, 0.0)
        kept = shown**2 / (shown**2 + noise**2) if shown else 0.0
        excess = min(clip / (alpha - 1), most)
        found = excess * shown * kept
        taken += sign * found
        size += found
        variance += (excess * noise) ** 2 * max(kept, _LEAST_KEPT)
    variance += (model * taken) ** 2 + (model * size / 3) ** 2
    return _Tail(taken, variance, size)


def lines_of(
    numbers: LineNumbers,
    plan: ComposedPlan,
    domain: Domain,
    levels: Levels | None = None,
    per_person: int = 1,
) -> Lines:
    """Return the lines that released numbers make; see ``Lines``.

    Args:
        numbers: Released.
        plan: The public plan, at the released weight.
        domain: Public bounds; where it does not say which outcomes are better, a rule takes higher ones.
        levels: As of ``lost_of``.
        per_person: Records of each person, which may err alike.
    """
    if plan.arms > 2:
        each = [numbers, *numbers.others]
        return _of_arms([_one(own, plan, domain, levels, per_person) for own in each])
    return _one(numbers, plan, domain, levels, per_person)


def _of_arms(each: Sequence[Lines]) -> Lines:
    """Return the averages of all arms against the reference as lines of one table."""
    return Lines(
        tuple(f"{ARM}{place}" for place in range(1, len(each) + 1)),
        torch.cat([own.estimates[:1] for own in each]),
        torch.cat([own.variances[:1] for own in each]),
        torch.cat([own.records[:1] for own in each]),
        max(own.clipped for own in each),
    )


def _one(numbers: LineNumbers, plan: ComposedPlan, domain: Domain, levels: Levels | None, per_person: int) -> Lines:
    facts, clip = numbers.facts, line_clip(plan, numbers.facts, numbers.square)
    sums = LineSums(line_blocks(plan, facts, clip))
    found = {block.name: values for block, values in sums.parts(numbers.sums)}
    sizes = {parts.name: parts.size for parts in parts_of(plan, facts)}
    lost = lost_of(plan, levels, facts.treated, (facts.residual / domain.outcome_range) ** 2)
    own = _Law(numbers, plan, clip, sizes, found, sums.units, lost, domain.better, per_person, influence_of(plan))
    return own.lines()


def influence_of(plan: ComposedPlan) -> float:
    """Return how far a record moves the effect at itself, over its score and n: what shrinkage leaves of each feature.

    The level counts as one; public.

    Args:
        plan: The public plan.
    """
    effect = plan.effect()
    noise = (effect.noise / effect.basis.feature_weights)[1:]
    kept = effect.prior / (effect.prior + noise) if plan.shrinks else torch.ones_like(noise)
    return 1.0 + float(kept.sum())


def ruled(
    plan: ComposedPlan, domain: Domain, cutoff: Callable[[float], float] | None, numbers: LineNumbers
) -> LineFacts:
    """Return the facts with the effect at which a rule decides, by the sums of everybody alone.

    Args:
        plan: The public plan, at the released weight.
        domain: Public bounds; where it does not say which outcomes are better, a rule takes higher ones.
        cutoff: From what the effect is moved by to the gain beyond the cost above which a rule treats; None takes that
            of the plan.
        numbers: Facts, square, and sums of everybody.
    """
    facts, sign = numbers.facts, -1.0 if domain.better == "lower" else 1.0
    clip = line_clip(plan, facts, numbers.square)
    sums = LineSums(line_blocks(plan, replace(facts, rule=Ruled(0.0, 0.0)), clip))
    first = {block.name: values for block, values in sums.parts(numbers.sums)}
    level = _Law(numbers, plan, clip, {}, first, sums.units, Lost(0.0, 0.0, 1.0), domain.better, 1).level
    beyond = cutoff(level) if cutoff is not None else plan.cutoff or 0.0
    return replace(facts, rule=Ruled(sign * (plan.cost + beyond) - level, plan.cost))


class Line(NamedTuple):
    """An estimate, the variances of ``PARTS``, and the share of the records that it is about."""

    estimate: float
    variances: list[float]
    share: float


class _Law(NamedTuple):
    """Everything that lines are made of; see ``lines_of``."""

    numbers: LineNumbers
    plan: ComposedPlan
    clip: float
    sizes: dict[str, int]
    found: dict[str, Tensor]
    units: dict[str, float]
    lost: Lost
    better: str | None
    per_person: int
    influence: float = 1.0

    @property
    def facts(self) -> LineFacts:
        return self.numbers.facts

    def noise(self, block: str) -> float:
        """Return the standard deviation of the noise of a block's numbers."""
        return self.units[block] / self.plan.line_step(LINE_SUMS)

    @property
    def variance(self) -> float:
        """Of a score, by its released squares; half a deviation of their noise is added."""
        square = far_clip(self.plan, self.facts) ** 2
        noise = square / (self.plan.line_step(LINE_SQUARES) * self.plan.mass)
        return self.per_person * (max(self.numbers.square, 0.0) * square + 0.5 * noise)

    @property
    def nuisances(self) -> float:
        """Variance of what both nuisances may have lost."""
        own = (self.plan.line_constants.lost * self.lost.bias) ** 2 + self.lost.variance
        return self.facts.residual**2 * own

    def tail(self, parts: str | None, cells: list[int]) -> _Tail:
        """Return what the clip took in some cells of a partition."""
        most = max(self.facts.largest - self.clip, 0.0) / 2 if self.plan.binary else math.inf
        counts, noise = self.sum_of("tails", parts, "tails", cells)
        return tail_of(counts, math.sqrt(noise), self.clip, most, self.plan.line_constants.model)

    def sum_of(self, everybody: str, parts: str | None, what: str, cells: list[int]) -> tuple[Tensor, float]:
        """Return sums over some cells, [d], and the variance of their noise: by least squares of two blocks.

        Args:
            everybody: Block of the sums over all records.
            parts: Partition; None where the cell is everybody.
            what: Block of its sums.
            cells: Which.
        """
        total, first = self.found[everybody], self.noise(everybody) ** 2
        if parts is None:
            return total, first
        size, each, count = self.sizes[parts], self.noise(f"{parts}: {what}") ** 2, len(cells)
        sums = self.found[f"{parts}: {what}"].view(size, -1)
        if first == 0:
            return sums[cells].sum(0), 0.0
        gain = each / (size * each + first)
        return sums[cells].sum(0) + count * gain * (total - sums.sum(0)), count * each * (1 - count * gain)

    def spread_of(self, parts: str | None, cells: list[int], mass: float) -> float:
        """Return the variance of a score in some cells: that of all, moved to their own as far as noise allows."""
        variance = self.variance
        if parts is None or len(cells) == self.sizes[parts]:
            return variance
        noise = self.per_person * self.noise(f"{parts}: squares") * math.sqrt(len(cells)) / mass
        kept = (_OWN * variance) ** 2 / ((_OWN * variance) ** 2 + noise**2)
        found = self.per_person * max(float(self.found[f"{parts}: squares"][cells].sum()), 0.0) / mass
        return variance + kept * (found - variance) + 0.5 * kept * noise

    def mean_of(self, parts: str | None, cells: list[int]) -> Line:
        """Return the mean effect of some cells, the variances of ``PARTS``, and the share of the records in them."""
        n, everybody = self.plan.mass, parts is None or len(cells) == self.sizes[parts]
        mass, counted = n, 0.0
        if not everybody:
            mass = max(float(self.found[f"{parts}: counts"][cells].sum()), _FEWEST)
            counted = len(cells) * self.noise(f"{parts}: counts") ** 2
        (found, noise), tail = self.sum_of("total", parts, "scores", cells), self.tail(parts, cells)
        middle = (float(found[0]) + tail.taken) / mass
        sampling = self.spread_of(parts, cells, mass) / mass
        parts_of_it = [sampling, (noise + counted * middle**2) / mass**2, tail.variance / mass**2, self.nuisances]
        return Line(self.facts.centre + middle, parts_of_it, min(mass / n, 1.0))

    def lines(self) -> Lines:
        """Return all lines: the average by all sums of all cells, where there are some by effect."""
        first = BY_EFFECT if BY_EFFECT in self.sizes else None
        rows = {AVERAGE: self.mean_of(first, list(range(self.sizes.get(BY_EFFECT, 1))))}
        rows |= dict(self._groups())
        for place, partition in enumerate(() if self.plan.cells is None else self.plan.cells.partitions):
            rows |= {label: self.mean_of(f"cells {place}", [k]) for k, label in enumerate(partition.labels)}
        rows |= dict(self._tilted())
        rows |= dict(self._slope())
        rows |= dict(self._rule())
        estimates, variances, shares = zip(*rows.values(), strict=True)
        clipped = float(self.found["tails"][[1, 3]].sum()) / self.plan.mass
        return Lines(
            tuple(rows),
            torch.tensor(estimates, dtype=torch.float64),
            torch.tensor(variances, dtype=torch.float64),
            torch.tensor(shares, dtype=torch.float64),
            min(max(clipped, 0.0), 1.0),
            None if self.facts.rule is None else self.level,
        )

    @property
    def level(self) -> float:
        """What the effect is moved by before a rule decides by it: towards the average by the sums of everybody."""
        of_all = self.mean_of(None, [0])
        own = sum(of_all.variances[PARTS.index(part)] for part in ("noise", "clip"))
        return level_of(of_all.estimate - self.facts.centre, own)

    def _above(self, edges: Tensor) -> Tensor:
        """Return how many edges each cell by effect lies above, [K]: every edge is a cut, or there is one cell."""
        cuts = cuts_of(self.plan, self.facts)
        return torch.bucketize(torch.cat([cuts, cuts.new_tensor([math.inf])]), edges)

    def _groups(self) -> Iterator[tuple[str, Line]]:
        """Groups by effect; none where one of them has few of the records, whom the public people do not resemble."""
        edges = self.facts.cuts - self.facts.centre
        if not len(edges):
            return
        count, above = len(edges) + 1, self._above(edges)
        found = [self.mean_of(BY_EFFECT, torch.nonzero(above == k).flatten().tolist()) for k in range(count)]
        if min(line.share for line in found) >= _LEAST_GROUP / count:
            yield from ((f"group {k + 1}", line) for k, line in enumerate(found))

    def _tilted(self) -> Iterator[tuple[str, Line]]:
        facts, n, tail = self.facts, self.plan.mass, self.tail(None, [0])
        for name, (size, most) in zip(tilts_of(self.plan.requested_lines), facts.tilts.tolist(), strict=True):
            (top, below), clip, noise = self.found[name].tolist(), tilted_clip(facts, size, self.clip), self.noise(name)
            mass = max(most * below, _FEWEST)
            mean, part = 2 * clip * top / mass, (clip / self.clip) ** 2
            variances = [
                self.variance * part * n / mass**2,
                (2 * clip * noise / mass) ** 2 + (mean * most * noise / mass) ** 2,
                (tail.variance + tail.taken**2) * part / mass**2,
                self.nuisances,
            ]
            yield name, Line(facts.centre + mean, variances, min(mass / n, 1.0))

    def _slope(self) -> Iterator[tuple[str, Line]]:
        if SLOPE not in self.found:
            return
        (top, below), noise, deviation = self.found[SLOPE].tolist(), self.noise(SLOPE), self.facts.effect_deviation
        mass, tail = max(4 * below, _FEWEST), self.tail(None, [0])
        unit = 1 / (mass * deviation)
        slope = 4 * self.clip * top * unit
        variances = [
            self.variance * mass * unit**2,
            (4 * self.clip * noise * unit) ** 2 + (4 * slope * noise / mass) ** 2,
            (tail.variance + tail.size**2) * unit**2,
            0.0,
        ]
        yield SLOPE, Line(slope, variances, 1.0)

    def _rule(self) -> Iterator[tuple[str, Line]]:
        """Values of treating those whose released effect exceeds what a rule requires, over treating none and all.

        They are less what a rule that was found on the same records seems to gain by them (``optimism``); half of that
        counts as a standard error.
        """
        facts, sign = self.facts, -1.0 if self.better == "lower" else 1.0
        if facts.rule is None:
            return
        parts = BY_EFFECT if BY_EFFECT in self.sizes else None
        above = torch.tensor([int(facts.centre > facts.rule.at)])  # where effects do not vary
        if parts is not None:
            above = self._above(torch.tensor([facts.rule.at - facts.centre], dtype=torch.float64))
        for name, side in zip(VALUES, (1, 0) if sign > 0 else (0, 1), strict=True):
            cells = torch.nonzero(above == side).flatten().tolist()
            if cells:  # else it treats everybody, or nobody: one of its values is the average's, and the other nought
                value, (sampling, *others), share = self._gain(facts.rule, parts, cells, sign)
                seems = 0.0 if parts is None else self.optimism(facts.rule.at)
                gain = (value if name == VALUES[0] else -value) - seems
                yield name, Line(gain, [sampling + (seems / 2) ** 2, *others], share)

    def _gain(self, rule: Ruled, parts: str | None, cells: list[int], sign: float) -> Line:
        r"""Return what a treatment of some cells gains, over all records: effects in the better direction, less costs.

        .. math:: \frac1n \Big(s \sum_k (S_k + b_k) + (s c - \text{cost}) \sum_k N_k\Big)

        with counts whose sum is n.
        """
        n, unit = self.plan.mass, sign * self.facts.centre - rule.cost
        count, counted = n, 0.0
        if parts is not None:
            own, noise, of = self.found[f"{parts}: counts"], self.noise(f"{parts}: counts") ** 2, len(cells)
            part = of / self.sizes[parts]
            count = min(max(float(own[cells].sum() + part * (n - own.sum())), 0.0), n)
            counted = of * noise * (1 - part)
        (found, noise), tail, share = self.sum_of("total", parts, "scores", cells), self.tail(parts, cells), count / n
        value = (sign * (float(found[0]) + tail.taken) + unit * count) / n
        apart = share * (1 - share) * (value / share) ** 2 * self.per_person if share else 0.0
        sampling = (share * self.spread_of(parts, cells, max(count, _FEWEST)) + apart) / n
        noise = (noise + counted * unit**2) / n**2
        return Line(value, [sampling, noise, tail.variance / n**2, share**2 * self.nuisances], share)

    def optimism(self, at: float) -> float:
        r"""Return what scores of records gain by having drawn a cut of the effect, over all records.

        .. math:: \frac12\, f(k)\, \frac{\hat\sigma_\varphi^2}{n} \sum_j w_j

        with the density f of effects at the cut, as normal ones have it: a record moves the effect at itself by its
        score times w / n, and so across the cut in its own favour. The half is what generated laws showed: residuals
        are clipped in the effect's regression, and not all effects are normal (experiments/one_fit).

        Args:
            at: k, as the regression has effects.
        """
        facts, spread = self.facts, self.facts.effect_deviation
        density = math.exp(-(((at - facts.centre) / spread) ** 2) / 2) / (math.sqrt(2 * math.pi) * spread)
        return density * facts.deviation**2 * self.influence * self.per_person / (2 * self.plan.mass)
