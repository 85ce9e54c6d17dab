"""Packages whose names are imported when they are first used, so that importing one of them costs little."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from typing import Any

_TITLE = re.compile(r"([A-Z][a-z]+):")
_ENTRY = re.compile(r"    (\w+(?:, \w+)*):")
_SEE = re.compile(r"See ``(\w+)(?:\.\w+)?``[:;.,]? ?")
_ORDER = ("Guarantee", "Args", "Attributes", "Returns", "Raises", "Example")
_LISTS = "Args", "Attributes"

Sections = dict[str, list[str]]
"""Lines by section title; those before the first section under the empty one."""


@cache
def described(public: Any) -> Any:
    """Complete the docstrings of a public class and of its methods from those of its bases, and return it.

    * The constructor's arguments and the attributes that its docstring leaves out are those of the nearest base that
      describes them.
    * "See ``Base``." in the docstring of a class or method stands for the base's text and sections.

    Args:
        public: A class of this library; anything else is returned as it is.

    Example:
        >>> class Base:
        ...     '''A base.
        ...
        ...     Args:
        ...         width: In metres.
        ...     '''
        ...     def __init__(self, width): ...
        >>> class Box(Base):
        ...     '''A box.'''
        >>> print(described(Box).__doc__)
        A box.
        <BLANKLINE>
        Args:
            width: In metres.
    """
    if not isinstance(public, type) or not public.__doc__:
        return public
    _describe_members(public)
    public.__doc__ = _class_text(public)
    return public


def entries(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return the lines of each entry of a section of arguments or attributes, by name.

    Args:
        lines: Of the section, its title left out.

    Example:
        >>> entries(["    a, b: Two.", "        More.", "    c: One."])
        {'a': ['    a, b: Two.', '        More.'], 'b': ['    a, b: Two.', '        More.'], 'c': ['    c: One.']}
    """
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        entry = _ENTRY.match(line)
        if entry is not None:
            current = []
            found |= dict.fromkeys(entry[1].split(", "), current)
        if line.strip():
            current.append(line)
    return found


def constructor_arguments(kind: type) -> list[str]:
    """Return the names of what a class's constructor takes, with what it hands on to those of its bases."""
    found: dict[str, None] = {}
    for each in _own(kind.__mro__):
        given = signature(each).parameters.values()
        kinds = {argument.kind for argument in given}
        open_ended = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
        found |= dict.fromkeys(argument.name for argument in given if argument.kind not in open_ended)
        if Parameter.VAR_KEYWORD not in kinds:
            break
    return list(found)


def sections(text: str | None) -> Sections:
    """Return the lines of a docstring by the titles of its sections."""
    found: Sections = {"": []}
    title = ""
    for line in cleandoc(text or "").splitlines():
        heading = _TITLE.fullmatch(line)
        if heading is not None:
            title = heading[1]
            found[title] = []
        else:
            found[title].append(line)
    return found


def _own(kinds: Iterable[type]) -> Iterator[type]:
    return (kind for kind in kinds if kind.__module__.partition(".")[0] == __package__)


def _class_text(kind: type) -> str:
    own = sections(kind.__doc__)
    bases = [sections(base.__doc__) for base in _own(kind.__mro__[1:])]
    named = _SEE.search("\n".join(own[""]))
    if named is not None and (base := _base(kind, named[1])) is not None:
        own = _with(own, named, sections(base.__doc__))
    arguments = constructor_arguments(kind)
    known = entries(line for title in _LISTS for line in own.get(title, ()))
    inherited: dict[str, dict[str, list[str]]] = {}
    for title in _LISTS:
        inherited[title] = {}
        for texts in bases:
            inherited[title] = entries(texts.get(title, ())) | inherited[title]
    errors = next((texts["Raises"] for texts in bases if "Raises" in texts), None)
    if errors is not None:
        own.setdefault("Raises", errors)
    of_constructor = inherited["Attributes"] | inherited["Args"]
    missing = [name for name in arguments if name not in known and name in of_constructor]
    place = "Attributes" if "Args" not in own and set(arguments) & set(known) else "Args"
    _add(own, place, (of_constructor[name] for name in missing))
    own = {title: _sorted(lines, arguments) if title == place else lines for title, lines in own.items()}
    others = [name for name in inherited["Attributes"] if name not in known and name not in arguments]
    _add(own, "Attributes", (inherited["Attributes"][name] for name in others))
    return _joined(own)


