"""The words of ``torchdpcate train`` before Hydra sees them: known settings, and no configuration from elsewhere."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import signature
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from torchdpcate.cli import gone, plain_values
from torchdpcate.cli.parser import Parser, nearest, options
from torchdpcate.errors import InputError
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
        >>> brought({"task": "policy_selection"})["policies"]
        'thresholds'
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
        {'task': ['cate', 'policy_selection', 'rule']}
        >>> users("rule", brought({}))
        {'task': ['owl', 'rule', 'two_stage_rule']}
    """
    near = {group: [choice for choice, has in _choices(group) if name in has] for group in groups if group != "task"}
    near = {group: choices for group, choices in near.items() if choices}
    return near or {"task": [task for task in all_tasks() if name in _reachable("task", task)]}


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


def _reachable(group: str, choice: str) -> set[str]:
    """Return the groups and blocks of settings that a choice brings, whatever else is chosen below it."""
    found = _own(group, choice)
    for inner in found & all_groups():
        found = found.union(*(_reachable(inner, own) for own, _ in _choices(inner)))
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
    """Return the names of the settings of a block; none of a value in its place."""
    if not isinstance(settings, Mapping):
        return set()
    return {str(name) for name in settings if not str(name).startswith("_")} - {"defaults"}


def _read(group: str, choice: str) -> Mapping[str, Any]:
    path = conf_dir() / group / f"{choice}.yaml"
    return _parsed(path.read_text(encoding="utf-8")) if path.is_file() else {}


@cache
def _parsed(text: str) -> Mapping[str, Any]:
    # a search for who brings a name reads each file hundreds of times
    found = yaml.safe_load(text)
    return found if isinstance(found, dict) else {}


_SWITCHES = (
    ("--help", "-h"),
    ("--hydra-help",),
    ("--version",),
    ("--resolve",),
)
_ONE_OF = (("--run", "-r"), ("--multirun", "-m"), ("--shell-completion", "-sc"))
_OPTIONS = (
    ("--package", "-p"),
    ("--config-path", "-cp"),
    ("--config-name", "-cn"),
    ("--config-dir", "-cd"),
    ("--experimental-rerun",),
)
_ELSEWHERE = ("config_dir", "config_path", "config_name", "experimental_rerun")
_HYDRA = re.compile(r"hydra(?:[./]|$)")
_OF_HYDRA = ("hydra/launcher", "hydra.sweep.dir", "hydra.sweep.subdir")  # others configure classes, or what runs them
_LAUNCHER = "hydra.launcher."  # settings of a launcher, which checks them itself
_BUILDS = frozenset({"_target_", "_args_", "_partial_", "_recursive_", "_convert_"})  # by what Hydra makes objects
_REFERENCE = re.compile(r"\$\{(?:[\w.]+|now:[^${}]*)\}")  # interpolations that only read
_FOLLOWS = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)[^{}]*\}")
_NAMED = re.compile(r"\$\{([\w.]+)\}")
_OF_NULL = {"privacy.noise_seed": int, "budget.total.epsilon": float, "budget.total.delta": float}  # of no class
_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}
_LAUNCHERS = ("joblib", "submitit")  # extras, of the same names as the first words of their launchers
_HERE = ("basic", "joblib", "submitit_local")  # launchers whose jobs are all of this machine, where a lock holds
_NEAREST, _LIKE = 3, 0.6
_ONE_DEVICE = (
    "training takes one process on one device, which trainer.accelerator names; many records in several processes: "
    "data.engine=ray, by sums"
)
_PAID = "privacy is paid for a public number of steps; give nuisance.epochs or second_stage.epochs"
_OF_LIGHTNING = {
    "trainer.callbacks": "a callback runs code beside records and losses that nothing paid for; give it in Python, by "
    "trainer=partial(default_trainer, callbacks=[...])",
    "trainer.default_root_dir": "logs and checkpoints go to the run's curator/logs alone: nothing pays for them",
    "trainer.devices": _ONE_DEVICE,
    "trainer.strategy": _ONE_DEVICE,
    "trainer.max_epochs": _PAID,
    "trainer.max_steps": _PAID,
}
"""Arguments of Lightning's Trainer that are no settings, and why."""
_OF_A_TABLE = frozenset({"data.path", "data.domain"})  # which data=table has


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
    _check_ledger(overrides)
    _check_launcher(overrides)
    if any(override.is_add() or override.is_force_add() for override in overrides):
        _check_names(overrides)
    _check_types(overrides)
    try:
        yield
    except ConfigCompositionException:
        _check_names(overrides)
        of_launcher = next((override for override in overrides if override.key_or_group.startswith(_LAUNCHER)), None)
        if of_launcher is None:
            raise
        raise InputError(
            f"{of_launcher.input_line}: the launcher has no such setting, or takes another value; train --cfg hydra "
            "with the same hydra/launcher shows those it has"
        ) from None
    except ImportError as error:  # of a launcher: what a run raises is told by the run
        launcher = next((override for override in overrides if override.key_or_group == "hydra/launcher"), None)
        if launcher is None:
            raise
        name = error.name or getattr(error.__context__, "name", None) or str(error)
        raise InputError(f"{launcher.input_line}: needs {name}, which is not installed; install it") from None


