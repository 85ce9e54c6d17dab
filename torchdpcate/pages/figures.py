"""The figures of releases, one function a kind, which ``release.plot()``, runs and reports share.

Those that a run writes beside its release are made of the release alone: ``torchdpcate audit leak`` makes them again
and compares, so that nothing else can be in them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate._text import spreadsheet_cell
from torchdpcate.composition.fit_plans import effect_variances
from torchdpcate.data.words import aim, arm, outcome_axis, outcome_words
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.composition_plan import known_plan
from torchdpcate.evaluation.balance_figure import IntervalRow, balance_figure, forest_figure, interval_figure
from torchdpcate.evaluation.figures import (
    BAND,
    INTERVAL,
    OF_AVERAGE,
    OF_REGRESSION,
    DecisionPanel,
    EffectPanel,
    answers_figure,
    decision_figure,
    effect_panels,
    png_of,
    rule_figure,
)
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.fit.weighted_basis import simplex
from torchdpcate.pages.effect_points import FigurePoints
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.combined import ALL_SITES, Combined
from torchdpcate.release.composed import ComposedRelease, ComposedRule
from torchdpcate.release.estimate import Estimate, quantile
from torchdpcate.release.file import Release
from torchdpcate.release.release import EffectRelease, QueryRelease
from torchdpcate.release.rule import DecisionRelease, PolicyRelease, RuleRelease
from torchdpcate.release.subgroups import LEVEL, SubgroupRelease

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_effect(
    release: EffectRelease,
    covariate: str | Sequence[str] | None = None,
    *,
    profile: Mapping[str, Any] | None = None,
    level: float = 0.95,
) -> "Figure":
    """Return the figure of ``FunctionRelease.plot``, or of a composed release; arguments and errors are its own."""
    names = [covariate] if covariate is None or isinstance(covariate, str) else list(covariate)
    if not names:
        raise InputError("covariate = []: name at least one covariate, or leave it out")
    where = [FigurePoints(release.schema, name, profile) for name in names]
    panels = [panel for one in where for panel in arm_panels(release, one, level)]
    return effect_figure_of(release, panels, level)


def effect_figure_of(release: EffectRelease, panels: Sequence[EffectPanel], level: float) -> "Figure":
    """Return the figure of a release's panels, with its claim and what intervals rest on.

    Args:
        release: What was released.
        panels: As ``arm_panels`` makes them.
        level: Probability of the bands.
    """
    holds, assumptions = band_words(release)
    words = {"claim": release.privacy.claim, "holds": holds, "assumptions": assumptions}
    return effect_panels(panels, level=level, **words, label=outcome_axis(release.schema))


def band_words(release: Any) -> tuple[str, str]:
    """Return what the bands of a release hold, and what that rests on (empty of noise bands)."""
    if release.has_intervals:
        return OF_AVERAGE if release.form == "constant" else INTERVAL, release.assumptions
    return BAND if regression_variances(release) is None else OF_REGRESSION, ""


def regression_variances(release: Any) -> Tensor | None:
    r"""Return how far noise and sampling of the effect's regression move each coefficient of arms, [K - 1, 1 + p].

    .. math:: v_{kj} = \sum_f c_{kf}^2\, v_{fj}, \qquad \tau_k = \sum_f c_{kf}\, \psi^\top \theta_f

    with the variances v of the estimates before they were shrunk, and K - 1 functions f (``effects_of``; of two arms
    one, c = 1); from released numbers and public facts. What the nuisances err by is not in it.

    Args:
        release: Any; None of one that is no regression of a composition, or of a plan that is none of the library's.
    """
    plan = known_plan(release) if isinstance(release, ComposedRelease) else None
    if plan is None or plan.by_sums:  # sums have no curvatures
        return None
    variances = effect_variances(plan.at_weight(release.weight), release.curvatures, release.scale)
    points = simplex(plan.arms)
    return (points[1:] - points[0]).square() @ variances.view(plan.arms - 1, -1)


def arm_panels(release: EffectRelease, where: FigurePoints, level: float) -> list[EffectPanel]:
    """Return the panels of the released effect against one covariate: one, or one an arm where there are more.

    Each has what there is of an interval or a band.

    Args:
        release: What was released.
        where: Its points.
        level: Probability of the bands, in (0, 1).
    """
    z, (x, grid) = quantile(level).item(), (where.points(release), where.grid.numpy())
    released = np.asarray(release.effect(x)).reshape(len(grid), len(x) // len(grid), -1).mean(1).T
    bands: Sequence[np.ndarray | None] = [None] * len(released)
    function: Any = release.function
    variances = regression_variances(function)
    if release.has_intervals:
        bands = [function.mean_interval(x, level, len(x) // len(grid))]
    elif not release.arms and len(x) == len(grid) and release.known_noise(x) is not None:  # a band is about one point
        bands = [release.noise_band(x, level)]
    elif variances is not None:
        psi = function.features(x).view(len(grid), -1, variances.shape[1]).mean(1)
        half = z * (variances @ psi.square().T).sqrt().numpy()
        bands = list(np.stack([released - half, released + half], 2))
    about: dict[str, Any] = {"levels": where.levels, "place": where.place(release), "common": where.common(release)}
    titles = release.arm_titles if release.arms else [""]
    return [
        EffectPanel(where.label, grid, effects, band, title=title, **about)
        for title, effects, band in zip(titles, released, bands, strict=True)
    ]


def means(values: Any, grid: np.ndarray) -> np.ndarray:
    """Return the means of effects over the rows of each value of a covariate, [m]."""
    return np.asarray(values).reshape(len(grid), -1).mean(1)


def plot_answers(release: QueryRelease, covariate: str | None = None, *, level: float = 0.95) -> "Figure":
    """Return the figure of ``QueryRelease.plot``; arguments and errors are its own."""
    quantile(level)
    x = release.queries
    band = None if release.known_noise(x) is None else release.noise_band(x, level)
    where = None if covariate is None else FigurePoints(release.schema, covariate)
    return answers_figure(
        release.answers.numpy(),
        band,
        against=None if where is None else _values(where, x).numpy(),
        covariate="" if where is None else where.label,
        levels=() if where is None else where.levels,
        level=level,
        claim=release.privacy.claim,
    )


def _values(where: FigurePoints, x: Tensor) -> Tensor:
    """Return the covariate's values at encoded rows [m, q]; positions where it has levels, [m]."""
    columns = where.columns
    if len(columns) > 1:
        return x[:, columns].argmax(1).double()
    return (x[:, columns[0]] == where.grid[-1]).double() if where.levels else x[:, columns[0]]


