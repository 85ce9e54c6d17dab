"""The figure of what a rule or a policy decides: shares of actions against covariates, over public points."""

from typing import TYPE_CHECKING

import numpy as np

from torchdpcate.drawing.effect_points import FigurePoints
from torchdpcate.evaluation.decision_figure import DecisionPanel, decision_figure
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.composed_rule import ComposedRule
from torchdpcate.release.policy import PolicyRelease
from torchdpcate.release.rule import DecisionRelease

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST = 3  # panels, where no covariate is named
_SAME = 1e-9  # of a share: less is no difference


def plot_decisions(
    release: DecisionRelease | PolicyRelease, covariate: str | None = None, *, ax: "Axes | None" = None
) -> "Figure":
    """Return the figure of ``PolicyRelease.plot``, which also shows rules by one covariate.

    Args:
        release: A rule or a policy.
        covariate: The one that varies; None takes the three that most depends on, or one if nothing does.
        ax: Axes to draw on; None makes a figure. The covariate is then the one that most depends on.

    Raises:
        InputError: No such covariate, or a function that was not given by ``bind``.
    """
    named = covariate is not None
    names = [covariate] if named else list(release.schema.columns)
    panels = [decision_panel(release, FigurePoints(release.schema, name, spread=True, prefix="")) for name in names]
    if not named:
        varying = sorted(panels, key=lambda panel: -np.ptp(panel.shares, axis=0).max())
        depends = [panel for panel in varying if np.ptp(panel.shares, axis=0).max() > _SAME]
        panels = (depends or varying[:1])[: 1 if ax is not None else _MOST]
    title = release.name if isinstance(release, PolicyRelease) else "treat where the score is positive"
    return decision_figure(panels, action_names(release), title=title, claim=release.privacy.claim, ax=ax)


def decision_panel(release: DecisionRelease | PolicyRelease, where: FigurePoints) -> DecisionPanel:
    """Return the shares of the actions against one covariate, in the order of ``action_names``."""
    effect: ComposedRelease | None = release.effect if isinstance(release, ComposedRule) else None
    grid, decided = where.grid.numpy(), release.answer(where.points(effect)).numpy()
    each = decided.reshape(len(grid), -1, 1) == np.array(_actions(release))
    return DecisionPanel(where.name, grid, each.mean(1), where.levels, where.place(effect))


def _actions(release: DecisionRelease | PolicyRelease) -> list[int]:
    """Return the labels of the actions, the highest first."""
    return sorted(release.actions, reverse=True) if isinstance(release, PolicyRelease) else [1, 0]


def action_names(release: DecisionRelease | PolicyRelease) -> list[str]:
    """Return what the actions are called, the highest first."""
    labels = _actions(release)
    return ["treat", "do not treat"] if labels == [1, 0] else [f"action {label}" for label in labels]
