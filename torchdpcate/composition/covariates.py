"""Which covariates the regressions of a composition have, in which order, and how they are scaled."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import torch
from torch import Tensor

from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.rows import Rows
from torchdpcate.composition.steps import (
    HALVINGS,
    PROGNOSTIC,
    SCREENING,
    WINDOWS,
    NoisySteps,
    Statistic,
    Summed,
    summed,
)
from torchdpcate.composition.summaries import (
    LEAST_VARIANCE,
    ExpectedMoments,
    Moments,
    private_standardisation,
    released_moments,
)
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.weights import times_weight
from torchdpcate.fit.weighted_basis import (
    MOST,
    PAIRED,
    TRIPLE,
    TWO_VALUES,
    Feature,
    Indicators,
    Levels,
    Standardisation,
    absent,
    all_features,
    among,
    hump,
    step,
)
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.selection import gumbel_top_k, top_k

CENTRE = 0.1
"""Share of a centred choice's step that pays for the mean of what covariates are compared with."""
_REACH = 2.0  # standard deviations of a covariate at which a slope ends
_PAIR_REACH, _STEP_REACH, _HUMP_REACH = 1.5, 1.52, 2.25  # the same of a product's slope; bounds of step and hump
_QUANTILES = (0.2, 0.8)
_APART = 1.6832424671458283  # of these quantiles of a standard normal covariate
CELLS = 2**HALVINGS
"""Of each covariate's interval, as fine as halvings tell."""
_BEND = 3.0  # a covariate that starts at zero is halved evenly in this root of its share of the range
_LEAST = 0.004  # standard deviation of a window, of the interval [-1, 1]
_RATES, _MEANS, _SQUARE, _AT_END, _SQUARE_SPREAD = 0.7, 0.15, 1 / MOST**2, 0.95, 0.06
# spread of means of covariates of two levels about zero, and of others about the middle of their windows, where their
# mean square is expected, that of covariates with most values at an end, and its spread
LEAST_SPREAD = _LEAST * MOST * math.sqrt(LEAST_VARIANCE)
"""Least standard deviation that a covariate on [-1, 1] can be released with."""


# -- choices by what covariates have to do with a number of each record


def to_be_screened(domain: Domain, centre: float, clip: float, binary: bool, batch: CausalData) -> CausalData:
    """Return what covariates are screened by: these scaled to [-1, 1], and outcomes over their clip, in [-1, 1].

    Args:
        domain: Public bounds.
        centre: Of the outcomes, released.
        clip: Released; of a binary outcome its range, of which either value is one half away from the middle.
        binary: Whether it has two values.
        batch: Records within the domain.
    """
    r = ((batch.y - centre) / (clip / 2 if binary else clip)).clamp(-1, 1)
    return CausalData(domain.scale(batch.x), batch.a, r, weight=batch.weight)


@dataclass(frozen=True, eq=False)
class Waves(Statistic):
    r"""Sums by which covariates u in [-1, 1] are compared, [2, q], against outcomes r in [-1, 1].

    .. math:: \sum_i b(u_{ij})\, r_i, \quad b \in \{\sin(\pi u / 2), \cos(\pi u)\}
    """

    def moved(self) -> tuple[float, float, float]:
        """See ``Statistic``: of the larger of both sums of each covariate."""
        return 2.0, 1, 1.0

    def __call__(self, batch: CausalData) -> Tensor:
        return summed(_wave_sums, batch.x, times_weight(batch.y, batch)).cpu()


@dataclass(frozen=True, eq=False)
class Total(Statistic):
    """The sum of numbers r in [-1, 1], which a record's outcome is."""

    def moved(self) -> tuple[float, float, float]:
        return 2.0, 1, 1.0

    def __call__(self, batch: CausalData) -> Tensor:
        return summed(lambda rows: rows.sum(0), times_weight(batch.y, batch)).cpu()[None]


@dataclass(frozen=True, eq=False)
class WavesAbout(Waves):
    r"""``Waves`` of standardised covariates, :math:`z/2` clipped to [-1, 1], against r about its released mean.

    Attributes:
        centre: That mean.
        scales: By which covariates are standardised; None where they are.
        indicators: For each the position of the one that says where it is missing, or None; none where they are.
    """

    centre: float
    scales: Standardisation | None = None
    indicators: Indicators = ()

    def __call__(self, batch: CausalData) -> Tensor:
        z = batch.x if self.scales is None else self.scales.of(batch.x, None, self.indicators)
        u, r = (z / _REACH).clamp(-1, 1), (batch.y - self.centre).clamp(-1, 1)
        return super().__call__(CausalData(u, batch.a, r, weight=batch.weight))