def plot_average(release: AverageEffectRelease, *, balance: bool = False, level: float = 0.95) -> "Figure":
    """Return the figure of ``AverageEffectRelease.plot``; arguments and errors are its own."""
    quantile(level)  # refuses what is no level
    claim = release.privacy.claim
    if balance:
        if release.balance is None:
            raise InputError(
                "balance = True: this release says nothing of the arms' balance; it does where it was fitted with "
                "loss=balancing"
            )
        return balance_figure(release.balance, claim=claim)
    rows = released_rows(release, release.estimand, level)
    label, assumptions = outcome_axis(release.schema), release.assumptions
    return interval_figure(rows, level=level, claim=claim, assumptions=assumptions, label=label)


def released_rows(release: AverageEffectRelease, label: str, level: float = 0.95) -> list[IntervalRow]:
    """Return the line of a release's estimate.

    Args:
        release: What was released.
        label: What the estimate is called.
        level: Probability of the intervals.
    """
    return [interval_row(release, label, release.main, level)]


def interval_row(
    release: AverageEffectRelease, label: str, estimate: Estimate, level: float = 0.95, secret: bool = False
) -> IntervalRow:
    """Return the line of an estimate on the records of a release.

    Args:
        release: Whose outcome range and unit of privacy hold.
        label: What the estimate is called.
        estimate: The estimate, released or not.
        level: Probability of its interval, in (0, 1).
        secret: Whether it has no privacy guarantee.
    """
    if estimate.law is None and not estimate.noise_dominated:
        return IntervalRow(label, estimate.value, secret=secret)
    low, high = estimate.range(level, release.domain.outcome_range, release.privacy.protected.records)
    return IntervalRow(label, estimate.value, low, high, secret)


