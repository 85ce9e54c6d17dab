"""``torchdpcate report``: a page for the readers of each release, and the runs of a folder side by side.

What is made from summaries is the curator's and goes to ``curator/``; the page is made from the release alone.
"""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.progress import track

from torchdpcate._files import PRIVATE, write_text
from torchdpcate._templates import render
from torchdpcate._text import spreadsheet_cell
from torchdpcate.cli.curator import (
    COUNTS,
    PUBLIC,
    RELEASED,
    SUMMARY_FILE,
    UNRELEASED,
    WORDS,
    Part,
    questions,
    read_summary,
)
from torchdpcate.cli.sweep import table_totals
from torchdpcate.cli.tables import columns
from torchdpcate.cli.task import Measure, TaskSpec, family_of
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.errors import InputError
from torchdpcate.evaluation.comparison import budget_figure
from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION, svg_of
from torchdpcate.release.file import RELEASE_FILE, release_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curator_page(title: str, lines: Sequence[str], parts: Sequence[Part]) -> str:
    """Return the page. All words are shown as text, never as markup; figures are pictures within the page.

    Args:
        title: Which runs it is of.
        lines: What holds for all of them, a paragraph each.
        parts: What is shown, from above.

    Example:
        >>> page = curator_page("<b>", [], [Part("Runs", tables={"All": (["run"], [["<script>"]])})])
        >>> "<script" in page, "&lt;script&gt;" in page, "curator&#39;s, not for publication" in page.lower()
        (False, True, True)
    """
    mark = f"{NOT_FOR_PUBLICATION[0].upper()}{NOT_FOR_PUBLICATION[1:]}"
    drawn = []
    for part in parts:
        figures = {
            caption: ("png", found) if isinstance(found, bytes) else ("svg+xml", svg_of(found, whole=True))
            for caption, found in part.figures.items()
        }
        drawn.append({**vars(part), "figures": figures})
    return render("curator.html", title=f"{mark}: {title}", mark=mark, heading=title, lines=lines, parts=drawn)


PROBLEM = ["data", "n"]
"""What says which estimation problem a run solved."""
_BUDGET = "requested_epsilon"


def compare(runs: pd.DataFrame, family: type[TaskSpec]) -> pd.DataFrame:
    """Return one row for every problem, method and requested budget, as text.

    A method is whatever differs between the runs apart from data, records, budget and seed. Measures are means over
    its runs with the standard error; ``noise`` is the mean public scale of the answers' noise, ``spent`` the largest
    epsilon of a run. What is not known or secret is a dash.

    Args:
        runs: One row a run.
        family: What the runs are compared by.
    """
    varying = [n for n in _varying(runs, _settings(family)) if n != "release" or _distinguishes(runs, ["mechanism"], n)]
    keys = [*PROBLEM, *varying, "mechanism", _BUDGET]
    groups = runs.groupby([*PROBLEM, _BUDGET, *keys[2:-1]], dropna=False)
    table = pd.DataFrame({"runs": groups.size().astype(str)})
    for measure in family.measures:
        if measure.key in runs:
            table[measure.title] = _mean_and_error(groups[measure.key])
        for name, title in measure.references.items():
            if name in runs:
                named = title if len(family.measures) == 1 else f"{measure.title} {title}"
                table[named] = groups[name].mean().map(_short)
    if "noise" in runs:
        table["noise"] = groups["noise"].mean().map(_short)
    table["level"] = groups["level"].agg(lambda levels: ", ".join(sorted(set(levels))))
    table["spent"] = groups["spent_epsilon"].agg(lambda spent: spent.max(skipna=False)).map(_short)
    table = table.reset_index()
    for name in ("n", _BUDGET):
        table[name] = table[name].map("{:,}".format if name == "n" else _short)
    table = table[[*keys, *(name for name in table if name not in keys)]].astype(str)
    return table.rename(columns={_BUDGET: "epsilon", "varied": "settings"})


def references(runs: pd.DataFrame, measure: Measure) -> dict[str, str]:
    """Return what the runs are held against, names by columns; not what is one of the methods itself."""
    methods = set(runs["mechanism"])
    return {
        name: title
        for name, title in measure.references.items()
        if name in runs and re.sub("[- ]", "_", title) not in methods
    }


