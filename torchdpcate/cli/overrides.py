"""The words of ``torchdpcate train`` before Hydra sees them: known settings, and no configuration from elsewhere."""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf

from torchdpcate.errors import InputError
from torchdpcate.registry import conf_dir

_ELSEWHERE = ("config_dir", "config_path", "config_name", "experimental_rerun")
_OPEN = ("effect.shares",)  # settings by names of the user's choice, which the class that reads them checks
_HYDRA = "hydra"  # Hydra's own settings, which it checks itself
_NEAREST, _LIKE = 3, 0.6


@contextmanager
def checked_overrides(words: Sequence[str]) -> Iterator[None]:
    """Refuse what would read configuration from elsewhere, and settings that are not there, with the nearest names.

    Hydra would run whatever class a yaml file of another folder names, and advises to add a setting that it does not
    know, which nobody would read then.

    Args:
        words: Command-line words, as Hydra will parse them.

    Raises:
        InputError: Such a word.
    """
    overrides = _overrides(words)
    if any(override.is_add() or override.is_force_add() for override in overrides):
        _check_names(overrides)
    try:
        yield
    except ConfigCompositionException:
        _check_names(overrides)
        raise


def _overrides(words: Sequence[str]) -> list[Override]:
    """Return the parsed overrides; none where Hydra itself will complain."""
    parsed, _ = get_args_parser().parse_known_args(list(words))
    for name in _ELSEWHERE:
        if getattr(parsed, name) is not None:
            raise _elsewhere(f"--{name.replace('_', '-')}")
    try:
        overrides = OverridesParser.create().parse_overrides(parsed.overrides)
    except HydraException:
        return []
    for override in overrides:
        if override.key_or_group == "hydra.searchpath":
            raise _elsewhere("hydra.searchpath")
    return overrides


def _elsewhere(option: str) -> InputError:
    return InputError(
        f"{option}: reads settings from elsewhere, and such a file may name any code to be run; give each setting as "
        "KEY=VALUE"
    )


def _check_names(overrides: Sequence[Override]) -> None:
    """Refuse the first override of what is neither a group nor a setting."""
    groups = _groups()
    choices = [override for override in overrides if override.key_or_group in groups]
    for choice in choices:
        if choice.is_add() or choice.is_force_add():
            word = str(choice.input_line)
            raise InputError(f"{word}: write {word.lstrip('+')}")
    known = _settings(choices)
    for override in overrides:
        key = override.key_or_group
        own = key.split(".")[0].split("/")[0] == _HYDRA or key.rpartition(".")[2].startswith("_")
        named = key in groups or key in known or (key.rpartition(".")[0] in known.intersection(_OPEN))
        if not (own or override.is_delete() or named):
            raise InputError(f"{override.input_line}: there is no setting {key}; {_remedy(key, known | groups)}")


def _remedy(key: str, known: set[str]) -> str:
    last = key.rpartition(".")[2]
    same = sorted(name for name in known if name.rpartition(".")[2] == last)
    near = difflib.get_close_matches(key, sorted(known), _NEAREST, _LIKE)
    names = list(dict.fromkeys([*same, *near]))[:_NEAREST]
    shown = "torchdpcate train --cfg job shows all there are"
    return f"the nearest is {' or '.join(names)} ({shown})" if names else f"no name is near it; {shown}"


def _groups() -> set[str]:
    """Return the names of the groups of choices, ``data/surface`` among them."""
    root = conf_dir()
    return {path.parent.relative_to(root).as_posix() for path in root.rglob("*.yaml")} - {"."}


def _settings(choices: Sequence[Override]) -> set[str]:
    """Return the names of all settings that there are with any of the chosen groups."""
    options = [list(_values(choice)) for choice in choices]
    first = [values[0] for values in options]
    known: set[str] = set()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for place, values in enumerate(options or [[""]]):
            for value in values:  # each choice of a sweep once
                words = [*first[:place], value, *first[place + 1 :]]
                known |= set(_names(compose("config", [word for word in words if word])))
    return known


def _values(override: Override) -> Iterator[str]:
    key = override.get_key_element()
    swept = override.sweep_string_iterator() if override.is_sweep_override() else [override.get_value_element_as_str()]
    for value in swept:
        yield f"{key}={value}"


def _names(config: DictConfig) -> Iterator[str]:
    """Yield the dotted names of a configuration's entries, those that hold others included."""

    def below(value: Any, name: str) -> Iterator[str]:
        for key, inner in value.items() if isinstance(value, dict) else ():
            if str(key).startswith("_"):
                continue  # Hydra's own: which class, and how it is built
            yield f"{name}{key}"
            yield from below(inner, f"{name}{key}.")

    yield from below(OmegaConf.to_container(config, resolve=False), "")
