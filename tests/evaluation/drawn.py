"""A figure of one panel, for tests."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from torchdpcate.evaluation.figures import BAND, EffectPanel, effect_panels


def effect_figure(
    grid: np.ndarray,
    released: np.ndarray,
    band: np.ndarray | None,
    *,
    covariate: str,
    others: Mapping[str, np.ndarray] | None = None,
    level: float = 0.95,
    claim: str = "",
    holds: str = BAND,
    place: str = "at mid-range",
    levels: Sequence[str] = (),
    common: tuple[float, float] | None = None,
    assumptions: str = "",
) -> Figure:
    """Draw effects against one covariate; arguments are those of ``EffectPanel`` and of ``effect_panels``."""
    panel = EffectPanel(covariate, grid, released, band, others or {}, levels, place, common)
    return effect_panels([panel], level=level, claim=claim, holds=holds, assumptions=assumptions)
