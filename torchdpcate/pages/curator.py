"""The curator's page of runs, one file without a script: tables, figures, budgets, and plans against what came out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchdpcate._templates import render
from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION, svg_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PageTable:
    """A table of texts.

    Attributes:
        heading: What it is.
        note: What its numbers are.
        heads: Heads of its columns.
        rows: Its cells, row by row.
    """

    heading: str
    note: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Part:
    """A part of the page.

    Attributes:
        heading: Its title.
        tables: Its tables.
        figures: Its figures by their captions, drawn before the tables.
        note: What it is about.
    """

    heading: str
    tables: Sequence[PageTable] = ()
    figures: "dict[str, Figure]" = field(default_factory=dict)
    note: str = ""


def curator_page(title: str, lines: Sequence[str], parts: Sequence[Part]) -> str:
    """Return the page. All words are shown as text, never as markup; figures are pictures within the page.

    Args:
        title: Which runs it is of.
        lines: What holds for all of them, a paragraph each.
        parts: What is shown, from above.

    Example:
        >>> page = curator_page("<b>", [], [Part("Runs", [PageTable("All", "", ["run"], [["<script>"]])])])
        >>> "<script" in page, "&lt;script&gt;" in page, "curator&#39;s, not for publication" in page.lower()
        (False, True, True)
    """
    mark = f"{NOT_FOR_PUBLICATION[0].upper()}{NOT_FOR_PUBLICATION[1:]}"
    drawn = []
    for part in parts:
        figures = {caption: svg_of(figure, whole=True) for caption, figure in part.figures.items()}
        drawn.append({**vars(part), "figures": figures})
    return render("curator.html", title=f"{mark}: {title}", mark=mark, heading=title, lines=lines, parts=drawn)
