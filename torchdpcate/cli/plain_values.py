"""Names of files among command-line words: Hydra's grammar cannot take some of them, and would change others."""

import os
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

PATHS = (
    "run_dir",
    "budget.shared",
    "data.path",
    "data.domain",
    "data.genes",
    "data.surface.path",
    "policies.path",
    "queries.path",
    "rule.population",
    "sites.path",
    "sites.socket",
    "subgroups",
)
"""Settings that name a file or a folder."""


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
    if name not in PATHS or value in ("", "null") or "${" in value or (value[0] in "'\"[{" and _read(word) is not None):
        return word
    parts = value.split(",") if sweep and name != "run_dir" else [value]
    return f"{key}={','.join(_as_text(key, os.path.expanduser(part)) for part in parts)}"


def _as_text(key: str, text: str) -> str:
    """Return a text as Hydra takes it, in quotes where it would read something else."""
    read = _read(f"{key}={text}")
    plain = read is not None and not read.is_sweep_override() and read.value() == text
    return text if plain else QuotedString(text, Quote.single).with_quotes()


def _read(word: str) -> Override | None:
    """Return a word as Hydra reads it; None where it cannot."""
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None
