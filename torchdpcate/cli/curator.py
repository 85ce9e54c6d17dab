"""The curator's folder of a run: settings, summary, and the coefficients without noise."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchdpcate._files import PRIVATE, atomic_path, write_text
from torchdpcate._text import is_plain, plain
from torchdpcate.cli.task import family_of
from torchdpcate.errors import InputError

WORDS, COUNTS = ("mechanism", "level"), ("seed", "n")
SUMMARY_FILE = "summary.json"
"""What a run came to, unreleased numbers included, in the curator's folder."""
_LARGEST = 1e100  # beyond it, no number of a run


def summary_path(run: Path) -> Path:
    """Return where the summary of a run is.

    Args:
        run: The run's folder.
    """
    return run / "curator" / SUMMARY_FILE


def read_summary(path: Path) -> dict[str, Any]:
    """Return what is shown of a run, as a row of a table.

    Args:
        path: A run's ``curator/summary.json``.

    Raises:
        InputError: Not a summary of a run, or damaged.
    """
    try:
        if not os.path.isfile(path):  # reading a pipe would wait for ever
            raise OSError
        summary = json.loads(path.read_text(encoding="utf-8"))
        family = family_of(summary["task"])
        spent = summary["spent"]["total"]["epsilon"]
        settings = {_text(key): _text(value) for key, value in summary["requested"]["settings"].items()}
        names, run = ("data", *family.settings), path.parent.parent  # a run has some of the names
        return {
            "folder": run,
            "run": _folder_name(run),
            "task": summary["task"],
            **{name: "-" if (value := summary.get(name)) is None else _word(value) for name in names},
            **{name: _word(summary[name]) for name in WORDS},
            "settings": settings,
            **{name: _whole(summary[name]) for name in COUNTS},
            "requested_epsilon": _positive(summary["requested"]["epsilon"]),
            "spent_epsilon": None if spent is None else _positive(spent),
            "spent_delta": _number(summary["spent"]["total"]["delta"]),
            "generated": _flag(summary["generated"]),
            **{name: _number(summary[name]) for name in ("planned_noise", *family.summary_keys()) if name in summary},
            "seconds": _positive(summary["seconds"]),
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, OSError):
        raise InputError(f"{path}: not a summary of a run, or damaged; remove it or run again") from None


def _number(value: Any) -> float:
    """Return a number; one that a run could not know is not a number."""
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        raise ValueError
    return float(value)


def _positive(value: Any) -> float:
    number = _number(value)
    if not number >= 0:
        raise ValueError
    return number


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _word(value: Any) -> str:
    if not (isinstance(value, str) and is_plain(value) and len(value) < 100):
        raise ValueError
    return value


def _text(value: Any) -> str:
    """Return what a user may have written, fit for a terminal."""
    if not isinstance(value, str):
        raise ValueError
    return plain(value[:1000])


def _folder_name(folder: Path) -> str:
    """Return the folder's name as text, whatever its bytes and the locale."""
    return plain(os.fsencode(folder.absolute().name).decode("utf-8", "backslashreplace"))


def write_curator(config: DictConfig, numbers: Mapping[str, Tensor], folder: Path) -> None:
    """Write ``config.yaml`` and, of coefficients without noise, ``numbers.safetensors`` into the curator's folder.

    Args:
        config: The composed configuration.
        numbers: What must never leave, by name; released coefficients must be as far from it as they state.
        folder: The curator's folder, which is there.
    """
    from safetensors.torch import save_file

    write_text(folder / "config.yaml", OmegaConf.to_yaml(config, resolve=True), PRIVATE)
    if numbers:
        with atomic_path(folder / "numbers.safetensors", PRIVATE) as temporary:
            save_file({name: tensor.detach().cpu().double().clone() for name, tensor in numbers.items()}, temporary)
