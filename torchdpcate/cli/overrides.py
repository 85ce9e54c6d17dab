"""The words of ``torchdpcate train`` before Hydra sees them: known settings, and no configuration from elsewhere."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf

from torchdpcate.cli import plain_values
from torchdpcate.cli.groups import all_groups, brought, choices_of, owners, users
from torchdpcate.cli.parser import Parser, nearest, options
from torchdpcate.errors import InputError
from torchdpcate.registry import conf_dir

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
_NEAREST, _LIKE = 3, 0.6
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
    if any(override.is_add() or override.is_force_add() for override in overrides):
        _check_choices(overrides)
        _check_names(overrides)
    try:
        yield
    except ConfigCompositionException:
        _check_choices(overrides)
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
    if not named or any(override.key_or_group.partition("/")[0] in ("data", "experiment") for override in overrides):
        return list(words)
    place = list(words).index(str(overrides[0].input_line)) + 1  # beside others, as Hydra wants all of them
    return [*words[:place], "data=table", *words[place:]]


def known_settings(choices: Sequence[str]) -> list[str]:
    """Return the groups, and the names of the settings, that there are with the given choices of groups.

    Args:
        choices: Words GROUP=CHOICE.

    Raises:
        InputError: No such choice.
    """
    known, groups = {*_names(_compose(list(choices))), "experiment", "task"}, all_groups()
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
            raise InputError(
                f"{override.input_line}: there is no setting {key}; {_remedy(key, known | groups | _OF_A_TABLE)}"
            )


def _check_used(override: Override, used: Mapping[str, str]) -> None:
    """Refuse a group, or a setting of one, that neither the task nor its choices have."""
    key = override.key_or_group
    name = key.partition(".")[0]
    found = {} if name in used else owners(key, used) or users(name, used)
    if not any(found.values()) or any(used.get(group) in choices for group, choices in found.items()):
        return  # of this run, or no name at all
    own = [f"{group}={used[group]}" for group in ("task", "second_stage") if group in used]
    same = [known for known in sorted(_names(_compose(own))) if known.endswith(f".{name}")] if name == key else []
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
        known |= set(_names(_compose([key if value is None else f"{key}={value}" for key, value in combination])))
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


def _names(config: DictConfig) -> Iterator[str]:
    """Yield the dotted names of a configuration's entries, those that hold others included."""

    def below(value: Any, name: str) -> Iterator[str]:
        for key, inner in value.items() if isinstance(value, dict) else ():
            if str(key).startswith("_"):
                continue  # Hydra's own: which class, and how it is built
            yield f"{name}{key}"
            yield from below(inner, f"{name}{key}.")

    yield from below(OmegaConf.to_container(config, resolve=False), "")
