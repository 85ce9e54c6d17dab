"""Where the shipped yaml files are: ``conf/`` of a checkout, ``torchdpcate/conf/`` of an installed wheel."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from torchdpcate.data._yaml import read_yaml
from torchdpcate.errors import InputError
from torchdpcate.registry import conf_dir


def shipped(folder: str, name: str) -> Path:
    """Return the shipped file ``conf/<folder>/<name>.yaml``.

    Raises:
        InputError: There is none of that name; the message lists those there are.
    """
    directory = conf_dir() / folder
    path = directory / f"{name}.yaml"
    if not os.path.isfile(path):
        choices = ", ".join(sorted(file.stem for file in directory.glob("*.yaml")))
        raise InputError(f"{folder} {name!r} is neither a file nor one of the shipped ones: {choices}")
    return path


def check_targets(settings: Any, folder: str) -> None:
    """Refuse settings of a file that would make anything but a shipped choice run, or that name an interpolation.

    Args:
        settings: Plain types, as in a yaml file.
        folder: The group of shipped choices, a folder of the configuration.

    Raises:
        InputError: A ``_target_`` that no shipped file of the group names, or ``${...}``.
    """
    for key, value in _entries(settings):
        if key == "_target_" and value not in _targets(folder):
            raise InputError(f"_target_ = {value!r}: no shipped choice of {folder}; a file names no other code")
        if isinstance(value, str) and "${" in value:
            raise InputError(f"{key} = {value!r}: holds an interpolation; a file names values")


@cache
def _targets(folder: str) -> frozenset[str]:
    """Return what the shipped files of a group name."""
    files = sorted((conf_dir() / folder).rglob("*.yaml"))
    return frozenset(value for path in files for key, value in _entries(read_yaml(path)) if key == "_target_")


def _entries(settings: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that holds no others, in any depth, under the key that it stands at."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from _entries(value, str(key))
    elif isinstance(settings, list):
        for value in settings:
            yield from _entries(value, name)
    else:
        yield name, settings
