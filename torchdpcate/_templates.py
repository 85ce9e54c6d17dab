"""Pages that are whole in one file, by the templates of ``templates/``; objects as tables in notebooks."""

from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
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


def render(template: str, *, script: str = "", **values: Any) -> str:
    """Return a page. A browser runs the script that is given here and no other, and fetches nothing.

    Args:
        template: Name of its template; ``page.html`` is what all are made of.
        script: JavaScript; empty for a page without any.
        values: What the template shows. A text in it is a text to show, never markup.

    Raises:
        LookupError: The template requests a value that is not there.

    Example:
        >>> page = render("page.html", title="<b>age</b>")
        >>> "&lt;b&gt;age" in page, "script-src" in page
        (True, False)
    """
    from jinja2 import UndefinedError
    from markupsafe import Markup

    digest = b64encode(sha256(script.encode()).digest()).decode()
    allowed = f"; script-src 'sha256-{digest}'" if script else ""
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:{allowed}; base-uri 'none'; form-action 'none'"
    )
    try:
        found = _environment().get_template(template)
        return found.render(values, script=Markup(script), policy=Markup(policy)) + "\n"
    except UndefinedError as error:
        raise LookupError(f"{template}: {error}") from None


def script(name: str) -> str:
    """Return a script that lies beside the templates."""
    return (files("torchdpcate.templates") / name).read_text(encoding="utf-8")


def number(value: Any) -> str:
    """Return a number as pages show it, words as they are, and a dash for nothing.

    Example:
        >>> number(1234), number(0.12345678), number(None), number("few")
        ('1,234', '0.123457', '–', 'few')
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    return "–" if value is None else f"{value:,}" if type(value) is int else str(value)


def _in_a_row(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=PackageLoader("torchdpcate"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else plain(value),
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False}
    made.filters |= {"number": number, "in_a_row": _in_a_row, "base64": _base64}
    return made
