"""Sums over records with noise, and ratios of them: an estimator says its terms and its formula, the rest is here.

What a record adds to a number is a pure function of a batch and of numbers that were released before (``Sums``). It is
clipped to a public bound, summed exactly, and gets noise of a public law in units of what one record moves it by.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.exact_sums import exact_sum, sum_grid
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game
from torchdpcate.release.estimate import Estimate, IntervalLaw, noise_deviation

UPPER = math.log(5)
"""One-sided 90 % quantile of Laplace noise, in its scale: 1.609438."""
SCALES = 3.0
"""A denominator below this many scales of its noise is dominated by noise."""
SUMS = "sums"
"""The query of several sums that are one event."""
_AT_ONCE = 50_000  # runs of a game whose terms of all records are in memory

Total = Callable[[Callable[[Any], Tensor]], Tensor]
"""From sums over a batch, [runs, k], to sums over all records, [runs, k]."""
Request = Callable[[str, Tensor], Tensor]
"""From a query and its exact numbers, [runs, p], to its answers: it charges before it draws."""


@dataclass(frozen=True, eq=False)
class Sums:
    r"""Sums over records that one query requests: data, without reference to session, ledger or noise.

    .. math:: \text{number} = s + u \sum_i v_i, \qquad
        \text{answer} = \frac1\Delta \sum_i g\, \mathrm{round}(\mathrm{clip}(v_i, -B, B) / g) + \text{noise}

    Attributes:
        names: What releases call the numbers.
        terms: v, what each record of a batch adds to each number, [runs, b] each; pure, and fit to be pickled.
        n: Number of records, public.
        largest: B of each number, which decides its grid.
        moved: Delta, in which one record moves the answers by the sensitivity of their law, [runs, k] or for all.
        unit: u, [runs, k] or for all.
        shift: s, [runs, k] or for all.
    """

    names: tuple[str, ...]
    terms: Callable[[Any], Sequence[Tensor]]
    n: int
    largest: tuple[float, ...]
    moved: Tensor | float = 1.0
    unit: Tensor | float = 1.0
    shift: Tensor | float = 0.0

    @classmethod
    def within(
        cls,
        name: str,
        term: Callable[[Any], Tensor],
        n: int,
        ends: tuple[Tensor, Tensor],
        largest: float,
        unit: Tensor | float = 1.0,
    ) -> "Sums":
        """Return the sum of terms in a public range, with the noise of a law of sensitivity 1.

        One record moves it by the range's width, and a step of the sum's exact grid.

        Args:
            name: What releases call it.
            term: What each record of a batch adds, [runs, b]; within the range.
            n: Number of records.
            ends: Of the range, [runs] each.
            largest: See the class.
            unit: See the class, [runs].
        """
        low, high = ends
        own = unit[:, None] if isinstance(unit, Tensor) else unit
        moved = (high - low + sum_grid(n, largest))[:, None]
        return cls((name,), partial(_alone, term), n, (largest,), moved, own)

    def exact(self, batch: Any) -> Tensor:
        """Return the sums of the terms of a batch, exact in any order, [runs, k]; the curator's."""
        each = zip(self.terms(batch), self.largest, strict=True)
        return torch.stack([exact_sum(terms, self.n, largest) for terms, largest in each], -1)

    def of(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the numbers by sums of terms [runs, k], [runs] each."""
        return dict(zip(self.names, (self.shift + self.unit * sums).unbind(-1), strict=True))

    def numbers(self, answers: Tensor) -> dict[str, Tensor]:
        """Return the numbers by answers [runs, k], [runs] each."""
        return self.of(answers * self.moved)

    def places(self, numbers: Mapping[str, Tensor]) -> Tensor:
        """Return the answers [runs, k] by numbers [runs], but for rounding."""
        given = torch.stack([numbers[name] for name in self.names], -1)
        return (given - self.shift) / self.unit / self.moved

    def scales(self, scale: float) -> dict[str, Tensor]:
        """Return the scale of the noise in each number by that of the answers, [runs] each."""
        each = torch.ones(len(self.names), dtype=torch.float64) * (self.moved * scale * self.unit)
        return dict(zip(self.names, each.reshape(-1, len(self.names)).unbind(-1), strict=True))


def _alone(term: Callable[[Any], Tensor], batch: Any) -> tuple[Tensor]:
    return (term(batch),)


@dataclass(frozen=True, eq=False)
class NoisyEstimate:
    """An estimate and the law of its error, for outcomes in [0, 1], one entry a run.

    Attributes:
        estimate: In [-1, 1], [runs].
        gaussian: Standard deviation of the Gaussian part of its error, an upper bound, [runs].
        laplace: Scales of independent Laplace parts, [runs, k].
        noise_dominated: Whether noise dominates a denominator, so that the interval must be the full range, [runs].
        size: N, what imbalances are divided by, [runs].
        released: Released sums by name, [runs] each.
    """

    estimate: Tensor
    gaussian: Tensor
    laplace: Tensor
    noise_dominated: Tensor
    size: Tensor
    released: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of_ratio(
        cls,
        estimate: Tensor,
        size: Tensor,
        gaussian: Tensor,
        noise: Sequence[Tensor],
        released: Mapping[str, Tensor],
        noise_dominated: Tensor | None = None,
    ) -> "NoisyEstimate":
        """Return the estimate with the law of its error, all [runs].

        Args:
            estimate: The ratio.
            size: Its denominator.
            gaussian: Standard deviation of the Gaussian part of its error.
            noise: Scales of Laplace noise that moves the numerator, at the estimate.
            released: Released sums by name.
            noise_dominated: Whether noise dominates the denominator; None: never.
        """
        laplace = torch.stack([scale.expand_as(size) for scale in noise], -1) / size[:, None]
        never = torch.zeros_like(size, dtype=torch.bool)
        dominated = never if noise_dominated is None else noise_dominated
        return cls(estimate, gaussian, laplace, dominated, size, released)

    @property
    def noise(self) -> Tensor:
        """Standard deviation of what noise adds to the estimate, [runs]; sampling is not in it."""
        return noise_deviation(self.laplace)

    def in_units(self, unit: float, interval: bool = True) -> Estimate:
        """Return the first run in outcome units.

        Args:
            unit: Range of the outcome.
            interval: Whether the law of its error counts sampling, so that an interval is known.
        """
        law = IntervalLaw(unit * self.gaussian[0].item(), tuple((unit * self.laplace[0]).tolist()))
        return Estimate(unit * self.estimate[0].item(), law if interval else None, bool(self.noise_dominated[0]))


@dataclass(frozen=True, eq=False)
class RatioOfSums(ABC):
    """An estimate by queries of sums over records, each of which may follow from the numbers before it.

    Attributes:
        private: Whether the sums get noise, so that terms and formulas count it.
    """

    private: bool = field(default=True, kw_only=True)

    @cached_property
    @abstractmethod
    def laws(self) -> Mapping[str, AddedNoise]:
        """The noise of each query, in the order in which they are requested."""

    @abstractmethod
    def sums(self, query: str, numbers: Mapping[str, Tensor]) -> Sums:
        """Return what a query requests.

        Args:
            query: One of ``laws``.
            numbers: Those that were released before it, [runs] each.
        """

    def public(self) -> dict[str, Any]:
        """Return public constants that follow from what is known before the sums, as statements have them."""
        return {}

    def scale(self, query: str) -> float:
        """Return the scale of the noise in the answers of a query; 0 without noise."""
        return self.laws[query].scale if self.private else 0.0

    def ask(self, total: Total, ask: Request) -> dict[str, Tensor]:
        """Return the answers of all queries, by name.

        Args:
            total: Sums over the records.
            ask: Charges before it draws.
        """
        answers: dict[str, Tensor] = {}
        numbers: dict[str, Tensor] = {}
        for query in self.laws:
            sums = self.sums(query, numbers)
            answers[query] = ask(query, total(sums.exact) / sums.moved)
            numbers |= sums.numbers(answers[query])
        return answers

    def numbers(self, answers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the released numbers by the answers, [runs] each."""
        return self._numbers(lambda query, sums: sums.numbers(answers[query]))

    def _numbers(self, of: Callable[[str, Sums], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the numbers of all queries, each given those before it."""
        numbers: dict[str, Tensor] = {}
        for query in self.laws:
            numbers |= of(query, self.sums(query, numbers))
        return numbers

    def places(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the answers by the numbers of a release, [1] each: the inverse of ``numbers``."""
        return {query: self.sums(query, numbers).places(numbers) for query in self.laws}

    def exact(self, total: Total) -> dict[str, Tensor]:
        """Return the numbers without noise, [runs] each. The curator's, never to be published."""
        return self._numbers(lambda query, sums: sums.of(total(sums.exact)))

    def scales(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the scale of the noise in each number, by the numbers, [runs] each."""
        found: dict[str, Tensor] = {}
        for query in self.laws:
            found |= self.sums(query, numbers).scales(self.scale(query))
        return found

    def log_density(self, total: Total, shown: Tensor) -> Tensor:
        """Return the log density of all answers by the exact sums of some records, up to a constant, [runs].

        Args:
            total: Sums over the records.
            shown: The answers of all queries side by side, [runs, p].
        """
        numbers: dict[str, Tensor] = {}
        found = torch.zeros(len(shown), dtype=torch.float64)
        for (query, law), answers in zip(
            self.laws.items(), shown.split([law.size for law in self.laws.values()], 1), strict=True
        ):
            sums = self.sums(query, numbers)
            found = found + law.log_density(answers, total(sums.exact) / sums.moved)
            numbers |= sums.numbers(answers)
        return found

    def game(self, datasets: Sequence[Total], epsilon: float, **settings: Any) -> Game:
        """Return the game of an audit on two data sets, of all answers, with their exact likelihood ratio.

        Args:
            datasets: Sums over the records of a data set, and of its neighbour.
            epsilon: What all queries cost together.
            settings: Further fields of ``Game``.
        """

        def some(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
            answers = self.ask(datasets[dataset], lambda query, exact: self.laws[query].draw(noise, runs, exact))
            return torch.cat(list(answers.values()), 1)

        def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
            parts = [min(_AT_ONCE, runs - start) for start in range(0, runs, _AT_ONCE)]
            return torch.cat([some(dataset, part, noise) for part in parts])

        def evidence(shown: Tensor) -> Tensor:
            parts = shown.split(_AT_ONCE)
            ratios = [self.log_density(datasets[1], part) - self.log_density(datasets[0], part) for part in parts]
            return torch.cat(ratios).round(decimals=9)  # last places would tell equal ratios apart

        claim = Guarantee(Level.CERTIFIED, PrivacyBudget(epsilon, 0.0))
        return Game(draw, PureEvent(epsilon), claim, evidence, **settings)

    @abstractmethod
    def estimate(self, numbers: Mapping[str, Tensor]) -> NoisyEstimate:
        """Return the estimate and the law of its error, which counts the noise in the numbers.

        Args:
            numbers: Released sums by name, [runs] each.
        """

    def concluded(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """Return the estimate by the answers of ``ask``."""
        return self.estimate(self.numbers(answers))

    def planned(self, total: Total) -> NoisyEstimate:
        """Return the estimate of sums as they are, with the law that noise would give it; nothing is drawn.

        Args:
            total: Sums over typical records, which are public.
        """
        return self.estimate(self.exact(total))

    def without_noise(self, total: Total) -> NoisyEstimate:
        """Return the estimate of sums as they are. The curator's, never to be published."""
        exact = replace(self, private=False)
        return exact.estimate(exact.exact(total))


def upper_bound(number: Tensor, scale: Tensor, most: Tensor) -> Tensor:
    """Return a one-sided 90 % bound of a sum of squares by its number with Laplace noise, all [runs].

    Args:
        number: Released.
        scale: Of its noise.
        most: What the sum is at most.

    Example:
        >>> upper_bound(torch.tensor([1.0, -9.0]), torch.tensor([1.0]), torch.tensor([3.0])).tolist()
        [2.609437942504883, 0.0]
    """
    return (number + UPPER * scale).clamp_min(0).minimum(most)


_LEVEL, _OUTSIDE = 0.9, 0.005  # of the one-sided bound; and how often the mean lies beyond what is assumed of it
_STEPS = 16  # of the mean's size, at which quantiles are worked out
_NODES = 2048  # of the integral over the sum's noise; its error is below one part in so many


def sums_mechanism(n: int, epsilon: float) -> LaplaceMechanism:
    r"""Return the noise of both sums over n records: of v, and of half of :math:`v^2`, for v in [-1, 1].

    Two values at a distance d move v by d and :math:`v^2/2` by at most :math:`d (2 - d)/2`; together that is
    :math:`2 d - d^2/2 \le 2`. So the squares cost nothing beside the sum. Rounding to the grid of exact sums adds a
    step to each.

    Example:
        >>> round(sums_mechanism(1000, 0.5).scale, 6)
        4.0
    """
    return LaplaceMechanism(epsilon, 2.0 + 2 * sum_grid(n, 1.0))


def sums_law(n: int, epsilon: float) -> AddedNoise:
    """Return the law of both sums of n values at this epsilon."""
    return AddedNoise(sums_mechanism(n, epsilon), 2)


def sum_and_squares(
    n: int,
    terms: Callable[[Any], Tensor] | None = None,
    within: "TermRange | None" = None,
    names: tuple[str, str] = ("sum", "spread"),
) -> Sums:
    """Return the sums of n values, and of their squares about the middle of their range, as one event.

    The answers are those of the values' places v in their range, in [-1, 1]: the sums of v and of half its square.

    Args:
        n: How many values there are, public.
        terms: The values of a batch, [runs, b]; None takes the batch itself.
        within: Their public range; None takes [-1, 1].
        names: What releases call both numbers.

    Example:
        >>> sum_and_squares(3).exact(torch.tensor([[1.0, -0.5, 0.25]], dtype=torch.float64)).tolist()
        [[0.75, 0.65625]]
    """
    each = partial(_places, terms, within)
    if within is None:
        return Sums(names, each, n, (1.0, 1.0), unit=torch.tensor([1.0, 2.0], dtype=torch.float64))
    middle = n * within.middle
    unit = torch.stack([within.half, 2 * within.half.square()], -1)
    shift = torch.stack([middle, torch.zeros_like(middle)], -1)
    return Sums(names, each, n, (1.0, 1.0), unit=unit, shift=shift)


def _places(terms: Callable[[Any], Tensor] | None, within: "TermRange | None", batch: Any) -> tuple[Tensor, Tensor]:
    values = batch if terms is None else terms(batch)
    v = values if within is None else within.places(values)
    return v, v.square() / 2


class TermRange(NamedTuple):
    """The public interval of the terms of a sum, which is released as sum and squares of their places in it.

    Attributes:
        low: Least term, [runs].
        high: Largest, above it.
    """

    low: Tensor
    high: Tensor

    @property
    def middle(self) -> Tensor:
        """[runs]."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> Tensor:
        """Half of the width, [runs]."""
        return (self.high - self.low) / 2

    def places(self, terms: Tensor) -> Tensor:
        """Return where in the interval terms [runs, b] are, in [-1, 1]."""
        return ((terms - self.middle[:, None]) / self.half[:, None]).clamp(-1, 1)

    def most_deviations(self, total: Tensor, squares: Tensor, n: int, scale: float) -> Tensor:
        """Return the bound of ``most_deviations`` for n terms, by their sum and squares; scale is that of places."""
        places, half_squares = (total - n * self.middle) / self.half, squares / (2 * self.half.square())
        return self.half.square() * most_deviations(places, 2 * half_squares, n, scale)


def most_deviations(total: Tensor, squares: Tensor, n: int, scale: float) -> Tensor:
    r"""Return a one-sided 90 % bound, [runs], of the sum of squared deviations of the values from their mean.

    With :math:`T = \sum_i v_i + n_T`, :math:`Q = \sum_i v_i^2 + n_Q` and the mean :math:`\bar v` of the values,

    .. math:: \sum_i (v_i - \bar v)^2 = Q - \frac{T^2}n - n_Q + 2 \bar v\, n_T + \frac{n_T^2}n .

    The law of the last three terms is that of :math:`2 b (L_1 + \bar v L_2 + b L_2^2 / 2n)`, which the sign of the mean
    leaves alone. The mean is at most :math:`|T|/n + b \ln(200)/n` in size but for one run in 200, which is added to the
    level of the quantile. n numbers in [-1, 1] do not deviate by more than n.

    Args:
        total: T, [runs].
        squares: Q, [runs]; its noise has twice the scale of that in T.
        n: Number of values.
        scale: b, of the noise in T; 0 for none.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> most_deviations(20 * one, 14 * one, 100, 0.0).item()
        10.0
        >>> round((most_deviations(20 * one, 40 * one, 100, 2.0).item() - 36) / 4, 3)
        1.795
    """
    deviations = squares - total.square() / n
    if scale > 0:
        mean = (total.abs() / n + scale * math.log(1 / _OUTSIDE) / n).clamp_max(1)
        deviations = deviations + 2 * scale * _quantiles(scale / (2 * n))[(mean * _STEPS).ceil().long()]
    return deviations.clamp(0, n)


@lru_cache(maxsize=256)
def _quantiles(curvature: float) -> Tensor:
    r"""Return quantiles of :math:`L_1 + m L_2 + \kappa L_2^2`, standard Laplace, for m = 0, 1/16, ..., 1.

    By bisection of the distribution function, an integral over :math:`L_2`; rounded up.

    Args:
        curvature: kappa.
    """
    p = (torch.arange(_NODES, dtype=torch.float64) + 0.5) / _NODES
    l2 = -(p - 0.5).sign() * torch.log1p(-2 * (p - 0.5).abs())
    means = torch.arange(_STEPS + 1, dtype=torch.float64)[:, None] / _STEPS
    moved = means * l2 + curvature * l2.square()
    level = _LEVEL + _OUTSIDE + 1 / _NODES
    low, high = torch.zeros(_STEPS + 1, 1, dtype=torch.float64), moved.amax(1, keepdim=True) + math.log(_NODES)
    for _ in range(40):
        middle = (low + high) / 2
        left = middle - moved
        below = (0.5 + 0.5 * left.sign() * -torch.expm1(-left.abs())).mean(1, keepdim=True) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high[:, 0].cummax(0).values  # the largest of all means up to this one
