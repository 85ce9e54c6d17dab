"""What the rows of the study say: shares of intervals that hold, median widths, mean bias, as tables of a page."""

from pathlib import Path

import numpy as np
import pandas as pd

from experiments.hospital.laws import LAWS
from experiments.hospital.methods import CONSTANT, EFFECTS, FOREST, LINEAR, ONE_FIT, PEERS, PERSONS, REQUESTED, ours
from experiments.tables import table
from torchdpcate.release.averages import ARM, AVERAGE

USUAL = 5_000
"""Number of records of most tables."""
WRONG = {"trial, clusters", "hump", "product", "near violation", "collider", "waves"}
WRONG |= {f"hospital, {family}" for family in ("cohort", "cohort threshold", "interaction", "costs", "rare treatment")}
"""Laws whose models, or facts as stated, are wrong: cohorts like a hospital's are linear in no covariate."""
START, END = "<!-- tables: study --table -->", "<!-- end of tables -->"


KEY = ["method", "n", "epsilon", "line", "law"]
PERSONS_BY = {"held": "mean", "width": "median", "error": "median", "regret": "mean"}
"""What is said of the rows of persons."""


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what the rows of each method, n, epsilon, line and law say together.

    Returns:
        Draws; ``shown``, the share with an interval; ``held``, the share of these that hold the truth; ``width``, the
        median half width over that of AIPW; ``bias`` and ``rms``, the mean error and its root mean square over AIPW's
        standard error; ``np_held``, the share of AIPW's intervals that hold it; ``bare``, the median width of sampling
        and noise alone; means of ``error`` and ``regret`` of persons.
    """
    free = (rows["np"] - rows["truth"]).abs() <= 1.96 * rows["np_error"]
    found = rows.assign(
        off=(rows["estimate"] - rows["truth"]) / rows["np_error"],
        free=free.where(rows["np"].notna()).astype(float),
        bare=np.hypot(rows["sampling"], rows["noise"]) / rows["np_error"],
    )
    own = found.groupby(KEY, sort=False)
    return own.agg(
        draws=("seed", "nunique"),
        shown=("held", lambda held: held.notna().mean()),
        held=("held", "mean"),
        width=("width", "median"),
        bias=("off", "mean"),
        rms=("off", lambda off: np.sqrt((off**2).mean())),
        np_held=("free", "mean"),
        bare=("bare", "median"),
        error=("error", "mean"),
        regret=("regret", "mean"),
    ).round(3)


def renewed(found: pd.DataFrame | None, own: pd.DataFrame) -> pd.DataFrame:
    """Return summaries with others in the place of those of the same method, n, epsilon and law.

    Args:
        found: What there is; None if nothing.
        own: A ``summary``.
    """
    new, of = own.reset_index(), [name for name in KEY if name != "line"]
    if found is not None:
        kept = ~pd.MultiIndex.from_frame(found[of]).isin(pd.MultiIndex.from_frame(new[of]))
        new = pd.concat([found[kept], new])
    new, order = new.reset_index(drop=True), [*ours(), *EFFECTS, *PEERS, *LAWS]
    places = new.assign(**{name: new[name].map(order.index) for name in ("method", "law")})
    return new.loc[places.sort_values(["method", "n", "epsilon", "law"], kind="stable").index]


def tables(found: pd.DataFrame) -> str:
    """Return the tables of the page.

    Args:
        found: Summaries.
    """
    arms = found["line"].str.startswith(ARM)
    found = found.assign(law=found["law"].where(~arms, found["law"] + ", " + found["line"]))
    found = found.assign(line=found["line"].where(~arms, AVERAGE))
    effects = found[found["method"].isin([*EFFECTS, FOREST, LINEAR]) & (found["line"] == "persons")]
    judged = found["law"].isin(found[found["method"] == ONE_FIT]["law"]) & ~found["method"].isin(EFFECTS)
    usual = found[judged & (found["n"] == USUAL) & found["epsilon"].isin([1, np.inf])]
    average = usual[usual["line"] == AVERAGE]
    parts = {
        "Averages": _averages(average.set_index(["method", "law"])),
        "Other answers": _others(usual),
        "Beside others": _beside(usual),
        "By records": _sizes(found),
    } | {f"Effects, {n:,} records": _effects(own) for n, own in effects.groupby("n")}
    return "\n".join(f"### {title}\n\n{lines}" for title, lines in parts.items())


def _averages(own: pd.DataFrame) -> str:
    lines = [["law", "draws", "shown", "covered", "width", "bias", "AIPW covered", "constant covered", "width"]]
    for law in own.loc[ONE_FIT].index:
        one, of = own.loc[(ONE_FIT, law)], own.reindex([(CONSTANT, law)]).iloc[0]
        told = [one[name] for name in ("shown", "held", "width", "bias", "np_held")] + [of["held"], of["width"]]
        lines.append([law, str(int(one["draws"])), *map(short, told)])
    return table(lines)


def _others(found: pd.DataFrame) -> str:
    kinds = {"groups": (ONE_FIT, "group"), "cells": (REQUESTED, "cell"), "rule": (REQUESTED, "rule")}
    lines = [["law", *(word for kind in kinds for word in (f"{kind} covered", "width"))]]
    lines[0] += ["persons shown", "covered", "half width", "error", "regret"]
    for law, here in found[~found["law"].str.contains("three arms")].groupby("law", sort=False):
        told = []
        for method, word in kinds.values():
            rows = here[(here["method"] == method) & here["line"].str.startswith(word)]
            told += [rows["held"].mean(), rows["width"].median()]
        persons = here[here["line"] == "persons"].set_index("method")
        told += persons.reindex([PERSONS])[["shown", "held", "width"]].iloc[0].tolist()
        told += persons.reindex([ONE_FIT])[["error", "regret"]].iloc[0].tolist()
        lines.append([str(law), *map(short, told)])
    return table(lines)


def _beside(found: pd.DataFrame) -> str:
    """Return means over laws, of widths and of the average's error medians."""
    lines = [["method", "laws", "draws", "shown", "covered", "width", "rms"]]
    lines[0] += ["persons covered", "half width", "error", "regret"]
    two = ~found["law"].str.contains("three arms")  # which no peer has
    own = found[found["line"].isin([AVERAGE, "persons"]) & (found["method"] != REQUESTED) & two]
    for name, wrong in (("models right", False), ("models wrong", True)):
        for method, rows in own[own["law"].isin(WRONG) == wrong].groupby("method", sort=False):
            average, persons = (rows[rows["line"] == line] for line in (AVERAGE, "persons"))
            told = [average["shown"].mean(), average["held"].mean(), average["width"].median(), average["rms"].median()]
            told += [persons[name].agg(how) for name, how in PERSONS_BY.items()]
            lines.append([str(method), name, str(rows["draws"].max()), *map(short, told)])
    return table(lines)


