"""The words of ``torchdpcate train`` before Hydra sees them: known settings, and no configuration from elsewhere."""

import copy
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import signature
from typing import Any, NamedTuple

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString
from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf, read_write

from torchdpcate.cli.parser import nearest, remedy
from torchdpcate.errors import InputError
from torchdpcate.registry import conf_dir

PATHS = (
    "run_dir",
    "budget.shared",
    "data.path",
    "data.domain",
    "data.genes",
    "policies.path",
    "queries.path",
    "rule.population",
    "sites.path",
    "sites.socket",
    "subgroups",
)
"""Settings that name a file or a folder."""
_BROUGHT = re.compile(r"^ *- (/?)([\w/]+)(?:@[\w.]+)?: ", re.MULTILINE)
_SWITCHES, _SHOWS = ("-m", "--multirun", "--resolve"), ("-c", "--cfg")
_HYDRA = re.compile(r"hydra(?:[./]|$)")
_OF_HYDRA = ("hydra/launcher", "hydra.sweep.dir", "hydra.sweep.subdir")  # others configure classes, or what runs them
_LAUNCHER = "hydra.launcher."  # settings of a launcher, which checks them itself
_BUILDS = frozenset({"_target_", "_args_", "_partial_", "_recursive_", "_convert_"})  # by what Hydra makes objects
_REFERENCE = re.compile(r"\$\{(?:[\w.]+|now:[^${}]*)\}")  # interpolations that only read
_FOLLOWS = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)[^{}]*\}")
_NAMED = re.compile(r"\$\{([\w.]+)\}")
_OF_NULL = {"privacy.noise_seed": int, "budget.total.epsilon": float, "budget.total.delta": float}  # of no class
_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}
_HERE = ("basic", "joblib", "submitit_local")  # launchers whose jobs are all of this machine, where a lock holds
_NEAREST, _LIKE = 3, 0.6
_OF_A_TABLE = frozenset({"data.path", "data.domain"})  # which data=table has


class Composition(NamedTuple):
    """What ``conf/`` makes of choices of groups.

    Attributes:
        settings: Each setting and each block of settings by its dotted name: its value, and the class of its block.
        groups: The choice of each group that there is.
        made: What Hydra has composed, its own settings included; not to be changed.
    """

    settings: dict[str, tuple[Any, str | None]]
    groups: dict[str, str]
    made: DictConfig


def all_groups() -> frozenset[str]:
    """Return the names of the groups of choices; not folders that only name classes."""
    return frozenset(group for names in _brought_by().values() for group in names)


def all_tasks() -> list[str]:
    """Return the names of the tasks."""
    return choices_of("task")


def choices_of(group: str) -> list[str]:
    """Return the names of a group's choices.

    Example:
        >>> choices_of("learner")
        ['dr', 'r']
    """
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def target_of(task: str) -> str:
    """Return the import path of the family of a task's runs.

    Example:
        >>> target_of("owl")
        'torchdpcate.cli.tasks.rules.Rules'
    """
    return str(_read("task", task)["task"]["_target_"])


def composition(chosen: Mapping[str, str]) -> Composition:
    """Return the settings and groups that there are with the given choices of groups.

    Args:
        chosen: What the user chose, by group.

    Raises:
        InputError: A group that the task and its choices have no use for.

    Example:
        >>> composition({"task": "policy_selection"}).groups["policies"]
        'thresholds'
    """
    try:
        return _composed(**chosen)
    except ConfigCompositionException:
        brings = {group for (group, _), names in _brought_by().items() if names}
        used: dict[str, str] = {}
        for group in sorted(chosen, key=lambda group: (group != "experiment", group != "task", group not in brings)):
            made = _composed(**used)
            if group not in ("experiment", *made.groups):
                raise _not_used(group, made) from None
            used[group] = chosen[group]
        if {"experiment", "task"} <= chosen.keys():
            experiment, task = chosen["experiment"], _composed(experiment=chosen["experiment"]).groups["task"]
            raise InputError(f"experiment={experiment}: is of task={task}; leave task={chosen['task']} out") from None
        raise


@cache
def _composed(**chosen: str) -> Composition:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        words = [f"{group}={choice}" for group, choice in chosen.items()]
        made: Any = compose("config", words, return_hydra_config=True)
    groups = {
        group: choice
        for group, choice in made.hydra.runtime.choices.items()
        if choice is not None and not group.startswith("hydra/")
    }
    found: dict[str, tuple[Any, str | None]] = {}

    def note(block: Mapping[str, Any], place: str) -> None:
        for key, value in block.items():
            if not str(key).startswith("_"):  # Hydra's own: which class, and how it is built
                found[f"{place}{key}"] = value, block.get("_target_")
            if isinstance(value, Mapping):
                note(value, f"{place}{key}.")

    plain = OmegaConf.to_container(made, resolve=False)
    assert isinstance(plain, dict)
    note({str(key): value for key, value in plain.items() if key != "hydra"}, "")
    return Composition(found, groups, made)


