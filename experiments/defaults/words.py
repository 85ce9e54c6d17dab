"""Tables and numbers of the pages."""

import csv
import math
import textwrap
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
NONE = "-"
TITLES = {
    "default": "default",
    "constant": "private constant",
    "zero": "zero",
    "non-private": "non-private, same features",
    "plug-in": "plug-in, two blocks",
    "two blocks": "two blocks, linear",
    "published": "best published private learner",
}
SQUARED = ("niu_",)  # names of data whose tables have mean squared errors, as the published ones do


def paragraph(text: str) -> str:
    """A paragraph in lines of a page."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def table(lines: list[list[str]]) -> str:
    """A table, its head first."""
    shown = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([shown[0], "| --- " * len(lines[0]) + "|", *shown[1:]]) + "\n"


def number(value: float) -> str:
    """A number to three digits, thousands as they are."""
    if math.isnan(value):
        return NONE
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def with_error(value: float, error: float) -> str:
    """A mean and its standard error to two digits."""
    return number(value) if math.isnan(error) else f"{number(value)} ± {float(f'{error:.2g}'):g}"


def squared(data: str) -> bool:
    """Whether a table of these data shows mean squared errors, in place of their roots."""
    return data.startswith(SQUARED)


@cache
def published() -> dict[tuple[str, int, float], float]:
    """Least mean squared error of the three private learners of Niu et al., by data, records and epsilon."""
    least: dict[tuple[str, int, float], float] = {}
    with (HERE / "published.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            key = (line["data"], int(line["n"]), float(line["epsilon"]))
            least[key] = min(float(line["mse"]), least.get(key, math.inf))
    return least
