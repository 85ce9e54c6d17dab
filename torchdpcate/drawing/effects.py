"""The figures of released effects: against one covariate, or at the queries of a release that answers no others."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torchdpcate.drawing.effect_points import FigurePoints
from torchdpcate.errors import InputError
from torchdpcate.evaluation.answers_figure import answers_figure
from torchdpcate.evaluation.figures import BAND, INTERVAL, EffectPanel, effect_panels
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.release import EffectRelease, QueryRelease
from torchdpcate.release.views import noise_scales, quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_effect(
    release: EffectRelease,
    covariate: str | Sequence[str] | None = None,
    *,
    profile: Mapping[str, Any] | None = None,
    level: float = 0.95,
    ax: "Axes | None" = None,
) -> "Figure":
    """Return the figure of ``FunctionRelease.plot``, or of a composed release; arguments and errors are its own."""
    names = [covariate] if covariate is None or isinstance(covariate, str) else list(covariate)
    if not names:
        raise InputError("covariate = []: name at least one covariate, or leave it out")
    if ax is not None and len(names) > 1:
        raise InputError(f"ax: holds one panel; give one covariate with it, not {len(names)}")
    where = [FigurePoints(release.schema, name, profile, prefix="") for name in names]
    return effect_figure_of(release, [effect_panel(release, one, level) for one in where], level, ax)


def effect_figure_of(
    release: EffectRelease, panels: Sequence[EffectPanel], level: float, ax: "Axes | None" = None
) -> "Figure":
    """Return the figure of a release's panels, with its claim and what intervals rest on.

    Args:
        release: What was released.
        panels: As ``effect_panel`` makes them.
        level: Probability of the bands.
        ax: Axes to draw one panel on; None makes a figure.
    """
    holds, assumptions = band_words(release)
    return effect_panels(panels, level=level, claim=release.privacy.claim, holds=holds, assumptions=assumptions, ax=ax)


def band_words(release: EffectRelease) -> tuple[str, str]:
    """Return what the bands of a release hold, and what that rests on (empty of noise bands)."""
    if isinstance(release, ComposedRelease) and release.law is not None:
        return INTERVAL, release.assumptions
    return BAND, ""


def effect_panel(release: EffectRelease, where: FigurePoints, level: float) -> EffectPanel:
    """Return the released effect against one covariate, with what there is of an interval or a band.

    Args:
        release: What was released.
        where: Its points.
        level: Probability of the band, in (0, 1).
    """
    quantile(level)  # refuses what is no level
    x, grid = where.points(release), where.grid.numpy()
    band: np.ndarray | None = None
    if isinstance(release, ComposedRelease):
        if release.law is not None:
            band = release.mean_interval(x, level, len(x) // len(grid))
    elif len(x) == len(grid) and noise_scales(release, x) is not None:  # a band is about one point
        band = release.noise_band(x, level)
    released = means(release.effect(x), grid)
    place, common = where.place(release), where.common(release)
    return EffectPanel(where.name, grid, released, band, levels=where.levels, place=place, common=common)


def means(values: Any, grid: np.ndarray) -> np.ndarray:
    """Return the means of effects over the rows of each value of a covariate, [m]."""
    return np.asarray(values).reshape(len(grid), -1).mean(1)


def plot_answers(
    release: QueryRelease, covariate: str | None = None, *, level: float = 0.95, ax: "Axes | None" = None
) -> "Figure":
    """Return the figure of ``QueryRelease.plot``; arguments and errors are its own."""
    quantile(level)
    x = release.queries
    band = None if noise_scales(release, x) is None else release.noise_band(x, level)
    where = None if covariate is None else FigurePoints(release.schema, covariate, prefix="")
    return answers_figure(
        release.answers.numpy(),
        band,
        against=None if where is None else _values(where, x).numpy(),
        covariate="" if where is None else where.name,
        levels=() if where is None else where.levels,
        level=level,
        claim=release.privacy.claim,
        ax=ax,
    )


def _values(where: FigurePoints, x: Tensor) -> Tensor:
    """Return the covariate's values at encoded rows [m, q]; positions where it has levels, [m]."""
    columns = where.columns
    if len(columns) > 1:
        return x[:, columns].argmax(1).double()
    return (x[:, columns[0]] == where.grid[-1]).double() if where.levels else x[:, columns[0]]
