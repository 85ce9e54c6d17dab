"""A release's page for its readers, one file that works offline: findings, figures, sliders, and the card."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate._templates import render, script
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data.covariates import Covariate, Numeric
from torchdpcate.data.study import read_queries
from torchdpcate.data.words import arm, effect_words, outcome_axis, outcome_unit
from torchdpcate.evaluation.balance_figure import balance_figure, interval_figure
from torchdpcate.evaluation.figures import OF_REGRESSION, decision_picture, effect_picture, svg_of
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.fit.weighted_basis import MOST, HiddenUnits, effects_of
from torchdpcate.pages.effect_points import FigurePoints
from torchdpcate.pages.figures import (
    action_names,
    arm_panels,
    band_words,
    decision_panel,
    plot_lines,
    regression_variances,
    released_rows,
)
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.composed import ComposedRelease, ComposedRule
from torchdpcate.release.file import Release, load_release, subject
from torchdpcate.release.release import EffectRelease, QueryRelease
from torchdpcate.release.rule import DecisionRelease, PolicyRelease, RuleRelease
from torchdpcate.release.subgroups import LEVEL, SubgroupRelease
from torchdpcate.verify.card import card_values, write_beside
from torchdpcate.verify.finding import amount, findings, number, numbers, population

PAGE = "release.html"
_ROWS = 256
"""Rows of a reference population that figures average over, at most."""
_MOST_FIGURES = 16
_NOTHING = dict.fromkeys(("estimate", "lines", "sites", "subgroups", "queries", "figures", "bands", "assumptions"))
"""What the template shows of some kinds of release alone."""
_NO_BAND = "it has no interval, and no band of noise; hence no curve is drawn"
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
    """Return the page of a release.

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
    shown = _shown(release, reference, rows, about)
    return render(
        "reader.html",
        script=script("page.js") if isinstance(shown.get("model"), dict) else "",
        title=subject(release),
        findings=findings(release, rows),
        **{**_NOTHING, **shown},
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


def _shown(release: Release, given: Tensor | None, rows: Tensor, about: str) -> dict[str, Any]:
    """Return what the template shows of this kind of release."""
    if isinstance(release, AverageEffectRelease):
        return {
            "estimate": svg_of(
                interval_figure(
                    released_rows(release, release.estimand), level=LEVEL, label=outcome_axis(release.schema)
                )
            ),
            "rows": [
                ("estimand", release.estimand),
                ("estimate", amount(release.schema, number(release.estimate))),
            ],
            "assumptions": release.assumptions,
            "balance": None if release.balance is None else svg_of(balance_figure(release.balance)),
        }
    if isinstance(release, SubgroupRelease):
        heads = ("Subgroup", "Effect", f"{LEVEL:.0%}, each", f"{LEVEL:.0%}, all at once", "About so many records")
        columns = (
            release.titles,
            *_alike(release.estimate, release.interval(), release.interval(simultaneous=True)),
            map("{:,.0f}".format, release.records.tolist()),
        )
        lines = list(zip(*columns, strict=True))
        picture = svg_of(plot_lines(release))
        return {"subgroups": picture, "heads": heads, "rows": lines, "assumptions": release.assumptions}
    if isinstance(release, QueryRelease):
        return {"queries": True}
    if release.between is not None and release.function is None:
        return {"sites": _sites(release), "assumptions": release.required_lines.assumptions}
    shown = _sliders(release) | _figures(release, given, rows, about) | _lines(release)
    shown |= _bands(release) if isinstance(release, EffectRelease) else {}
    return shown | ({"sites": _sites(release)} if release.between is not None else {})


def _lines(release: Release) -> dict[str, Any]:
    """Return the forest plot and the table of a composition's lines; nothing where there are none."""
    if not isinstance(release, ComposedRelease | ComposedRule) or release.averages is None:
        return {}
    found = release.lines(LEVEL)
    columns = (
        found["line"],
        *_alike(found["estimate"].to_numpy(), found[["low", "high"]].to_numpy()),
        found["records"].map("{:,.0f}".format),
    )
    ruled = isinstance(release, ComposedRule)
    title, what = ("What the rule gains", "Gain a person") if ruled else ("On average, and by group", "Effect")
    heads = ("Of", what, f"{LEVEL:.0%} interval", "About so many records")
    table = {"picture": svg_of(plot_lines(release)), "heads": heads, "rows": list(zip(*columns, strict=True))}
    return {"lines": table | {"title": title, "assumptions": release.line_assumptions}}


def _sites(release: Any) -> dict[str, Any]:
    """Return the forest plot by site, and its table: what each site found, what it guarantees, how much it weighs."""
    found, several = release.lines(), len(release.line_titles) > 1
    claims = dict(zip(release.names, (site.privacy.claim for site in release.sites), strict=True))
    columns = (
        *([found["group"]] if several else []),
        found["line"],
        *_alike(found["estimate"].to_numpy(), found[["low", "high"]].to_numpy()),
        found["weight"].map("{:.0%}".format),
        found["records"].map("{:,.0f}".format),
        found["line"].map(lambda name: claims.get(name, "")),
    )
    heads = ("Site", "Effect", f"{LEVEL:.0%} interval", "Weight", "Records", "Guarantee of its records")
    return {
        "picture": svg_of(plot_lines(release)),
        "heads": ("Effect of", *heads) if several else heads,
        "rows": list(zip(*columns, strict=True)),
        "person": release.privacy.public.get("person_at_several_sites", ""),
    }


def _sliders(release: Release) -> dict[str, Any]:
    """Return the numbers that the controls' script evaluates; why there are none, where it cannot."""
    model = offline_model(release)
    if isinstance(model, str):
        return {"model": model}
    schema = release.schema
    actions = release.actions if isinstance(release, PolicyRelease) else schema.actions
    model["words"] = {str(action): arm(schema, action) for action in actions} | {"effect": effect_words(schema)}
    model["against"] = _first(release)
    model["unit"] = "" if isinstance(release, DecisionRelease | PolicyRelease) else outcome_unit(schema)
    effect, notes = model.get("effect", {}), []
    if isinstance(release, DecisionRelease):
        notes = [f"score; the rule gives {arm(schema, schema.actions[1])} where it is above zero"]
    if "variances" in effect:
        notes.append(f"the band holds {LEVEL:.0%} {OF_REGRESSION}")
    elif effect and not notes:
        notes = [_NO_BAND]
    model["note"] = "; ".join(notes)
    many = getattr(release, "has_intervals", False) and "law" not in effect
    return {"model": model, "too_many": MOST_FEATURES if many else 0}


def _figures(release: Release, given: Tensor | None, rows: Tensor, about: str) -> dict[str, Any]:
    """Return a figure for each covariate that the answers may depend on."""
    used = _used(release)
    # a noise band is about one point: without a reference it is drawn there
    known = isinstance(release, EffectRelease) and release.reference is not None
    average = given is not None or release.function is not release or known
    drawn = []
    for name in used[:_MOST_FIGURES]:
        where = FigurePoints(release.schema, name, None, rows if average else None)
        if isinstance(release, EffectRelease):
            panels = arm_panels(release, where, LEVEL)
            if isinstance(release, ComposedRelease):  # a curve says too much without a band
                panels = [panel for panel in panels if panel.band is not None]
            drawn += [(panel.title or name, effect_picture(panel, outcome_axis(release.schema))) for panel in panels]
            continue
        assert isinstance(release, DecisionRelease | PolicyRelease)
        drawn.append((name, decision_picture(decision_panel(release, where), action_names(release))))
    return {
        "figures": drawn,
        "whom": f"averaged over {about}" if average else "at the middle of their bounds",
        "left": max(len(used) - _MOST_FIGURES, 0),
        "unused": [name for name in release.schema.columns if name not in used],
    }


def _bands(release: Any) -> dict[str, Any]:
    """Return what the bands of the figures hold."""
    holds, assumptions = band_words(release)
    composed = isinstance(release, ComposedRelease)
    words = f"{holds[0].upper()}{holds[1:]}, {LEVEL:.0%}, where one is drawn."
    if release.has_intervals:
        words = f"{LEVEL:.0%} {holds}." if release.form == "constant" else f"{LEVEL:.0%} {holds}: {release.target}."
    elif composed:
        drawn = f"{LEVEL:.0%} {holds}" if holds == OF_REGRESSION else "No band of noise is known, and no curve is drawn"
        words = f"{drawn}. There are no intervals: {release.without_words or 'the release has none'}."
    return {
        "bands": {"words": words, "composed": composed, "intervals": bool(assumptions)},
        "assumptions": assumptions,
    }


def _used(release: Release) -> list[str]:
    """Return the covariates that the answers may depend on, as far as that is known."""
    effect, found = release.function, None
    if effect is not None and effect.reference is not None:
        found = effect.features_used
    elif isinstance(release, PolicyRelease):
        found = columns_used(release)
    return [name for name, columns in _encoded(release).items() if found is None or found & columns]


def _first(release: Release) -> int:
    """Return the position of the covariate that the chart shows first: a number that matters, where there is one."""
    used, columns = _used(release) or list(release.schema.columns), list(release.schema.columns)
    numbers = [covariate.name for covariate in release.schema.covariates if not covariate.levels]
    return columns.index(next((name for name in used if name in numbers), used[0]))


def _encoded(release: Release) -> dict[str, set[int]]:
    """Return the positions of each covariate's encoded columns."""
    return {name: set(places) for name, places in release.schema.places.items()}


def _alike(points: np.ndarray, *intervals: np.ndarray) -> list[list[str]]:
    """Return columns of a table, points and ranges, with all their numbers to one decimal place."""
    values = np.concatenate([points[:, None], *intervals], 1)
    shown, width = numbers(values.flatten().tolist()), values.shape[1]
    columns = [shown[k::width] for k in range(width)]
    ranges = [[f"{low} to {high}" for low, high in zip(*columns[k : k + 2], strict=True)] for k in range(1, width, 2)]
    return [columns[0], *ranges]


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


def questions(release: Release) -> list[Question]:
    """Return what to ask a reader for, covariate by covariate.

    Args:
        release: Of effects, of a rule or of a chosen policy.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> [(question.name, question.start) for question in questions(_example())]
        [('x0', 0.5)]
    """
    starts: Mapping[str, Tensor] = {}
    if isinstance(release, ComposedRelease):  # means of each covariate's encoded columns on its scale, from 0 to 1
        mean = (release.domain.scale(release.reference).mean(0) + 1) / 2
        starts = {name: mean[list(places)] for name, places in release.schema.places.items()}
    return [_question(covariate, starts.get(covariate.name)) for covariate in release.schema.covariates]


def _question(covariate: Covariate, typical: Tensor | None) -> Question:
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


MOST_FEATURES = 150
"""Features beyond which a page has bands, not intervals, beside its sliders: two matrices would make it too long."""


def offline_model(release: Release) -> dict[str, Any] | str:
    r"""Return what a page needs to evaluate a release, as plain types, or why it cannot.

    A composed effect is :math:`g(x) = \mathrm{clip}(\sum_j \beta_j f_j(z), \pm R)` with
    :math:`\beta_j = \theta_j \sqrt{e_j}` over features f_j of standardised covariates z; its interval has the middle
    and variance of ``EffectLaw.interval``, in the same features; its band the variances of ``regression_variances``.
    Each of more than two arms has such coefficients. A linear rule is an affine function of covariates scaled to
    [-1, 1]; a policy by cuts is a tree.

    Args:
        release: Of effects, of a rule, or of a chosen policy.

    Returns:
        Numbers and names; or one sentence that says why this release has no such form.
    """
    if isinstance(release, ComposedRelease):
        arms = {"arms": list(release.arm_titles), "arm": 0} if release.arms else {}  # the page asks which
        return _requested(release) | {"effect": _effect(release)} | arms
    if isinstance(release, ComposedRule):
        cost = release.cost + release.cutoff
        return _requested(release) | {
            "effect": _effect(release.effect),
            "least": _finite(cost),
            "direction": release.domain.direction,
        }
    if isinstance(release, RuleRelease) and isinstance(release.features, Identity):
        return _requested(release) | {"score": _affine(release)}
    if isinstance(release, PolicyRelease) and isinstance(release.policy, Constants | Thresholds):
        return _requested(release) | {"tree": _tree(release), "actions": list(release.actions)}
    if release.between is not None:
        return "The answer is made of all sites' functions; torchdpcate predict evaluates them."
    return (
        f"The sliders need a function of few numbers; this release of {release.kind} evaluates networks, kernels or "
        "functions, which torchdpcate predict does."
    )


def _requested(release: Release) -> dict[str, Any]:
    """Return the covariates with their public bounds or levels, and where the sliders begin."""
    domain, places = release.domain, release.schema.places
    found = [_covariate(question, places[question.name]) for question in questions(release)]
    low, high = domain.covariate_low.tolist(), domain.covariate_high.tolist()
    scales = {} if domain.linear else {"scales": [domain.covariate_scales.numbers(j) for j in range(domain.dimension)]}
    return {"covariates": found, "low": low, "high": high, "level": LEVEL, **scales}


def _covariate(question: Question, places: range) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": question.label, "first": places.start, "width": len(places)}
    if question.levels:
        return shown | {"levels": list(map(str, question.levels)), "start": question.levels.index(question.start)}
    shown |= {"typical": list(question.typical)} if question.typical is not None else {}
    shown |= {} if question.missing is None else {"middle": question.missing}
    return shown | {"low": question.low, "high": question.high, "step": question.step, "start": question.start}


def _betas(release: ComposedRelease, roots: Tensor) -> list[list[float]]:
    """Return the coefficients of each arm's effect in the features without their weights, [K - 1, 1 + p]."""
    each = torch.eye(release.basis.dimension, dtype=torch.float64)
    betas = effects_of(each, release.theta, len(release.schema.actions)).view(len(each), -1).T * roots
    betas[:, 0] += release.shift
    return betas.tolist()


def _units(units: HiddenUnits) -> dict[str, Any]:
    """Return the numbers of combinations of hidden units, a row each."""
    of_units = {"weights": units.weights.tolist(), "biases": units.biases.tolist()}
    return of_units | {"base": units.base.config(), "mixed": units.mixed.T.tolist(), "less": units.less.T.tolist()}


def _effect(release: ComposedRelease) -> dict[str, Any]:
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
        assert release.averages is not None
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


def _affine(release: RuleRelease) -> dict[str, Any]:
    """Return intercept and slopes of the score in covariates scaled to [-1, 1]."""
    scale = 1 / math.sqrt(release.features.dimension)
    intercept, slopes = release.theta[0].item() * scale, release.theta[1:] * scale
    if not release.features.config()["centred"]:
        intercept, slopes = intercept + slopes.sum().item() / 2, slopes / 2
    return {"intercept": intercept, "slopes": slopes.tolist()}


def _tree(release: PolicyRelease) -> Any:
    """Return a policy as a tree: {column, cut, above, below}, leaves labels."""
    policy, names = release.policy, release.domain.names
    if isinstance(policy, Constants):
        return policy.labels[0]
    assert isinstance(policy, Thresholds)
    above, below = (
        (release.actions[1], release.actions[0]) if policy.labels is None else (labels[0] for labels in policy.labels)
    )
    return {"column": names.index(policy.covariates[0]), "cut": policy.cuts[0], "above": above, "below": below}


def columns_used(release: PolicyRelease) -> set[int] | None:
    """Return the positions of the encoded columns that a policy by cuts looks at; None of any other policy."""
    if not isinstance(release.policy, Constants | Thresholds):
        return None
    tree = _tree(release)
    return {tree["column"]} if isinstance(tree, dict) else set()


def _finite(number: float) -> float:
    """Return a number that JSON knows: treating nobody or everybody needs no infinity."""
    return max(min(number, 1e300), -1e300)