def configuration(words: Sequence[str]) -> DictConfig | None:
    """Return the configuration of one run, with Hydra's own settings; None where Hydra sweeps, launches or shows it.

    Args:
        words: Command-line words, which `checked_overrides` lets pass.

    Example:
        >>> configuration(["second_stage=linear", "seed=2"]).seed, configuration(["-m", "seed=0,1"])
        (2, None)
    """
    overrides = _overrides(words)
    if any(word.startswith("-") for word in words) or any(_HYDRA.match(one.key_or_group) for one in overrides):
        return None
    config = copy.deepcopy(composition(chosen_groups(words)).made)
    for override in overrides:
        if override.key_or_group not in all_groups():
            OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
    with read_write(config.hydra):
        config.hydra.mode = RunMode.RUN
        config.hydra.overrides.task = list(words)
    return config


def owners(key: str) -> dict[str, list[str]]:
    """Return the choices, by group, whose files bring a group, a block of settings or a setting.

    Args:
        key: Its dotted name.

    Example:
        >>> owners("nuisance")
        {'task': ['cate', 'rule']}
        >>> owners("rule.share")
        {'task': ['rule']}
        >>> owners("second_stage.bandwidth")
        {'second_stage': ['kernel_ridge']}
    """
    block, _, setting = key.partition(".")
    setting = setting.partition(".")[0]
    found: dict[str, list[str]] = {}
    for (group, choice), names in _brought_by().items():
        own = {name: value for name, value in _read(group, choice).items() if name != "defaults"}
        inner = own if group == block else own.get(block) if group == "task" else None
        brings = block in names or (group == "task" and block in own)
        if (isinstance(inner, Mapping) and setting in inner) if setting else brings:
            found.setdefault(group, []).append(choice)
    return found


@cache
def _brought_by() -> dict[tuple[str, str], set[str]]:
    """Return the groups that each file of ``conf/`` brings, by its group and choice."""
    found = {}
    for path in sorted(conf_dir().rglob("*.yaml")):
        group = path.parent.relative_to(conf_dir()).as_posix().removeprefix(".")
        names = _BROUGHT.findall(path.read_text(encoding="utf-8"))
        inner = {name if root or not group else f"{group}/{name}" for root, name in names}
        found[group, path.stem] = {name for name in inner if not name.startswith("hydra")}
    return found


@cache
def _read(group: str, choice: str) -> Mapping[str, Any]:
    found = yaml.safe_load((conf_dir() / group / f"{choice}.yaml").read_text(encoding="utf-8"))
    return {} if found is None else found


@contextmanager
def checked_overrides(words: Sequence[str]) -> Iterator[None]:
    """Refuse what would run or read what ``conf/`` does not name, and settings that are not there or of another type.

    Hydra would run whatever class a yaml file of another folder names, and advises to add a setting that it does not
    know, which would then be ignored.

    Args:
        words: Command-line words, as Hydra will parse them.

    Raises:
        InputError: Such a word.
    """
    overrides = _overrides(words)
    several = next((override for override in overrides if override.is_sweep_override()), None)
    if several is not None and {"-m", "--multirun"}.isdisjoint(words):
        word = several.input_line
        raise InputError(f"{word}: has several values; add -m for a run with each, or write [A,B] for a list")
    _check_ledger(overrides)
    _check_settings(overrides)
    try:
        yield
    except (HydraException, ImportError) as error:  # of a launcher: what a run raises is told by the run
        word = next((str(override.input_line) for override in overrides if "launcher" in override.key_or_group), None)
        if word is None:
            raise
        raise InputError(
            f"{word}: {' '.join(str(error).split())}; launchers are packages of their own, as hydra-joblib-launcher "
            "or hydra-submitit-launcher; train --cfg hydra with the same hydra/launcher shows the settings of one"
        ) from None