@dataclass(frozen=True, eq=False)
class PairsAbout(Waves):
    r"""Sums by which products of a covariate's slope with others are compared, [1, products].

    .. math:: \Big|\sum_i \mathrm{clip}(z_{ij} / 1.5)\, b_i\, \mathrm{clip}(r_i - \bar r)\Big|, \quad
        b_i \in \Big\{\frac{h(z_{ik})}{1.52}, \frac{c(z_{ik})}{2.25},
        \mathrm{clip}\Big(\frac{z_{ik}}{1.5}\Big)\, \mathrm{clip}\Big(\frac{z_{il}}{1.5}\Big)\Big\}

    with the step h of ``weighted_basis.step``, whose size is below 1.52, the hump c of ``weighted_basis.hump``, and the
    slopes of two further covariates.

    One record moves each sum by at most 2. Its term has three factors, each within [-1, 1]: a clipped slope, b, since
    |h| <= 1.511 and :math:`c / 2.25 = \mathrm{clip}((z^2 - 1) / \sqrt2, \pm 1.5) / 1.5`, and a clipped residual. So two
    terms differ by at most 2: a hump and two slopes attain it, where the covariates are at an end and the residual
    changes sign, a step 1.99. Candidates of all kinds are compared by one choice, whose noise depends on the largest
    move of one of them, not on how many there are.

    Attributes:
        centre: The released mean of r.
        two_levels: Whether each covariate has two levels; those neither step nor have a hump, but for a slope.
        count: How many are chosen: zeros follow the sums where there are fewer.
    """

    centre: float
    two_levels: tuple[bool, ...]
    count: int

    def __call__(self, batch: CausalData) -> Tensor:
        k = len(self.two_levels)
        candidates, first, second = all_features(self.two_levels, PAIRED), *torch.triu_indices(k, k, 1)
        beside = [*product("tq", range(k), [None]), *((TRIPLE, *two) for two in combinations(range(k), 2))]
        at = [feature.i * len(beside) + beside.index((feature.kind, *feature[2:])) for feature in candidates]

        def each(rows: Tensor, rest: Tensor) -> Tensor:
            slopes = (rows / _PAIR_REACH).clamp(-1, 1)
            others = step(rows) / _STEP_REACH, hump(rows) / _HUMP_REACH, slopes[:, first] * slopes[:, second]
            return slopes.T @ (torch.cat(others, 1) * rest[:, None])

        rest = times_weight((batch.y - self.centre).clamp(-1, 1), batch)
        found = summed(each, batch.x, rest).flatten()[at].cpu()
        return torch.nn.functional.pad(found, (0, max(self.count - len(at), 0)))[None]


def chosen_by(
    rows: Summed, sums: Waves, retained: int, steps: NoisySteps, step: str = SCREENING, part: float = 1.0
) -> tuple[int, ...]:
    """Return the positions of the covariates whose slope or hump against a residual is largest, in ascending order.

    They are chosen one by one, each at an equal share of the step, by ``gumbel_top_k``: its noise grows with the number
    that is retained, that of released scores with all q. By pure events they are chosen by ``top_k``.

    Args:
        rows: The records.
        sums: By which they are compared.
        retained: How many are chosen.
        steps: Pays, and draws noise.
        step: That pays.
        part: Share of it that the choices have.
    """
    event = steps.pay(step, part, retained) if steps.private else None
    scores, sensitivity = rows.total(sums).abs().amax(0), steps.sensitivity(sums, rows.n)
    if event is None:
        return tuple(sorted(scores.topk(retained).indices.tolist()))
    if isinstance(event, PureEvent):
        return tuple(sorted(top_k(scores, retained, retained * event.epsilon, steps.session.noise, sensitivity)))
    return tuple(sorted(gumbel_top_k(scores, retained, event, steps.session.noise, sensitivity)))


