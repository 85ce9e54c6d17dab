"""Published numbers, read from the csv files of a folder of papers; no number of theirs stands in the code."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from experiments.frame.study import Published, Study

Z = 1.959963984540054  # of a 95 % interval
COLUMNS = {"setting", "n", "epsilon", "method", "metric", "qualifier", "value"}


def read_published(study: Study, papers: Path | None) -> list[Published]:
    """Return the published cells that a study has a place for, in its order; none where a file is not there.

    Args:
        study: Whose.
        papers: Folder of papers.

    Raises:
        ValueError: A file lacks one of the columns.
    """
    found: list[Published] = []
    for name in study.published if papers is not None else ():
        path = papers / name  # type: ignore[operator]
        if not path.exists():
            continue
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = [study.renamed.get(column, column) for column in reader.fieldnames or ()]
            lacking = COLUMNS - set(reader.fieldnames) - set(study.given)
            if lacking:
                raise ValueError(f"{path}: no column {', '.join(sorted(lacking))}")
            for own in reader:
                line = {**study.given, **own}
                place = study.place(path.stem, line)
                if place is not None:
                    ends = _number(line.get("ci_low")), _number(line.get("ci_high"))
                    error = standard_error(line)
                    value = _number(line["value"])
                    facts = (line["method"], line["qualifier"], value, error, _count(line.get("repeats")))
                    found.append(Published(place, *facts, *ends))
    return sorted(found, key=lambda one: study.order(one.place))


def standard_error(line: Mapping[str, str]) -> float:
    """Return the standard error of a printed mean, from its deviation, error or interval; nan where none is printed."""
    kind, spread = line.get("spread_kind") or "", _number(line.get("sd_or_se"))
    repeats = _count(line.get("repeats"))
    if kind.startswith("sd") and repeats:
        return spread / math.sqrt(repeats)
    if kind.startswith("se"):
        return spread
    if "CI of the mean" in kind:
        return (_number(line.get("ci_high")) - _number(line.get("ci_low"))) / (2 * Z)
    return math.nan


def _number(word: str | None) -> float:
    return float(word) if word else math.nan


def _count(word: str | None) -> int:
    digits = (word or "").split(" ")[0]
    return int(digits) if digits.isdigit() else 0
