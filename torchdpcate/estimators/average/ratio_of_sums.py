"""Sums over records with noise, and ratios of them: an estimator says its terms and its formula, the rest is here.

What a record adds to a number is a pure function of a batch and of numbers that were released before (``Sums``). It is
clipped to a public bound, summed exactly, and gets noise of a public law in units of what one record moves it by.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.exact_sums import exact_sum, far_problems, on_grid, sum_grid
from torchdpcate.privacy.guarantee import Guarantee, Level
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
Ask = Callable[[str, Tensor], Tensor]
"""From a query and its exact numbers, [runs, p], to its answers: it charges before it draws."""


@dataclass(frozen=True, eq=False)
class Sums:
    r"""Sums over records that one query asks for: data, without reference to session, ledger or noise.

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
        reach: Largest size of a term, where released numbers leave less than ``largest``.
    """

    names: tuple[str, ...]
    terms: Callable[[Any], Sequence[Tensor]]
    n: int
    largest: tuple[float, ...]
    moved: Tensor | float = 1.0
    unit: Tensor | float = 1.0
    shift: Tensor | float = 0.0
    reach: tuple[float, ...] | None = None

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
        reach = min(torch.maximum(low.abs(), high.abs()).amax().item(), largest)
        own = unit[:, None] if isinstance(unit, Tensor) else unit
        moved = (high - low + sum_grid(n, largest))[:, None]
        return cls((name,), partial(_alone, term), n, (largest,), moved, own, reach=(reach,))

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

    def places(self, numbers: Mapping[str, Tensor], scale: float) -> Tensor:
        """Return the answers [runs, k] by numbers [runs]: on the grid of noise of this scale, but for rounding."""
        given = torch.stack([numbers[name] for name in self.names], -1)
        shifted = torch.as_tensor(self.shift / self.unit, dtype=torch.float64).abs().amax().item()
        return on_grid((given - self.shift) / self.unit / self.moved, scale, shifted)

    def scales(self, scale: float) -> dict[str, Tensor]:
        """Return the scale of the noise in each number by that of the answers, [runs] each."""
        each = torch.ones(len(self.names), dtype=torch.float64) * (self.moved * scale * self.unit)
        return dict(zip(self.names, each.reshape(-1, len(self.names)).unbind(-1), strict=True))

    def far_problems(self, answers: Tensor, scale: float) -> Iterator[str]:
        """Return which numbers of one release [1, k] are beyond what records and noise of this scale can make."""
        moved = (torch.ones_like(answers) * self.moved)[0].tolist()
        each = zip(self.names, answers[0], self.reach or self.largest, moved, strict=True)
        for name, answer, reach, unit in each:
            yield from far_problems(name, answer[None] * unit, self.n * reach, scale * unit)


def _alone(term: Callable[[Any], Tensor], batch: Any) -> tuple[Tensor]:
    return (term(batch),)


@dataclass(frozen=True, eq=False)
class NoisyEstimate:
    """An estimate and the law of its error, for outcomes in [0, 1], one entry a run.

    Attributes:
        estimate: In [-1, 1], [runs].
        gaussian: Standard deviation of the Gaussian part of its error, an upper bound, [runs].
        laplace: Scales of independent Laplace parts, [runs, k].
        polytope: What a draw of root-polytope noise with W/epsilon = 1 is multiplied by and summed, [runs, 4]; None
            where there is none.
        noise_dominated: Whether noise dominates a denominator, so that the interval must be the full range, [runs].
        size: N, what imbalances are divided by, [runs].
        released: Released sums by name, [runs] each.
    """

    estimate: Tensor
    gaussian: Tensor
    laplace: Tensor
    polytope: Tensor | None
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
        return cls(estimate, gaussian, laplace, None, dominated, size, released)

    @property
    def noise(self) -> Tensor:
        """Standard deviation of what noise adds to the estimate, [runs]; sampling is not in it."""
        return noise_deviation(self.laplace, self.polytope)

    def in_units(self, unit: float, interval: bool = True) -> Estimate:
        """Return the first run in outcome units.

        Args:
            unit: Range of the outcome.
            interval: Whether the law of its error counts sampling, so that an interval is known.
        """
        polytope = () if self.polytope is None else tuple((unit * self.polytope[0]).tolist())
        law = IntervalLaw(unit * self.gaussian[0].item(), tuple((unit * self.laplace[0]).tolist()), polytope)
        return Estimate(unit * self.estimate[0].item(), law if interval else None, bool(self.noise_dominated[0]))


@dataclass(frozen=True, eq=False)
class NoisySums(ABC):
    """Queries of sums over records, one after the other: what each asks for may follow from the numbers before it.

    Attributes:
        private: Whether the sums get noise, so that terms and formulas count it.
    """

    private: bool = field(default=True, kw_only=True)

    @cached_property
    @abstractmethod
    def laws(self) -> Mapping[str, AddedNoise]:
        """The noise of each query, in the order in which they are asked."""

    @abstractmethod
    def sums(self, query: str, numbers: Mapping[str, Tensor]) -> Sums:
        """Return what a query asks for.

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

    def ask(self, total: Total, ask: Ask) -> dict[str, Tensor]:
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
        numbers: dict[str, Tensor] = {}
        for query in self.laws:
            numbers |= self.sums(query, numbers).numbers(answers[query])
        return numbers

    def places(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the answers by the numbers of a release, [1] each: the inverse of ``numbers``."""
        return {query: self.sums(query, numbers).places(numbers, law.scale) for query, law in self.laws.items()}

    def exact(self, total: Total) -> dict[str, Tensor]:
        """Return the numbers without noise, [runs] each. The curator's, never to be published."""
        numbers: dict[str, Tensor] = {}
        for query in self.laws:
            sums = self.sums(query, numbers)
            numbers |= sums.of(total(sums.exact))
        return numbers

    def scales(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the scale of the noise in each number, by the numbers, [runs] each."""
        found: dict[str, Tensor] = {}
        for query in self.laws:
            found |= self.sums(query, numbers).scales(self.scale(query))
        return found

    def far_problems(self, answers: Mapping[str, Tensor]) -> Iterator[str]:
        """Return which numbers of a release, by its answers, are beyond what records and noise can make."""
        numbers = self.numbers(answers)
        for query, law in self.laws.items():
            yield from self.sums(query, numbers).far_problems(answers[query], law.scale)

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

    def game(self, worlds: Sequence[Total], epsilon: float, **settings: Any) -> Game:
        """Return the game of an audit on two data sets, of all answers, with their exact likelihood ratio.

        Args:
            worlds: Sums over the records of a data set, and of its neighbour.
            epsilon: What all queries cost together.
            settings: Further fields of ``Game``.
        """

        def some(world: int, runs: int, noise: NoiseSource) -> Tensor:
            answers = self.ask(worlds[world], lambda query, exact: self.laws[query].draw(noise, runs, exact))
            return torch.cat(list(answers.values()), 1)

        def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
            parts = [min(_AT_ONCE, runs - start) for start in range(0, runs, _AT_ONCE)]
            return torch.cat([some(world, part, noise) for part in parts])

        def evidence(shown: Tensor) -> Tensor:
            parts = shown.split(_AT_ONCE)
            ratios = [self.log_density(worlds[1], part) - self.log_density(worlds[0], part) for part in parts]
            return torch.cat(ratios).round(decimals=9)  # last places would tell equal ratios apart

        claim = Guarantee(Level.CERTIFIED, PrivacyBudget(epsilon, 0.0))
        return Game(draw, PureEvent(epsilon), claim, evidence, **settings)


@dataclass(frozen=True, eq=False)
class RatioOfSums(NoisySums):
    """An estimate by sums over records: their terms, and the formula of the estimate and of its error."""

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
