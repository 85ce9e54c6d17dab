"""Which groups of choices a run has: those that its task brings, by the ``defaults:`` of its yaml, and so on."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import yaml

from torchdpcate.registry import conf_dir

_ROOT = "config"


@cache
def all_groups() -> frozenset[str]:
    """Return the names of the groups of choices, ``data/surface`` among them; not folders that only name classes."""
    root = conf_dir()
    paths = [path.relative_to(root) for path in root.rglob("*.yaml") if "defaults:" in path.read_text(encoding="utf-8")]
    found = (_defaults(str(path.parent) if path.parent.name else "", path.stem) for path in paths)
    return frozenset(group for defaults in found for group, _, _ in defaults)


def all_tasks() -> list[str]:
    """Return the names of the tasks."""
    return [task for task, _ in _choices("task")]


def choices_of(group: str) -> list[str]:
    """Return the names of a group's choices.

    Example:
        >>> choices_of("learner")
        ['dr', 'r']
    """
    return [choice for choice, _ in _choices(group)]


def brought(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the groups that a configuration has, each with its choice.

    Args:
        chosen: What the user chose, by group.

    Example:
        >>> brought({"task": "policy_selection"})["mechanism"]
        'by_scores'
    """
    given, found = dict(chosen), {}
    todo = [("", _ROOT)]
    while todo:
        group, default = todo.pop()  # the last first, as Hydra does: an experiment chooses the task
        choice = given.get(group, default)
        if group:
            found[group] = choice
        for inner, name, overrides in _defaults(group, choice):
            if overrides:
                given.setdefault(inner, name)
            else:
                todo.append((inner, name))
    return {group: choice for group, choice in found.items() if choice != "None"}


def users(name: str, groups: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the choices, by group, that would bring a group or a block of settings into a configuration.

    Args:
        name: Its name, which the configuration does not have.
        groups: The configuration's groups.

    Example:
        >>> users("nuisance", brought({"task": "average_effect"}))
        {'effect': ['doubly_robust']}
        >>> users("rule", brought({}))
        {'task': ['owl', 'pairwise', 'rule', 'two_stage_rule']}
    """
    near = {group: [choice for choice, has in _choices(group) if name in has] for group in groups if group != "task"}
    near = {group: choices for group, choices in near.items() if choices}
    return near or {"task": [task for task in all_tasks() if name in _reach("task", task)]}


def target_of(task: str) -> str:
    """Return the import path of the family of a task's runs.

    Example:
        >>> target_of("owl")
        'torchdpcate.cli.tasks.rules.Rules'
    """
    return str(_read("task", task)["task"]["_target_"])


def owners(key: str, groups: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the choices, by group, that have a setting of a dotted name.

    Args:
        key: The name, which the configuration does not have.
        groups: The configuration's groups.

    Example:
        >>> owners("rule.share", brought({"task": "owl"}))
        {'task': ['rule']}
        >>> owners("second_stage.kernel", brought({}))
        {'second_stage': ['kernel_ridge']}
    """
    block, _, setting = key.partition(".")
    setting = setting.partition(".")[0]
    group = block if block in groups else "task"
    found = [
        choice
        for choice, _ in _choices(group)
        if setting in _names(_read(group, choice) if group == block else _read(group, choice).get(block, {}))
    ]
    return {group: found} if found else {}


def _reach(group: str, choice: str) -> set[str]:
    """Return the groups and blocks of settings that a choice brings, whatever else is chosen below it."""
    found = _own(group, choice)
    for inner in found & all_groups():
        found = found.union(*(_reach(inner, own) for own, _ in _choices(inner)))
    return found


def _choices(group: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the choices of a group with what each brings by itself."""
    for path in sorted((conf_dir() / group).glob("*.yaml")):
        yield path.stem, _own(group, path.stem)


def _own(group: str, choice: str) -> set[str]:
    names = {inner for inner, _, overrides in _defaults(group, choice) if not overrides}
    blocks: Iterable[str] = _read(group, choice) if group == "task" else ()  # tasks bring blocks of other names
    return names | set(blocks) - {"defaults", "task"}


def _defaults(group: str, choice: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the entries of a yaml's defaults list: group, choice, and whether it is of a group that another brings."""
    for entry in _read(group, choice).get("defaults", ()):
        if not isinstance(entry, dict):
            if entry != "_self_":
                yield from _defaults(group, entry)
            continue
        [(key, name)] = entry.items()
        words = key.partition("@")[0].split()
        inner = words[-1].removeprefix("/") if words[-1].startswith("/") or not group else f"{group}/{words[-1]}"
        if not inner.startswith("hydra"):
            yield inner, str(name), "override" in words[:-1]


def _names(settings: Any) -> set[str]:
    """Return the names of the settings of a block."""
    return {str(name) for name in settings if not str(name).startswith("_")} - {"defaults"}


def _read(group: str, choice: str) -> Mapping[str, Any]:
    path = conf_dir() / group / f"{choice}.yaml"
    return _parsed(path.read_text(encoding="utf-8")) if path.is_file() else {}


@cache
def _parsed(text: str) -> Mapping[str, Any]:
    # a search for who brings a name reads each file hundreds of times
    found = yaml.safe_load(text)
    return found if isinstance(found, dict) else {}
