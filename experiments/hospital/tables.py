"""What the rows of the study say: shares of intervals that hold, median widths, mean bias, as tables of a page."""

from pathlib import Path

import numpy as np
import pandas as pd

from experiments.hospital.methods import CONSTANT, ONE_FIT, PERSONS, REQUESTED
from experiments.tables import table
from torchdpcate.release.lines import AVERAGE

USUAL = 5_000
"""Number of records of most tables."""
WRONG = ("trial, clusters", "hump", "product", "near violation")
"""Laws whose models or stated facts are wrong, beside the cohorts like a hospital's, whose models are none of ours."""
START, END = "<!-- tables: python -m experiments.hospital.study --table docs/judged.md -->", "<!-- end of tables -->"


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return what the rows of each method, n, epsilon, line and law say together.

    Returns:
        Draws; ``shown``, the share with an interval; ``held``, the share of these that hold the truth; ``width``, the
        median half width over that of AIPW; ``bias`` and ``rms``, the mean error and its root mean square over AIPW's
        standard error; ``np_held``, the share of AIPW's intervals that hold it; ``bare``, the median width of sampling
        and noise alone; means of ``error`` and ``regret`` of persons.
    """
    off = (found["estimate"] - found["truth"]) / found["np_error"]
    rows = found.assign(
        off=off,
        np_held=((found["np"] - found["truth"]).abs() <= 1.96 * found["np_error"]).where(found["np"].notna()),
        bare=np.hypot(found["sampling"], found["noise"]) / found["np_error"],
    )
    rows["np_held"] = rows["np_held"].astype(float)
    own = rows.groupby(["method", "n", "epsilon", "line", "law"], sort=False)
    return own.agg(
        draws=("seed", "nunique"),
        shown=("held", lambda held: held.notna().mean()),
        held=("held", "mean"),
        width=("width", "median"),
        bias=("off", "mean"),
        rms=("off", lambda off: float(np.sqrt((off**2).mean()))),
        np_held=("np_held", "mean"),
        bare=("bare", "median"),
        error=("error", "mean"),
        regret=("regret", "mean"),
    ).round(2)


def tables(found: pd.DataFrame, peers: pd.DataFrame) -> str:
    """Return the tables of the page.

    Args:
        found: Rows of one fit and of the private constant.
        peers: Rows of peers.
    """
    usual = found[(found["n"] == USUAL) & (found["epsilon"] == 1)]
    seeds = set(peers["seed"])
    beside = pd.concat([usual[usual["seed"].isin(seeds)], peers])
    parts = {
        "Averages": _averages(summary(usual).droplevel(["n", "epsilon"])),
        "Other answers": _others(usual),
        "Beside others": _beside(beside),
        "By records and epsilon": _sizes(found),
    }
    return "\n".join(f"### {title}\n\n{lines}" for title, lines in parts.items())


def _averages(own: pd.DataFrame) -> str:
    lines = [["law", "draws", "shown", "covered", "width", "bias", "AIPW covered", "constant covered", "width"]]
    for law in dict.fromkeys(own.loc[(ONE_FIT, AVERAGE)].index):
        one, of = own.loc[(ONE_FIT, AVERAGE, law)], own.loc[(CONSTANT, AVERAGE, law)]
        told = [one[name] for name in ("shown", "held", "width", "bias", "np_held")] + [of["held"], of["width"]]
        lines.append([law, str(int(one["draws"])), *map(short, told)])
    return table(lines)


def _others(found: pd.DataFrame) -> str:
    kinds = {"groups": (ONE_FIT, "group"), "cells": (REQUESTED, "cell"), "rule": (REQUESTED, "rule")}
    lines = [["law", *(word for kind in kinds for word in (f"{kind} covered", "width"))]]
    lines[0] += ["persons covered", "half width", "error", "regret"]
    for law in dict.fromkeys(found["law"]):
        here, told = found[found["law"] == law], []
        for method, word in kinds.values():
            rows = here[(here["method"] == method) & here["line"].str.startswith(word)]
            told += [short(rows["held"].mean()), short(rows["width"].median())]
        rows = here[(here["method"] == PERSONS) & (here["line"] == "persons")]
        effect = here[(here["method"] == ONE_FIT) & (here["line"] == "persons")]
        told += [short(rows["held"].mean()), short(rows["width"].median())]
        lines.append([law, *told, short(effect["error"].mean()), short(effect["regret"].mean())])
    return table(lines)


def _beside(found: pd.DataFrame) -> str:
    own = found[found["line"].isin([AVERAGE, "persons"]) & (found["method"] != REQUESTED)]
    lines = [
        ["method", "laws", "shown", "covered", "width", "error", "persons covered", "half width", "error", "regret"]
    ]
    for name, laws in (("models right", False), ("models wrong", True)):
        for method, rows in own[own["law"].isin(WRONG) == laws].groupby("method", sort=False):
            average, persons = (rows[rows["line"] == line] for line in (AVERAGE, "persons"))
            off = (average["estimate"] - average["truth"]).abs() / average["np_error"]
            told = [average["held"].notna().mean(), average["held"].mean(), average["width"].median(), off.median()]
            told += [persons[column].mean() for column in ("held", "width", "error", "regret")]
            lines.append([str(method), name, *map(short, told)])
    return table(lines)


def _sizes(found: pd.DataFrame) -> str:
    own = summary(found[(found["method"] == ONE_FIT) & (found["line"] == AVERAGE)]).reset_index()
    several = own.groupby("law")["n"].transform("nunique") + own.groupby("law")["epsilon"].transform("nunique") > 2
    lines = [["law", "n", "epsilon", "draws", "shown", "covered", "width", "bias", "AIPW covered"]]
    for row in own[several].sort_values(["law", "n", "epsilon"], kind="stable").itertuples():
        told = map(short, (row.shown, row.held, row.width, row.bias, row.np_held))
        lines.append([row.law, f"{row.n:,}", f"{row.epsilon:g}", str(row.draws), *told])
    return table(lines)


def short(value: float) -> str:
    """Return a number in two digits after the point, or none where it is large; nothing of what is none.

    Example:
        >>> [short(value) for value in (0.954, 1.0, -0.5, 2.345, 43.2, float("nan"))]
        ['.95', '1.00', '-.50', '2.35', '43', '']
    """
    if not np.isfinite(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2f}".replace("0.", ".", 1 if abs(value) < 1 else 0)


def paste(page: Path, tables: str) -> None:
    """Put tables into a page, between the two comments that say where.

    Args:
        page: A markdown file with ``START`` and ``END``.
        tables: What stands between them from then on.
    """
    before, _, rest = page.read_text().partition(START)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{START}\n\n{tables}\n{END}{after}")