def options_first(words: Sequence[str]) -> list[str]:
    """Return the words with options before settings: Hydra wants the settings side by side.

    Args:
        words: Command-line words.

    Raises:
        InputError: An option that would read settings from elsewhere, or that there is not.

    Example:
        >>> options_first(["seed=0,1", "-m", "task=owl"])
        ['-m', 'seed=0,1', 'task=owl']
    """
    options, settings = list[str](), list[str]()
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            settings.append(word)
        elif word in _SWITCHES:
            options.append(word)
        elif word.partition("=")[0] in _SHOWS:
            shown = word.partition("=")[2] or (left.pop(0) if left else "")
            if shown not in ("job", "hydra", "all"):
                raise InputError(f"{word}: give --cfg job, hydra or all")
            options += ["--cfg", shown]
        else:
            near = nearest(word, (*_SWITCHES, *_SHOWS), "")
            raise InputError(
                f"{word}: no such option; {near + '; ' if near else ''}settings are words without dashes, KEY=VALUE; "
                "-m sweeps, --cfg job shows the configuration"
            )
    sweeps, shows = {"-m", "--multirun"} & {*options}, "--cfg" in options
    if (sweeps and shows) or ("--resolve" in options and not shows):
        raise InputError(f"{' '.join(options)}: --cfg shows one run, without -m; --resolve is for --cfg")
    return [*options, *settings]


def sweep_words(words: Sequence[str]) -> list[str]:
    """Return the words of a sweep over choices with each other word as a sweep over its one value.

    Before it composes a sweep's runs, Hydra composes all words that are not swept over. Of a sweep over tasks they
    would be refused where the default task has no use for them.

    Args:
        words: Command-line words.

    Example:
        >>> sweep_words(["-m", "task=owl,two_stage_rule", "weights=private"])
        ['-m', 'task=owl,two_stage_rule', 'weights=choice(private)']
        >>> sweep_words(["-m", "task=owl", "weights=private", "seed=0,1"])
        ['-m', 'task=owl', 'weights=private', 'seed=0,1']
    """
    groups, parsed = all_groups(), {str(override.input_line): override for override in _overrides(words)}
    if not any(override.is_sweep_override() and override.key_or_group in groups for override in parsed.values()):
        return list(words)
    return [_swept(word, parsed[word]) if word in parsed else word for word in words]


def _swept(word: str, override: Override) -> str:
    key, _, value = word.partition("=")
    if override.is_sweep_override() or override.is_hydra_override() or not value:
        return word
    return f"{key}=choice({value})"


def with_implied_table(words: Sequence[str]) -> list[str]:
    """Return the words with ``data=table`` where they name a file of records, or its domain, and choose no data.

    Args:
        words: Command-line words, options first.

    Example:
        >>> with_implied_table(["data.path=people.csv"])
        ['data.path=people.csv', 'data=table']
    """
    overrides = _overrides(words)
    named = any(override.key_or_group in _OF_A_TABLE for override in overrides)
    implied = named and not any(override.key_or_group == "data" for override in overrides)
    return [*words, *(["data=table"] if implied else [])]


def _overrides(words: Sequence[str]) -> list[Override]:
    """Return the parsed overrides of words, as ``readable_words`` returns them.

    Raises:
        InputError: A word that Hydra cannot read, or that would run or read what ``conf/`` does not name.
    """
    overrides = []
    for word in options_first(words):
        if word.startswith("-") or word in ("job", "hydra", "all"):
            continue
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException:
            key, equals, _ = word.partition("=")
            raise InputError(
                f"{word}: cannot be read; write {key}='\"...\"' for a plain text"
                if equals
                else f"{word}: write KEY=VALUE, such as {_example(word)}"
            ) from None
        _check_word(override)
        overrides.append(override)
    return overrides


def chosen_groups(words: Sequence[str]) -> dict[str, str]:
    """Return the choices of groups among words, by group.

    Args:
        words: Command-line words.

    Raises:
        InputError: No such choice.
    """
    return {
        override.key_or_group: _values(override)[0]
        for override in _overrides(words)
        if override.key_or_group in all_groups()
    }