def options_first(words: Sequence[str]) -> list[str]:
    """Return the words with options before settings: Hydra wants the settings side by side.

    Args:
        words: Command-line words.

    Example:
        >>> options_first(["seed=0,1", "-m", "task=owl"])
        ['-m', 'seed=0,1', 'task=owl']
    """
    settings = _hydras_options().parse_known_intermixed_args(list(words))[0].overrides
    return [*(word for word in words if word not in settings), *settings]


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
    implied = named and not any(_chooses_data(override) for override in overrides)
    return [*words, *(["data=table"] if implied else [])]


def _chooses_data(override: Override) -> bool:
    """Whether a word chooses data, or an experiment that is of files or has nothing but its data."""
    group = override.key_or_group.partition("/")[0]
    if group != "experiment":
        return group == "data"
    return any(
        "path" in _read("data", brought({group: str(name)})["data"])
        or not any(inner != "data" for inner, _, _ in _defaults(group, str(name)))
        for name in _values(override)
    )


def known_settings(choices: Sequence[str]) -> list[str]:
    """Return the groups, and the names of the settings, that there are with the given choices of groups.

    Args:
        choices: Words GROUP=CHOICE.

    Raises:
        InputError: No such choice.
    """
    _overrides(choices)
    known, groups = {*_setting_names(_compose(list(choices))), "experiment", "task"}, all_groups()
    above = {name.rpartition(".")[0] for name in known}
    return sorted(name for name in known if name in groups or name not in above)


def _swept(word: str, override: Override) -> str:
    key, _, value = word.partition("=")
    if override.is_sweep_override() or override.is_hydra_override() or not value:
        return word
    return f"{key}=choice({value})"


def _hydras_options() -> Parser:
    """Return a parser of the words that Hydra takes."""
    parser = Parser(prog="torchdpcate train", add_help=False)
    parser.add_argument("overrides", nargs="*")
    for names in _SWITCHES:
        parser.add_argument(*names, action="store_true")
    for names in _OPTIONS:
        parser.add_argument(*names)
    what = parser.add_mutually_exclusive_group()
    for names in _ONE_OF:
        what.add_argument(*names, action="store_true")
    what.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    known = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
    what.add_argument("--info", "-i", nargs="?", const="all", choices=known)
    return parser


def _overrides(words: Sequence[str]) -> list[Override]:
    """Return the parsed overrides of words as ``plain_values.readable_words`` returns them.

    Raises:
        InputError: A word that Hydra cannot read, or that would run or read what ``conf/`` does not name.
    """
    parser = _hydras_options()
    parsed, unknown = parser.parse_known_intermixed_args(list(words))
    if unknown:
        option = unknown[0].partition("=")[0]
        name, _, value = unknown[0].lstrip("-").partition("=")
        meant = [known for known in sorted(_settings([]), key=len) if name in (known, known.rpartition(".")[2])]
        near = "" if meant else nearest(option, options(parser), "")
        setting = f"as {meant[0]}={value or 'VALUE'}" if meant else "KEY=VALUE"
        known = near or f"settings are words without dashes, {setting}, and -m sweeps"
        raise InputError(f"{unknown[0]}: no such option; {known}")
    if parsed.resolve and parsed.cfg is None:
        raise InputError("--resolve: is for --cfg, as --cfg job --resolve")
    for name in _ELSEWHERE:
        if getattr(parsed, name) is not None:
            raise _elsewhere(f"--{name.replace('_', '-')}")
    try:
        overrides = OverridesParser.create().parse_overrides(parsed.overrides)
    except HydraException:
        wrong = next(word for word in parsed.overrides if plain_values.parsed(word) is None)
        if "=" not in wrong and not wrong.startswith("~"):
            raise InputError(f"{wrong}: write KEY=VALUE, such as {_example(wrong)}") from None
        key = wrong.partition("=")[0].lstrip("+~")
        remedy = _remedy(key, _settings([]) | all_groups() | _OF_A_TABLE)
        raise InputError(f"{wrong}: there is no setting {key}; {remedy}") from None
    for override in overrides:
        _check_word(override)
    return overrides


