"""What a reader may ask of a release, covariate by covariate, and what a page shows for one person."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from torchdpcate.data.covariates import Covariate, Numeric
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.words import arm, contrast, outcome_words
from torchdpcate.errors import InputError
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.combined import CombinedEffect
from torchdpcate.release.combined_lines import CombinedLines
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.post_processing import reference_population
from torchdpcate.release.release import EffectRelease, Release
from torchdpcate.release.rule import DecisionRelease, PolicyRelease
from torchdpcate.release.subgroups import SubgroupRelease
from torchdpcate.verify.finding import amount, numbers

if TYPE_CHECKING:
    from torchdpcate.release.release import Release

STEPS = 200
"""Positions of a slider between its bounds, and points of a curve."""
LEVEL = 0.95
"""Level of the intervals."""


@dataclass(frozen=True)
class Question:
    """One covariate as a reader is requested it.

    Attributes:
        name: Column of the table.
        start: Value at first: near the released mean where there is one, else the middle of the bounds.
        low: Lower public bound; of categories 0.
        high: Upper public bound; of categories 0.
        levels: Public categories, in order; empty of a number.
        typical: Public range that most values of a number lie in, where one is declared.
        unit: What a number is measured in, in words; empty if nothing is said.
        missing: The number that a value which is not known has; None where it must be known.
    """

    name: str
    start: Any
    low: float = 0.0
    high: float = 0.0
    levels: tuple[Any, ...] = ()
    typical: tuple[float, float] | None = None
    missing: float | None = None
    unit: str = ""

    @property
    def label(self) -> str:
        """Its name, with its unit where one is stated."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def whole(self) -> bool:
        """Whether a slider moves in whole numbers: public bounds are whole, and far enough apart."""
        return self.low == int(self.low) and self.high == int(self.high) and self.high - self.low >= 10

    @property
    def step(self) -> float:
        """What a slider moves by."""
        return 1.0 if self.whole else (self.high - self.low) / STEPS

    def points(self, count: int) -> list[Any]:
        """Values to draw a curve at: all levels, or ``count`` numbers from bound to bound, or of the typical range."""
        if self.levels:
            return list(self.levels)
        low, high = self.typical or (self.low, self.high)
        return [low + (high - low) * i / (count - 1) for i in range(count)]


def questions(release: "Release") -> list[Question]:
    """Return what to ask a reader for, covariate by covariate.

    Args:
        release: Of effects, of a rule or of a chosen policy.

    Raises:
        InputError: A release that answers no covariates: an average effect, or effects in subgroups.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> [(question.name, question.start) for question in questions(_example())]
        [('x0', 0.5)]
    """
    if isinstance(release, AverageEffectRelease | SubgroupRelease | CombinedLines):
        raise InputError(
            f"release of {release.kind}: has numbers and no covariates to move; torchdpcate verify shows them"
        )
    starts = _starts(release)
    return [_question(covariate, starts.get(covariate.name)) for covariate in release.schema.covariates]


def _question(covariate: Covariate, typical: torch.Tensor | None) -> Question:
    if covariate.levels:
        levels = tuple(covariate.levels)
        if typical is None:
            return Question(covariate.name, levels[0], levels=levels)
        position = round(typical.item()) if len(typical) == 1 else int(typical.argmax())
        return Question(covariate.name, levels[position], levels=levels)
    assert isinstance(covariate, Numeric)
    column, gone = covariate.columns[0], covariate.middle if covariate.missing else None
    low, high = column.low, column.high
    middle = 0.5 if typical is None else typical[0].item()
    start = covariate.decode_unit(torch.tensor([middle], dtype=torch.float64))[0, 0].item()
    requested = Question(covariate.name, start, low, high)
    steps = round((start - low) / requested.step)
    near, unit = min(low + steps * requested.step, high), getattr(covariate, "unit", "")
    return Question(covariate.name, near, low, high, (), column.typical, gone, unit)


def _starts(release: "Release") -> Mapping[str, torch.Tensor]:
    """Return the mean of each covariate's encoded columns on its scale, from 0 to 1; empty if none was released."""
    if not isinstance(release, ComposedRelease | CombinedEffect):
        return {}
    rows = release.reference if isinstance(release, CombinedEffect) else reference_population(release)
    mean = (release.domain.scale(rows).mean(0) + 1) / 2
    return {name: mean[list(places)] for name, places in release.schema.places.items()}


