"""The figures of releases, one function a kind, which ``release.plot()``, runs and reports share.

Those that a run writes beside its release are made of the release alone: ``torchdpcate audit leak`` makes them again
and compares, so that nothing else can be in them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate._text import spreadsheet_cell
from torchdpcate.composition.fit_plans import effect_variances
from torchdpcate.data.censoring import EVENT_BY_HORIZON
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.words import aim, arm, outcome_axis, outcome_unit, outcome_words
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.composition_plan import known_plan
from torchdpcate.evaluation.balance_figure import balance_figure, forest_figure
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
from torchdpcate.release.estimate import quantile
from torchdpcate.release.file import Release
from torchdpcate.release.lines import LEVEL, OF_POLICY, OF_RULE
from torchdpcate.release.release import EffectRelease, QueryRelease
from torchdpcate.verify.finding import numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_effect(
    release: EffectRelease,
    covariate: str | Sequence[str] | None = None,
    *,
    profile: Mapping[str, Any] | None = None,
    level: float = LEVEL,
) -> "Figure":
    """Return the figure of ``FunctionRelease.plot``, or of a composed release; arguments and errors are its own."""
    names = [covariate] if covariate is None or isinstance(covariate, str) else list(covariate)
    if not names:
        raise InputError("covariate = []: name at least one covariate, or leave it out")
    where = [FigurePoints(release.schema, name, profile) for name in names]
    panels = [panel for one in where for panel in arm_panels(release, one, level)]
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
    plan = known_plan(release) if hasattr(release, "curvatures") else None
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


def plot_answers(release: QueryRelease, covariate: str | None = None, *, level: float = LEVEL) -> "Figure":
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


def plot_balance(release: Any) -> "Figure":
    """Return how far the arms of a release differ before and after weighting."""
    return balance_figure(release.balance, claim=release.privacy.claim)


_MOST = 3  # panels, where no covariate is named
_SAME = 1e-9  # of a share: less is no difference


def plot_decisions(release: Any, covariate: str | None = None) -> "Figure":
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
    chosen = getattr(release, "title", f"{arm(schema, 1)} where the score is positive")
    title = f"{chosen}, so that {outcome_words(schema)} be {aim(schema)}"
    return decision_figure(panels, action_names(release), title=title, claim=release.privacy.claim)


def decision_panel(release: Any, where: FigurePoints) -> DecisionPanel:
    """Return the shares of the actions against one covariate, in the order of ``action_names``."""
    effect = release.function
    grid, decided = where.grid.numpy(), release.answer(where.points(effect)).numpy()
    each = decided.reshape(len(grid), -1, 1) == np.array(sorted(release.actions, reverse=True))
    return DecisionPanel(where.label, grid, each.mean(1), where.levels, where.place(effect))


def action_names(release: Any) -> list[str]:
    """Return what the actions are called, the highest first."""
    return [arm(release.schema, label) for label in sorted(release.actions, reverse=True)]


def plot_rule(release: Any, covariate: str | None = None) -> "Figure":
    """Return the figure of ``DecisionRelease.plot``; arguments and errors are its own."""
    found = None if covariate is not None else coefficients(release)
    if found is None:
        return plot_decisions(release, covariate)
    names, values = found
    return rule_figure(names, values, claim=release.privacy.claim)


def coefficients(release: Any) -> tuple[list[str], np.ndarray] | None:
    """Return names and coefficients of intercept and covariates scaled to [-1, 1]; None where a rule has no such.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> names, values = coefficients(_example())
        >>> names, values.tolist()
        (['intercept', 'x0'], [0.0, 1.0])
    """
    effect, names = release.function, [column.label for column in release.domain.columns]
    if effect is None:
        linear = isinstance(getattr(release, "features", None), Identity)
        return (["intercept", *names], release.theta.numpy()) if linear else None
    if effect.form != "linear":
        return None
    names = names if effect.columns is None else [names[j] for j in effect.columns]
    theta = effect.domain.direction * effect.theta
    slopes = theta * effect.basis.feature_weights.sqrt() * torch.cat([torch.ones(1), 1 / effect.standardisation.sd])
    middle = slopes[1:] @ effect.standardisation.mean - effect.domain.direction * effect.shift
    slopes[0] = slopes[0] - middle - release.cost - release.cutoff
    return ["intercept", *(names[feature.i] for feature in effect.basis.features)], slopes.numpy()


def plot_lines(
    release: Release,
    *,
    level: float = LEVEL,
    nonprivate: np.ndarray | None = None,
    truth: np.ndarray | None = None,
    alone: bool = True,
) -> "Figure":
    """Return the forest plot of a release's lines, and with more the curator's.

    Args:
        release: Any with lines.
        level: Probability of the intervals, in (0, 1).
        nonprivate: Estimates without noise, [lines]; the curator's.
        truth: True effects, [lines]; the curator's.
        alone: Whether it says the guarantee and what intervals rest on, which a page says beside it.

    Raises:
        MissingError: No lines, and why.
        InputError: A level outside (0, 1).
    """
    z, factor, lines = quantile(level).item(), shown_in(release.schema)[0], release.required_lines
    rows, bands = lines.table(level), ""
    if rows["low"].isna().all() and not lines.noise.isnan().any():
        bands = f"{level:.0%} {BAND}"
        rows["low"], rows["high"] = (rows["estimate"] + side * z * lines.noise.numpy() for side in (-1, 1))
    rows[["estimate", "low", "high"]] *= factor
    means = np.array(lines.means, bool)
    if len(means):  # the mean of sites is drawn as large as the largest of them
        rows["records"] = rows["records"].where(~means, rows["records"][~means].max())
    gains = {*lines.groups} <= GAINS
    return forest_figure(
        rows,
        texts=[said if ends == "none" else f"{said} ({ends})" for said, ends in line_texts(release, level)],
        simultaneous=None if lines.at_once is None else factor * lines.at_once(level).numpy(),
        nonprivate=None if nonprivate is None else (factor * nonprivate).tolist(),
        truth=None if truth is None else (factor * truth).tolist(),
        dominated=lines.dominated,
        pooled=lines.means or None,
        level=level,
        label=lines_axis(release.schema, gains),
        speaks=() if gains else sides(release.schema),
        bands=bands,
        claim=release.privacy.claim if alone else "",
        assumptions=lines.assumptions if alone else "",
    )


def shown_in(schema: TableSchema) -> tuple[float, str]:
    """Return what effects are multiplied by for readers, and their unit: of chances they are percentage points.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> shown_in(_example().schema)
        (1.0, '')
    """
    censoring = schema.domain.censoring
    chance = schema.domain.outcome_kind == "binary" or (censoring is not None and censoring.kind == EVENT_BY_HORIZON)
    return (100.0, "percentage points") if chance else (1.0, outcome_unit(schema))


def line_texts(release: Release, level: float = LEVEL, at_once: bool = False) -> list[tuple[str, str]]:
    """Return each line's estimate and interval as text, to two figures of the interval's half width.

    Args:
        release: With lines.
        level: Probability of the intervals.
        at_once: Whether they hold all lines together.
    """
    lines, (factor, _) = release.required_lines, shown_in(release.schema)
    ends = lines.at_once(level) if at_once and lines.at_once is not None else lines.ends(level)
    found = []
    for value, (low, high), unknown in zip(lines.estimates, ends, lines.dominated, strict=True):
        half = factor * float(high - low) / 2
        said, *texts = numbers([factor * float(one) for one in (value, low, high)], None if math.isnan(half) else half)
        between = "none" if math.isnan(half) else " to ".join(texts)
        found.append(("not known", "any effect") if unknown else (said, between))
    return found


GAINS = {OF_RULE, OF_POLICY}
"""Groups of lines that are improvements, which above zero are good whichever outcomes are."""


def lines_axis(schema: TableSchema, gains: bool = False) -> str:
    """Return what an axis of effects says to readers, or of improvements."""
    (_, unit), what = shown_in(schema), "improvement of {} a person" if gains else "effect on {}"
    better = "above zero" if gains else schema.domain.better
    words = ", ".join(filter(None, [what.format(outcome_words(schema)), unit]))
    return f"{words} ({better} is better)" if better else words


def sides(schema: TableSchema) -> tuple[str, ...]:
    """Return which arm effects below zero speak for, and which those above; nothing where no outcome is better.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> sides(_example().schema)
        ('a = 0', 'a = 1')
    """
    if schema.domain.better is None:
        return ()
    first, second = (arm(schema, label) for label in schema.actions[:2])
    found = first, " or ".join(schema.arm_labels[1:]) if schema.compared else second
    return found if schema.domain.better == "higher" else found[::-1]


Made = Mapping[str, Callable[[], bytes]]
"""Files by their names, and how each is made."""


def figures_of(release: Any) -> Made:
    """Return what a run writes beside a release for its readers: an effect, a linear rule, or its lines.

    Args:
        release: The release.
    """
    if release.decision is not None:
        return {} if coefficients(release) is None else {"rule.png": lambda: png_of(release.plot())}
    if release.function is not None:
        return {} if function_of(release) is None else {"effect.png": lambda: png_of(release.plot())}
    balance = getattr(release, "balance", None) is not None
    found = {"balance.png": lambda: png_of(plot_balance(release))} if balance else {}
    return found | {"lines.csv": lambda: _table(release), "forest.png": lambda: png_of(plot_lines(release))}


def function_of(release: Any) -> Any:
    """Return the effect at any covariates that a release is, or decides by; None of others, as answers to queries."""
    effect = release.function
    return None if getattr(effect, "queries", None) is not None else effect


def _table(release: Release) -> bytes:
    """Return the lines with both kinds of intervals as csv, its words fit for a spreadsheet."""
    lines, table = release.required_lines, release.lines()
    if lines.at_once is not None:
        table["low_simultaneous"], table["high_simultaneous"] = lines.at_once(LEVEL).T.numpy()
    for name in ("line", "group"):
        table[name] = table[name].map(spreadsheet_cell)
    return table.to_csv(index=False, lineterminator="\n").encode()