def chosen_about(
    rows: Summed, about: Callable[[float], Waves], count: int, step: str, steps: NoisySteps
) -> tuple[int, ...]:
    r"""Return the positions that are chosen by what covariates have to do with a number r of each record.

    .. math:: \max_b \Big|\sum_i b(z_{ij} / 2)\, \mathrm{clip}(r_i - \bar r)\Big|

    with a released mean of r, which a tenth of the step pays for: what r is for everybody would count for each
    covariate otherwise.

    Args:
        rows: The records, r their outcomes.
        about: From the mean of r to the sums.
        count: How many are chosen.
        step: That pays.
        steps: Pays, and draws noise.
    """
    centre = float(steps.total(step, rows, Total(), CENTRE)) / steps.mass(rows.n)
    centre = min(max(centre, -1.0), 1.0) if steps.private else centre
    return chosen_by(rows, about(centre), count, steps, step, 1 - CENTRE)


def chosen_pairs(
    rows: Summed, two_levels: tuple[bool, ...], count: int, step: str, steps: NoisySteps
) -> tuple[Feature, ...]:
    """Return products of a covariate's slope with others that are chosen; of fewer candidates, fewer.

    Args:
        rows: The records, r their outcomes.
        two_levels: Whether each covariate has two levels.
        count: How many are chosen.
        step: That pays.
        steps: Pays, and draws noise.
    """
    found = chosen_about(rows, lambda centre: PairsAbout(centre, two_levels, count), count, step, steps)
    candidates = all_features(two_levels, PAIRED)
    return tuple(candidates[place] for place in found if place < len(candidates))


def _wave_sums(u: Tensor, r: Tensor) -> Tensor:
    """Return the sums over some records, [2, q]."""
    return torch.stack([wave.T @ r for wave in (torch.sin(math.pi / 2 * u), torch.cos(math.pi * u))])


# -- scales of skewed covariates: private windows that hold most of their values, and moments within these


@dataclass(frozen=True, eq=False)
class WindowCells(Statistic):
    """How many of the records lie in each cell of each covariate, [q, 256].

    A record counts by its weight, and a missing value does not: the quantile of level t is then that of the others, by
    counts below a threshold less t of all that count.

    Attributes:
        numbers: Which covariates are looked at, those of more than two levels, [q].
        bent: Which of these have cells that are finer towards -1.
        indicators: For each of all covariates the position of the one that says where it is missing, or None.
    """

    numbers: Tensor
    bent: Tensor
    indicators: Indicators = ()

    def moved(self) -> tuple[float, float, float]:
        """See ``Statistic``: of ``turned`` counts below two thresholds a covariate, less a share of all."""
        root = math.sqrt(len(self.bent))
        return root, 2, root

    def __call__(self, batch: CausalData) -> Tensor:
        """See ``Statistic``; of covariates scaled to [-1, 1]."""
        u, columns = batch.x[:, self.numbers], self.numbers.nonzero().flatten().tolist()
        gone, weight = absent(batch.x, columns, self.indicators), batch.weight
        if gone is None and weight is None:
            return summed(self._cells, u)
        ones = torch.ones_like(u, dtype=torch.float64)
        counted = ones if weight is None else weight.to(ones)[:, None] * ones
        return summed(self._cells, u, counted if gone is None else counted.masked_fill(gone, 0.0))

    def _cells(self, u: Tensor, counted: Tensor | None = None) -> Tensor:
        share = ((u.double() + 1) / 2).clamp(0, 1)
        share = torch.where(self.bent.to(u.device), share.pow(1 / _BEND), share)
        cell = (share * CELLS).long().clamp_max(CELLS - 1)
        start = CELLS * torch.arange(u.shape[1], device=u.device)
        each = None if counted is None else counted.to(u.device).flatten()
        return torch.bincount((cell + start).flatten(), each, minlength=CELLS * u.shape[1]).view(-1, CELLS).double()


_TURN = math.sqrt(3) / 2


