"""Names of files among command-line words: Hydra's grammar cannot take some of them, and would change others."""

import os
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
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
    """Return the words with each name of a file or folder in quotes, and ``~`` as the home folder.

    The grammar has ASCII letters and few signs, and makes numbers and truth values of names. In a sweep commas separate
    names. Values in quotes, lists, interpolations and null stay.

    Args:
        words: Command-line words.

    Example:
        >>> readable_words(["data.path=donn\u00e9es (1).csv", "run_dir=1e5", "seed=1"])
        ["data.path='donn\u00e9es (1).csv'", "run_dir='1e5'", 'seed=1']
        >>> readable_words(["-m", "data.path=a.csv,b#.csv", "seed=0,1"])
        ['-m', "data.path='a.csv','b#.csv'", 'seed=0,1']
    """
    sweep = not {"-m", "--multirun"}.isdisjoint(words)
    return [_readable(word, sweep) for word in words]


def text_of(word: str) -> str:
    """Return the text of a word's value, without its quotes."""
    return str(OverridesParser.create().parse_override(word).value())


def _reads(word: str) -> bool:
    """Return whether Hydra can read a word."""
    try:
        OverridesParser.create().parse_override(word)
    except HydraException:
        return False
    return True


def _readable(word: str, sweep: bool) -> str:
    key, _, value = word.partition("=")
    name = key.lstrip("+")
    if name not in PATHS or value in ("", "null") or "${" in value or (value[0] in "'\"[{" and _reads(word)):
        return word
    parts = value.split(",") if sweep and name != "run_dir" else [value]
    texts = (os.path.expanduser(part) for part in parts)
    return f"{key}={','.join(QuotedString(text, Quote.single).with_quotes() for text in texts)}"
