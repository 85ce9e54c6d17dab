"""Classes by the names that users, statements and release files give them: one yaml of ``conf/`` names each."""

import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache, cached_property
from importlib import import_module
from inspect import Parameter, isclass, signature
from pathlib import Path
from typing import Any

from torchdpcate.errors import InputError

_PACKAGE = Path(__file__).parent
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_CLASS = "_target_"
_TARGET = re.compile(r"^ *_target_: *([\w.]+)", re.MULTILINE)
_ANY_TARGET = re.compile(r"\b_target_: *([\w.]+)")  # of a list's entries too


def conf_dir() -> Path:
    """Return the folder of the shipped configuration.

    Raises:
        FileNotFoundError: The installation has none.
    """
    for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"no conf folder beside {_PACKAGE}; reinstall torchdpcate")


def modules_with(pattern: str, package: str = "torchdpcate") -> list[str]:
    r"""Return the modules of a package of the library in whose text a pattern is found: most need not be imported.

    Args:
        pattern: Of a line, as ``re`` has it.
        package: Where they stand.

    Example:
        >>> modules_with(r"^class Registry\b")
        ['torchdpcate.registry']
    """
    wanted, folder = re.compile(pattern, re.MULTILINE), _PACKAGE.joinpath(*package.split(".")[1:])
    found = (path for path in folder.rglob("*.py") if wanted.search(path.read_text(encoding="utf-8")))
    return sorted(".".join((_PACKAGE.name, *path.relative_to(_PACKAGE).with_suffix("").parts)) for path in found)


def check_classes(config: Any, group: str = "") -> None:
    """Refuse a configuration that names a class, or a function, that no file of ``conf/`` names: it would be run.

    Args:
        config: Plain types, of a composed configuration or of a file's settings.
        group: Folder below ``conf/`` whose classes alone are meant; all of them if left out.

    Raises:
        InputError: Such a class.
    """
    todo: list[Any] = [config]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if _CLASS in value and str(value[_CLASS]) not in _classes(conf_dir() / group):
                which = f"of {group}" if group else "of conf/"
                raise InputError(f"{_CLASS} = {value[_CLASS]!r}: no shipped choice {which}; no other code is run")
            todo += value.values()
        elif isinstance(value, list):
            todo += value


@cache
def _classes(folder: Path) -> frozenset[str]:
    """Return the import paths of the classes that the files of a folder name."""
    texts = (path.read_text(encoding="utf-8") for path in folder.rglob("*.yaml"))
    return frozenset(target for text in texts for target in _ANY_TARGET.findall(text))


class Registry(MutableMapping[str, Any]):
    """The classes of one group of the configuration, by name; a class is imported when it is requested.

    ``conf/<group>/<name>.yaml`` names the class of ``<name>``: its first ``_target_`` in ``package``. Where the command
    line has no such choice, ``classes`` names them. A class of the user's is added by ``registry[name] = cls``.

    Args:
        group: Folder below ``conf/``, or what is chosen.
        package: Of the classes that are meant, where the classes of a group stand in several; their names begin so.
        classes: Import paths by name, in place of files.

    Example:
        >>> features = Registry("features")
        >>> features["fourier"].__name__, "none" in features
        ('Fourier', False)
    """

    def __init__(self, group: str, package: str = "torchdpcate", *, classes: Mapping[str, str] | None = None) -> None:
        self.group, self.package, self._classes = group, package, classes

    def find(self, name: str) -> Any:
        """Return the class of this name.

        Raises:
            InputError: There is none; the message lists those there are.
        """
        if not isinstance(name, str) or name not in self:
            raise InputError(f"{self.group} = {name}: choose one of {', '.join(self)}")
        return self[name]

    def make(self, given: Any, base: type) -> Any:
        """Return what was given where it is a ``base``, else the class of this name with its defaults.

        Raises:
            InputError: No such name, or a class that has no defaults.

        Example:
            >>> from torchdpcate.fit.feature_maps import FeatureMap
            >>> Registry("features").make("legendre", FeatureMap).degree
            2
        """
        if isinstance(given, base):
            return given
        kind = self.find(given)
        parameters = signature(kind).parameters
        needed = [name for name, parameter in parameters.items() if parameter.default is Parameter.empty]
        if needed:
            raise InputError(f"{self.group} = {given}: say which {needed[0]}; give {kind.__name__}({needed[0]}=...)")
        return kind()

    @cached_property
    def _known(self) -> dict[str, Any]:
        """Classes, or where they are to be found, by name."""
        known: dict[str, Any] = dict(self._classes or {})
        for path in sorted((conf_dir() / self.group).glob("*.yaml")):
            for target in _TARGET.findall(path.read_text(encoding="utf-8")):
                if target.startswith(f"{self.package}."):
                    known.setdefault(path.stem, target)
        return known

    def __getitem__(self, name: str) -> Any:
        found = self._known[name]
        if isinstance(found, str):
            module, _, attribute = found.rpartition(".")
            found = self._known[name] = getattr(import_module(module), attribute)
        return found

    def class_names(self) -> dict[str, str]:
        """Return the names of the group's entries by those of their classes; nothing is imported for it."""
        return {
            found.rpartition(".")[2] if isinstance(found, str) else found.__name__: name
            for name, found in self._known.items()
        }

    def __setitem__(self, name: str, value: Any) -> None:
        self._known[name] = value

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: object) -> bool:
        return name in self._known


