"""Paragraphs and tables of the studies' pages."""

import textwrap


def paragraph(text: str) -> str:
    """A paragraph in lines of a page."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def table(lines: list[list[str]]) -> str:
    """A table, its head first."""
    shown = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([shown[0], "| --- " * len(lines[0]) + "|", *shown[1:]]) + "\n"
