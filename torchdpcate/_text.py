"""Text from users, files and records, made fit for a terminal, a page, a spreadsheet or a file's name."""

import re
from typing import Any

_JOINERS = "\u200c\u200d"  # invisible, and part of the spelling of Persian and Indic words
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are full width


def is_plain(text: str) -> bool:
    r"""Return whether a text is one line of printable characters, without terminal or direction controls.

    Example:
        >>> is_plain("age"), is_plain("\x1b[31mage"), is_plain("\u202eega")
        (True, False, False)
    """
    return all(letter.isprintable() or letter in _JOINERS for letter in text)


def plain(text: Any) -> str:
    r"""Return a text as one line of letters, with a question mark for every other character.

    Example:
        >>> plain("\x1b[31mage\n")
        '?[31mage?'
    """
    return "".join(letter if letter.isprintable() or letter in _JOINERS else "?" for letter in str(text))


def markdown_text(text: Any) -> str:
    r"""Return a text for a page of markdown: no HTML and no link.

    Example:
        >>> print(markdown_text("<b>a</b> [b](c) [0, 1] x < y"))
        &lt;b>a&lt;/b> [b]\(c) [0, 1] x < y
    """
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", plain(text).replace("](", "]\\("))


def markdown_cell(text: Any) -> str:
    r"""Return a text for a table of a page of markdown: no new column either.

    Example:
        >>> print(markdown_cell("a|b"))
        a\|b
    """
    return markdown_text(plain(text).replace("\\", "\\\\")).replace("|", "\\|")


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


def file_name(text: Any) -> str:
    """Return a text as part of a file's name: letters, digits, points and dashes, and no folder.

    Example:
        >>> file_name("../a b")
        '.._a_b'
    """
    return re.sub(r"[^\w.-]+", "_", str(text))[:100]
