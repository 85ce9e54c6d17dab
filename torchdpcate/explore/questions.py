"""What a release may be asked: its covariates, with public bounds or categories, and where to begin."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchdpcate.data.covariates import Categorical, Covariate, Numeric
from torchdpcate.errors import InputError
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.post_processing import reference_population
from torchdpcate.release.subgroups import SubgroupRelease

if TYPE_CHECKING:
    from torchdpcate.release.release import Release

STEPS = 200
"""Positions of a slider between its bounds, and points of a curve."""


@dataclass(frozen=True)
class Question:
    """One covariate as a reader is asked for it.

    Attributes:
        name: Column of the table.
        start: Value at first: near the released mean where there is one, else the middle of the bounds.
        low: Lower public bound; of categories 0.
        high: Upper public bound; of categories 0.
        levels: Public categories, in order; empty of a number.
        typical: Public range that most values of a number lie in, where one is declared.
    """

    name: str
    start: Any
    low: float = 0.0
    high: float = 0.0
    levels: tuple[Any, ...] = ()
    typical: tuple[float, float] | None = None

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
    if isinstance(release, AverageEffectRelease | SubgroupRelease):
        raise InputError(
            f"release of {release.kind}: has numbers and no covariates to move; torchdpcate inspect shows them"
        )
    starts = _starts(release)
    return [_question(covariate, starts.get(covariate.name)) for covariate in release.schema.covariates]


def _question(covariate: Covariate, typical: torch.Tensor | None) -> Question:
    if isinstance(covariate, Categorical) or covariate.levels:
        levels = tuple(covariate.levels)
        if typical is None:
            return Question(covariate.name, levels[0], levels=levels)
        position = round(typical.item()) if len(typical) == 1 else int(typical.argmax())
        return Question(covariate.name, levels[position], levels=levels)
    _, low, high = covariate.bounds[0]
    range_ = covariate.typical if isinstance(covariate, Numeric) else None
    middle = 0.5 if typical is None else typical.item()
    start = covariate.decode_unit(torch.tensor([middle], dtype=torch.float64)).item()
    asked = Question(covariate.name, start, low, high)
    steps = round((start - low) / asked.step)
    return Question(covariate.name, min(low + steps * asked.step, high), low, high, typical=range_)


def _starts(release: "Release") -> Mapping[str, torch.Tensor]:
    """Return the mean of each covariate's encoded columns on its scale, from 0 to 1; empty if none was released."""
    if not isinstance(release, ComposedRelease):
        return {}
    mean = (release.domain.scale(reference_population(release)).mean(0) + 1) / 2
    found, start = {}, 0
    for covariate in release.schema.covariates:
        found[covariate.name] = mean[start : start + len(covariate.bounds)]
        start += len(covariate.bounds)
    return found
