"""A griffe extension: the reference shows the docstrings that ``help`` shows, with formulas as markdown has them."""

import re
from functools import cached_property
from inspect import getdoc
from textwrap import dedent
from types import FunctionType
from typing import Any

from griffe import Class, Docstring, Extension, Module, Object

_TITLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)
_INLINE = re.compile(r":math:`([^`]+)`")
_DISPLAY = re.compile(r"^( *)\.\. math::(.*(?:\n(?:\1 +\S.*| *(?=\n)))*)", re.MULTILINE)


class ShownDocstrings(Extension):
    """Show what stands in docstrings when the package is imported: ``torchdpcate._lazy`` completes them."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Write an object's docstring in the site's form."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Replace the docstrings of public classes, and of those that they inherit from."""
        import torchdpcate

        for name in torchdpcate.__all__:
            public = getattr(torchdpcate, name)
            for kind in public.__mro__ if isinstance(public, type) else [public]:
                if kind.__module__.partition(".")[0] == pkg.name:
                    found = pkg[f"{kind.__module__}.{kind.__qualname__}".partition(".")[2]]
                    _show(found, kind)


def as_markdown(text: str) -> str:
    """Return a docstring with its formulas and the title of its examples as the site's parts have them.

    Args:
        text: As it stands in the sources.
    """

    def display(found: re.Match[str]) -> str:
        indent, formula = found.groups()
        lines = dedent(formula.lstrip(" ")).strip().splitlines()
        shown = ["$$", *(line.strip() for line in lines if line.strip()), "$$"]
        return "\n".join(["", *(f"{indent}{line}" for line in shown), ""])

    text = _DISPLAY.sub(display, text)
    text = _INLINE.sub(lambda found: f"${' '.join(found[1].split())}$", text)
    return _TITLE.sub(r"\1Examples:", text)


def _show(found: Object, shown: Any) -> None:
    """Give an object, and the methods and properties of a class, the docstrings that they have at run time."""
    _write(found, getdoc(shown))
    if isinstance(found, Class):
        for name, member in found.members.items():
            own = vars(shown).get(name)
            own = getattr(own, "__func__", own)
            if not name.startswith("_") and isinstance(own, (FunctionType, property, cached_property)):
                _write(member, getdoc(own) or getdoc(getattr(shown, name)))


def _write(found: Object, text: str | None) -> None:
    if found.docstring is None:
        found.docstring = Docstring("", parent=found, parser=found.package.docstring.parser)
    found.docstring.value = as_markdown(text or "")
