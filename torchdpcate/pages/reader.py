"""A release's page for its readers, one file that works offline: what was found, for whom, how sure, and the card."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate._templates import render, script, some
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data.covariates import Covariate, Numeric, bounds_in_words
from torchdpcate.data.study import read_queries
from torchdpcate.data.words import arm, column_words, contrast, effect_words, outcome_unit, outcome_words
from torchdpcate.errors import InputError
from torchdpcate.evaluation.balance_figure import balance_figure
from torchdpcate.evaluation.figures import (
    OF_REGRESSION,
    DecisionPanel,
    EffectPanel,
    decision_picture,
    effect_picture,
    svg_of,
)
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.fit.weighted_basis import MOST, HiddenUnits, effects_of
from torchdpcate.pages.effect_points import FigurePoints
from torchdpcate.pages.figures import (
    GAINS,
    action_names,
    arm_panels,
    band_words,
    decision_panel,
    function_of,
    line_texts,
    lines_axis,
    plot_lines,
    regression_variances,
    shown_in,
)
from torchdpcate.release.file import Release, load_release, subject
from torchdpcate.release.lines import BY_EFFECT, LEVEL
from torchdpcate.verify.card import card_values, write_beside
from torchdpcate.verify.finding import Findings, number, population

PAGE = "release.html"
_ROWS = 256
"""Rows of a reference population that figures average over, at most."""
_MOST_FIGURES, _MOST_LINES, _MOST_COLUMNS = 16, 200, 12
_WIDER = 0.7  # of its width, that a band is wider which is no interval, before a curve is drawn: from 95 % to 99.9 %
_SAME = 0.05  # of a share: less is hardly a difference
_SHARE = [
    "The share of noise is the part of the interval's variance that is noise in the line's own sums.",
    "Noise in models, and what intervals allow for it, is not in that share: privacy may cost more.",
]
_RELEASED = "people with the released means and spreads of the covariates, which are taken to be independent"
_UNIFORM = "people spread evenly over the public bounds of the covariates, which nobody need resemble"


def write_page(
    path: str | Path,
    reference: str | None = None,
    folder: str | Path | None = None,
    form: CsvForm = PLAIN,
) -> Path:
    """Write the page of a release file for its readers, completely or not at all.

    The page follows from the release file and the reference alone: the same bytes wherever it is made.

    Args:
        path: Release file.
        reference: csv or parquet table of a public population that figures are averaged over, never the records; None
            takes the released means and spreads where the release has them, else people evenly over the bounds.
        folder: Folder to write to; None writes beside the release.
        form: How the reference is written, if it is csv.

    Returns:
        The page.

    Raises:
        InputError: A reference that does not fit, or a folder that cannot be written to.
        ReleaseFileError: Not a release, changed or damaged.
        VerificationError: The folder's ``SHA256SUMS`` is no list of checksums, or a file does not match.
    """
    release, path = load_release(path), Path(path)
    rows = None if reference is None else read_queries(reference, release.schema, form)
    text = reader_page(release, path=path, reference=rows)
    return write_beside(path.parent if folder is None else Path(folder), PAGE, text)


def reader_page(release: Release, *, path: Path | None = None, reference: Tensor | None = None) -> str:
    """Return the page of a release: the same parts whatever it is, of its lines, its function and its decision.

    Args:
        release: Any release.
        path: Its file, whose name and checksum the page shows; who signed it ``verify`` says.
        reference: Encoded rows of a public population, [k, q]; None as in ``write_page``.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> "the rule gives a = 1 to 50% of the reference population" in reader_page(_example())
        True
    """
    rows, about = _reference(release, reference)
    found, curves = Findings.of(release, None if reference is None else rows), _curves(release, rows)
    balance = getattr(release, "balance", None)
    model = offline_model(release, [curve.name for curve in curves])
    names = {curve.name for curve in curves}
    return render(
        "reader.html",
        script=script("page.js") if isinstance(model, dict) else "",
        title=subject(release),
        finding=found,
        people=_people(release),
        lines=_lines(release, found),
        balance=None if balance is None else svg_of(balance_figure(balance)),
        curves=curves[:_MOST_FIGURES],
        unseen=_unseen(release, names),
        many=max(len(names) - _MOST_FIGURES, 0),
        about=about,
        bands=_bands(release) if curves else "",
        model=model,
        **card_values(release, path),
    )


def _reference(release: Release, given: Tensor | None) -> tuple[Tensor, str]:
    """Return the reference population's rows, and who they are in words."""
    if given is not None:
        step = -(-len(given) // _ROWS)
        some = "" if step == 1 else f", every {step}th of them"
        return given[::step].double(), f"the {len(given):,} people of the public table that was given{some}"
    known = release.function is not None and release.function.reference is not None
    return population(release), _RELEASED if known else _UNIFORM


def _people(release: Release) -> list[tuple[str, str]]:
    """Return what was compared, on what, and in whom, from public facts."""
    schema, domain, unit = release.schema, release.domain, outcome_unit(release.schema)
    better = f", {domain.better} is better" if domain.better else ""
    bounds = f"{domain.outcome_low:,.10g} to {domain.outcome_high:,.10g} {unit}".rstrip().replace("-", "\N{MINUS SIGN}")
    bounds += " in the whole time of a record" * domain.is_rate
    if schema.scores:
        bounds += f" ({', '.join(f'{word} {score:g}' for word, score in schema.scores.items())})"
    most = _MOST_COLUMNS + (len(schema.covariates) == _MOST_COLUMNS + 1)  # one is no longer than "and 1 more"
    shown = list(map(bounds_in_words, schema.covariates[:most]))
    more = [f"and {len(schema.covariates) - len(shown)} more"] * (len(schema.covariates) > len(shown))
    return [
        ("Compared", contrast(schema)),
        ("Outcome", f"{outcome_words(schema)}, {bounds}{better}"),
        ("Known of each", "; ".join(shown + more)),
    ]


def _lines(release: Release, found: Findings) -> dict[str, Any] | None:
    """Return the forest plot and the table of a release's lines; None where there are none."""
    lines = release.named
    if lines is None or not lines.names:
        return None
    table, (_, unit) = lines.table(LEVEL).head(_MOST_LINES), shown_in(release.schema)
    gains, (points, ends) = {*lines.groups} <= GAINS, zip(*line_texts(release), strict=True)
    alone = lines.at_once is None or len(lines.names) == 1
    wide = [] if alone else [together for _, together in line_texts(release, at_once=True)]
    share = table["noise_share"].map(lambda part: "not known" if math.isnan(part) else f"{part:.0%}")
    counted = f"{release.privacy.protected.counted.capitalize()}s"
    every = bool(release.domain.dropped) and float(lines.records.max()) >= release.privacy.n  # some count nothing
    counted += " in the table" if every else ", about"
    given: dict[str, Any] = {
        "Of": table["line"],
        ", ".join(filter(None, ["Improvement" if gains else "Effect", unit])): points,
        f"{LEVEL:.0%} interval": ends,
        f"{LEVEL:.0%}, all at once": wide,
        "Share of noise": share if table["noise_share"].notna().any() else [],
        "Weight": table["weight"].map(lambda part: f"{part:.0%}" if part else "none") if "weight" in table else [],
        counted: [f"{n:,.0f}" if n >= 1 else "none" for n in table["records"]]
        if table["records"].notna().all()
        else [],
    }
    columns = {head: list(column)[: len(table)] for head, column in given.items() if len(column)}
    groups: dict[str, list[tuple[str, ...]]] = {}
    for name, row in zip(table["group"], zip(*columns.values(), strict=True), strict=True):
        groups.setdefault(str(name), []).append(row)
    groups = {"" if len(groups) == 1 or name == rows[0][0] else name: rows for name, rows in groups.items()}
    several = "Groups and comparisons" if len(table) > 1 else "The average"
    title = "What the rule gains" if gains else several if lines.weights is None else "By site"
    shows = " ".join(["Forest plot.", *found.head])
    left = len(lines.names) - len(table)
    notes = ["Intervals count sampling and all privacy noise."] if table["low"].notna().any() else []
    notes += _SHARE * ("Share of noise" in columns)
    notes += [f"{left:,} further lines are not shown."] * (left > 0)
    made = {"title": title, "picture": svg_of(plot_lines(release, alone=False)), "shows": shows}
    return made | {"heads": list(columns), "groups": groups, "notes": notes}


@dataclass(frozen=True)
class Curve:
    """A figure against one covariate.

    Attributes:
        name: The covariate's column.
        picture: The figure.
        shows: What it shows, in words.
    """

    name: str
    picture: bytes
    shows: str


def _curves(release: Release, rows: Tensor) -> list[Curve]:
    """Return a figure for each covariate that answers are seen to depend on.

    An effect has one where its band leaves out that it is the same throughout, and groups by effect differ, if there
    are some. A decision has one where it changes: it is public.
    """
    effect, decided = function_of(release), release.decision
    if (effect is None and decided is None) or (decided is None and not _differs(release)):
        return []
    used, average = getattr(effect, "features_used", None), effect is None or effect.reference is not None
    found = []
    for name, places in release.schema.places.items():
        if used is not None and used.isdisjoint(places):
            continue
        where = FigurePoints(release.schema, name, None, rows if average else None)
        found += _decision(decided, where) if decided is not None else _effects(effect, where)
    return found


def _differs(release: Release) -> bool:
    """Return whether effects may be seen to differ: they are not one number, and no groups by effect are alike."""
    lines = release.named
    if not release.varies:
        return False
    groups = () if lines is None else tuple(zip(lines.names, lines.groups, strict=True))
    ends = [name for name, of in groups if of == BY_EFFECT]
    if lines is None or len(ends) < 2:
        return True
    _, low, high = lines.contrast(ends[0], ends[-1], LEVEL)
    return low > 0 or high < 0


def _effects(effect: Any, where: FigurePoints) -> list[Curve]:
    factor, label, found = shown_in(effect.schema)[0], lines_axis(effect.schema), []
    more = 0.0 if effect.has_intervals else _WIDER
    for panel in arm_panels(effect, where, LEVEL):
        if panel.band is None:
            continue
        wider = panel.band + more * np.diff(panel.band) * [-0.5, 0.5]
        if wider[:, 0].max() > wider[:, 1].min():
            shown = replace(panel, released=factor * panel.released, band=factor * panel.band)
            what = ": ".join(filter(None, [panel.title, label]))
            found.append(Curve(where.name, effect_picture(shown, label), _ends(shown, shown.released, what, number)))
    return found


def _decision(decided: Any, where: FigurePoints) -> list[Curve]:
    try:
        panel = decision_panel(decided, where)
    except InputError:  # a function that nobody has given yet
        return []
    if np.ptp(panel.shares, axis=0).max() <= _SAME:
        return []
    names = action_names(decided)
    shows = _ends(panel, panel.shares[:, 0], f"Share that gets {names[0]}", "{:.0%}".format)
    return [Curve(where.name, decision_picture(panel, names), shows)]


def _ends(panel: EffectPanel | DecisionPanel, values: np.ndarray, what: str, shown: Callable[[float], str]) -> str:
    """Return what a figure shows, in words: its values at the ends, or at each level."""
    at = panel.levels or [f"{value:,.4g}" for value in panel.grid]
    places = range(len(values)) if panel.levels else (0, len(values) - 1)
    said = ", ".join(f"{shown(float(values[k]))} at {at[k]}" for k in places)
    return f"{what} against {panel.covariate}: {said}."


def _bands(release: Release) -> str:
    """Return what the bands of an effect's figures hold; empty of decisions."""
    if release.decision is not None:
        return ""
    grey = " Grey: few records." if release.function.reference is not None else ""
    return f"Bands: {LEVEL:.0%} {band_words(release.function)[0]}.{grey}"


def _unseen(release: Release, drawn: set[str]) -> str:
    """Return by which covariates no difference is known."""
    left = some(c.label for c in release.schema.covariates if c.name not in drawn)
    if not left or (release.decision is None and (function_of(release) is None or not release.of_persons)):
        return ""
    if release.decision is not None:
        return f"The decision hardly changes by {left}."
    return f"No difference of the effect is shown by {left}."


STEPS = 200
"""Positions of a slider between its bounds."""


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
        missing: The number that a value which is not known has; None where it must be known.
        label: What readers see in the place of the name, with the unit of a number.
        shown: What they see of each level.
    """

    name: str
    start: Any
    low: float = 0.0
    high: float = 0.0
    levels: tuple[Any, ...] = ()
    typical: tuple[float, float] | None = None
    missing: float | None = None
    label: str = ""
    shown: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether a slider moves in whole numbers: public bounds are whole, and far enough apart."""
        return self.low == int(self.low) and self.high == int(self.high) and self.high - self.low >= 10

    @property
    def step(self) -> float:
        """What a slider moves by."""
        return 1.0 if self.whole else (self.high - self.low) / STEPS

    def numbers(self, places: range) -> dict[str, Any]:
        """Return what a page needs to ask it; ``places`` are its encoded columns."""
        shown: dict[str, Any] = {"name": self.label, "first": places.start, "width": len(places)}
        if self.levels:
            return shown | {"levels": list(self.shown), "start": self.levels.index(self.start)}
        shown |= {} if self.typical is None else {"typical": list(self.typical)}
        shown |= {} if self.missing is None else {"middle": self.missing}
        return shown | {"low": self.low, "high": self.high, "step": self.step, "start": self.start}


def questions(release: Release) -> list[Question]:
    """Return what to ask a reader for, covariate by covariate.

    Args:
        release: Of effects, of a rule or of a chosen policy.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> [(question.name, question.start) for question in questions(_example())]
        [('x0', 0.5)]
    """
    known, places = release.function is not None and release.function.reference is not None, release.schema.places
    # means of each covariate's encoded columns on its scale, from 0 to 1
    mean = (release.domain.scale(release.function.reference).mean(0) + 1) / 2 if known else None
    starts = {name: None if mean is None else mean[list(of)] for name, of in places.items()}
    return [_question(covariate, starts[covariate.name]) for covariate in release.schema.covariates]


def _question(covariate: Covariate, typical: Tensor | None) -> Question:
    own: dict[str, Any] = {"label": column_words(covariate), "shown": covariate.labels}
    if covariate.levels:
        levels = tuple(covariate.levels)
        if typical is None:
            return Question(covariate.name, levels[0], levels=levels, **own)
        position = round(typical.item()) if len(typical) == 1 else int(typical.argmax())
        return Question(covariate.name, levels[position], levels=levels, **own)
    assert isinstance(covariate, Numeric)
    column, gone = covariate.columns[0], covariate.middle if covariate.missing else None
    low, high = column.low, column.high
    middle = 0.5 if typical is None else typical[0].item()
    start = covariate.decode_unit(torch.tensor([middle], dtype=torch.float64))[0, 0].item()
    requested = Question(covariate.name, start, low, high)
    steps = round((start - low) / requested.step)
    near = min(low + steps * requested.step, high)
    return Question(covariate.name, near, low, high, (), column.typical, gone, **own)


MOST_FEATURES = 150
"""Features beyond which a page has bands, not intervals, beside its sliders: two matrices would make it too long."""


def offline_model(release: Release, charts: Iterable[str] = ()) -> dict[str, Any] | str:
    r"""Return what a page needs to evaluate a release, as plain types, or why it cannot.

    A composed effect is :math:`g(x) = \mathrm{clip}(\sum_j \beta_j f_j(z), \pm R)` with
    :math:`\beta_j = \theta_j \sqrt{e_j}` over features f_j of standardised covariates z; its interval has the middle
    and variance of ``EffectLaw.interval``, in the same features; its band the variances of ``regression_variances``.
    Each of more than two arms has such coefficients. A linear rule is an affine function of covariates scaled to
    [-1, 1]; a policy by cuts is a tree.

    Args:
        release: Of effects, of a rule, or of a chosen policy.
        charts: Columns that answers are drawn against.

    Returns:
        Numbers and names; or one sentence that says why this release has no such form, empty where it is of no person.
    """
    schema, effect, decided = release.schema, function_of(release), release.decision
    if decided is None and (effect is None or not release.varies):
        return ""
    own: dict[str, Any] = {}
    if hasattr(effect, "basis"):
        own = {"effect": _effect(effect)} | ({"arms": list(release.arm_titles), "arm": 0} if release.arms else {})
        if decided is not None:
            own |= {"least": _finite(decided.cost + decided.cutoff), "cost": decided.cost}
            own |= {"direction": release.domain.direction}
    elif effect is None and isinstance(getattr(decided, "features", None), Identity):
        own = {"score": _affine(decided)}
    elif effect is None and isinstance(getattr(decided, "policy", None), Constants | Thresholds):
        own = {"tree": _tree(decided), "actions": list(decided.actions)}
    if not own:
        return "One person's number takes more than a page holds; torchdpcate predict works it out."
    actions, on = schema.actions if decided is None else decided.actions, f"effect on {outcome_words(schema)}"
    names = list(schema.places)
    return _requested(release, effect) | {
        **own,
        "words": {str(action): arm(schema, action) for action in actions}
        | {"effect": on if release.arms else effect_words(schema)},
        "against": [names.index(name) for name in dict.fromkeys(charts)],
        **({} if effect is None else dict(zip(("factor", "unit"), shown_in(schema), strict=True))),
        "note": f"Band: {LEVEL:.0%} {OF_REGRESSION}." if "variances" in own.get("effect", {}) else "",
    }


def _requested(release: Release, effect: Any) -> dict[str, Any]:
    """Return the covariates with their public bounds or levels, and where the sliders begin."""
    domain, schema = release.domain, release.schema
    found = []
    for question in questions(release):
        common = FigurePoints(schema, question.name).common(effect)
        shown = question.numbers(schema.places[question.name])
        found.append(shown if common is None else shown | {"common": list(common)})
    low, high = domain.covariate_low.tolist(), domain.covariate_high.tolist()
    scales = {} if domain.linear else {"scales": [domain.covariate_scales.numbers(j) for j in range(domain.dimension)]}
    return {"covariates": found, "low": low, "high": high, "level": LEVEL, **scales}


def _betas(release: Any, roots: Tensor) -> list[list[float]]:
    """Return the coefficients of each arm's effect in the features without their weights, [K - 1, 1 + p]."""
    each = torch.eye(release.basis.dimension, dtype=torch.float64)
    betas = effects_of(each, release.theta, len(release.schema.actions)).view(len(each), -1).T * roots
    betas[:, 0] += release.shift
    return betas.tolist()


def _units(units: HiddenUnits) -> dict[str, Any]:
    """Return the numbers of combinations of hidden units, a row each."""
    of_units = {"weights": units.weights.tolist(), "biases": units.biases.tolist()}
    return of_units | {"base": units.base.config(), "mixed": units.mixed.T.tolist(), "less": units.less.T.tolist()}


def _effect(release: Any) -> dict[str, Any]:
    """Return coefficients in the features without their weights, standardisation, and what is known of errors."""
    roots, law = release.basis.feature_weights.sqrt(), None if release.law is None else release.law_of_persons
    columns = range(release.domain.dimension) if release.columns is None else release.columns
    found = {
        "columns": list(columns),
        "mean": release.standardisation.mean.tolist(),
        "sd": release.standardisation.sd.tolist(),
        "most": MOST,
        "features": release.basis.config(),
        **({} if release.basis.units is None else {"units": _units(release.basis.units)}),
        "betas": _betas(release, roots),
        "bound": release.domain.outcome_range,
        "deviations": torch.special.ndtri(torch.tensor((1 + LEVEL) / 2, dtype=torch.float64)).item(),
        **({"indicators": list(release.domain.indicators)} if release.domain.has_missing else {}),
    }
    if law is None and release.has_intervals:  # those of the average
        alone = {"estimates": [release.averages.estimate()], "correction": 0.0, "centre": [1.0], "covariance": [0.0]}
        return found | {"law": alone | {"nuisances": None, "variance": release.averages.error() ** 2}}
    variances = regression_variances(release)
    found |= {} if variances is None else {"variances": (variances * roots.square()).tolist()}
    if law is None or release.basis.dimension > MOST_FEATURES:
        return found
    square = roots[:, None] * roots
    return found | {
        "law": {
            "estimates": (law.estimates * roots).tolist(),
            "correction": law.correction,
            "centre": (law.centre / roots).tolist(),
            "covariance": _lower(law.covariance * square),
            "nuisances": None if law.nuisances is None else _lower(law.nuisances * square),
            "variance": law.correction_variance + law.missed,
        }
    }


def _lower(matrix: Tensor) -> list[float]:
    """Return a quadratic form's coefficients, row by row to the diagonal: those beside it count twice."""
    both = matrix + matrix.T
    both.diagonal().div_(2)
    rows, columns = torch.tril_indices(*matrix.shape)
    return both[rows, columns].tolist()


def _affine(release: Any) -> dict[str, Any]:
    """Return intercept and slopes of the score in covariates scaled to [-1, 1]."""
    scale = 1 / math.sqrt(release.features.dimension)
    intercept, slopes = release.theta[0].item() * scale, release.theta[1:] * scale
    if not release.features.config()["centred"]:
        intercept, slopes = intercept + slopes.sum().item() / 2, slopes / 2
    return {"intercept": intercept, "slopes": slopes.tolist()}


def _tree(release: Any) -> Any:
    """Return a policy as a tree: {column, cut, above, below}, leaves labels."""
    policy, names = release.policy, release.domain.names
    if isinstance(policy, Constants):
        return policy.labels[0]
    assert isinstance(policy, Thresholds)
    above, below = (
        (release.actions[1], release.actions[0]) if policy.labels is None else (labels[0] for labels in policy.labels)
    )
    return {"column": names.index(policy.covariates[0]), "cut": policy.cuts[0], "above": above, "below": below}


def _finite(number: float) -> float:
    """Return a number that JSON knows: treating nobody or everybody needs no infinity."""
    return max(min(number, 1e300), -1e300)
