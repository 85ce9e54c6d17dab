"""Text from users, files and records, made fit for a terminal, a page, a spreadsheet or a file's name."""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

_JOINERS = "\u200c\u200d"  # invisible, and part of the spelling of Persian and Indic words
_NO_JOINERS = dict.fromkeys(map(ord, _JOINERS))
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC")  # whose letters are taken for each other
# letters of other scripts that look like a Latin one, once the case is folded
_TWINS = str.maketrans(
    "\u0430\u0432\u0435\u0438\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u0455\u0456"
    "\u0458\u04bb\u0501\u051b\u051d\u03b1\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u0570\u0578\u057d",
    "abeukmhopctyxsijhdqwaikvoptuxhnu",
)
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are full width


def is_plain(text: str) -> bool:
    r"""Return whether a text is one line of printable characters, without terminal or direction controls.

    Example:
        >>> is_plain("age"), is_plain("\x1b[31mage"), is_plain("\u202eega")
        (True, False, False)
    """
    return text.isprintable() or text.translate(_NO_JOINERS).isprintable()


def in_one_script(text: str) -> bool:
    """Return whether a name is in composed form, and no word of it mixes letters of scripts that look alike.

    Example:
        >>> in_one_script("\u03b2_blocker"), in_one_script("\u0430ge"), in_one_script("e\u0301tude")
        (True, False, False)
    """
    if not unicodedata.is_normalized("NFC", text):
        return False
    for word in re.findall(r"[^\W\d_]+", text):
        scripts = {unicodedata.name(letter, "").split(" ")[0] for letter in word}
        if len(scripts & set(_SCRIPTS)) > 1:
            return False
    return True


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first two names that a reader would take for one: by case, width, spaces or letters that look alike.

    Example:
        >>> alike(["age", "sex", "AGE"]), alike(["age", "aged"])
        (('age', 'AGE'), None)
    """
    seen: dict[str, str] = {}
    for name in names:
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).translate(_TWINS)
        letters = "".join(letter for letter in folded if unicodedata.category(letter) != "Cf")
        key = " ".join(letters.split())
        if key in seen:
            return seen[key], name
        seen[key] = name
    return None


def plain(text: Any) -> str:
    r"""Return a text as one line of letters, with a question mark for every other character.

    Example:
        >>> plain("\x1b[31mage\n")
        '?[31mage?'
    """
    return "".join(letter if letter.isprintable() or letter in _JOINERS else "?" for letter in str(text))


def shortened(text: str, letters: int) -> str:
    r"""Return a text whose lines have at most so many letters; longer ones end in dots.

    Example:
        >>> shortened("age\na long name", 6)
        'age\na lon…'
    """
    return "\n".join(f"{line[: letters - 1]}…" if len(line) > letters else line for line in text.split("\n"))


def markdown_text(text: Any) -> str:
    r"""Return a text for a page of markdown: no HTML and no link.

    Example:
        >>> print(markdown_text("<b>a</b> [b](c) [0, 1] x < y"))
        &lt;b>a&lt;/b> [b]\(c) [0, 1] x < y
    """
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", plain(text).replace("](", "]\\("))


def spreadsheet_cell(value: Any) -> Any:
    """Return a cell of a csv file: a text that a spreadsheet would take for a formula begins with an apostrophe.

    Example:
        >>> spreadsheet_cell("=1+1"), spreadsheet_cell("age"), spreadsheet_cell(-1.0)
        ("'=1+1", 'age', -1.0)
    """
    if not isinstance(value, str):
        return value
    shown = value.replace("\x00", "?")
    return f"'{shown}" if shown.startswith(_FORMULAS) and shown != "-" else shown
