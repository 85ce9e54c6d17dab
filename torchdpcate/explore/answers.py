"""What a page shows for one person: the release's own answer, its interval if it has one, and a curve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchdpcate.errors import InputError
from torchdpcate.explore.questions import Question
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.release import EffectRelease, Release
from torchdpcate.release.rule import DecisionRelease, PolicyRelease

LEVEL = 0.95
"""Level of the intervals."""


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
        values: Answers there.
        ends: Lower and upper ends of intervals there; empty without.
    """

    points: Sequence[Any]
    values: Sequence[float]
    ends: Sequence[tuple[float, float]]


def answer(release: Release, values: Mapping[str, Any]) -> Answer:
    """Return what the release says about one person.

    Args:
        release: Of effects, of a rule or of a policy.
        values: A value for each of its covariates.

    Raises:
        InputError: Values outside the public bounds, or where the release has no answer.
    """
    row = _frame([values])
    schema = release.schema
    if isinstance(release, EffectRelease):
        effect = float(release.effect(row)[0])
        words = f"effect of {schema.treatment} on {schema.outcome}: {effect:+.4g}"
        return Answer(words, _interval(release, row))
    if isinstance(release, DecisionRelease):
        score = float(release.score(row)[0])
        words = "treat" if score > 0 else "do not treat"
        return Answer(f"{words} ({schema.treatment})", f"score {score:+.4g}; the rule treats where it is above 0")
    assert isinstance(release, PolicyRelease)
    action = int(release.decide(row)[0])
    return Answer(f"{schema.treatment}: action {action}", f"by the chosen policy, {release.name}")


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
    rows = _frame([{**values, question.name: point} for point in points])
    if isinstance(release, DecisionRelease):
        return Curve(points, release.score(rows).tolist(), ())
    if isinstance(release, EffectRelease):
        ends = []
        if isinstance(release, ComposedRelease) and release.law is not None:
            ends = release.interval(rows, LEVEL).tolist()
        return Curve(points, release.effect(rows).tolist(), [(low, high) for low, high in ends])
    return Curve(points, release.answer(release.schema.matrix(rows)).double().tolist(), ())


def _interval(release: EffectRelease, row: Any) -> str:
    if isinstance(release, ComposedRelease):
        if release.law is None:
            return f"no interval: {release.without}"
        low, high = release.interval(row, LEVEL)[0]
        counts = "sampling and all privacy noise"
        return f"{LEVEL:.0%} interval {low:.4g} to {high:.4g}: {counts}; it holds if {release.assumptions}"
    try:
        low, high = release.noise_band(row, LEVEL)[0]
    except InputError:
        return "no interval, and no public noise scale"
    return f"{LEVEL:.0%} of the second stage's noise lies within {low:.4g} to {high:.4g}; no confidence interval"


def _frame(rows: list[dict[str, Any]] | list[Mapping[str, Any]]) -> Any:
    import pandas as pd

    return pd.DataFrame([dict(row) for row in rows])
