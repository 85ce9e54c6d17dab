"""Rows of csv files, and studies that a kill need not begin again: what is done stands in a file and is appended to."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Self, TypeVar

Lines = list[dict[str, str]]
R = TypeVar("R")


def read_lines(path: Path) -> Lines:
    """Return the whole lines of a csv file, none if it is not there; one that a kill cut short is left out."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return list(csv.DictReader(whole.splitlines()))


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Return the rows of a csv file as those of a data class."""
    return [kind(**{f.name: f.type(line[f.name]) for f in fields(kind)}) for line in read_lines(path)]  # type: ignore[arg-type, operator]


def write_rows(path: Path, kind: type[R], rows: Iterable[R], digits: int = 6) -> None:
    """Write rows of a data class.

    Args:
        path: The csv file.
        kind: The data class.
        rows: Of that class.
        digits: Of floats.
    """
    path.unlink(missing_ok=True)
    with Appender(path, [field.name for field in fields(kind)]) as file:  # type: ignore[arg-type]
        for row in rows:
            file.write(row, digits)


def write_lines(path: Path, lines: Iterable[Sequence[object]]) -> None:
    """Write a csv file, its head first."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


class Appender:
    """Appends lines to a csv file, with a head where there is none, after what is whole."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn(path)
        self._path, self._names = path, names

    def __enter__(self) -> Self:
        self._file = self._path.open("a", newline="", encoding="utf-8")
        self._csv = csv.writer(self._file, lineterminator="\n")
        if not self._file.tell():
            self._csv.writerow(self._names)
        return self

    def write(self, row: Any, digits: int = 6) -> None:
        """Append one line, at once on disk: the values, or a row of a data class with floats to some digits."""
        values = row
        if not isinstance(row, Sequence):
            values = [f"{v:.{digits}g}" if isinstance(v, float) else v for v in asdict(row).values()]
        self._csv.writerow(values)
        self._file.flush()

    def __exit__(self, *_: object) -> None:
        self._file.close()


def resume(
    path: Path,
    names: Sequence[str],
    cells: Iterable[tuple[Any, ...]],
    measure: Callable[..., Iterable[Sequence[object]]],
) -> Lines:
    """Measure the cells that a csv file does not have yet, and return all of its lines.

    Args:
        path: The file.
        names: Of its columns: what makes a cell, then what is measured.
        cells: What makes each; as words they are what the file has.
        measure: Returns the other columns of a cell's lines.
    """
    wanted = list(cells)
    keys = [name for name, _ in zip(names, wanted[0] if wanted else (), strict=False)]
    done = {tuple(line[name] for name in keys) for line in read_lines(path)}
    with Appender(path, names) as file:
        for cell in wanted:
            key = tuple(map(str, cell))
            if key not in done:
                for values in list(measure(*cell)):
                    file.write([*key, *values])
    return read_lines(path)


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a file of JSON; one that a kill cut short is done again."""
    if path.exists():
        _drop_torn(path)
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _drop_torn(path: Path) -> None:
    """Drop a last line that a kill cut short."""
    if path.exists():
        whole, _, torn = path.read_text(encoding="utf-8").rpartition("\n")
        if torn:
            path.write_text(whole + "\n" if whole else "", encoding="utf-8")
