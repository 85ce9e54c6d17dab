"""How the runs of a sweep compare: one row a method and budget, with means over seeds."""

from typing import Any

import pandas as pd

PROBLEM = ["data", "n"]
"""What says which estimation problem a run solved."""
_SETTINGS = ["learner", "release", "second_stage", "features", "split", "nuisance", "varied"]
_METHOD = ["mechanism", *_SETTINGS]
_BUDGET = "requested_epsilon"
_REFERENCES = {"pehe_plug_in": "plug-in", "pehe_nonprivate": "non-private", "pehe_constant": "constant"}


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row for every problem, method and requested budget, as text.

    A method is whatever differs between the runs apart from data, records, budget and seed. Errors are means over
    its runs with the standard error; ``noise`` is the mean public scale of the answers' noise, ``spent`` the largest
    epsilon of a run. What is not known or secret is a dash.

    Args:
        runs: One row a run.
    """
    varying = [name for name in _varying(runs, _SETTINGS) if name != "release" or _tells(runs, ["mechanism"], name)]
    keys = [*PROBLEM, *varying, "mechanism", _BUDGET]
    groups = runs.groupby([*PROBLEM, _BUDGET, *keys[2:-1]], dropna=False)
    table = pd.DataFrame({"runs": groups.size().astype(str)})
    if "pehe" in runs:
        table["PEHE"] = _mean_and_error(groups["pehe"])
    for name, title in _REFERENCES.items():
        if name in runs:
            table[title] = groups[name].mean().map(_short)
    table["noise"] = groups["noise"].mean().map(_short)
    table["level"] = groups["level"].agg(lambda levels: ", ".join(sorted(set(levels))))
    table["spent"] = groups["spent_epsilon"].agg(lambda spent: spent.max(skipna=False)).map(_short)
    table = table.reset_index()
    for name in ("n", _BUDGET):
        table[name] = table[name].map("{:,}".format if name == "n" else _short)
    table = table[[*keys, *(name for name in table if name not in keys)]].astype(str)
    return table.rename(columns={_BUDGET: "epsilon", "varied": "settings"})


def error_table(runs: pd.DataFrame) -> pd.DataFrame | None:
    """Return PEHE by method (rows) and requested budget (columns), as text; None where no truth is known.

    Below the methods of a problem stand what they are held against.

    Args:
        runs: One row a run, with its ``method``.
    """
    known = runs.dropna(subset="pehe") if "pehe" in runs else runs[:0]
    if known.empty:
        return None
    lines = [known.assign(value=known["pehe"])]
    for name, title in _REFERENCES.items():
        if name in known and not (title == "plug-in" and (known["mechanism"] == "plug_in").any()):
            lines.append(known.assign(method=title, value=known[name]))
    cells = _mean_and_error(pd.concat(lines).groupby([*PROBLEM, "method", _BUDGET], sort=False)["value"])
    table = cells.unstack(_BUDGET).fillna("-")
    table = table[sorted(table.columns)].rename(columns="eps = {:g}".format)
    table = table.reset_index().sort_values(PROBLEM, kind="stable")
    table["n"] = table["n"].map("{:,}".format)
    return table.astype(str)


def method_of(runs: pd.DataFrame) -> pd.Series:
    """Return the shortest name of each run's method: its mechanism, and of its settings those that tell it apart."""
    named = ["mechanism"]
    for column in _varying(runs, _SETTINGS):
        if _tells(runs, named, column):
            named.append(column)
    return runs[named].astype(str).agg(" ".join, axis=1)


def problem_of(runs: pd.DataFrame) -> pd.Series:
    """Return the name of each run's problem."""
    return runs["data"] + ", n = " + runs["n"].map("{:,}".format)


def markdown(table: pd.DataFrame) -> str:
    """Return a table of texts as markdown."""
    rows = [list(table.columns), ["---"] * table.shape[1], *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)


def _varying(runs: pd.DataFrame, columns: list[str]) -> list[str]:
    return [name for name in columns if runs[name].nunique(dropna=False) > 1]


def _tells(runs: pd.DataFrame, known: list[str], column: str) -> bool:
    """Tell whether a column distinguishes runs that the known ones do not."""
    return bool((runs.groupby(known, dropna=False)[column].nunique(dropna=False) > 1).any())


def _mean_and_error(groups: Any) -> pd.Series:
    """Return the means, with their standard errors where there is more than one value."""
    errors = groups.sem().map(lambda value: "" if pd.isna(value) else f" ± {value:.2g}")
    return groups.mean().map(_short) + errors


def _short(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:.3g}"
