"""Yaml files of plain entries, shipped or a user's: nothing in them is run, looked up, or grows when it is read."""

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from torchdpcate._text import is_plain
from torchdpcate.errors import InputError
from torchdpcate.registry import conf_dir

_MOST_BYTES = 1 << 20
_DEEPEST = 20
_QUOTED = re.compile(r"['\"].*", re.DOTALL)
_POWERS = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")


def read_yaml(path: Path) -> Any:
    """Return the entries of a yaml file as dicts, lists, numbers, truth values and words.

    A file that is another than was meant may hold records, so that errors name lines of it and show nothing.

    Aliases are refused, because nine lines of them stand for more than a memory holds; so are deep nesting and tags.
    A date stays a word, as do yes, no, on and off, and 6e4 is a number, as in yaml 1.2.

    Args:
        path: The file, UTF-8.

    Raises:
        InputError: Not yaml, an entry twice, larger than a MiB, nested more than 20 deep, with an alias, a tag, control
            characters, or characters that turn the direction of writing.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"it is larger than {_MOST_BYTES:,} bytes")
        text = data.decode("utf-8-sig")
    except UnicodeError:
        raise InputError("it is not UTF-8") from None
    except OSError as error:
        raise InputError(str(error.strerror)) from None
    return parse_yaml(text)


def parse_yaml(text: str) -> Any:
    """Return the entries of a text as ``read_yaml`` does; arguments and errors are its own."""
    import yaml

    try:
        _check_plain(yaml.parse(text, Loader=yaml.SafeLoader))
        return yaml.load(text, Loader=_loader())
    except InputError as error:
        raise InputError(str(error)) from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", in line {error.problem_mark.line + 1}"
        # what it quotes is the file's
        raise InputError(f"it is not yaml{line}: {re.sub(_QUOTED, '...', str(error.problem))}") from None
    except Exception:  # yaml's constructors let through what Python makes of their input
        raise InputError("it is not yaml, or holds a value that cannot be read") from None


def _check_plain(events: Any) -> None:
    """Refuse aliases, tags, deep nesting and words that a terminal would obey, before anything is built of events."""
    from yaml import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    depth = 0
    for event in events:
        if isinstance(event, AliasEvent):
            raise InputError(f"it has an alias, a word after *, in {_line(event)}; write the entries out, or quote it")
        if getattr(event, "tag", None) is not None:
            raise InputError(f"it has a tag, a word after !, in {_line(event)}; leave it out, or quote it")
        if isinstance(event, ScalarEvent) and not is_plain(event.value.replace("\n", " ").replace("\t", " ")):
            raise InputError(f"it has characters that cannot be shown, in {_line(event)}; leave them out")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _DEEPEST:
            raise InputError(f"it is nested more than {_DEEPEST} deep")


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}"


@lru_cache(maxsize=1)
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """yaml's safe loader, without dates, with yes and no as words, with powers of ten, and with each entry once."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict:
            entries = super().construct_mapping(node, deep)
            if len(entries) < len(node.value):
                raise InputError(f"an entry is there twice, in line {node.start_mark.line + 1} or below")
            return entries

    date, truth, number = (f"tag:yaml.org,2002:{name}" for name in ("timestamp", "bool", "float"))
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (date, truth)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(truth, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    Loader.add_implicit_resolver(number, re.compile(f"^(?:{_POWERS.pattern})$"), list("-+0123456789."))
    return Loader


def shipped(folder: str, name: str) -> Path:
    """Return the shipped file ``conf/<folder>/<name>.yaml``.

    Raises:
        InputError: There is none of that name; the message lists those there are.
    """
    directory = conf_dir() / folder
    path = directory / f"{name}.yaml"
    if not os.path.isfile(path):
        choices = ", ".join(sorted(file.stem for file in directory.glob("*.yaml")))
        raise InputError(f"{folder} {name!r} is neither a file nor one of the shipped ones: {choices}")
    return path
