"""Reading ``summary.json``: every value of the type that ``train`` writes, or the whole file is refused."""

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from torchdpcate._text import is_plain, plain
from torchdpcate.cli.task import TaskSpec, family_of
from torchdpcate.errors import InputError
from torchdpcate.release.file import RELEASE_FILE, load_release
from torchdpcate.release.release import Release

Any_Release = TypeVar("Any_Release", bound=Release)
WORDS, COUNTS = ("mechanism", "level"), ("seed", "n")
_LARGEST = 1e100  # beyond it, no number of a run


def read_summary(path: Path) -> dict[str, Any]:
    """Return what is shown of a run, as a row of a table.

    Args:
        path: A run's ``summary.json``.

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
        names = ("data", *family.settings)  # a run has some of them
        return {
            "folder": path.parent,
            "run": _folder_name(path.parent),
            "task": summary["task"],
            **{name: "-" if (value := summary.get(name)) is None else _word(value) for name in names},
            **{name: _word(summary[name]) for name in WORDS},
            "settings": settings,
            **{name: _whole(summary[name]) for name in COUNTS},
            "requested_epsilon": _positive(summary["requested"]["epsilon"]),
            "spent_epsilon": None if spent is None else _positive(spent),
            "spent_delta": _number(summary["spent"]["total"]["delta"]),
            "generated": _flag(summary["generated"]),
            **{name: _number(summary[name]) for name in _numbers_of(family) if name in summary},
            "seconds": _positive(summary["seconds"]),
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, OSError):
        raise InputError(f"{path}: not a summary of a run, or damaged; remove it or run again") from None


def released_by(run: Path, kind: type[Any_Release]) -> Any_Release | None:
    """Return a run's release; None where it is of another kind, has been moved away or is damaged.

    Args:
        run: The run's folder.
        kind: Class of the release.
    """
    try:
        found = load_release(run / "release" / RELEASE_FILE)
    except (InputError, OSError):
        return None
    return found if isinstance(found, kind) else None


def _numbers_of(family: type[TaskSpec]) -> list[str]:
    """Return the keys of a family's numbers, each once."""
    return list(dict.fromkeys((*family.summary_keys(), *family.planned_keys())))


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
