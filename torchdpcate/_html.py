"""Pages of HTML that are whole in one file: everything that is shown is escaped, and nothing is fetched."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from torchdpcate._text import plain

_MOST = 12
"""Values of a list that are named."""


def escaped(value: Any) -> str:
    """Return a value as text to show, never markup.

    Example:
        >>> escaped("<b>age</b>")
        '&lt;b&gt;age&lt;/b&gt;'
    """
    from html import escape

    return escape(plain(value), quote=True)


def document(title: str, style: str, body: Iterable[str], script: str = "") -> str:
    """Return a page. A browser runs the script that is given here and no other, and fetches nothing.

    Args:
        title: What a browser calls the page.
        style: Its style sheet.
        body: Parts of markup.
        script: JavaScript; empty for a page without any.

    Example:
        >>> "script-src" in document("Title", "", ["<p>body</p>"])
        False
    """
    digest = b64encode(sha256(script.encode()).digest()).decode()
    allowed = f"; script-src 'sha256-{digest}'" if script else ""
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:{allowed}; base-uri 'none'; form-action 'none'"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escaped(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<style>{style}</style></head>\n<body>\n"
        + "\n".join(filter(None, body))
        + (f"\n<script>{script}</script>" if script else "")
        + "\n</body></html>\n"
    )


def section(title: str, body: str) -> str:
    """Return a part of a page under its title; its body is markup."""
    return f"<section><h2>{escaped(title)}</h2>{body}</section>"


def paragraph(words: Any) -> str:
    """Return words as a paragraph."""
    return f"<p>{escaped(words)}</p>"


def named_rows(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a table of names, and of markup beside each."""
    return (
        "<table>" + "".join(f"<tr><th>{escaped(name)}</th><td>{value}</td></tr>" for name, value in pairs) + "</table>"
    )


def html_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table with these heads; its cells are markup."""
    head = "".join(f"<th>{escaped(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bullets(items: Iterable[str]) -> str:
    """Return a list of markup."""
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def image(svg: bytes, description: str) -> str:
    """Return a picture within the page.

    Args:
        svg: The picture, as SVG.
        description: What it shows, for those who cannot see it.
    """
    data = b64encode(svg).decode()
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{escaped(description)}">'


def html_table_of(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """Return a table of names and values as HTML; all of it is text.

    Example:
        >>> html_table_of("Budget", [("epsilon", "<1>")])
        '<div><b>Budget</b><table><tr><th>epsilon</th><td>&lt;1&gt;</td></tr></table></div>'
    """
    shown = named_rows((name, escaped(value)) for name, value in rows)
    return f"<div><b>{escaped(title)}</b>{shown}</div>"


def some(values: Iterable[Any]) -> str:
    """Return values in a row, the first ones where there are many.

    Example:
        >>> some(["a", "b"]), some(range(14))[-14:]
        ('a, b', '11, and 2 more')
    """
    words = list(map(str, values))
    more = f", and {len(words) - _MOST} more" if len(words) > _MOST else ""
    return ", ".join(words[:_MOST]) + more