_MOST = 3  # panels, where no covariate is named
_SAME = 1e-9  # of a share: less is no difference


def plot_decisions(release: DecisionRelease | PolicyRelease, covariate: str | None = None) -> "Figure":
    """Return the figure of ``PolicyRelease.plot``, which also shows rules by one covariate.

    Args:
        release: A rule or a policy.
        covariate: The one that varies; None takes the three that most depends on, or one if nothing does.

    Raises:
        InputError: No such covariate, or a function that was not given by ``bind``.
    """
    named = covariate is not None
    names = [covariate] if named else list(release.schema.columns)
    panels = [decision_panel(release, FigurePoints(release.schema, name, spread=True)) for name in names]
    if not named:
        varying = sorted(panels, key=lambda panel: -np.ptp(panel.shares, axis=0).max())
        depends = [panel for panel in varying if np.ptp(panel.shares, axis=0).max() > _SAME]
        panels = (depends or varying[:1])[:_MOST]
    schema = release.schema
    title = f"{arm(schema, 1)} where the score is positive, so that {outcome_words(schema)} be {aim(schema)}"
    if isinstance(release, PolicyRelease):
        title = f"{release.title}, so that {outcome_words(schema)} be {aim(schema)}"
    return decision_figure(panels, action_names(release), title=title, claim=release.privacy.claim)


def decision_panel(release: DecisionRelease | PolicyRelease, where: FigurePoints) -> DecisionPanel:
    """Return the shares of the actions against one covariate, in the order of ``action_names``."""
    effect = release.function
    grid, decided = where.grid.numpy(), release.answer(where.points(effect)).numpy()
    each = decided.reshape(len(grid), -1, 1) == np.array(_actions(release))
    return DecisionPanel(where.label, grid, each.mean(1), where.levels, where.place(effect))


def _actions(release: DecisionRelease | PolicyRelease) -> list[int]:
    """Return the labels of the actions, the highest first."""
    return sorted(release.actions, reverse=True) if isinstance(release, PolicyRelease) else [1, 0]


def action_names(release: DecisionRelease | PolicyRelease) -> list[str]:
    """Return what the actions are called, the highest first."""
    labels = _actions(release)
    return [arm(release.schema, label) for label in labels]


def plot_rule(release: DecisionRelease, covariate: str | None = None) -> "Figure":
    """Return the figure of ``DecisionRelease.plot``; arguments and errors are its own."""
    found = None if covariate is not None else coefficients(release)
    if found is None:
        return plot_decisions(release, covariate)
    names, values = found
    return rule_figure(names, values, claim=release.privacy.claim)


def coefficients(release: DecisionRelease) -> tuple[list[str], np.ndarray] | None:
    """Return names and coefficients of intercept and covariates scaled to [-1, 1]; None where a rule has no such.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> names, values = coefficients(_example())
        >>> names, values.tolist()
        (['intercept', 'x0'], [0.0, 1.0])
    """
    if isinstance(release, RuleRelease) and isinstance(release.features, Identity):
        return ["intercept", *(column.label for column in release.domain.columns)], release.theta.numpy()
    if isinstance(release, ComposedRule) and release.effect.form == "linear":
        return _of_effect(release)
    return None


def _of_effect(release: ComposedRule) -> tuple[list[str], np.ndarray]:
    """Return those of a rule by an effect that is linear in the standardised covariates."""
    effect = release.effect
    columns = range(effect.domain.dimension) if effect.columns is None else effect.columns
    names = [effect.domain.columns[j].label for j in columns]
    theta = effect.domain.direction * effect.theta
    slopes = theta * effect.basis.feature_weights.sqrt() * torch.cat([torch.ones(1), 1 / effect.standardisation.sd])
    middle = slopes[1:] @ effect.standardisation.mean - effect.domain.direction * effect.shift
    slopes[0] = slopes[0] - middle - release.cost - release.cutoff
    return ["intercept", *(names[feature.i] for feature in effect.basis.features)], slopes.numpy()


