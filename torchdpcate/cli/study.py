"""``torchdpcate study``: the published tables and figures of a paper beside ours, from a checkout."""

import math
import sys
from importlib import import_module
from pathlib import Path

from torchdpcate.cli.parser import COMMANDS, nearest
from torchdpcate.errors import InputError

_HELP = """usage: torchdpcate study NAME [--quick] run_dir=PATH [papers=PATH] [data=PATH] [processes=N] [minutes=N]

Every table and figure of a paper: published, by its mechanism as printed, certified, and without privacy. Writes
table.md, table.csv, found.csv and figures. Needs a checkout, for the studies are in experiments/.
  NAME          {names}
  --quick       few repeats, two minutes at most
  run_dir=PATH  a study that was stopped continues there
  papers=PATH   the published numbers; ../shared/papers beside the checkout if it is there
  data=PATH     the data sets; ../shared/data beside the checkout if it is there
  processes=N   at once (default 1)
  minutes=N     begin no cell after so many minutes, and show what is done
"""
NAMES = ("dp_2erm", "dp_werm", "spillover", "dp_cate", "covariate_balancing", "niu")
KEYS = ("run_dir", "papers", "data", "processes", "minutes")


def study(words: list[str]) -> None:
    """Run the command.

    Args:
        words: Command-line words after ``study``.

    Raises:
        InputError: A user's mistake, or no checkout.
    """
    if not words or {"-h", "--help"} & set(words):
        print(_HELP.format(names=f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"), end="")
        return
    name, rest = words[0], words[1:]
    if f"study {name}" in COMMANDS:
        raise InputError(f"study {name}: is no longer there; {COMMANDS[f'study {name}']}")
    if name not in NAMES:
        known = ", ".join(NAMES)
        raise InputError(f"study: {name}: no such study; {nearest(name, NAMES, 'none is near')}; choose one of {known}")
    checkout, given = _checkout(), _parse([word for word in rest if word != "--quick"])
    if "run_dir" not in given:
        raise InputError("study: say run_dir=PATH, the folder that the tables go to")
    sys.path.insert(0, str(checkout))
    frame = import_module("experiments.frame.command")
    settings = import_module("experiments.frame.study").Settings(
        quick="--quick" in words,
        papers=_folder("papers", given, checkout),
        data=_folder("data", given, checkout),
    )
    minutes = given.get("minutes")
    limit = math.inf if minutes is None else _positive("minutes", minutes)
    frame.run(name, settings, Path(given["run_dir"]), _count("processes", given.get("processes", "1")), limit)


def _checkout() -> Path:
    """Return the checkout that this package is part of, or that the command runs in."""
    for folder in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (folder / "experiments" / "frame" / "command.py").exists():
            return folder
    raise InputError("study: the studies are not installed with the package; run it in a checkout of the repository")


def _parse(words: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in KEYS or not value or key in given:
            raise InputError(f"study: {word}: give --quick or, once each, KEY=VALUE with a key of {', '.join(KEYS)}")
        given[key] = value
    return given


def _folder(key: str, given: dict[str, str], checkout: Path) -> Path | None:
    """Return a folder that is given, or the one beside the checkout; None if that is not there."""
    if key in given:
        path = Path(given[key])
        if not path.is_dir():
            raise InputError(f"study: {key}={path} is no folder; leave it out to go without")
        return path
    beside = checkout.parent / "shared" / key
    return beside if beside.is_dir() else None


def _count(key: str, word: str) -> int:
    value = _positive(key, word)
    if value != int(value):
        raise InputError(f"study: {key}={word}: give an integer of at least 1")
    return int(value)


def _positive(key: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"study: {key}={word}: give a number above 0")
    return value