def _check_word(override: Override) -> None:
    """Refuse a word by which Hydra would run or read what ``conf/`` does not name, or that has no values.

    Raises:
        InputError: Such a word.
    """
    word, key = str(override.input_line), override.key_or_group
    if key == "hydra.searchpath":
        raise _elsewhere(key)
    if not key:
        raise InputError(f"{word}: write KEY=VALUE, such as {_example(key)}")
    if override.is_delete():
        raise InputError(f"{word}: a setting cannot be taken away; give KEY=VALUE, which may be null")
    if override.package is not None:
        raise InputError(f"{word}: write {key}=..., without @: each group has its place")
    if key == "hydra/sweeper":
        raise InputError(
            f"{word}: a sweeper that chooses runs by what others showed looks at records that nothing paid for; leave "
            "it out, and write all values: -m KEY=A,B"
        )
    if _HYDRA.match(key) and key not in _OF_HYDRA and not key.startswith(_LAUNCHER):
        raise InputError(f"{word}: not to be chosen; of Hydra's own there are {', '.join(_OF_HYDRA)} and {_LAUNCHER}*")
    if _HYDRA.match(key) and override.is_sweep_override():
        raise InputError(f"{word}: is the same for all runs; give one value")
    if key.startswith("task."):
        raise InputError(f"{word}: is chosen by task=NAME")
    if override.is_interval_sweep() or isinstance(override._value, Glob):
        raise InputError(f"{word}: write its values, as {key}=A,B")
    values = _plain(override)
    if (instead := gone.remedy(key, values)) is not None:
        raise InputError(f"{word}: is no longer there; {instead}")
    if not values:
        raise InputError(f"{word}: has no value, so that nothing would run; give one at least")
    for text in _texts([re.findall(r"\w+", key), values]):
        if text in _BUILDS:
            raise InputError(f"{word}: would run code that the word names by {text}; classes are named by conf/ alone")
        if "${" in _REFERENCE.sub("", text):
            raise InputError(f"{word}: only ${{SETTING}} and ${{now:FORMAT}} are looked up; write the value itself")
    if key in all_groups():
        _check_choices(override, values)


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
    return f"{key}=VALUE" if "." in key or key in _settings([]) else "privacy.epsilon=2"


def _elsewhere(option: str) -> InputError:
    return InputError(
        f"{option}: reads settings from elsewhere, and such a file may name any code to be run; give each setting as "
        "KEY=VALUE"
    )


def _check_choices(override: Override, values: Sequence[Any]) -> None:
    """Refuse a choice that a group does not have: Hydra would read any file that a path leads to."""
    group, known = override.key_or_group, choices_of(override.key_or_group)
    for choice in ("null" if value is None else value for value in values):
        if choice not in known:
            found = nearest(str(choice), known, "none is near")
            raise InputError(f"{group}={choice}: there is no such {group}; {found}; choose one of {', '.join(known)}")


def _check_launcher(overrides: Sequence[Override]) -> None:
    """Refuse a launcher that is not installed."""
    for override in (override for override in overrides if override.key_or_group == "hydra/launcher"):
        Plugins.instance()  # which makes installed ones known
        known = [name.removesuffix(".yaml") for name in ConfigStore.instance().list("hydra/launcher")]
        for value in _plain(override):
            if value not in known:
                extra = str(value).partition("_")[0]
                remedy = (
                    f"needs the extra {extra}; pip install hydra-{extra}-launcher"
                    if extra in _LAUNCHERS
                    else (
                        f"there is no such launcher; {nearest(str(value), known, 'none is near')}; installed are "
                        + ", ".join(known)
                    )
                )
                raise InputError(f"{override.input_line}: {remedy}, or leave it out to run one after the other")


def _check_types(overrides: Sequence[Override]) -> None:
    """Refuse a setting of another type than its default in ``conf/`` or, of null, than its class states."""
    for combination in _combinations([override for override in overrides if override.key_or_group in all_groups()]):
        defaults = _defaults_by_name(brought(dict(combination)))
        for override in overrides:
            for value in _plain(override):
                _check_type(override.key_or_group, value, defaults)


def _check_type(name: str, value: Any, defaults: Mapping[str, tuple[Any, str | None]]) -> None:
    if name not in defaults:
        for key, inner in value.items() if isinstance(value, Mapping) else ():
            _check_type(f"{name}.{key}", inner, defaults)
        return
    default, target = defaults[name]
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


def _defaults_by_name(groups: Mapping[str, str]) -> dict[str, tuple[Any, str | None]]:
    """Return the default of each setting, with the class of its block.

    Args:
        groups: The configuration's groups.
    """

    def below(block: Mapping[str, Any], place: str) -> Iterator[tuple[str, tuple[Any, str | None]]]:
        for key, value in block.items():
            if isinstance(value, Mapping):
                yield from below(value, f"{place}{key}.")
            elif key not in _BUILDS:
                yield f"{place}{key}", (value, block.get("_target_"))

    def whole(group: str, choice: str) -> dict[str, Any]:
        own = dict(_read(group, choice))
        begun = [entry for entry in own.pop("defaults", ()) if isinstance(entry, str) and entry != "_self_"]
        return {name: value for part in begun for name, value in whole(group, part).items()} | own

    found: dict[str, tuple[Any, str | None]] = {}
    for group, choice in {"": _ROOT, **groups}.items():
        place = "" if group in ("", "task", "experiment") else f"{group.replace('/', '.')}."
        found |= dict(below(whole(group, choice), place))
    return found


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


