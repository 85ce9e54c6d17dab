"""The curator's page of runs, one file without a script: tables, figures, budgets, and plans against what came out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchdpcate._html import document, escaped, html_table, image, paragraph, section
from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION, svg_of
from torchdpcate.pages.style import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OWN = """
.secret { background: #7f1d1d; color: #fff; padding: .7rem 1rem; font-weight: 600 }
body { border-top: 6px solid #7f1d1d }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem }
figure { margin: .8rem 0 } figcaption { color: #444; font-size: .9rem }
.wide th, .wide td { white-space: nowrap }
.wide img { min-width: 480px }
"""
_WHY = (
    "it shows errors of non-private estimates, unreleased numbers or what else was computed from records and paid for "
    "by nobody. Keep it in this folder, which its owner alone may read. Readers get each run's release/ folder."
)


@dataclass(frozen=True)
class Table:
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
    tables: Sequence[Table] = ()
    figures: "dict[str, Figure]" = field(default_factory=dict)
    note: str = ""


def curator_page(title: str, lines: Sequence[str], parts: Sequence[Part]) -> str:
    """Return the page. All words are shown as text, never as markup; figures are pictures within the page.

    Args:
        title: Which runs it is of.
        lines: What holds for all of them, a paragraph each.
        parts: What is shown, from above.

    Example:
        >>> page = curator_page("<b>", [], [Part("Runs", [Table("All", "", ["run"], [["<script>"]])])])
        >>> "<script" in page, "&lt;script&gt;" in page, "curator&#x27;s, not for publication" in page.lower()
        (False, True, True)
    """
    mark = f"{NOT_FOR_PUBLICATION[0].upper()}{NOT_FOR_PUBLICATION[1:]}"
    head = [
        f'<header><p class="secret">{escaped(mark)}: {escaped(_WHY)}</p><h1>{escaped(title)}</h1></header>',
        *map(paragraph, lines),
    ]
    body = [section(part.heading, "".join(_shown(part))) for part in parts if part.tables or part.figures]
    return document(f"{mark}: {title}", STYLE + _OWN, [*head, *body])


def _shown(part: Part) -> Iterator[str]:
    if part.note:
        yield paragraph(part.note)
    for caption, figure in part.figures.items():
        picture = image(svg_of(figure, whole=True), caption)
        yield f'<figure><div class="wide">{picture}</div><figcaption>{escaped(caption)}</figcaption></figure>'
    for table in part.tables:
        cells = html_table(table.heads, [list(map(escaped, row)) for row in table.rows])
        note = paragraph(table.note) if table.note else ""
        yield f'<h3>{escaped(table.heading)}</h3>{note}<div class="wide">{cells}</div>'
