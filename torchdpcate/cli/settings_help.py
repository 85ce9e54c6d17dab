"""What ``train --help`` lists: settings by subject, each in the words of its file in ``conf/``."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from torchdpcate.cli.overrides import all_groups, all_tasks, choices_of, chosen_groups, composition
from torchdpcate.cli.tables import facts
from torchdpcate.registry import conf_dir

_SUBJECTS = {
    "What is estimated": ("task", "experiment", "subgroups", "queries"),
    "Your records": ("data",),
    "Privacy": ("privacy", "unit", "budget"),
    "The run": ("run_dir", "seed", "compare", "force", "sweep", "trainer", "plan"),
}
"""Subjects by the first part of a setting's name; what is in none is of the estimator."""
_ESTIMATOR = "The estimator"
_OTHER = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)")
_KEY = re.compile(r"(?P<indent> *)(?P<name>\w+):(?P<rest>.*)")


def settings_help(words: Sequence[str]) -> str:
    """Return the settings that there are with the given choices, by subject.

    Args:
        words: Words of ``train``; those that choose of a group count. Records are those of a table unless they say
            otherwise.
    """
    own = chosen_groups([word for word in words if word.partition("=")[0] in all_groups()])
    made = composition({"data": "table", **own})
    groups = made.groups
    blocks = {name for name, (value, _) in made.settings.items() if isinstance(value, Mapping) and value}
    known = sorted({*(made.settings.keys() - blocks), *groups, "experiment"})
    said = settings_of(groups)
    rows: dict[str, list[tuple[str, str]]] = {title: [] for title in (*_SUBJECTS, _ESTIMATOR)}
    for name in known:
        rows[_subject(name)] += _rows(name, groups, said)
    return "\n\n".join(facts(lines, title=title) for title, lines in rows.items() if lines) + "\n"


def settings_of(groups: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return each setting in the files of a configuration: its value, and what is said of it.

    Args:
        groups: The choice of each group; see ``composition``.
    """
    places = {conf_dir() / group / f"{choice}.yaml": group.replace("/", ".") for group, choice in groups.items()}
    found: dict[str, tuple[str, str]] = {}
    for path, group in {conf_dir() / "config.yaml": "task", **places}.items():
        lines = path.read_text(encoding="utf-8").splitlines()
        found |= {name: (value, said) for name, value, said in _read(lines, "" if group == "task" else f"{group}.")}
    return found


def _subject(name: str) -> str:
    first = name.partition(".")[0]
    return next((title for title, firsts in _SUBJECTS.items() if first in firsts), _ESTIMATOR)


def _rows(name: str, groups: Mapping[str, str], said: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield a setting and what is said of it, or a group and its choices."""
    value, remark = said.get(name, ("", ""))
    if name == "task":
        yield from ((f"task={task}", _first_words(conf_dir() / "task" / f"{task}.yaml")) for task in all_tasks())
    elif name in all_groups():
        choices, own = choices_of(name), groups.get(name)
        if len(choices) > 1:
            others = ", ".join(choice for choice in choices if choice != own)
            words = "" if own is None else _first_words(conf_dir() / name / f"{own}.yaml").partition(";")[0]
            yield f"{name}={own or 'null'}", f"{words.removesuffix('.')}. Others: {others}".removeprefix(". ")
    elif name != "task.name" and not (value.startswith("${") and not remark):  # that of a group, which stands itself
        other = _OTHER.match(value)  # another setting's value
        yield f"{name}={f'({other[1]})' if other else value}", remark


def _first_words(path: Path) -> str:
    """Return the remark with which a file begins."""
    lines = path.read_text(encoding="utf-8").splitlines()
    own = takewhile(lambda line: line.startswith("#"), (line for line in lines if not line.startswith("# @package")))
    return " ".join(line.removeprefix("#").strip() for line in own)


def _read(lines: Sequence[str], place: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each entry, its value, and the remark beside it with the lines that continue it."""
    above: list[tuple[int, str]] = []
    name, value, words = "", "", list[str]()
    for line in [*lines, "end:"]:
        found = _KEY.match(line)
        if found is not None:
            if name:
                yield name, value, " ".join(words)
            depth = len(found["indent"])
            above = [*((indent, part) for indent, part in above if indent < depth), (depth, found["name"])]
            name = place + ".".join(part for _, part in above)
            value, _, remark = found["rest"].partition(" #")
            value, words = value.strip(), [remark.strip()] if remark else []
        elif name and words and line.startswith(" ") and line.lstrip().startswith("#"):
            words.append(line.lstrip().removeprefix("#").strip())
