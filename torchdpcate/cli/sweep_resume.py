"""``sweep.resume=true``: the runs of an interrupted sweep that are finished stay, and the others are made anew."""

import json
from itertools import count
from pathlib import Path

from torchdpcate._text import plain
from torchdpcate.cli.words import words
from torchdpcate.errors import InputError

_NOT_OF_A_RUN = {"run_dir", "sweep.resume", "force"}
_INTERRUPTED = "interrupted"


def run_words() -> dict[str, str]:
    """Return the words that a run has in common with the same run of a resumed sweep, as values by their keys."""
    return {key: value for key, value in words().items() if key not in _NOT_OF_A_RUN and not key.startswith("hydra")}


def is_finished(folder: Path) -> bool:
    """Return whether a folder holds the finished run of the present words.

    Args:
        folder: Folder of one run of a sweep.

    Raises:
        InputError: It holds the finished run of other words, or a summary that is damaged.
    """
    path = folder / "summary.json"
    if not path.is_file():
        return False
    try:
        known = json.loads(path.read_text(encoding="utf-8"))["requested"].get("words", {})
        differ = sorted(str(key) for key, _ in known.items() ^ run_words().items())
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
        raise InputError(f"{path}: not a summary of a run, or damaged; remove its folder or run again") from None
    if differ:
        which = plain(", ".join(dict.fromkeys(differ)))
        raise InputError(
            f"sweep.resume: {folder} is a finished run of other words ({which}); repeat the words of the sweep, or "
            "choose another run_dir"
        )
    return True


def set_aside(folder: Path) -> Path | None:
    """Move what an interrupted run left to a folder beside it, and return that; None if it left nothing.

    Its ledger counts what was spent, so that it is kept.

    Args:
        folder: Folder of one run of a sweep.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    names = (folder.with_name(f"{folder.name}.{_INTERRUPTED}.{number}") for number in count(1))
    place = next(name for name in names if not name.exists())
    folder.rename(place)
    folder.mkdir()  # Hydra made it
    return place


def interrupted(folder: Path) -> list[Path]:
    """Return the folders that earlier interruptions of a run left beside its own."""
    return sorted(folder.parent.glob(f"{folder.name}.{_INTERRUPTED}.*"))
