"""What is printed in columns: no wider than the terminal, and no path or checksum is cut."""

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchdpcate._text import plain

_GAP = 2
_LEAST = 20  # letters of a column of words, however long the names beside it are


def terminal_width() -> int:
    """Return the terminal's width in letters; 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def facts(rows: Iterable[tuple[str, object]], title: str = "", width: int | None = None) -> str:
    """Return names with what is said of each, one below the other.

    Words are wrapped beside their names and never broken. A path stays in one piece on a line of its own, so that it
    can be copied whole.

    Args:
        rows: Names, and words or paths.
        title: Line above them.
        width: Letters of a line; None takes the terminal's.

    Example:
        >>> print(facts([("what", "an effect or its average"), ("file", Path("a/long/path/to/it"))], width=26))
        what  an effect or its
              average
        file  a/long/path/to/it
    """
    rows, width = list(rows), terminal_width() if width is None else width
    names = max((len(name) for name, _ in rows), default=0) + _GAP
    lines = [title] if title else []
    for name, said in rows:
        text = plain(said)
        beside = [text] if isinstance(said, Path) else _wrapped(text, max(width - names, _LEAST))
        lines += [f"{plain(name) if place == 0 else '':<{names}}{line}" for place, line in enumerate(beside)]
    return "\n".join(line.rstrip() for line in lines)


def columns(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    keys: int = 1,
    right: Iterable[int] = (),
    width: int | None = None,
) -> str:
    """Return a table; one that is wider than the terminal comes in parts, each with the first columns.

    Args:
        headings: Headings.
        rows: Cells.
        keys: Number of columns that say which row it is.
        right: Positions of columns of numbers.
        width: Letters of a line; None takes the terminal's. A row of which the keys and one more column are wider is
            not cut either.

    Example:
        >>> print(columns(["run", "noise", "level"], [["0", "0.1", "certified"]], width=14))
        run  noise
        0    0.1
        <BLANKLINE>
        run  level
        0    certified
    """
    width = terminal_width() if width is None else width
    cells = [[plain(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(headings))]
    own, right = list(range(keys)), set(right)
    parts: list[list[int]] = [[]]
    for place in range(keys, len(headings)):
        if parts[-1] and sum(widths[i] + _GAP for i in (*own, *parts[-1], place)) - _GAP > width:
            parts.append([])
        parts[-1].append(place)
    return "\n\n".join(_lines(cells, widths, [*own, *part], right) for part in parts)


def _lines(cells: list[list[str]], widths: list[int], shown: list[int], right: set[int]) -> str:
    gap = " " * _GAP
    return "\n".join(
        gap.join(row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i]) for i in shown).rstrip()
        for row in cells
    )


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