@dataclass(frozen=True)
class Answer:
    """A release's answer for one person.

    Attributes:
        headline: The answer in words.
        interval: What is stated about its error, in words; why there is nothing else.
    """

    headline: str
    interval: str


@dataclass(frozen=True)
class Curve:
    """Answers while one covariate varies and the others stay.

    Attributes:
        points: Values of that covariate.
        values: Answers there; of several arms those of the first.
        ends: Lower and upper ends of intervals there; empty without.
        arms: Answers of all arms where there are several, by what they are of; else empty.
    """

    points: Sequence[Any]
    values: Sequence[float]
    ends: Sequence[tuple[float, float]]
    arms: Mapping[str, Sequence[float]] = field(default_factory=dict)


def answer(release: Release, values: Mapping[str, Any]) -> Answer:
    """Return what the release says about one person.

    Args:
        release: Of effects, of a rule or of a policy.
        values: A value for each of its covariates.

    Raises:
        InputError: Values outside the public bounds, or where the release has no answer.
    """
    schema = release.schema
    row = _frame([values], schema)
    if isinstance(release, EffectRelease):
        of = release.arm_titles or (contrast(schema),)
        each = zip(of, numbers(release.effect(row).reshape(len(of)).tolist()), strict=True)
        on = outcome_words(schema)
        words = "; ".join(f"effect of {one} on {on}: {amount(schema, effect)}" for one, effect in each)
        return Answer(words, _interval(release, row))
    if isinstance(release, DecisionRelease):
        score = float(release.score(row)[0])
        given = arm(schema, schema.actions[1])
        words = given if score > 0 else arm(schema, schema.actions[0])
        return Answer(words, f"score {score:+.4g}; the rule gives {given} where it is above 0")
    assert isinstance(release, PolicyRelease)
    action = int(release.decide(row)[0])
    return Answer(arm(schema, action), f"by the chosen policy, {release.name}")


def curve(release: Release, values: Mapping[str, Any], question: Question, count: int = 60) -> Curve:
    """Return answers while one covariate varies, the others as they are.

    Args:
        release: Of effects, of a rule or of a policy.
        values: A value for each covariate.
        question: The covariate that varies.
        count: Points of a covariate that is a number.

    Raises:
        InputError: Where the release has no answer.
    """
    points = question.points(count)
    rows = _frame([{**values, question.name: point} for point in points], release.schema)
    if isinstance(release, DecisionRelease):
        return Curve(points, release.score(rows).tolist(), ())
    if isinstance(release, EffectRelease):
        if release.arms:
            each = dict(zip(release.arm_titles, release.effect(rows).T.tolist(), strict=True))
            return Curve(points, each[release.arm_titles[0]], (), each)
        ends = []
        if isinstance(release, CombinedEffect) or (isinstance(release, ComposedRelease) and release.law is not None):
            ends = release.interval(rows, LEVEL).tolist()
        return Curve(points, release.effect(rows).tolist(), [(low, high) for low, high in ends])
    return Curve(points, release.answer(release.schema.matrix(rows)).double().tolist(), ())


def _interval(release: EffectRelease, row: Any) -> str:
    if isinstance(release, ComposedRelease | CombinedEffect):
        if isinstance(release, ComposedRelease) and release.law is None:
            return f"no interval: {release.without_words}"
        low, high = release.interval(row, LEVEL)[0]
        counts = "sampling and all privacy noise"
        return f"{LEVEL:.0%} interval {low:.4g} to {high:.4g}: {counts}; it holds if {release.assumptions}"
    try:
        low, high = release.noise_band(row, LEVEL)[0]
    except InputError:
        return "no interval, and no public noise scale"
    return f"{LEVEL:.0%} of the second stage's noise lies within {low:.4g} to {high:.4g}; no confidence interval"


def _frame(rows: Sequence[Mapping[str, Any]], schema: TableSchema) -> Any:
    """Return rows as a table; days that a slider gives are dates there."""
    import pandas as pd

    dates = {c.name: c for c in schema.covariates if isinstance(c, Numeric) and c.start is not None}
    written = [{name: _date(dates[name], row[name]) for name in dates if name in row} for row in rows]
    return pd.DataFrame([{**row, **days} for row, days in zip(rows, written, strict=True)])


def _date(covariate: Numeric, value: Any) -> Any:
    return covariate.written(value) if isinstance(value, int | float) else value
