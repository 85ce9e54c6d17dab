"""Comparison of sets of a plan's constants with those in use: one at a time, or one set given on the command line."""

import argparse
import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from torchdpcate.composition.constants import PlanConstants

C = TypeVar("C", bound=PlanConstants)


@dataclass(frozen=True)
class Tuning(Generic[C]):
    """What is compared.

    Attributes:
        base: Constants in use.
        others: Constants by what differs.
        seeds: Of the generated data.
        out: Csv file of values one at a time; None where one set was given, which is not kept.
        kind: Of the laws' outcomes.
        fixed: Number of records and epsilon of all laws, where they are not drawn.
    """

    base: C
    others: dict[str, C]
    seeds: range
    out: Path | None
    kind: str = "continuous"
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def requested(cls, about: str, base: C, values: Mapping[str, tuple[Any, ...]], out: Path) -> "Tuning[C]":
        """Return what the command line asks for.

        Args:
            about: First line of the help.
            base: Constants in use.
            values: What each constant is tried at.
            out: Csv file, if no other is named.
        """
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("--settings", type=int, default=100)
        parser.add_argument("--first", type=int, default=0, help="first seed")
        parser.add_argument("--only", nargs="+", choices=values, default=list(values))
        parser.add_argument("--set", nargs="+", default=[], help="name=value, together against those in use")
        parser.add_argument(
            "--kind", choices=("continuous", "binary", "count"), default="continuous", help="of outcomes"
        )
        parser.add_argument("--n", type=int, help="records of all laws; drawn unless given")
        parser.add_argument("--epsilon", type=float, help="budget of all laws; drawn unless given")
        parser.add_argument("--out", type=Path, default=out)
        words = parser.parse_args()
        torch.set_num_threads(1)
        if words.set:
            pairs = dict(word.split("=", 1) for word in words.set)
            others = {" ".join(words.set): replace(base, **{name: _value(value) for name, value in pairs.items()})}
        else:
            others = {f"{name}={v}": replace(base, **{name: v}) for name in words.only for v in values[name]}
        fixed = {name: value for name in ("n", "epsilon") if (value := getattr(words, name)) is not None}
        seeds = range(words.first, words.first + words.settings)
        return cls(base, others, seeds, None if words.set else words.out, words.kind, fixed)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write a line for each set of constants, if values were compared one at a time."""
        if self.out is None:
            return
        rows = [{k: f"{v:.4f}" if isinstance(v, float) else v for k, v in line.items()} for line in lines]
        with self.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word
