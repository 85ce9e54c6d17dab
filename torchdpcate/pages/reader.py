"""A release's page for its readers, one file that works offline: findings, figures, sliders, and the card."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from torchdpcate._templates import render, script
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data.study import read_queries
from torchdpcate.data.words import arm, effect_words, outcome_axis, outcome_unit
from torchdpcate.evaluation.balance_figure import balance_figure, interval_figure
from torchdpcate.evaluation.figures import decision_picture, effect_picture, svg_of
from torchdpcate.pages.effect_points import FigurePoints
from torchdpcate.pages.figures import (
    action_names,
    arm_panels,
    band_words,
    decision_panel,
    plot_lines,
    plot_sites,
    plot_subgroups,
    released_rows,
)
from torchdpcate.pages.offline import MOST_FEATURES, columns_used, offline_model
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.combined import Combined
from torchdpcate.release.combined_lines import CombinedLines
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.file import Release, load_release, subject
from torchdpcate.release.release import EffectRelease, QueryRelease
from torchdpcate.release.rule import DecisionRelease, PolicyRelease
from torchdpcate.release.subgroups import LEVEL, SubgroupRelease
from torchdpcate.verify.card import card_values, write_beside
from torchdpcate.verify.finding import amount, findings, number, numbers, population

PAGE = "release.html"
_ROWS = 256
"""Rows of a reference population that figures average over, at most."""
_MOST_FIGURES = 16
_NOTHING = dict.fromkeys(("estimate", "lines", "sites", "subgroups", "queries", "figures", "bands", "assumptions"))
"""What the template shows of some kinds of release alone."""
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
        **card_values(release, path, heading="h2"),
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
        picture = svg_of(plot_subgroups(release))
        return {"subgroups": picture, "heads": heads, "rows": lines, "assumptions": release.assumptions}
    if isinstance(release, QueryRelease):
        return {"queries": True}
    if isinstance(release, CombinedLines):
        return {"sites": _sites(release), "assumptions": release.assumptions}
    shown = _sliders(release) | _figures(release, given, rows, about) | _lines(release)
    shown |= _bands(release) if isinstance(release, EffectRelease) else {}
    return shown | ({"sites": _sites(release)} if isinstance(release, Combined) else {})


def _lines(release: Release) -> dict[str, Any]:
    """Return the forest plot and the table of a composition's lines; nothing where there are none."""
    if not isinstance(release, ComposedRelease) or release.lines is None:
        return {}
    found = release.line_table(LEVEL)
    columns = (
        found["cell"],
        *_alike(found["estimate"].to_numpy(), found[["low", "high"]].to_numpy()),
        found["records"].map("{:,.0f}".format),
    )
    heads = ("Of", "Effect", f"{LEVEL:.0%} interval", "About so many records")
    table = {"picture": svg_of(plot_lines(release)), "heads": heads, "rows": list(zip(*columns, strict=True))}
    return {"lines": table | {"assumptions": release.line_assumptions}}


def _sites(release: Combined) -> dict[str, Any]:
    """Return the forest plot by site, and its table: what each site found, what it guarantees, how much it weighs."""
    found, several = release.parts(), len(release.lines) > 1
    claims = dict(zip(release.names, (site.privacy.claim for site in release.sites), strict=True))
    columns = (
        *([found["partition"]] if several else []),
        found["cell"],
        *_alike(found["estimate"].to_numpy(), found[["low", "high"]].to_numpy()),
        found["weight"].map("{:.0%}".format),
        found["records"].map("{:,}".format),
        found["cell"].map(lambda name: claims.get(name, "")),
    )
    heads = ("Site", "Effect", f"{LEVEL:.0%} interval", "Weight", "Records", "Guarantee of its records")
    return {
        "picture": svg_of(plot_sites(release)),
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
    model["note"], model["against"] = "", _first(release)
    model["unit"] = "" if isinstance(release, DecisionRelease | PolicyRelease) else outcome_unit(schema)
    if isinstance(release, DecisionRelease):
        model["note"] = f"score; the rule gives {arm(schema, schema.actions[1])} where it is above zero"
    short = "law" in model.get("effect", {}) or not isinstance(release, ComposedRelease) or release.law is None
    return {"model": model, "too_many": 0 if short else MOST_FEATURES}


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
        words = f"{LEVEL:.0%} {holds}: {release.target}."
    elif composed:
        words = f"There are no intervals: {release.without_words or 'the release has none'}."
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