def _check_names(overrides: Sequence[Override]) -> None:
    """Refuse the first override of what is neither a group nor a setting of this task."""
    groups = all_groups()
    choices = [override for override in overrides if override.key_or_group in groups]
    for combination in _combinations(choices):
        used = brought(dict(combination))
        for override in overrides:
            _check_used(override, used)
    for override in overrides:
        closed = override in choices or override.key_or_group in _OF_HYDRA
        if closed and (override.is_add() or override.is_force_add()):
            word = str(override.input_line)
            raise InputError(f"{word}: write {word.lstrip('+')}")
    known = _settings(choices)
    for override in overrides:
        key = override.key_or_group
        if not (key in groups or key in known or _HYDRA.match(key)):
            used = brought({o.key_or_group: _values(o)[0] for o in choices})
            if found := owners(key, used):
                raise _not_used(key, used, found)
            remedy = _OF_LIGHTNING.get(key) or _remedy(key, known | groups | _OF_A_TABLE)
            raise InputError(f"{override.input_line}: there is no setting {key}; {remedy}")


def _check_used(override: Override, used: Mapping[str, str]) -> None:
    """Refuse a group, or a setting of one, that neither the task nor its choices have."""
    key = override.key_or_group
    name = key.partition(".")[0]
    found = {} if name in used else owners(key, used) or users(name, used)
    if not any(found.values()) or any(used.get(group) in choices for group, choices in found.items()):
        return  # of this run, or no name at all
    own = [f"{group}={used[group]}" for group in ("task", "second_stage") if group in used]
    same = (
        [known for known in sorted(_setting_names(_compose(own))) if known.endswith(f".{name}")] if name == key else []
    )
    raise _not_used(key, used, found, same if "task" in found else [])


def _not_used(
    key: str, used: Mapping[str, str], found: Mapping[str, list[str]], same: Sequence[str] = ()
) -> InputError:
    """Return the error of a word that belongs to other choices than those of this run."""
    [(group, choices), *_] = found.items()
    chosen = "" if group == "task" else f" with {group}={used[group]}"
    which = choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} and {choices[-1]}"
    remedy = "".join(f"; use {known}" for known in same)
    return InputError(f"{key}: not used by task={used['task']}{chosen}; it is of {group}={which}{remedy}")


def _remedy(key: str, known: set[str]) -> str:
    last = key.rpartition(".")[2]
    same = sorted(name for name in known if name.rpartition(".")[2] == last)
    near = difflib.get_close_matches(key, sorted(known), _NEAREST, _LIKE)
    names = list(dict.fromkeys([*same, *near]))[:_NEAREST]
    shown = "torchdpcate train --cfg job shows all there are"
    return f"the nearest is {' or '.join(names)} ({shown})" if names else f"no name is near it; {shown}"


def _settings(choices: Sequence[Override]) -> set[str]:
    """Return the names of all settings that there are with any of the chosen groups."""
    known: set[str] = set()
    for combination in _combinations(choices):
        known |= set(_setting_names(_compose([f"{key}={value}" for key, value in combination])))
    return known


def _compose(words: list[str]) -> DictConfig:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("config", words)


def _combinations(choices: Sequence[Override]) -> Iterator[list[tuple[str, str]]]:
    """Yield the chosen groups with their values, each value of a sweep once."""
    options = [[(override.key_or_group, value) for value in _values(override)] for override in choices]
    first = [values[0] for values in options]
    yield first
    for place, values in enumerate(options):
        yield from ([*first[:place], value, *first[place + 1 :]] for value in values[1:])


def _values(override: Override) -> list[str]:
    """Return the values of a word as Hydra writes them."""
    return list(
        override.sweep_string_iterator() if override.is_sweep_override() else [override.get_value_element_as_str()]
    )


def _setting_names(config: DictConfig) -> Iterator[str]:
    """Yield the dotted names of a configuration's entries, those that hold others included."""

    def below(value: Any, name: str) -> Iterator[str]:
        for key, inner in value.items() if isinstance(value, dict) else ():
            if str(key).startswith("_"):
                continue  # Hydra's own: which class, and how it is built
            yield f"{name}{key}"
            yield from below(inner, f"{name}{key}.")

    yield from below(OmegaConf.to_container(config, resolve=False), "")