def _check_word(override: Override) -> None:
    """Refuse a word by which Hydra would run or read what ``conf/`` does not name, or that has no values.

    Raises:
        InputError: Such a word.
    """
    word, key = str(override.input_line), override.key_or_group
    if not key:
        raise InputError(f"{word}: write KEY=VALUE, such as {_example(key)}")
    if override.is_delete():
        raise InputError(f"{word}: a setting cannot be taken away; give KEY=VALUE, which may be null")
    if override.package is not None:
        raise InputError(f"{word}: write {key}=..., without @: each group has its place")
    if _HYDRA.match(key) and key not in _OF_HYDRA and not key.startswith(_LAUNCHER):
        raise InputError(f"{word}: not to be chosen; of Hydra's own there are {', '.join(_OF_HYDRA)} and {_LAUNCHER}*")
    if _HYDRA.match(key) and override.is_sweep_override():
        raise InputError(f"{word}: is the same for all runs; give one value")
    if key.startswith("task."):
        raise InputError(f"{word}: is chosen by task=NAME")
    if override.is_interval_sweep() or isinstance(override._value, Glob):
        raise InputError(f"{word}: write its values, as {key}=A,B")
    values = _plain(override)
    if (instead := remedy(key, values)) is not None:
        raise InputError(f"{word}: is no longer there; {instead}")
    if not values:
        raise InputError(f"{word}: has no value, so that nothing would run; give one at least")
    for text in _texts([re.findall(r"\w+", key), values]):
        if text in _BUILDS:
            raise InputError(f"{word}: would run code that the word names by {text}; classes are named by conf/ alone")
        if "${" in _REFERENCE.sub("", text):
            raise InputError(f"{word}: only ${{SETTING}} and ${{now:FORMAT}} are looked up; write the value itself")
    if key in all_groups():
        known = choices_of(key)  # of other choices Hydra would read any file that a path leads to
        for choice in ("null" if value is None else value for value in values):
            if choice not in known:
                found = nearest(str(choice), known, "none is near")
                raise InputError(f"{key}={choice}: there is no such {key}; {found}; choose one of {', '.join(known)}")
    if (key in all_groups() or key in _OF_HYDRA) and (override.is_add() or override.is_force_add()):
        raise InputError(f"{word}: write {word.lstrip('+')}")


def _plain(override: Override) -> list[Any]:
    """Return the values of a word, several of a sweep, without their quotes.

    Raises:
        InputError: A range that cannot be counted.
    """
    found: list[Any]
    try:
        found = list(override.sweep_iterator()) if override.is_sweep_override() else [override._value]
    except ValueError as error:
        raise InputError(f"{override.input_line}: {error}") from None
    return [_unquoted(value) for value in found]


