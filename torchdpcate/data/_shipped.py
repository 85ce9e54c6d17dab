"""Where the shipped yaml files are: `conf/` of a checkout, `torchdpcate/conf/` of an installed wheel."""

import os
from pathlib import Path

from torchdpcate.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]


def conf_dir() -> Path:
    """Return the folder of the shipped configuration.

    Raises:
        FileNotFoundError: the installation has none.
    """
    for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"no conf folder beside {_PACKAGE}; reinstall torchdpcate")


def shipped(folder: str, name: str) -> Path:
    """Return the shipped file ``conf/<folder>/<name>.yaml``.

    Raises:
        InputError: there is none of that name; the message lists those there are.
    """
    directory = conf_dir() / folder
    path = directory / f"{name}.yaml"
    if not os.path.isfile(path):
        choices = ", ".join(sorted(file.stem for file in directory.glob("*.yaml")))
        raise InputError(f"{folder} {name!r} is neither a file nor one of the shipped ones: {choices}")
    return path
