"""Tables and numbers of the pages."""

import csv
import math
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
    with (HERE.parent / "niu" / "table.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["published"] and line["table"] == f"design {line['setting']}":
                key = (f"niu_{line['setting'].lower()}", int(line["n"]), float(line["epsilon"]))
                least[key] = min(float(line["published"]), least.get(key, math.inf))
    return least