def _sorted(lines: list[str], arguments: list[str]) -> list[str]:
    """Return the entries of a section in the order of the constructor's arguments, with all others after them."""
    found = entries(lines)
    order = {id(found[name]): found[name] for name in [*arguments, *found] if name in found}
    return [line for entry in order.values() for line in entry]


def _add(own: Sections, title: str, found: Iterable[list[str]]) -> None:
    """Append entries to a section, one that several names share once."""
    seen: list[list[str]] = []
    for lines in found:
        if lines not in seen:
            seen.append(lines)
    if seen:
        own[title] = [*_trimmed(own.get(title, [])), *(line for lines in seen for line in lines)]


@cache
def _describe_members(kind: type) -> None:
    """Write out the docstrings of public members that name those of a base, or of a class that does the work."""
    for base in _own(kind.__mro__[1:]):
        _describe_members(base)
    for name, member in vars(kind).items():
        member = getattr(member, "__func__", member)
        named = None if name.startswith("_") else _SEE.match(getattr(member, "__doc__", None) or "")
        if named is None:
            continue
        other = _base(kind, named[1]) or vars(sys.modules[kind.__module__]).get(named[1])
        if isinstance(other, type) and hasattr(other, name):
            _describe_members(other)
            of_base = sections(getattr(other, name).__doc__)
            member.__doc__ = _joined(_with(sections(member.__doc__), named, of_base))


def _base(kind: type, name: str) -> type | None:
    return next((base for base in kind.__mro__[1:] if base.__name__ == name), None)


def _with(own: Sections, named: re.Match[str], base: Sections) -> Sections:
    """Return a docstring that refers to another one, with that one's text and sections in the place of the name.

    Args:
        own: The docstring.
        named: Where its text refers to the other; None of it is kept.
        base: The other.
    """
    text = "\n".join(own[""])
    before, after = text[: named.start()].strip(), text[named.end() :].strip()
    first, rest = base[""][0], "\n".join(base[""][1:]).strip()
    parts = [before or first, after[:1].upper() + after[1:], rest]
    merged: Sections = {"": "\n\n".join(part for part in parts if part).splitlines()}
    for title in _ORDER:
        if title in _LISTS and title in own and title in base:
            given = entries(own[title])
            merged[title] = _trimmed(own[title])
            _add(merged, title, (lines for name, lines in entries(base[title]).items() if name not in given))
        elif title in own or title in base:
            merged[title] = own.get(title, base.get(title, []))
    return merged


def _trimmed(lines: list[str]) -> list[str]:
    return "\n".join(lines).rstrip().splitlines()


def _joined(found: Sections) -> str:
    """Return a docstring of its sections, in the order of the library's docstrings."""
    titles = [title for title in found if title and title not in _ORDER] + [title for title in _ORDER if title in found]
    parts = ["\n".join(_trimmed(found[""]))]
    parts += [f"{title}:\n" + "\n".join(_trimmed(found[title])) for title in titles]
    return "\n\n".join(parts)


_IMPORT = re.compile(r"^from \w+\.([\w.]+) import (\w+) as \2$", re.MULTILINE)


def exports(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Args:
        package: Its name.
        modules: Public names by the module that defines them, as in a relative import: ``budget`` of this package,
            ``.papers`` of the one above.

    Example:
        >>> find, _, names = exports("torchdpcate.privacy", {"budget": ("PrivacyBudget",)})
        >>> names, find("PrivacyBudget").__name__
        (['PrivacyBudget'], 'PrivacyBudget')
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return described(getattr(import_module(f".{homes[name]}", package), name))

    return find, lambda: sorted(homes), sorted(homes)


def stub_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``exports`` of the names that the stub beside a package's file imports, one a line, for type checkers.

    Args:
        package: Its name.
        file: Its ``__init__.py``.
    """
    modules: dict[str, list[str]] = {}
    for module, name in _IMPORT.findall(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")):
        modules.setdefault(module, []).append(name)
    return exports(package, modules)