def plot_subgroups(
    release: SubgroupRelease,
    *,
    level: float = LEVEL,
    nonprivate: np.ndarray | None = None,
    truth: np.ndarray | None = None,
) -> "Figure":
    """Return the forest plot of a release: that of ``SubgroupRelease.plot``, and with more the curator's.

    Args:
        release: The release.
        level: Probability of the intervals, in (0, 1).
        nonprivate: Effects without noise, [cells]; the curator's.
        truth: True effects, [cells]; the curator's.

    Of more than two arms there is a line for each effect of a cell.
    """
    labels = {covariate.name: covariate.label for covariate in release.schema.covariates}
    parts = [" and ".join(labels[by.covariate] for by in one.divisions) for one in release.subgroups.partitions]
    return forest_figure(
        release.table(level).assign(cell=release.titles, partition=[parts[place] for place, *_ in release.lines]),
        simultaneous=release.interval(level, simultaneous=True),
        nonprivate=None if nonprivate is None else nonprivate.tolist(),
        truth=None if truth is None else truth.tolist(),
        dominated=release.effects.noise_dominated.tolist(),
        level=level,
        outcome=outcome_axis(release.schema, ""),
        claim=release.privacy.claim,
        assumptions=release.assumptions or "",
    )


def plot_lines(release: ComposedRelease | ComposedRule, *, level: float = LEVEL) -> "Figure":
    """Return the forest plot of a release's lines: of everybody, of groups by effect, what else it has; of its values.

    Args:
        release: With lines.
        level: Probability of the intervals, in (0, 1).
    """
    return forest_figure(
        release.line_table(level),
        level=level,
        outcome=outcome_axis(release.schema, ""),
        claim=release.privacy.claim,
        assumptions=release.line_assumptions,
    )


def plot_sites(release: Combined, *, level: float = LEVEL) -> "Figure":
    """Return the forest plot of ``Combined.forest``; arguments and errors are its own."""
    quantile(level)  # refuses what is no level
    found = release.parts(level)
    mean = found["cell"].eq(ALL_SITES)
    return forest_figure(
        found.assign(records=found["records"].where(~mean, found["records"][~mean].max())),
        dominated=found["weight"].eq(0).tolist(),
        pooled=mean.tolist(),
        level=level,
        outcome=outcome_axis(release.schema, ""),
        claim=release.privacy.claim,
        assumptions=release.assumptions,
    )


Made = Mapping[str, Callable[[], bytes]]
"""Files by their names, and how each is made."""


@singledispatch
def figures_of(release: Release) -> Made:
    """Return what a run writes beside a release for its readers; nothing of most kinds.

    Args:
        release: The release.
    """
    return {}


@figures_of.register
def _effect_files(release: EffectRelease) -> Made:
    return {"effect.png": lambda: png_of(release.plot())}


@figures_of.register
def _answers_files(release: QueryRelease) -> Made:
    return {}


@figures_of.register
def _average_files(release: AverageEffectRelease) -> Made:
    found = {"interval.png": lambda: png_of(release.plot())}
    return found if release.balance is None else found | {"balance.png": lambda: png_of(release.plot(balance=True))}


@figures_of.register
def _subgroups_files(release: SubgroupRelease) -> Made:
    return {"subgroups.csv": lambda: _table(release), "forest.png": lambda: png_of(release.plot())}


@figures_of.register
def _rule_files(release: DecisionRelease) -> Made:
    return {} if coefficients(release) is None else {"rule.png": lambda: png_of(release.plot())}


def _table(release: SubgroupRelease) -> bytes:
    """Return the effects of subgroups with both kinds of intervals as csv, its words fit for a spreadsheet."""
    table = release.table()
    low, high = release.interval(simultaneous=True).T
    words = {name: table[name].map(spreadsheet_cell) for name in ("cell", "arm", "partition") if name in table}
    table = table.assign(low_simultaneous=low, high_simultaneous=high, **words)
    return table.to_csv(index=False, lineterminator="\n").encode()