def method_of(runs: pd.DataFrame, family: type[TaskSpec]) -> pd.Series:
    """Return the shortest name of each run's method: its mechanism, and those of its settings that distinguish it."""
    named = ["mechanism"]
    for column in _varying(runs, _settings(family)):
        if _distinguishes(runs, named, column):
            named.append(column)
    return runs[named].astype(str).agg(" ".join, axis=1)


def problem_of(runs: pd.DataFrame) -> pd.Series:
    """Return the name of each run's problem."""
    return runs["data"] + ", n = " + runs["n"].map("{:,}".format)


def varied(settings: pd.Series) -> pd.Series:
    """Return each run's settings that others do not share, as text."""
    keys = sorted({key for given in settings for key in given})
    varying = [key for key in keys if len({given.get(key) for given in settings}) > 1]
    return settings.map(lambda given: " ".join(f"{key}={given[key]}" for key in varying if key in given))


def _settings(family: type[TaskSpec]) -> list[str]:
    return [*family.settings, "varied"]


def _varying(runs: pd.DataFrame, columns: list[str]) -> list[str]:
    return [name for name in columns if runs[name].nunique(dropna=False) > 1]


def _distinguishes(runs: pd.DataFrame, known: list[str], column: str) -> bool:
    """Return whether a column distinguishes runs that the known ones do not."""
    return bool((runs.groupby(known, dropna=False)[column].nunique(dropna=False) > 1).any())


def _mean_and_error(groups: Any) -> pd.Series:
    """Return the means, with their standard errors where there is more than one value."""
    errors = groups.sem().map(lambda value: "" if pd.isna(value) else f" ± {value:.2g}")
    return groups.mean().map(_short) + errors


def _short(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:.3g}"


CURATOR_PAGE, _TABLE = "report.html", "report.csv"


def _part(runs: pd.DataFrame, family: type[TaskSpec], figures: "dict[str, Figure]") -> Part:
    """Return the part of the curator's page about a family: its tables and figures, of one run its numbers."""
    if len(runs) == 1:
        known = [(name, words) for name, words in family.shown().items() if name in runs and runs[name].notna().all()]
        rows = [
            (words.removeprefix("unreleased: "), _short_value(runs[name][0]), _whence(words)) for name, words in known
        ]
        return Part("What came out", tables={"Numbers": (("number", "value", "whence"), rows)} if rows else {})
    notes = [f"{measure.title}: {measure.note}" for measure in family.measures if measure.key in runs]
    said = [family.note, *notes]
    table = compare(runs, family)
    heads = [str(name).replace("_", " ") for name in table.columns]
    return Part(family.heading, said, figures, {"Means and standard errors over runs": (heads, table.values.tolist())})


def _whence(words: str) -> str:
    return PUBLIC if "planned" in words else UNRELEASED if words.startswith(UNRELEASED) else RELEASED


