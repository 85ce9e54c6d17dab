"""The words of ``torchdpcate train`` before Hydra sees them: known settings, and no configuration from elsewhere."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf

from torchdpcate.cli import plain_values
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
    ("--run", "-r"),
    ("--multirun", "-m"),
    ("--shell-completion", "-sc"),
)
_OPTIONS = (
    ("--package", "-p"),
    ("--config-path", "-cp"),
    ("--config-name", "-cn"),
    ("--config-dir", "-cd"),
    ("--experimental-rerun",),
)
_ELSEWHERE = ("config_dir", "config_path", "config_name", "experimental_rerun")
_OPEN = ("effect.shares",)  # settings by names of the user's choice, which the class that reads them checks
_HYDRA = "hydra"  # Hydra's own settings, which it checks itself
_OPEN_OF_HYDRA = ("hydra.job.env_set.", "hydra.launcher.", "hydra.sweeper.")  # where names may be of the user's choice
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
    """Refuse what would read configuration from elsewhere, and settings that are not there, with the nearest names.

    Hydra would run whatever class a yaml file of another folder names, and advises to add a setting that it does not
    know, which would then be ignored.

    Args:
        words: Command-line words, as Hydra will parse them.

    Raises:
        InputError: Such a word.
    """
    overrides = _overrides(words)
    _check_ledger(overrides)
    if any(override.is_add() or override.is_force_add() for override in overrides):
        _check_choices(overrides)
        _check_names(overrides)
    try:
        yield
    except ConfigCompositionException:
        _check_choices(overrides)
        _check_launcher(overrides)
        _check_names(overrides)
        raise


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
        words: Command-line words.

    Example:
        >>> with_implied_table(["data.path=people.csv"])
        ['data.path=people.csv', 'data=table']
    """
    overrides = _overrides(words)
    named = any(override.key_or_group in _OF_A_TABLE and not override.is_delete() for override in overrides)
    if not named or any(_chooses_data(override) for override in overrides):
        return list(words)
    place = list(words).index(str(overrides[0].input_line)) + 1  # beside others, as Hydra wants all of them
    return [*words[:place], "data=table", *words[place:]]


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
    known, groups = {*_setting_names(_compose(list(choices))), "experiment", "task"}, all_groups()
    above = {name.rpartition(".")[0] for name in known}
    return sorted(name for name in known if name in groups or name not in above)


def _swept(word: str, override: Override) -> str:
    key, _, value = word.partition("=")
    if override.is_sweep_override() or override.is_delete() or override.is_hydra_override() or not value:
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
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    known = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=known)
    return parser


def _overrides(words: Sequence[str]) -> list[Override]:
    """Return the parsed overrides of words as ``plain_values.readable_words`` returns them."""
    parser = _hydras_options()
    parsed, unknown = parser.parse_known_args(list(words))
    if unknown:
        option = unknown[0].partition("=")[0]
        name, _, value = unknown[0].lstrip("-").partition("=")
        setting = f"as {name}={value or 'VALUE'}" if name in _settings([]) else "KEY=VALUE"
        known = nearest(option, options(parser), f"settings are words without dashes, {setting}, and -m sweeps")
        raise InputError(f"{unknown[0]}: no such option; {known}")
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
        if override.key_or_group == "hydra.searchpath":
            raise _elsewhere("hydra.searchpath")
    return overrides


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


def _check_choices(overrides: Sequence[Override]) -> None:
    """Refuse the first choice of a group that the group does not have."""
    for override in overrides:
        group = override.key_or_group
        known = choices_of(group) if group in all_groups() else []
        for value in _values(override):
            if known and value not in (None, "null", *known) and "$" not in str(value):
                found = nearest(str(value), known, "none is near")
                raise InputError(
                    f"{group}={value}: there is no such {group}; {found}; choose one of {', '.join(known)}"
                )


def _check_launcher(overrides: Sequence[Override]) -> None:
    """Refuse a launcher whose extra is not installed."""
    for override in (override for override in overrides if override.key_or_group == "hydra/launcher"):
        extra = str(_values(override)[0]).partition("_")[0]
        if extra in _LAUNCHERS:
            try:
                version(f"hydra-{extra}-launcher")
            except PackageNotFoundError:
                remedy = f"pip install hydra-{extra}-launcher, or leave it out to run one after the other"
                raise InputError(f"{override.input_line}: needs the extra {extra}; {remedy}") from None


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
        used = brought({key: value for key, value in combination if value is not None})
        for override in overrides:
            _check_used(override, used)
    for override in overrides:
        hydras = override.key_or_group.split(".")[0].split("/")[0] == _HYDRA
        closed = hydras and not override.key_or_group.startswith(_OPEN_OF_HYDRA)
        if (override in choices or closed) and (override.is_add() or override.is_force_add()):
            word = str(override.input_line)
            raise InputError(f"{word}: write {word.lstrip('+')}")
    known = _settings(choices)
    for override in overrides:
        key = override.key_or_group
        above, _, last = key.rpartition(".")
        own = key.split(".")[0].split("/")[0] == _HYDRA or (last.startswith("_") and above in known)
        named = key in groups or key in known or (above in known.intersection(_OPEN))
        if not (own or override.is_delete() or named):
            used = brought({o.key_or_group: str(value) for o in choices for value in _values(o)[:1] if value})
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
        known |= set(
            _setting_names(_compose([key if value is None else f"{key}={value}" for key, value in combination]))
        )
    return known


def _compose(words: list[str]) -> DictConfig:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("config", words)


def _combinations(choices: Sequence[Override]) -> Iterator[list[tuple[str, str | None]]]:
    """Yield the chosen groups with their values, each value of a sweep once; None where a group is deleted."""
    options = [[(override.get_key_element(), value) for value in _values(override)] for override in choices]
    first = [values[0] for values in options]
    yield first
    for place, values in enumerate(options):
        yield from ([*first[:place], value, *first[place + 1 :]] for value in values[1:])


def _values(override: Override) -> list[str | None]:
    if override.is_delete():
        return [None]
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
