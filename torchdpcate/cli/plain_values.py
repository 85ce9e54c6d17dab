"""Values of command-line words that Hydra's grammar cannot take, or would change: names of files above all."""

import os
import re
from collections.abc import Iterator, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.errors import HydraException

from torchdpcate.errors import InputError

PATHS = {
    "run_dir": False,
    "budget.shared": False,
    "data.path": True,
    "data.domain": False,
    "data.genes": True,
    "data.surface.path": False,
    "policies.path": False,
    "queries.path": False,
    "rule.population": False,
    "sites.path": False,
    "sites.socket": False,
    "subgroups": True,
}
"""Settings that name a file or a folder, and whether they take a list too."""


_FUNCTION = re.compile(r"\w+\(.*\)", re.DOTALL)
_OPEN, _CLOSE, _QUOTES = "([{", ")]}", "'\""


def readable_words(words: Sequence[str]) -> list[str]:
    """Return the words as Hydra's grammar takes them, where a value is evidently a plain text quoted as one.

    The grammar has ASCII letters and few signs, and makes numbers and truth values of names. Values that are quoted,
    lists, sweeps and interpolations stay; of lists and sweeps each name is quoted by itself. ``~/`` of a path is the
    home folder.

    Args:
        words: Command-line words.

    Raises:
        InputError: A value that may mean more than one thing, or nothing; says how to write it.

    Example:
        >>> readable_words(["data.path=donn\u00e9es (1).csv", "run_dir=1e5", "seed=1"])
        ["data.path='donn\u00e9es (1).csv'", "run_dir='1e5'", 'seed=1']
        >>> readable_words(["-m", "data.path=a.csv,b#.csv", "seed=0,1"])
        ['-m', "data.path=a.csv,'b#.csv'", 'seed=0,1']
    """
    sweep = not {"-m", "--multirun"}.isdisjoint(words)
    return [_readable(word, sweep) if "=" in word and not word.startswith(("-", "~")) else word for word in words]


def parsed(word: str) -> Override | None:
    """Return a word as Hydra reads it; None where it cannot."""
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None


def text_of(word: str) -> str:
    """Return the text of a word's value, without its quotes."""
    read = parsed(word)
    return word.partition("=")[2] if read is None else str(read.value())


def _readable(word: str, sweep: bool) -> str:
    key, _, value = word.partition("=")
    name = key.lstrip("+")
    path, many, sweep = name in PATHS, PATHS.get(name, True), sweep and name != "run_dir"
    value = _home(value) if path else value
    word = f"{key}={value}"
    read = parsed(word)
    if read is None:
        return _with_quotes(key, value, path, many, sweep)
    if read.is_sweep_override():
        if sweep:
            return word
        if not many:
            return f"{key}={_quoted(value)}"
        if read.value_type is not ValueType.SIMPLE_CHOICE_SWEEP:
            raise InputError(f"{word}: is a sweep; add -m for a run with each of its values")
        raise InputError(
            f"{word}: has several values; write {key}=[{value}] for a list, {key}='\"{value}\"' for one text, or add "
            "-m for a run with each"
        )
    found = read.value()
    if not path or found is None or found == value or isinstance(read._value, QuotedString):
        return word
    if many and isinstance(found, list | dict):
        return word
    if isinstance(found, str) and "\\" in value:
        raise InputError(f"{word}: would be read as {found}; write {key}='\"{value}\"' for this very name")
    return f"{key}={_quoted(value)}"


def _with_quotes(key: str, value: str, path: bool, many: bool, sweep: bool) -> str:
    """Return the word with a value that cannot be read as it is, in quotes."""
    if parsed(f"{key}=x") is None:
        return f"{key}={value}"  # of a key that is none, which is told apart
    listed = many and value.startswith("[") and value.endswith("]")
    for inner, around in ((value[1:-1], "[{}]") if listed else ("", ""), (value, "{}") if sweep else ("", "")):
        parts = [_part(key, part, path) for part in _split(inner)]
        new = f"{key}={around.format(','.join(parts))}"
        if parts and (listed or len(parts) > 1) and parsed(new) is not None:
            return new
    quotes = len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]
    if quotes or (not path and (value.startswith(("[", "{")) or _FUNCTION.fullmatch(value))):
        raise InputError(
            f"{key}={value}: cannot be read: its brackets, quotes or function do not fit; write {key}='\"...\"' for a "
            "plain text"
        )
    return f"{key}={_quoted(value)}"


def _part(key: str, part: str, path: bool) -> str:
    """Return one value of a list or sweep, quoted if it cannot be read and is no list of its own."""
    part = _home(part.strip()) if path else part.strip()
    return part if part.startswith(("[", "{")) or parsed(f"{key}={part}") is not None else _quoted(part)


def _split(text: str) -> Iterator[str]:
    """Yield what commas separate, but for those in brackets, and in quotes that begin a value."""
    depth, quote, start = 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES and not text[start:place].strip():
            quote = letter
        elif letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth = max(depth - 1, 0)
        elif letter == "," and not depth:
            yield text[start:place]
            start = place + 1
    if text:
        yield text[start:]


def _home(path: str) -> str:
    return os.path.expanduser(path) if path.startswith("~") else path


def _quoted(text: str) -> str:
    return QuotedString(text, Quote.single).with_quotes()
