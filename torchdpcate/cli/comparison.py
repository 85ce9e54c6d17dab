"""How the runs of a sweep compare: one row a method and budget, with means over seeds."""

import re
from typing import Any

import pandas as pd

from torchdpcate._text import markdown_cell
from torchdpcate.cli.task import Measure, TaskSpec

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


def budget_table(runs: pd.DataFrame, measure: Measure) -> pd.DataFrame | None:
    """Return a measure by method (rows) and requested budget (columns), as text; None where no run knows it.

    Below the methods of a problem stand what they are held against.

    Args:
        runs: One row a run, with its ``method``.
        measure: The measure.
    """
    known = runs.dropna(subset=measure.key) if measure.key in runs else runs[:0]
    if known.empty:
        return None
    lines = [known.assign(value=known[measure.key])]
    lines += [known.assign(method=title, value=known[name]) for name, title in references(known, measure).items()]
    cells = _mean_and_error(pd.concat(lines).groupby([*PROBLEM, "method", _BUDGET], sort=False)["value"])
    table = cells.unstack(_BUDGET).fillna("-")
    table = table[sorted(table.columns)].rename(columns="eps = {:g}".format)
    table = table.reset_index().sort_values(PROBLEM, kind="stable")
    table["n"] = table["n"].map("{:,}".format)
    return table.astype(str)


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


def markdown(table: pd.DataFrame) -> str:
    """Return a table of texts as markdown."""
    rows = [list(table.columns), ["---"] * table.shape[1], *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(markdown_cell, row)) + " |" for row in rows)


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
