"""``torchdpcate report``: a page for the readers of each release, and the runs of a folder side by side.

What is made from summaries and curves is the curator's and goes to ``curator/``; beside it lies what is made from
releases alone.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.progress import track

from torchdpcate._files import PRIVATE, atomic_path, write_text
from torchdpcate._text import file_name, spreadsheet_cell
from torchdpcate.cli.comparison import (
    PROBLEM,
    budget_table,
    compare,
    markdown,
    method_of,
    problem_of,
    references,
    varied,
)
from torchdpcate.cli.curator_page import CURATOR_PAGE, FamilyReport, make_curator_page
from torchdpcate.cli.summaries import COUNTS, WORDS, read_summary
from torchdpcate.cli.sweep import table_totals
from torchdpcate.cli.tables import columns
from torchdpcate.cli.task import Measure, TaskSpec, family_of
from torchdpcate.errors import InputError
from torchdpcate.evaluation.comparison import CURVES_FILE, EffectCurves, budget_figure, curves_figure
from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION, save_figure
from torchdpcate.release.file import RELEASE_FILE, release_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARK = NOT_FOR_PUBLICATION.capitalize()
_FEW = 20  # runs that are printed one by one


def report(folder: str, reference: str | None = None, output: str | None = None) -> None:
    """Write a page for the readers of each release; print the runs and how they compare, draw what a sweep varied.

    The page of a run, ``release.html``, lies beside its release and follows from it alone. ``curator/`` gets
    ``report.html``, ``report.csv``, ``report.md`` and the figures that show more than releases do: only its owner can
    read it. The figures beside it are drawn from releases alone.

    Args:
        folder: A run folder, a folder of run folders, or a release file.
        reference: Table of a public population that the pages' figures are averaged over, never the records.
        output: Folder of the page, of one release; None writes beside the release.

    Raises:
        InputError: Neither a release nor a summary anywhere under the folder, or a damaged one; damaged curves of a run
            that is drawn; an output for several releases.
    """
    root = Path(folder)
    paths = sorted(root.glob("**/summary.json"))
    if not paths and not os.path.isfile(root) and not (root / RELEASE_FILE).is_file():
        raise InputError(f"folder = {folder}: no summary.json in it; give the folder of a finished run or sweep")
    _write_pages([path.parent for path in paths] or [root], reference, output)
    if not paths:
        return
    rows = [read_summary(path) for path in paths]
    own = {row["task"]: family_of(row["task"]) for row in rows}
    families = {task: family.comparable or family for task, family in own.items()}
    parts = [
        (family, _runs([row for row in rows if families[row["task"]] is family], family))
        for family in dict.fromkeys(families[task] for task in sorted(families))
    ]
    drawn = [(_figures(runs, family), family.public_figures(runs)) for family, runs in parts]
    secret = {name: figure for own, _ in drawn for name, figure in own.items()}
    public = {name: figure for _, own in drawn for name, figure in own.items()}
    tables = [_tables(runs, family) for family, runs in parts]
    pages = [_page(found) for found in tables]
    marked, totals = f"{_MARK}: holds errors of non-private estimates.", table_totals(rows)
    reports = [
        FamilyReport(family, runs, found, _captioned(family, own, others))
        for (family, runs), found, (own, others) in zip(parts, tables, drawn, strict=True)
    ]
    html = make_curator_page(root.absolute().name, reports, totals)
    curator = _curators_folder(root)
    _secretly(curator / "report.csv", lambda path: _write_csv(pd.concat([runs for _, runs in parts]), path))
    _secretly(curator / "report.md", lambda path: write_text(path, "\n\n".join([marked, *totals, *pages]) + "\n"))
    _secretly(curator / CURATOR_PAGE, lambda path: write_text(path, html, PRIVATE))
    for family, runs in parts:
        _print(runs, family)
    for line in totals:
        print(line)
    print(f"page: {curator / CURATOR_PAGE}, {NOT_FOR_PUBLICATION}")
    for name, figure in secret.items():
        _secretly(curator / name, partial(save_figure, figure))
        print(f"figure: {curator / name}, {NOT_FOR_PUBLICATION}")
    for name, figure in public.items():
        save_figure(figure, root / name)
        print(f"figure: {root / name}")


def _write_pages(places: list[Path], reference: str | None, output: str | None) -> None:
    """Write a page beside the release of each run that still has one."""
    from torchdpcate.pages.reader import write_page

    found = [release_path(place) for place in places if _has_release(place)]
    if output is not None and len(found) != 1:
        raise InputError(f"output = {output}: for one release, and there are {len(found)}; leave it out")
    for path in track(found, description="pages", transient=True, disable=len(found) < _FEW):
        print(f"page for readers: {write_page(path, reference, output)}")


def _has_release(place: Path) -> bool:
    return place.is_file() or any((folder / RELEASE_FILE).is_file() for folder in (place / "release", place))


def _curators_folder(root: Path) -> Path:
    """Return the folder of what must not leave, which its owner alone may read."""
    folder = root / "curator"
    if folder.is_symlink():
        raise InputError(f"folder = {folder}: is a link to elsewhere; remove it, for what is written there is secret")
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _secretly(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file into the curator's folder, for its owner alone."""
    write(path)
    path.chmod(0o600)