def _sizes(found: pd.DataFrame) -> str:
    own = found[(found["method"] == ONE_FIT) & (found["line"] == AVERAGE)]
    told = [
        f"{short(held)}, {short(width)}" if shown else "none"
        for held, width, shown in zip(own["held"], own["width"], own["shown"], strict=True)
    ]
    cells = own.assign(told=told).pivot_table("told", "law", ["n", "epsilon"], "first", sort=True).fillna("")
    heads = [f"{n:,}" + (f", {epsilon:g}" if epsilon != 1 else "") for n, epsilon in cells.columns]
    laws = dict.fromkeys([*own[own["n"] == USUAL]["law"], *own["law"]])
    return table([["law", *heads], *([law, *cells.loc[law]] for law in laws)])


def _effects(own: pd.DataFrame) -> str:
    """Return squared errors over the variance of true effects by law, and geometric means over laws that have all.

    Args:
        own: Summaries of one number of records.
    """
    cells = own.assign(error=own["error"] ** 2).pivot(index="law", columns=["method", "epsilon"], values="error")
    columns = pd.MultiIndex.from_frame(own[["method", "epsilon"]].drop_duplicates())
    cells = cells.reindex(index=own["law"].unique(), columns=columns).dropna(how="all")
    heads = [method + (f", {epsilon:g}" if np.isfinite(epsilon) else "") for method, epsilon in cells]
    means = np.exp(np.log(cells.dropna()).mean())
    draws = own.groupby("law")["draws"].min()
    lines = [[str(law), str(draws[law]), *map(short, row)] for law, row in zip(cells.index, cells.values, strict=True)]
    return table([["law", "draws", *heads], *lines, ["geometric mean", "", *map(short, means)]])


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