def turned(counts: Tensor) -> Tensor:
    r"""Return half the sum of two counts, and a multiple of their difference, which one record moves by one at most.

    .. math:: s = \frac{c_1 + c_2}{2}, \qquad d = \frac{\sqrt3}{2} (c_2 - c_1), \qquad
        s^2 + d^2 = c_1^2 + c_2^2 - c_1 c_2

    The counts are of records below two thresholds, the first of which is not above the second: one record moves them
    by (1, 0), (0, 1), (1, 1) or their negatives, never by (1, -1), and each of these has the length one here. Noise of
    variance one on s and d is of variance 4/3 on each count; on the counts themselves it takes 2, for (1, 1) has the
    length :math:`\sqrt2` there.

    A record that counts v in [0, 1] times, less shares :math:`t_1 \le t_2` of all records, adds
    :math:`v (b_1 - t_1, b_2 - t_2)` with b = (0, 0), (0, 1) or (1, 1). The distance of two such vectors is a convex
    function of both weights, so that it is largest where these are 0 or 1: it is one as above, or the length of one
    vector, which is at most one. With thresholds in the other order b = (1, 0) would be possible, whose length is 1.39
    at the shares .2 and .8.

    Args:
        counts: [..., 2].

    Example:
        >>> turned(torch.tensor([[1.0, 0.0], [1.0, 1.0]]).double()).norm(dim=1).round(decimals=9).tolist()
        [1.0, 1.0]
    """
    first, second = counts.unbind(-1)
    return torch.stack([(first + second) / 2, _TURN * (second - first)], -1)


def turned_back(numbers: Tensor) -> Tensor:
    """Inverse of ``turned``."""
    half, apart = numbers[..., 0], numbers[..., 1] / (2 * _TURN)
    return torch.stack([half - apart, half + apart], -1)


def private_windows(rows: Summed, cells: WindowCells, steps: NoisySteps) -> Standardisation:
    r"""Return a private middle c and scale s of each covariate, by halving for its .2 and .8 quantile.

    .. math:: c = (q_{.2} + q_{.8}) / 2, \qquad s = (q_{.8} - q_{.2}) / 1.683

    Each of the 8 vectors of counts, two of each covariate, gets its noise as ``turned`` says: its :math:`\ell_2`
    sensitivity is :math:`\sqrt q`, and it shares the step evenly. Where both quantiles are in the first or last cell,
    they say nothing of the other values: the window is then [-1, 1].

    Args:
        rows: The records, which are looked at once it is paid for.
        cells: Of the covariates.
        steps: Pays, and draws noise.
    """
    q, event = len(cells.bent), steps.pay(WINDOWS, count=HALVINGS) if steps.private else None
    below = torch.cat([torch.zeros(q, 1).double(), rows.total(cells).cpu().cumsum(1)], 1)
    levels, sensitivity = torch.tensor(_QUANTILES, dtype=torch.float64), steps.sensitivity(cells, rows.n)
    centred, wanted = torch.zeros(q, 2).double(), rows.n * levels
    if steps.weight is not None or any(place is not None for place in cells.indicators):
        # not all records count in each covariate, nor alike: see quantile_of
        centred, wanted = below[:, -1:] * levels, torch.zeros(2).double()
    low, high = torch.zeros(q, 2).long(), torch.full((q, 2), CELLS)
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        counts = below.gather(1, middle) - centred
        if event is not None:
            counts = turned_back(steps.noisy(turned(counts).flatten(), sensitivity, event).view(q, 2))
        short = counts < wanted
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
        low, high = low.sort(1).values, high.sort(1).values  # the sensitivity needs thresholds in order
    share = (low + high).double() / (2 * CELLS)
    ends = 2 * torch.where(cells.bent[:, None], share.pow(_BEND), share) - 1
    centre, spread = ends.mean(1), ((ends[:, 1] - ends[:, 0]) / _APART).clamp_min(_LEAST)
    at_end = (high[:, 1] == 1) | (low[:, 0] == CELLS - 1)
    return Standardisation(centre.masked_fill(at_end, 0.0), spread.masked_fill(at_end, 1 / MOST))


@dataclass(frozen=True, eq=False)
class MomentsWithin(Moments):
    """``Moments`` of covariates as shares of their windows; those of two levels as they are.

    Attributes:
        windows: Of covariates of more than two levels.
        two_levels: Which have two, [q].
    """

    windows: Standardisation
    two_levels: Tensor

    def values(self, u: Tensor) -> Tensor:
        found = u.double().clone()
        found[:, ~self.two_levels] = self.windows(found[:, ~self.two_levels]) / MOST
        return found  # where it is missing, ``Moments`` leaves it out