def refuse_strings(kind: type, given: Mapping[str, Any]) -> None:
    """Refuse a string where a parameter of a constructor takes none, and say what it takes, with its import.

    A name of the command line, of the group of ``conf/`` that is called like the parameter, has the class of that name.

    Args:
        kind: The class; annotations of its constructor say which parameters take strings.
        given: Arguments by name.

    Raises:
        InputError: Names the parameter, the string and the classes.

    Example:
        >>> from torchdpcate import RLearner
        >>> try:
        ...     refuse_strings(RLearner, {"budget": "small"})
        ... except InputError as error:
        ...     print(error)
        budget = 'small': is a string; give an object of PrivacyBudget (from torchdpcate import PrivacyBudget)
    """
    strings = [name for name, value in given.items() if isinstance(value, str)]
    parameters = signature(kind).parameters if strings else {}
    for name in [name for name in strings if name in parameters]:
        taken = _taken(parameters[name].annotation)
        if {"str", "Any", "_empty"} & {word.rpartition(".")[2] for word in taken}:
            continue
        classes = [found for found in (_resolved(word, kind) for word in taken) if found is not None]
        named = {key: one for key, one in Registry(name).items() if isclass(one) and issubclass(one, tuple(classes))}
        wanted = [named[given[name]]] if given[name] in named else [*named.values()] or classes
        plain = " or ".join(word.rpartition(".")[2] for word in taken)
        remedy = f"an object of {' or '.join(one.__name__ for one in wanted)} ({_imports(wanted)})" if wanted else plain
        raise InputError(f"{name} = {given[name]!r}: is a string; give {remedy}")


def _taken(annotation: Any) -> list[str]:
    """Return the names of the types that an annotation joins, without what they are of, with their modules if known."""
    text = f"{annotation.__module__}.{annotation.__qualname__}" if isclass(annotation) else str(annotation)
    while text != (text := _IN_BRACKETS.sub("", text)):
        pass
    return [word.strip() for word in text.split("|")]


def _resolved(word: str, kind: type) -> type | None:
    """Return the library's class that a word of an annotation names, as the modules of a class know it."""
    module, _, name = word.rpartition(".")
    places = [module] if module else [base.__module__ for base in kind.__mro__]
    found = next((one for one in (getattr(sys.modules.get(place), name, None) for place in places) if one), None)
    return found if isclass(found) and found.__module__.startswith(f"{_PACKAGE.name}.") else None


def _imports(classes: list[type]) -> str:
    """Return the statements that import classes, by the package's own name where it has them."""
    public = set(import_module(_PACKAGE.name).__all__)
    by_module: dict[str, list[str]] = {}
    for one in classes:
        by_module.setdefault(_PACKAGE.name if one.__name__ in public else one.__module__, []).append(one.__name__)
    return "; ".join(f"from {module} import {', '.join(names)}" for module, names in by_module.items())
