"""Which runs were made on which files, in the user's own state folder: never in a release, nor in a run's folder."""

from contextlib import suppress
from pathlib import Path

from torchdpcate._files import PRIVATE, own_state, state_folder, write_text
from torchdpcate.errors import InputError


def runs_on(records: str) -> list[Path]:
    """Return the folders of earlier runs on files, whether they are there still or not.

    Args:
        records: By what the files are known, hexadecimal digits.
    """
    with suppress(OSError, UnicodeError):
        return [Path(line) for line in _file(records).read_text(encoding="utf-8").splitlines() if line]
    return []


def note_run(records: str, folder: Path) -> None:
    """Note a run on files; where the state cannot be written nothing is noted.

    Args:
        records: By what the files are known.
        folder: Run folder.
    """
    _write(records, [*(run for run in runs_on(records) if run != folder.absolute()), folder.absolute()])


def forget_run(records: str, folder: Path) -> None:
    """Take back the note of a run that spent nothing."""
    _write(records, [run for run in runs_on(records) if run != folder.absolute()])


def _file(records: str) -> Path:
    return state_folder() / "runs" / f"{records}.txt"


def _write(records: str, runs: list[Path]) -> None:
    with suppress(OSError, InputError, UnicodeError):
        path = own_state("runs") / _file(records).name
        if runs:
            write_text(path, "".join(f"{run}\n" for run in runs), PRIVATE)
        else:
            path.unlink(missing_ok=True)
