"""Files of a study: table.csv, found.csv and table.md."""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from pathlib import Path

from experiments.frame.study import OTHER, Place, Published, Study
from experiments.frame.table import Row, Summary
from experiments.tables import paragraph, table

NONE = "-"
HEADS = ["setting", "n", "epsilon", "row", "published", "as printed", "level", "certified", "no privacy"]
HEADS += ["printed - published", "certified - published"]
PLACE = [field.name for field in fields(Place)]
COLUMNS = [
    *PLACE,
    *("published", "published_qualifier", "published_low", "published_high", "published_error", "published_method"),
    *(
        f"{role}{part}"
        for role in ("printed", "certified", "non_private")
        for part in ("", "_error", "_repeats", "_method", "_level")
    ),
    *("printed_minus_published_in_errors", "certified_minus_published_in_errors"),
]
READING = """\
*Published*: as printed, ± the standard error that follows from the printed spread. *As printed*: the paper's mechanism
with the paper's constants, run by us; its *level* is what is proved of it, not what the paper claims. *Certified*: the
library's. *No privacy*: ours. Both differences are to the published value, in standard errors of the difference; where
the paper prints no spread, ours stands for it. Noise comes from fixed seeds, so nothing here is private; the level is
that of the same mechanism with noise from the system."""


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write a line for each row of the table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            values = [*astuple(row.place), *_printed(row.published)]
            for one in (row.printed, row.certified, row.free):
                values += [""] * 5 if one is None else _cells(one)
            writer.writerow([*values, _digits(row.reproduced), _digits(row.gained)])


def write_found(path: Path, found: Sequence[Summary]) -> None:
    """Write a line for each method at each place, whatever its role."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*PLACE, "role", "method", "level", "repeats", "mean", "standard_error"])
        for one in found:
            facts = (one.role, one.method, one.level, one.repeats, _digits(one.mean), _digits(one.error))
            writer.writerow([*astuple(one.place), *facts])


def write_page(path: Path, study: Study, rows: Sequence[Row], found: Sequence[Summary], notes: Iterable[str]) -> None:
    """Write table.md.

    Args:
        path: The file.
        study: Whose.
        rows: Of the table.
        found: All that was found.
        notes: Sentences on what this run is and what it lacks.
    """
    parts = [f"# {study.title}\n", *(f"{paragraph(' '.join(note.split()))}" for note in notes)]
    parts += [paragraph(" ".join(text.split())) for text in (*study.about.split("\n\n"), READING) if text.strip()]
    for name in dict.fromkeys(row.place.table for row in rows):
        of_table = [row for row in rows if row.place.table == name]
        parts.append(f"## {name}\n")
        for metric in dict.fromkeys(row.place.metric for row in of_table):
            parts += [f"{metric}\n", _rows(row for row in of_table if row.place.metric == metric)]
    others = [one for one in found if one.role == OTHER and one.place.metric not in study.unlisted]
    if others:
        parts += ["## Other methods\n", _others(others)]
    path.write_text("\n".join(parts), encoding="utf-8")


def _rows(rows: Iterable[Row]) -> str:
    lines = [HEADS]
    for row in rows:
        ours = row.printed or row.certified
        lines.append(
            [
                *(
                    row.place.setting,
                    row.place.n,
                    row.place.epsilon,
                    row.place.variant or (ours.method if ours else ""),
                ),
                published(row.published),
                mean(row.printed),
                row.printed.level if row.printed else NONE,
                mean(row.certified),
                mean(row.free),
                signed(row.reproduced),
                signed(row.gained),
            ]
        )
    return table(lines)


def _others(found: Iterable[Summary]) -> str:
    lines = [["table", "setting", "n", "epsilon", "row", "metric", "method", "level", "mean", "repeats"]]
    lines += [[*_words(one.place), one.method, one.level, mean(one), str(one.repeats)] for one in found]
    return table(lines)


def _words(place: Place) -> list[str]:
    return [place.table, place.setting, place.n, place.epsilon, place.variant or NONE, place.metric]


def published(one: Published | None) -> str:
    """A printed cell."""
    if one is None:
        return NONE
    if one.qualifier == "range":
        return f"{one.low:g} to {one.high:g}"
    sign = "" if one.qualifier == "=" else f"{one.qualifier} "
    return f"{sign}{one.value:g}" + ("" if math.isnan(one.error) else f" ± {one.error:.2g}")


def mean(one: Summary | None) -> str:
    """A mean and its standard error."""
    if one is None:
        return NONE
    return f"{one.mean:.4g}" + ("" if math.isnan(one.error) else f" ± {one.error:.2g}")


def signed(value: float) -> str:
    """A difference in standard errors."""
    return NONE if math.isnan(value) else f"{value:+.1f}"


def _printed(one: Published | None) -> list[object]:
    if one is None:
        return [""] * 6
    return [_digits(one.value), one.qualifier, _digits(one.low), _digits(one.high), _digits(one.error), one.method]


def _cells(one: Summary) -> list[object]:
    return [_digits(one.mean), _digits(one.error), one.repeats, one.method, one.level]


def _digits(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"
