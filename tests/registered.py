"""Classes that are public or named in conf/, for tests of many families: cases of one that is gone are skipped.

What each family claims is attacked by its own tests, which import it where it is defined. Tests that go through all of
them import from here, so that deleting a file and its yaml breaks its own tests and ``tests/test_registered_names``.
"""

import re
from functools import cache
from importlib import import_module
from typing import Any

import pytest

import torchdpcate
from torchdpcate.registry import conf_dir

_TARGET = re.compile(r"^\s*_target_: (\S+)\.(\w+)", re.MULTILINE)


@cache
def targets() -> dict[str, str]:
    """Return the module of each class that a yaml file of conf/ names."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(conf_dir().rglob("*.yaml")))
    return {name: module for text in texts for module, name in _TARGET.findall(text)}


def shipped(table: Any) -> Any:
    """Return the entries of a table, a dictionary or a list, of which conf/ has every task, effect and mechanism."""
    if isinstance(table, dict):
        return {name: words for name, words in table.items() if _is_shipped(f"{name} {words}")}
    return [words for words in table if _is_shipped(str(words))]


def mechanism(name: Any) -> Any:
    """Return the name of a mechanism of effects, or the mechanism; skip the test where conf/ has none of this name."""
    if isinstance(name, str) and not _is_shipped(f"mechanism={name}"):
        pytest.skip(f"conf/ has no mechanism {name}")
    return name


def _is_shipped(words: str) -> bool:
    chosen = re.findall(r"\b(task|effect|mechanism)=(\w+)", words)
    return all((conf_dir() / group / f"{choice}.yaml").exists() for group, choice in chosen)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in torchdpcate.__all__:
        return getattr(torchdpcate, name)
    if name in targets():
        return getattr(import_module(targets()[name]), name)
    return type(name, (), {"__new__": lambda kind, *_, **__: pytest.skip(f"no yaml of conf/ names {kind.__name__}")})