def private_moments(rows: Summed, moments: MomentsWithin, steps: NoisySteps) -> Standardisation:
    """Return the standardisation of all covariates, by their means and squares within their windows.

    Of covariates that have most values at one end, and others not at the other end, it tells these values apart from
    all others: z is -1/3 there, and 3 elsewhere.

    Args:
        rows: The records.
        moments: Of the covariates.
        steps: Pays, and draws noise.
    """
    two_levels, windows = moments.two_levels, moments.windows
    middle, half = torch.zeros(len(two_levels)).double(), torch.ones(len(two_levels)).double()
    middle[~two_levels], half[~two_levels] = windows.mean, MOST * windows.sd
    at_end = (half == 1) & ~two_levels
    spreads, squares = torch.where(half == 1, _RATES, _MEANS).double(), torch.where(at_end, _AT_END, _SQUARE).double()
    mean, square = released_moments(rows, moments, steps, ExpectedMoments(spreads, squares, _SQUARE_SPREAD))
    variance = torch.where(two_levels, 1.0, square) - mean.square()
    apart = at_end & (1 - mean.square() > TWO_VALUES * variance)
    centre, spread = middle + half * mean, half * variance.clamp(LEAST_VARIANCE, 1).sqrt()
    centre = torch.where(apart, mean.sign() * (1 - _LEAST / MOST), centre)
    return Standardisation(centre.clamp(-1, 1), spread.masked_fill(apart, _LEAST).clamp_max(1))


# -- what is retained


@dataclass(frozen=True, eq=False)
class RetainedCovariates:
    """Covariates that regressions have.

    Attributes:
        columns: Their positions among all, by that order; None for all as they are.
        standardisation: Of these, released.
        two_levels: Whether each has two levels.
        indicators: For each of all covariates the position of the one that says where it is missing, or None.
    """

    columns: tuple[int, ...] | None
    standardisation: Standardisation
    two_levels: tuple[bool, ...]
    indicators: Indicators

    @property
    def levels(self) -> Levels:
        """Whether each has two levels, and which of them says where another is missing."""
        return Levels(self.two_levels, among(self.columns, self.indicators))

    def of(self, u: Tensor) -> Tensor:
        """Return them standardised, [n, k], of all covariates u [n, q] scaled to [-1, 1]; 0 where one is missing."""
        return self.standardisation.of(u, self.columns, self.indicators)

    def at(self, places: Sequence[int]) -> "RetainedCovariates":
        """Return those at some positions among these, in that order."""
        every = range(len(self.two_levels)) if self.columns is None else self.columns
        scales = Standardisation(self.standardisation.mean[list(places)], self.standardisation.sd[list(places)])
        levels = tuple(self.two_levels[j] for j in places)
        return replace(self, columns=tuple(every[j] for j in places), standardisation=scales, two_levels=levels)


def retained_covariates(
    rows: Rows, domain: Domain, plan: ComposedPlan, steps: NoisySteps, two_levels: Sequence[bool]
) -> RetainedCovariates:
    """Run the steps that choose and scale the covariates of the regressions.

    A wide plan keeps all, the ones that it chooses for the outcome first.

    Args:
        rows: Records of ``to_be_screened``.
        domain: Public bounds.
        plan: The public plan.
        steps: Pays, and draws noise.
        two_levels: Whether each covariate has two levels, public, [q].
    """
    every, indicators = tuple(two_levels), domain.indicators
    if not plan.windows:
        columns = chosen_by(rows, Waves(), plan.retained, steps) if plan.screens else None
        levels = every if columns is None else tuple(every[column] for column in columns)
        if steps.private and "moments" not in plan.shares.shares:
            return RetainedCovariates(columns, Standardisation.none(len(levels)), levels, indicators)
        moments = Moments(columns=columns, indicators=indicators)
        scales = private_standardisation(rows, moments, steps, plan.by_sums)
        return RetainedCovariates(columns, scales, scales.levels(levels), indicators)
    two, windows = torch.tensor(every), Standardisation.none(0)
    if not all(every):
        # values of covariates with the lower bound zero and no scale of their own may be skewed
        skewed = torch.tensor([column.low == 0 and column.linear for column in domain.columns])
        windows = private_windows(rows, WindowCells(~two, skewed[~two], indicators), steps)
    scales = private_moments(rows, MomentsWithin(windows, two, indicators=indicators), steps)
    retained = RetainedCovariates(None, scales, scales.levels(every), indicators)
    if not plan.wide:
        return retained
    count = plan.choices[PROGNOSTIC]
    first = chosen_about(rows, lambda centre: WavesAbout(centre, scales, indicators), count, PROGNOSTIC, steps)
    return retained.at([*first, *(j for j in range(len(every)) if j not in first)])
