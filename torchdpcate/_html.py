"""How objects show themselves in notebooks: a table of names and values, escaped, without a script."""

from collections.abc import Iterable
from html import escape
from typing import Any

from torchdpcate._text import plain

_MOST = 12
"""Values of a list that are named."""


def html_table_of(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """Return a table of names and values as HTML; all of it is text.

    Example:
        >>> html_table_of("Budget", [("epsilon", "<1>")])
        '<div><b>Budget</b><table><tr><th>epsilon</th><td>&lt;1&gt;</td></tr></table></div>'
    """
    shown = "".join(f"<tr><th>{_escaped(name)}</th><td>{_escaped(value)}</td></tr>" for name, value in rows)
    return f"<div><b>{_escaped(title)}</b><table>{shown}</table></div>"


def _escaped(value: Any) -> str:
    return escape(plain(value), quote=True)


def some(values: Iterable[Any]) -> str:
    """Return values in a row, the first ones where there are many.

    Example:
        >>> some(["a", "b"]), some(range(14))[-14:]
        ('a, b', '11, and 2 more')
    """
    words = list(map(str, values))
    more = f", and {len(words) - _MOST} more" if len(words) > _MOST else ""
    return ", ".join(words[:_MOST]) + more