def _unquoted(value: Any) -> Any:
    """Return a value of Hydra's grammar in plain types."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {str(_unquoted(key)): _unquoted(inner) for key, inner in value.items()}
    return [_unquoted(inner) for inner in value] if isinstance(value, list) else value


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in [*value, *value.values()] if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _example(word: str) -> str:
    """Return a word of the right form that may be what was meant by one without a value."""
    key = word.lstrip("+-")
    if key in all_groups():
        return f"{key}={choices_of(key)[0]}"
    return f"{key}=VALUE" if key in _composed().settings else "privacy.epsilon=2"


def _check_settings(overrides: Sequence[Override]) -> None:
    """Refuse what is neither a group nor a setting of this task, or is of another type than its default.

    The type is that of the default in ``conf/`` or, of null, what the class of its block states.
    """
    choices = [override for override in overrides if override.key_or_group in all_groups()]
    made = [composition(combination) for combination in _combinations(choices)]
    known = {name for one in made for name in one.settings}
    for override in overrides:
        key = override.key_or_group
        if override in choices or _HYDRA.match(key):
            continue
        if key not in known:
            raise _unknown(override, made[0], known)
        if override.is_add() and all(key in one.settings for one in made):
            raise InputError(f"{override.input_line}: the setting is there; write it without +")
        for one in made:
            for value in _plain(override):
                _check_type(key, value, one.settings)


def _unknown(override: Override, used: Composition, known: set[str]) -> InputError:
    key = override.key_or_group
    if owners(key):
        return _not_used(key, used)
    names = known | all_groups() | _OF_A_TABLE
    last = key.rpartition(".")[2]
    same = sorted(name for name in names if name.rpartition(".")[2] == last)
    near = difflib.get_close_matches(key, sorted(names), _NEAREST, _LIKE)
    found = list(dict.fromkeys([*same, *near]))[:_NEAREST]
    shown = "torchdpcate train --cfg job shows all there are"
    remedy = f"the nearest is {' or '.join(found)} ({shown})" if found else f"no name is near it; {shown}"
    return InputError(f"{override.input_line}: there is no setting {key}; {remedy}")


def _not_used(key: str, made: Composition) -> InputError:
    """Return the error of a word that belongs to other choices than those of this run."""
    found, used = owners(key), made.groups
    group = next((group for group in found if group in used and group != "task"), "task" if "task" in found else "")
    group = group or next(iter(found), "task")
    choices = found.get(group, [])
    chosen = f" with {group}={used[group]}" if group in used and group != "task" else ""
    which = choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} and {choices[-1]}"
    brought = {} if group in used else owners(group)
    which += f", of task={' and '.join(brought['task'])}" if [*brought] == ["task"] else ""  # such as a trainer
    remedy = "".join(f"; use {name}" for name in sorted(made.settings) if name.endswith(f".{key}"))
    return InputError(f"{key}: not used by task={used['task']}{chosen}; it is of {group}={which}{remedy}")


def _check_type(name: str, value: Any, defaults: Mapping[str, tuple[Any, str | None]]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_type(f"{name}.{key}", inner, defaults)
        return
    default, target = defaults.get(name, (value, None))
    followed = _FOLLOWS.fullmatch(default) if isinstance(default, str) else None
    if followed is not None and followed[1] in all_groups():
        raise InputError(f"{name} = {value}: is what {followed[1]}=CHOICE chooses; give that")
    if followed is not None and followed[1] in defaults:
        default, target = defaults[followed[1]]
    if isinstance(value, str) and "${" in value:
        for other in _NAMED.findall(value):
            if other == name or (other not in defaults and not _HYDRA.match(other)):
                raise InputError(f"{name} = {value}: there is no other setting {other}")
        return
    kind = type(default) if value is None else _OF_NULL.get(name, type(default))
    if default is None and target is not None and type(value) not in (type(None), int, float):
        parameter = signature(get_object(target)).parameters.get(name.rpartition(".")[2])
        kinds = {*str(parameter and parameter.annotation).split(" | ")} - {"None"}  # may be a word or the type itself
        kind = (float if "float" in kinds else int) if kinds and kinds <= {"int", "float"} else kind
    right = isinstance(value, int | float if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    if kind in _KINDS and not right:
        raise InputError(f"{name} = {value}: give {_KINDS[kind]}")


def _check_ledger(overrides: Sequence[Override]) -> None:
    """Refuse one ledger over runs that may be on several machines: they may not see its file, nor keep its lock."""
    chosen = {override.key_or_group: override for override in overrides}
    launcher, shared = chosen.get("hydra/launcher"), chosen.get("budget.shared")
    if launcher is None or shared is None or shared.value() is None or launcher.value() in _HERE:
        return
    raise InputError(
        f"{launcher.input_line}: its runs may be on other machines, where the lock of budget.shared need not hold; use "
        f"{', '.join(_HERE[1:])}, or give each run its part of the total by privacy.epsilon, without budget.shared"
    )


def _combinations(choices: Sequence[Override]) -> Iterator[dict[str, str]]:
    """Yield the chosen groups with their values, each value of a sweep once."""
    options = {override.key_or_group: _values(override) for override in choices}
    first = {group: values[0] for group, values in options.items()}
    yield first
    for group, values in options.items():
        yield from ({**first, group: value} for value in values[1:])


def _values(override: Override) -> list[str]:
    """Return the values of a word as Hydra writes them."""
    return list(
        override.sweep_string_iterator() if override.is_sweep_override() else [override.get_value_element_as_str()]
    )


def readable_words(words: Sequence[str]) -> list[str]:
    """Return the words with names of files and folders in quotes where they need them, and ``~`` as the home folder.

    The grammar has ASCII letters and few signs, and makes numbers and truth values of names. In a sweep commas separate
    names. Values in quotes, lists, interpolations and null stay.

    Args:
        words: Command-line words.

    Example:
        >>> readable_words(["data.path=donn\u00e9es (1).csv", "run_dir=1e5", "seed=1"])
        ["data.path='donn\u00e9es (1).csv'", "run_dir='1e5'", 'seed=1']
        >>> readable_words(["-m", "data.path=a.csv,b#.csv", "seed=0,1"])
        ['-m', "data.path=a.csv,'b#.csv'", 'seed=0,1']
    """
    sweep = not {"-m", "--multirun"}.isdisjoint(words)
    return [_readable(word, sweep) for word in words]


def text_of(word: str) -> str:
    """Return the text of a word's value, without its quotes."""
    return str(OverridesParser.create().parse_override(word).value())


def _readable(word: str, sweep: bool) -> str:
    key, _, value = word.partition("=")
    name = key.lstrip("+")
    if (
        name not in PATHS
        or value in ("", "null")
        or "${" in value
        or (value[0] in "'\"[{" and _as_hydra_reads(word) is not None)
    ):
        return word
    parts = value.split(",") if sweep and name != "run_dir" else [value]
    return f"{key}={','.join(_as_text(key, os.path.expanduser(part)) for part in parts)}"


def _as_text(key: str, text: str) -> str:
    """Return a text as Hydra takes it, in quotes where it would read something else."""
    read = _as_hydra_reads(f"{key}={text}")
    plain = read is not None and not read.is_sweep_override() and read.value() == text
    return text if plain else QuotedString(text, Quote.single).with_quotes()


def _as_hydra_reads(word: str) -> Override | None:
    """Return a word as Hydra reads it; None where it cannot."""
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None
