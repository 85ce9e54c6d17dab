"""The figure of a treatment rule: its coefficients where it is linear in the covariates, else what it decides."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from torchdpcate.drawing.decisions import plot_decisions
from torchdpcate.evaluation.figures import rule_figure
from torchdpcate.features.maps import Identity
from torchdpcate.release.composed_rule import ComposedRule
from torchdpcate.release.rule import DecisionRelease, RuleRelease

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_rule(release: DecisionRelease, covariate: str | None = None, *, ax: "Axes | None" = None) -> "Figure":
    """Return the figure of ``DecisionRelease.plot``; arguments and errors are its own."""
    found = None if covariate is not None else coefficients(release)
    if found is None:
        return plot_decisions(release, covariate, ax=ax)
    names, values = found
    return rule_figure(names, values, claim=release.privacy.claim, ax=ax)


def coefficients(release: DecisionRelease) -> tuple[list[str], np.ndarray] | None:
    """Return names and coefficients of intercept and covariates scaled to [-1, 1]; None where a rule has no such.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> names, values = coefficients(_example())
        >>> names, values.tolist()
        (['intercept', 'x0'], [0.0, 1.0])
    """
    if isinstance(release, RuleRelease) and isinstance(release.features, Identity):
        return ["intercept", *release.features.domain.names], release.theta.numpy()
    if isinstance(release, ComposedRule) and release.effect.rung == "linear":
        return _of_effect(release)
    return None


def _of_effect(release: ComposedRule) -> tuple[list[str], np.ndarray]:
    """Return those of a rule by an effect that is linear in the standardised covariates."""
    effect = release.effect
    names = effect.domain.names if effect.columns is None else [effect.domain.names[j] for j in effect.columns]
    slopes = effect.theta * effect.basis.energies.sqrt() * torch.cat([torch.ones(1), 1 / effect.standardisation.sd])
    middle = slopes[1:] @ effect.standardisation.mean
    slopes[0] = slopes[0] - middle - release.cost - release.cutoff
    return ["intercept", *(names[feature.i] for feature in effect.basis.features)], slopes.numpy()
