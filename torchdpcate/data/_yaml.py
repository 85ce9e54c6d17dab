"""Yaml files of plain entries: nothing in them is run, looked up, or grows when it is read."""

import io
from pathlib import Path
from typing import Any

from torchdpcate.errors import InputError

_MOST_BYTES = 1 << 20
_DEEPEST = 20


def read_yaml(path: Path) -> Any:
    """Return the entries of a yaml file as dicts, lists, numbers, truth values and words.

    Aliases are refused, because nine lines of them stand for more than a memory holds; so is deep nesting. Tags
    other than yaml's own are refused by the loader, and ``${...}`` stays the word that it is: a file that came
    from elsewhere reads nothing of this process's environment.

    Args:
        path: The file, UTF-8.

    Raises:
        InputError: Not yaml, an entry twice, larger than a MiB, nested more than 20 deep, or with aliases.
    """
    import yaml
    from omegaconf import OmegaConf

    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"it is larger than {_MOST_BYTES:,} bytes")
        text = data.decode("utf-8-sig")
        _check_plain(yaml.parse(text, Loader=yaml.SafeLoader))
        # OmegaConf's loader refuses an entry that is there twice, and takes 6e4 for a number as yaml 1.2 does.
        return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
    except Exception as error:  # yaml and omegaconf have errors of their own, and let Python's through
        raise InputError(" ".join(str(error).split())[:200]) from None


def _check_plain(events: Any) -> None:
    """Refuse aliases and deep nesting, before anything is built of the events."""
    from yaml import AliasEvent, CollectionEndEvent, CollectionStartEvent

    depth = 0
    for event in events:
        if isinstance(event, AliasEvent):
            raise InputError(f"it has the alias *{event.anchor}; write the entries out")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _DEEPEST:
            raise InputError(f"it is nested more than {_DEEPEST} deep")