def _runs(rows: list[dict], family: type[TaskSpec]) -> pd.DataFrame:
    """Return a family's runs with their methods, those of one method and budget together."""
    runs = pd.DataFrame(rows)
    runs["varied"] = varied(runs["settings"])
    runs["method"] = method_of(runs, family)
    return runs.sort_values(["method", "requested_epsilon", "seed"], kind="stable", ignore_index=True)


def _write_csv(runs: pd.DataFrame, path: Path) -> None:
    settings = runs["settings"].map(lambda given: " ".join(f"{key}={value}" for key, value in given.items()))
    table = runs.drop(columns=["folder", "varied", "method"]).assign(settings=settings).map(spreadsheet_cell)
    table.insert(0, "audience", NOT_FOR_PUBLICATION)
    with atomic_path(path) as temporary:
        table.to_csv(temporary, index=False)


def _tables(runs: pd.DataFrame, family: type[TaskSpec]) -> list[tuple[str, str, pd.DataFrame]]:
    """Return a family's tables with their headings and notes."""
    tables = [(measure.heading, measure.note, budget_table(runs, measure)) for measure in family.measures]
    tables.append((family.heading, family.note, compare(runs, family)))
    return [(heading, note, table) for heading, note, table in tables if table is not None]


def _page(tables: list[tuple[str, str, pd.DataFrame]]) -> str:
    """Return a family's tables as a page of markdown."""
    return "\n\n".join(f"# {heading}\n\n{note}\n\n{markdown(table)}" for heading, note, table in tables)


def _print(runs: pd.DataFrame, family: type[TaskSpec]) -> None:
    if len(runs) <= _FEW:
        shown = ["run", *COUNTS, *WORDS, "requested_epsilon", *family.summary_keys(), "seconds"]
        known = runs[[name for name in shown if name in runs and runs[name].notna().any()]]
        texts = known.map(lambda value: f"{value:.4g}" if isinstance(value, float) else str(value))
        print(columns(list(texts.columns), texts.values.tolist()), end="\n\n")
    if len(runs) > 1:
        table = compare(runs, family)
        which = list(table.columns).index("epsilon") + 1  # data, records, settings, mechanism and budget
        print(columns(list(table.columns), table.values.tolist(), keys=which), end="\n\n")


def _figures(runs: pd.DataFrame, family: type[TaskSpec]) -> dict[str, "Figure"]:
    """Return a family's figures that are the curator's, by the names of their files."""
    figures = {}
    for measure in family.measures if runs["requested_epsilon"].nunique() > 1 else ():
        drawn = _drawn(runs, measure)
        if measure.figure is not None and not drawn.empty:
            figures[measure.figure] = budget_figure(drawn, measure.key)
    for (data, n), chosen in runs.groupby(PROBLEM):
        first = chosen[chosen["seed"] == chosen["seed"].min()]
        curves = _curves(first)
        if sum(map(len, curves.values())) > 1:
            title = f"{problem_of(first).iloc[0]}, seed {first['seed'].iloc[0]}"
            figures[f"effect_{file_name(data)}_n{n}.png"] = curves_figure(curves, title)
    return figures


def _captioned(family: type[TaskSpec], secret: dict[str, "Figure"], public: dict[str, "Figure"]) -> dict[str, "Figure"]:
    """Return figures by captions in place of the names of their files."""
    headings = {measure.figure: measure.heading for measure in family.measures}
    own = {headings.get(name) or _caption(name): figure for name, figure in secret.items()}
    return own | {f"{_caption(name)}, from releases alone": figure for name, figure in public.items()}


def _caption(name: str) -> str:
    return name.removesuffix(".png").replace("_", " ").capitalize()


def _drawn(runs: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Return one row a run and line of the measure's figure, in the order in which they are drawn."""
    common = pd.DataFrame({"epsilon": runs["requested_epsilon"], "panel": problem_of(runs)})
    lines: dict[str, str | pd.Series] = {measure.key: runs["method"]} if measure.key in runs else {}
    lines |= references(runs, measure)
    parts = [common.assign(**{"line": name, measure.key: runs[key]}) for key, name in lines.items()]
    known = pd.concat(parts).dropna(subset=measure.key) if parts else common[:0]
    return known.sort_values("panel", kind="stable")


def _curves(runs: pd.DataFrame) -> dict[float, dict[str, EffectCurves]]:
    """Return the curves of runs on one data set by budget and method, all along the first one's covariate."""
    curves: dict[float, dict[str, EffectCurves]] = {}
    covariate = None
    for folder, epsilon, method in zip(runs["folder"], runs["requested_epsilon"], runs["method"], strict=True):
        path = folder / "curator" / CURVES_FILE
        if not os.path.lexists(path):
            continue  # a query release, or a rule
        found = EffectCurves.load(path)
        covariate = covariate or found.covariate
        if found.covariate == covariate:
            curves.setdefault(epsilon, {}).setdefault(method, found)
    return curves