def _short_value(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_FEW = 20  # runs that are printed one by one


def report(
    folder: str,
    reference: str | None = None,
    output: str | None = None,
    form: CsvForm = PLAIN,
) -> None:
    """Write a page for the readers of each release; print the runs and how they compare, draw what a sweep varied.

    The page of a run, ``release.html``, lies beside its release and follows from it alone. ``curator/`` gets
    ``report.html`` and ``report.csv``: only its owner can read it.

    Args:
        folder: A run folder, a folder of run folders, or a release file.
        reference: Table of a public population that the pages' figures are averaged over, never the records.
        output: Folder of the page, of one release; None writes beside the release.
        form: How the reference is written, if it is csv.

    Raises:
        InputError: Neither a release nor a summary anywhere under the folder, or a damaged one; an output for several
            releases.
    """
    root = Path(folder)
    paths = sorted(root.glob(f"**/curator/{SUMMARY_FILE}"))
    if not paths and not _has_release(root):
        raise InputError(
            f"folder = {folder}: no curator/{SUMMARY_FILE} in it; give the folder of a finished run or sweep"
        )
    _write_pages([path.parent.parent for path in paths] or [root], reference, output, form)
    if paths:
        for line in tabulate(root, paths):
            print(line)


def tabulate(root: Path, paths: Sequence[Path]) -> list[str]:
    """Write the curator's page and table of runs into the folder above them; print how the runs compare.

    Args:
        root: A run folder, or a folder of run folders.
        paths: Summaries of its runs, at least one.

    Returns:
        What the runs have spent together on each real table, a line each.

    Raises:
        InputError: A summary is damaged, or the curator's folder is a link.
    """
    rows = [read_summary(path) for path in paths]
    parts = _families(rows)
    totals = table_totals(rows)
    figures = {family: _figures(runs, family) for family, runs in parts}
    title = f"{root.absolute().name}: {len(rows)} run{'s' * (len(rows) > 1)}"
    asked = questions(paths[0].parent.parent) if len(rows) == 1 else []
    html = curator_page(title, totals, [*(_part(runs, family, figures[family]) for family, runs in parts), *asked])
    curator = _curators_folder(root)
    _write_csv(pd.concat([runs for _, runs in parts]), curator / _TABLE)
    write_text(curator / CURATOR_PAGE, html, PRIVATE)
    for family, runs in parts:
        _print(runs, family)
    print(f"page: {curator / CURATOR_PAGE}, {NOT_FOR_PUBLICATION}")
    print(f"table: {curator / _TABLE}, {NOT_FOR_PUBLICATION}")
    return totals


def say_table(folder: Path) -> None:
    """Write the page and table of a sweep's finished runs into its folder, and print how they compare.

    Args:
        folder: The sweep's.
    """
    paths = sorted(folder.glob(f"*/curator/{SUMMARY_FILE}"))
    try:
        if len(paths) > 1:
            tabulate(folder, paths)
    except (InputError, OSError) as error:  # the runs are complete, and report makes it again
        print(f"sweep: its table was not written ({error})")


def _families(rows: list[dict]) -> list[tuple[type[TaskSpec], pd.DataFrame]]:
    """Return runs by the families in whose tables they stand."""
    own = {row["task"]: family_of(row["task"]) for row in rows}
    families = {task: family.comparable or family for task, family in own.items()}
    return [
        (family, _runs([row for row in rows if families[row["task"]] is family], family))
        for family in dict.fromkeys(families[task] for task in sorted(families))
    ]


def _write_pages(places: list[Path], reference: str | None, output: str | None, form: CsvForm) -> None:
    """Write a page beside the release of each run that still has one."""
    from torchdpcate.pages.reader import write_page

    found = [release_path(place) for place in places if _has_release(place)]
    if output is not None and len(found) != 1:
        raise InputError(f"output = {output}: for one release, and there are {len(found)}; leave it out")
    for path in track(found, description="pages", transient=True, disable=len(found) < _FEW):
        print(f"page for readers: {write_page(path, reference, output, form)}")


def _has_release(place: Path) -> bool:
    return os.path.isfile(place) or any((folder / RELEASE_FILE).is_file() for folder in (place / "release", place))


def _curators_folder(root: Path) -> Path:
    """Return the folder of what must not leave, which its owner alone may read."""
    folder = root / "curator"
    if folder.is_symlink():
        raise InputError(f"folder = {folder}: is a link to elsewhere; remove it, for what is written there is secret")
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    return folder


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
    write_text(path, table.to_csv(index=False), PRIVATE)


def _print(runs: pd.DataFrame, family: type[TaskSpec]) -> None:
    if len(runs) <= _FEW:
        shown = ["run", *COUNTS, *WORDS, "requested_epsilon", *family.summary_keys(), "seconds"]
        known = runs[[name for name in shown if name in runs and runs[name].notna().any()]]
        texts = known.map(_short_value)
        print(columns(list(texts.columns), texts.values.tolist()), end="\n\n")
    if len(runs) > 1:
        table = compare(runs, family)
        which = list(table.columns).index("epsilon") + 1  # data, records, settings, mechanism and budget
        print(columns(list(table.columns), table.values.tolist(), keys=which), end="\n\n")


def _figures(runs: pd.DataFrame, family: type[TaskSpec]) -> dict[str, "Figure"]:
    """Return the figures of a family's measures against budget, by their headings."""
    figures = {}
    for measure in family.measures if len(runs) > 1 else ():
        drawn = _drawn(runs, measure)
        if measure.drawn and not drawn.empty:
            figures[measure.heading] = budget_figure(drawn, measure.key, measure.title)
    return figures


def _drawn(runs: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Return one row a run and line of the measure's figure, in the order in which they are drawn."""
    common = pd.DataFrame({"epsilon": runs["requested_epsilon"], "panel": problem_of(runs)})
    lines: dict[str, str | pd.Series] = {measure.key: runs["method"]} if measure.key in runs else {}
    lines |= references(runs, measure)
    parts = [common.assign(**{"line": name, measure.key: runs[key]}) for key, name in lines.items()]
    known = pd.concat(parts).dropna(subset=measure.key) if parts else common[:0]
    return known.sort_values("panel", kind="stable")
