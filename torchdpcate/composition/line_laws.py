"""Lines of a composition from released numbers: estimates, and the variances of their errors."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.composition.censoring import FollowUpCells
from torchdpcate.composition.lines import (
    BY_EFFECT,
    OVERLAP,
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
from torchdpcate.composition.steps import CENSORING, LINE_SQUARES, LINE_SUMS, propensity_of
from torchdpcate.composition.tails import Residuals, Tail, tail_of
from torchdpcate.data.censoring import Censoring, curve_errors
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.fit.weighted_basis import Levels
from torchdpcate.release.averages import (
    ARM,
    AVERAGE,
    OVER,
    PARTS,
    POLICIES,
    SLOPE,
    VALUES,
    Averages,
    LineFacts,
    LineNumbers,
    Ruled,
    level_of,
    tilts_of,
)

PEOPLE = 1024
"""Public people over whom the effect and the nuisances are averaged."""
_LARGEST = 0.9  # quantile of inverse propensities
_LEAST_RATE = 0.002  # of a binary outcome, whose residuals vary by it
_LEAST_SPREAD = 1e-9  # of effects, over their range: less is none
_LEAST_APART = 1.0  # deviation of effects that have groups, over the sampling error of their mean
_OWN = 0.5  # prior deviation of a cell's variance of scores about that of all, over it
_SIDE = 2.0  # deviations of noise that a share is at least apart from its number
_UNEVEN = 0.5  # deviation of a cell's tails from its share of everybody's by squares, over that share
_FEWEST = 10.0  # records of a line
_LEAST_GROUP = 0.3  # of an equal share of the records, which each group has
_LEAST_PART = 0.75  # of an equal share of the people, which each group has
_APART = 0.8  # of logits: that of the mean propensity, and that of the share of the treated
_RARE = 0.1  # of either arm: a plan that expects half errs too much there


def line_facts(
    people: Tensor,
    tau: Tensor,
    nuisances: Callable[[CausalData], WorkedOut],
    domain: Domain,
    plan: ComposedPlan,
    scale: float,
    arm: int = 1,
    left_over: float = 0.0,
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
        left_over: Variance of what a second look at the nuisances leaves of the average, squared outcome units.
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
    deviation, of_scores = float(tau.std()), residual * math.sqrt(inverse)
    apart = deviation > _LEAST_APART * of_scores / math.sqrt(plan.mass)
    found = LineFacts(
        centre=float(tau.mean()),
        deviation=of_scores,
        inverse=inverse,
        residual=residual,
        largest=y_range * float(torch.quantile(1 / torch.minimum(e, other), _LARGEST)),
        outcome=float(m.mean()),
        treated=float((e / (e + other)).mean()),
        outcome_deviation=spread,
        effect_deviation=deviation if deviation > _LEAST_SPREAD * y_range else 0.0,
        left_over=left_over,
        hidden=1.0,
        tilts=torch.tensor([_tilted(name, e, bounds) for name in tilts_of(plan.requested_lines)]).double().view(-1, 2),
        cuts=group_cuts(tau, plan.line_groups) if apart else tau.new_zeros(0),
    )
    if plan.binary:
        return found
    clip = far_clip(plan, found) / residual
    within = float((clipped_square(clip * e) / e + clipped_square(clip * other) / other).mean())
    return replace(found, hidden=inverse / within)


def clipped_square(clip: Tensor) -> Tensor:
    r"""Return the mean square of a standard normal number within a clip c.

    .. math:: E \min(|Z|, c)^2 = 2 \Phi(c) - 1 - 2 c\,\varphi(c) + 2 c^2 (1 - \Phi(c))

    Example:
        >>> clipped_square(torch.tensor([0.5, 1.0, 9.0]).double()).round(decimals=4).tolist()
        [0.1851, 0.5161, 1.0]
    """
    density = torch.exp(-clip.square() / 2) / math.sqrt(2 * math.pi)
    return 1 - 2 * torch.special.ndtr(-clip) * (1 - clip.square()) - 2 * clip * density


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


def lines_of(
    numbers: LineNumbers,
    plan: ComposedPlan,
    domain: Domain,
    levels: Levels | None = None,
    per_person: int = 1,
    follow_up: Tensor | None = None,
) -> Averages:
    """Return the lines that released numbers make; see ``Averages``.

    Args:
        numbers: Released.
        plan: The public plan, at the released weight.
        domain: Public bounds; where it does not say which outcomes are better, rules and policies take higher ones.
        levels: As of ``lost_of``.
        per_person: Records of each person, which may err alike.
        follow_up: Released counts of the ends of follow-up, where outcomes may be censored.
    """
    curves = [0.0] * (plan.arms - 1)
    if follow_up is not None and domain.censoring is not None:
        noise, models = curve_noise(domain.censoring, plan), means_of(numbers, plan.arms)
        curves = curve_errors(follow_up, domain.censoring, noise, plan.arms, models).tolist()
    each = zip([numbers, *numbers.others], curves, strict=True)
    found = [_one(own, plan, domain, levels, per_person, curve) for own, curve in each]
    return _of_arms(found) if plan.arms > 2 else found[0]


def means_of(numbers: LineNumbers, arms: int) -> tuple[Tensor, Tensor]:
    """Return the mean outcome of each arm by the released models, and its share of the people, [arms] each."""
    every = [numbers, *numbers.others]
    effects = torch.tensor([0.0, *(own.facts.centre for own in every)], dtype=torch.float64)
    shares = torch.full_like(effects, 1 / arms)
    if arms == 2:
        shares = torch.tensor([1 - numbers.facts.treated, numbers.facts.treated], dtype=torch.float64)
    return numbers.facts.outcome + effects - shares @ effects, shares


def curve_noise(censoring: Censoring, plan: ComposedPlan) -> float:
    """Return the standard deviation of the noise of a count of the ends of follow-up."""
    cells = FollowUpCells(censoring, plan.arms)
    return cells.moved()[0] * plan.shares.deviation(CENSORING, cells.size)


def unlike(facts: LineFacts, plan: ComposedPlan, domain: Domain, follow_up: Tensor | None = None) -> str | None:
    r"""Return in one line why lines would not hold, where the released propensity is far from what was planned by.

    .. math:: \Big|\log\frac{\bar e}{1 - \bar e} - \log\frac{s}{1 - s}\Big| > 0.8 + \frac{2\,\sigma_s}{s (1 - s)}

    with the mean propensity of public people, and the share s of the treated that the domain states, or that counts of
    the ends of follow-up by arm tell, with their noise. Where no share is known half was planned by, and the smaller
    mean of both arms is to be .1 at least: below it effects that do not vary were released as varying by up to .9
    residual deviations, and averages covered in .7 (2 to 3 % treated, experiments/hospital). Post-processing; None
    where it is near.

    Args:
        facts: Released.
        plan: The public plan.
        domain: Public bounds.
        follow_up: As of ``lines_of``.
    """
    censoring = domain.censoring
    if plan.known_propensity or plan.arms > 2 or plan.budget is None:
        return None
    if domain.treated is not None:
        share, noise = domain.treated, 0.0
    elif follow_up is not None and censoring is not None and censoring.by_arm:
        counts = follow_up.view(2, -1).sum(1)
        total = max(float(counts.sum()), _FEWEST)
        share, noise = float(counts[1]) / total, curve_noise(censoring, plan) * math.sqrt(len(follow_up) / 2) / total
        share = min(max(share, plan.overlap), 1 - plan.overlap)
    elif min(facts.treated, 1 - facts.treated) >= _RARE:
        return None
    else:
        return (
            f"no interval: the released propensities of public people have the mean {facts.treated:.2g}, and the plan "
            "expected half to be treated, so that the effect and the propensity err too much; state treated: in the "
            "domain, the share of the treated as the public knows it"
        )
    apart = math.log(facts.treated / (1 - facts.treated)) - math.log(share / (1 - share))
    if abs(apart) <= _APART + 2 * noise / (share * (1 - share)):
        return None
    return (
        f"no interval: the released propensities of public people have the mean {facts.treated:.2g}, where about "
        f"{share:.2g} are treated, so that the propensity, or the released means of covariates, err too much; give "
        "more records, a larger epsilon, or fewer covariates"
    )


def _of_arms(each: Sequence[Averages]) -> Averages:
    """Return the averages of all arms against the reference as lines of one table."""
    return Averages(
        tuple(f"{ARM}{place}" for place in range(1, len(each) + 1)),
        torch.cat([own.estimates[:1] for own in each]),
        torch.cat([own.variances[:1] for own in each]),
        torch.cat([own.records[:1] for own in each]),
        max(own.clipped for own in each),
        max(own.lacking for own in each),
    )


def _one(
    numbers: LineNumbers, plan: ComposedPlan, domain: Domain, levels: Levels | None, per_person: int, curve: float
) -> Averages:
    facts, clip = numbers.facts, line_clip(plan, numbers.facts, numbers.square)
    sums = LineSums(line_blocks(plan, facts, clip))
    found = {block.name: values for block, values in sums.parts(numbers.sums)}
    sizes = {parts.name: parts.size for parts in parts_of(plan, facts)}
    lost = lost_of(plan, levels, facts.treated, (facts.residual / domain.outcome_range) ** 2)
    own = _Law(
        numbers, plan, clip, sizes, found, sums.units, lost, domain.better, per_person, domain.outcome_range, curve
    )
    return own._replace(influence=influence_of(plan)).lines()


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
    level = _Law(
        numbers, plan, clip, {}, first, sums.units, Lost(0.0, 0.0, 1.0), domain.better, 1, domain.outcome_range
    ).level
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
    outcome_range: float
    curve: float = 0.0
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
        return self.facts.hidden * self.per_person * (max(self.numbers.square, 0.0) * square + 0.5 * noise)

    @property
    def nuisances(self) -> float:
        """Variance of what both nuisances may have lost, and of what noise in a curve of censoring makes."""
        own = (self.plan.line_constants.lost * self.lost.bias) ** 2 + self.lost.variance
        return self.facts.residual**2 * own + self.facts.left_over + self.curve**2

    def lacks(self, parts: str | None, cells: list[int]) -> tuple[Tensor, float]:
        """Return the sums of what share of each arm's weight the overlap makes up for, [2], with their deviation."""
        if OVERLAP not in self.found:
            return torch.zeros(2, dtype=torch.float64), 0.0
        found, noise = self.sum_of(OVERLAP, parts, OVERLAP, cells)
        return found.clamp_min(0), math.sqrt(noise)

    def beyond(self, parts: str | None, cells: list[int], reference: float, arm: float) -> float:
        r"""Return the variance of what the outcome's models may err by where the overlap makes up for the propensity.

        .. math:: \Big(\sigma_u \sum_k \frac{h_k}{\bar h}\, E\Big(1 - \frac{f_k}{o}\Big)_+\Big)^2

        Args:
            parts: As of ``mean_of``.
            cells: As of ``mean_of``.
            reference: Weight of those who lack the reference, over the sum of all weights.
            arm: Of those who lack the arm.
        """
        found, noise = self.lacks(parts, cells)
        kept = found.square() / (found.square() + noise**2).clamp_min(1e-300)  # as of tails
        missing = min(float((found.new_tensor([reference, arm]) * found * kept).sum()), 1.0)
        return (self.plan.line_constants.extrapolated * self.facts.residual * missing) ** 2

    @property
    def whole_tail(self) -> Tail:
        """What the clip took of all scores."""
        most = max(self.facts.largest - self.clip, 0.0) / 2 if self.plan.reaches_bounds else math.inf
        model, mass = self.plan.line_constants.model, self.plan.mass
        return tail_of(self.found["tails"], self.noise("tails"), self.clip, most, model, mass, self.residuals)

    @property
    def residuals(self) -> Residuals | None:
        """What is released of residuals; None where the outcome often is at its bounds."""
        facts, plan = self.facts, self.plan
        if plan.reaches_bounds:
            return None
        far = far_clip(plan, facts)
        return Residuals(
            deviation=facts.residual,
            quantile=plan.huber_quantile,
            bound=self.outcome_range,
            inverse=facts.inverse,
            share=facts.treated,
            square=self.numbers.square * far**2,
            noise=far**2 / (plan.line_step(LINE_SQUARES) * plan.mass),
            far=far,
        )

    def tail(self, parts: str | None, cells: list[int], mass: float) -> Tail:
        """Return what the clip took in some cells of a partition: their share of it by squares, which is off by half.

        Args:
            parts: As of ``mean_of``.
            cells: As of ``mean_of``.
            mass: Their records.
        """
        whole = self.whole_tail
        if parts is None or len(cells) == self.sizes[parts]:
            return whole
        share = min(mass / self.plan.mass * self.spread_of(parts, cells, mass) / self.variance, 1.0)
        off = whole.variance + _UNEVEN**2 * (whole.taken**2 + (whole.size / 3) ** 2)
        return Tail(share * whole.taken, share**2 * off, share * whole.size)

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
        (found, noise), tail = self.sum_of("total", parts, "scores", cells), self.tail(parts, cells, mass)
        middle = (float(found[0]) + tail.taken) / mass
        sampling = self.spread_of(parts, cells, mass) / mass
        parts_of_it = [
            sampling,
            (noise + counted * middle**2) / mass**2,
            tail.variance / mass**2,
            self.nuisances + self.beyond(parts, cells, 1 / mass, 1 / mass),
        ]
        return Line(self.facts.centre + middle, parts_of_it, min(mass / n, 1.0))

    def lines(self) -> Averages:
        """Return all lines: the average by all sums of all cells, where there are some by effect."""
        first = BY_EFFECT if BY_EFFECT in self.sizes else None
        rows = {AVERAGE: self.mean_of(first, list(range(self.sizes.get(BY_EFFECT, 1))))}
        rows |= dict(self._groups())
        for place, partition in enumerate(() if self.plan.cells is None else self.plan.cells.partitions):
            rows |= {label: self.mean_of(f"cells {place}", [k]) for k, label in enumerate(partition.labels)}
        rows |= dict(self._policies())
        rows |= dict(self._tilted())
        rows |= dict(self._slope())
        rows |= dict(self._rule())
        estimates, variances, shares = zip(*rows.values(), strict=True)
        clipped = float(self.found["tails"][[1, 3]].sum()) / self.plan.mass
        lacks, noise = self.lacks(None, [0])
        lacking = (float(lacks.sum()) - _SIDE * math.sqrt(2) * noise) / self.plan.mass
        return Averages(
            tuple(rows),
            torch.tensor(estimates, dtype=torch.float64),
            torch.tensor(variances, dtype=torch.float64),
            torch.tensor(shares, dtype=torch.float64),
            min(max(clipped, 0.0), 1.0),
            min(max(lacking, 0.0), 1.0),
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
        facts, n, tail = self.facts, self.plan.mass, self.whole_tail
        for name, (size, most) in zip(tilts_of(self.plan.requested_lines), facts.tilts.tolist(), strict=True):
            (top, below), clip, noise = self.found[name].tolist(), tilted_clip(facts, size, self.clip), self.noise(name)
            mass = max(most * below, _FEWEST)
            mean, part = 2 * clip * top / mass, (clip / self.clip) ** 2
            reference, arm = (
                tilt(name, torch.tensor([1 - self.plan.overlap, self.plan.overlap], dtype=torch.float64))[0] / mass
            ).tolist()
            variances = [
                self.variance * part * n / mass**2,
                (2 * clip * noise / mass) ** 2 + (mean * most * noise / mass) ** 2,
                (tail.variance + tail.taken**2) * part / mass**2,
                self.nuisances + self.beyond(None, [0], reference, arm),
            ]
            yield name, Line(facts.centre + mean, variances, min(mass / n, 1.0))

    def _slope(self) -> Iterator[tuple[str, Line]]:
        if SLOPE not in self.found:
            return
        (top, below), noise, deviation = self.found[SLOPE].tolist(), self.noise(SLOPE), self.facts.effect_deviation
        mass, tail = max(4 * below, _FEWEST), self.whole_tail
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
        facts, sign = self.facts, self._sign
        if facts.rule is None:
            return
        parts = BY_EFFECT if BY_EFFECT in self.sizes else None
        above = torch.tensor([int(facts.centre > facts.rule.at)])  # where effects do not vary
        if parts is not None:
            above = self._above(torch.tensor([facts.rule.at - facts.centre], dtype=torch.float64))
        for name, side in zip(VALUES, (1, 0) if sign > 0 else (0, 1), strict=True):
            cells = torch.nonzero(above == side).flatten().tolist()
            if cells:  # else it treats everybody, or nobody: one of its values is the average's, and the other nought
                value, (sampling, *others), share = self._gain(facts.rule.cost, parts, cells)
                seems = 0.0 if parts is None else self.optimism(facts.rule.at)
                gain = (value if name == VALUES[0] else -value) - seems
                yield name, Line(gain, [sampling + (seems / 2) ** 2, *others], share)

    def _policies(self) -> Iterator[tuple[str, Line]]:
        """Values of treating exactly the people of one public cell, over treating nobody, and over everybody."""
        public = self.plan.cells
        if POLICIES not in self.plan.requested_lines or public is None:
            return
        over_none, over_all = OVER
        for place, partition in enumerate(public.partitions):
            parts, count = f"cells {place}", range(partition.size)
            for k, label in enumerate(partition.labels):
                yield f"{label}{over_none}", self._gain(self.plan.cost, parts, [k])
                others = [other for other in count if other != k]
                if others:  # else everybody is treated
                    lost = self._gain(self.plan.cost, parts, others)
                    yield f"{label}{over_all}", lost._replace(estimate=-lost.estimate)

    @property
    def _sign(self) -> float:
        """-1 where lower outcomes are better."""
        return -1.0 if self.better == "lower" else 1.0

    def _gain(self, cost: float, parts: str | None, cells: list[int]) -> Line:
        r"""Return what a treatment of some cells gains, over all records: effects in the better direction, less costs.

        .. math:: \frac1n \Big(s \sum_k (S_k + b_k) + (s c - \text{cost}) \sum_k N_k\Big)

        with counts whose sum is n.
        """
        n, sign = self.plan.mass, self._sign
        unit = sign * self.facts.centre - cost
        count, counted = n, 0.0
        if parts is not None:
            own, noise, of = self.found[f"{parts}: counts"], self.noise(f"{parts}: counts") ** 2, len(cells)
            part = of / self.sizes[parts]
            count = min(max(float(own[cells].sum() + part * (n - own.sum())), 0.0), n)
            counted = of * noise * (1 - part)
        (found, noise), share = self.sum_of("total", parts, "scores", cells), count / n
        tail = self.tail(parts, cells, max(count, _FEWEST))
        value = (sign * (float(found[0]) + tail.taken) + unit * count) / n
        apart = share * (1 - share) * (value / share) ** 2 * self.per_person if share else 0.0
        sampling = (share * self.spread_of(parts, cells, max(count, _FEWEST)) + apart) / n
        noise = (noise + counted * unit**2) / n**2
        lost = share**2 * self.nuisances + self.beyond(parts, cells, 1 / n, 1 / n)
        return Line(value, [sampling, noise, tail.variance / n**2, lost], share)

    def optimism(self, at: float) -> float:
        r"""Return what scores of records gain by having drawn a cut of the effect, over all records.

        .. math:: \frac12\, f(k)\, \frac{\hat\sigma_\varphi^2}{n} \sum_j w_j

        with the density f of effects at the cut, as normal ones have it, their mean being known but for its sampling
        error: a record moves the effect at itself by its score times w / n, and so across the cut in its own favour.
        The half is what generated laws showed: residuals are clipped in the effect's regression, and not all effects
        are normal (experiments/hospital).

        Args:
            at: k, as the regression has effects.
        """
        facts = self.facts
        spread = math.hypot(facts.effect_deviation, facts.deviation / math.sqrt(self.plan.mass))
        density = math.exp(-(((at - facts.centre) / spread) ** 2) / 2) / (math.sqrt(2 * math.pi) * spread)
        return density * facts.deviation**2 * self.influence * self.per_person / (2 * self.plan.mass)
