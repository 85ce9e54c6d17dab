"""Yaml files of plain entries: nothing in them is run, looked up, or grows when it is read."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from torchdpcate._text import is_plain
from torchdpcate.errors import InputError

_MOST_BYTES = 1 << 20
_DEEPEST = 20
_POWERS = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")


def read_yaml(path: Path) -> Any:
    """Return the entries of a yaml file as dicts, lists, numbers, truth values and words.

    Aliases are refused, because nine lines of them stand for more than a memory holds; so are deep nesting and tags.
    A date stays a word, and 6e4 is a number, as in yaml 1.2.

    Args:
        path: The file, UTF-8.

    Raises:
        InputError: Not yaml, an entry twice, larger than a MiB, nested more than 20 deep, with an alias, a tag, control
            characters, or characters that turn the direction of writing.
    """
    import yaml

    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"it is larger than {_MOST_BYTES:,} bytes")
        text = data.decode("utf-8-sig")
        _check_plain(yaml.parse(text, Loader=yaml.SafeLoader))
        return _shown(yaml.load(text, Loader=_loader()))
    except Exception as error:  # yaml's constructors let through what Python makes of their input
        raise InputError(" ".join(str(error).split())[:200]) from None


def _check_plain(events: Any) -> None:
    """Refuse aliases, tags and deep nesting, before anything is built of the events."""
    from yaml import AliasEvent, CollectionEndEvent, CollectionStartEvent

    depth = 0
    for event in events:
        if isinstance(event, AliasEvent):
            raise InputError(f"it has the alias *{event.anchor}; write the entries out")
        if getattr(event, "tag", None) is not None:
            raise InputError(f"it has the tag {event.tag}; leave it out")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _DEEPEST:
            raise InputError(f"it is nested more than {_DEEPEST} deep")


def _shown(entries: Any) -> Any:
    """Return the entries if all words in them can be shown: a terminal would obey the others."""
    if isinstance(entries, dict):
        return {_shown(key): _shown(value) for key, value in entries.items()}
    if isinstance(entries, list):
        return [_shown(value) for value in entries]
    if isinstance(entries, str) and not is_plain(entries.replace("\n", " ").replace("\t", " ")):
        raise InputError(f"the words {entries[:60]!r} have characters that cannot be shown; leave them out")
    return entries


@lru_cache(maxsize=1)
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """yaml's safe loader, without dates, with powers of ten, and with each entry once."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict:
            entries = super().construct_mapping(node, deep)
            if len(entries) < len(node.value):
                raise InputError(f"an entry is there twice, in line {node.start_mark.line + 1} or below")
            return entries

    date, number = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float"
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != date]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(number, re.compile(f"^(?:{_POWERS.pattern})$"), list("-+0123456789."))
    return Loader
