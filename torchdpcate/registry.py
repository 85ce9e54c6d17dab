"""Classes by the names that users, statements and release files give them: one yaml of ``conf/`` names each."""

import re
from collections.abc import Iterator, MutableMapping
from functools import cache, cached_property
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdpcate.errors import InputError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_PACKAGE = Path(__file__).parent
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


def check_classes(config: "DictConfig | dict[str, Any]", group: str = "") -> None:
    """Refuse a configuration that names a class, or a function, that no file of ``conf/`` names: it would be run.

    Args:
        config: A composed configuration, or settings of a file.
        group: Folder below ``conf/`` whose classes alone are meant; all of them if left out.

    Raises:
        InputError: Such a class.
    """
    from omegaconf import OmegaConf

    todo: list[Any] = [OmegaConf.to_container(config) if OmegaConf.is_config(config) else config]
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

    ``conf/<group>/<name>.yaml`` names the class of ``<name>``: its first ``_target_`` in ``package``. A class of the
    user's is added by ``registry[name] = cls``.

    Args:
        group: Folder below ``conf/``.
        package: Of the classes that are meant, where the classes of a group stand in several; their names begin so.

    Example:
        >>> features = Registry("features")
        >>> features["fourier"].__name__, "none" in features
        ('Fourier', False)
    """

    def __init__(self, group: str, package: str = "torchdpcate") -> None:
        self.group, self.package = group, package

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
        known: dict[str, Any] = {}
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
