"""The constants of plans for rules, tuned on random laws alone.

Laws are those of ``experiments.defaults.random_laws``, with changes by their seed: of every other one most of the
effect's mean is taken from it, so that its sign is mixed; in two of five the effect is WEAK times as large; in a third
of them a fair coin decides, which the domain knows; laws with a constant effect are left out. For each set of
constants: mean over laws of the regret of the rule, over the mean absolute effect, as all constants in use have it, and
as the difference to them on the same records and seeds of noise. What the study's table shows is not looked at here.

    python -m experiments.rules_and_selection.tune --settings 200
    python -m experiments.rules_and_selection.tune --set head_variance=0.5 --first 100000
"""

import argparse
import csv
import json
import math
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from rich.progress import track

from experiments.defaults.random_laws import random_setting
from experiments.rules_and_selection.rule_cases import RuleCase
from torchdpcate.composition.constants import RuleConstants
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_generator
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

VALUES: dict[str, tuple[Any, ...]] = {
    "head_variance": (0.1, 0.2, 0.5, 1.0),
    "constant_variance": (0.1, 1.0, 3.0),
    "nuisance_share": (0.15, 0.35, 0.45),
    "linear_below": (0.0, 1_000.0, 2_000.0, 8_000.0, 1e9),
}
WEAK = 0.35


@dataclass(frozen=True, eq=False)
class Setting:
    """A law's records, and a budget."""

    case: RuleCase
    epsilon: float
    name: str


def setting(seed: int, n: int | None = None, epsilon: float | None = None) -> Setting | None:
    """Return the setting of a seed, of n records and a budget if given; None where the effect is constant."""
    drawn = random_setting(seed, n, epsilon)
    records, effect, truth = drawn.case.records, drawn.effects, drawn.case.truth
    if float(truth.std()) < 1e-9:
        return None
    generator = public_generator(seed, "rules")
    untreated, a = records.y - records.a * effect, records.a
    if seed % 5 < 2:
        effect, truth = WEAK * effect, WEAK * truth
    shift = float(effect.mean()) * (seed % 2) * (1 - 0.3 * float(torch.randn(1, generator=generator)))
    facts = drawn.case.schema.to_dict()
    if seed % 3 == 0:
        a = (torch.rand(records.n, generator=generator, dtype=torch.float64) < 0.5).double()
        facts["propensity"] = 0.5
    outcome = facts["outcome"]
    y = (untreated + a * (effect - shift)).clamp(outcome["low"], outcome["high"])
    schema = TableSchema.from_dict(facts).handling("clip")
    case = RuleCase(schema, CausalData(records.x, a, y), drawn.case.queries, truth - shift)
    return Setting(case, drawn.epsilon, drawn.name)


def lost(drawn: Setting, constants: RuleConstants, constant_only: bool = False, delta: float = 1e-5) -> float:
    """Return the regret of the rule by these constants, over the mean absolute effect."""
    case, noise = drawn.case, NoiseSource.fixed(zlib.crc32(drawn.name.encode()))
    stage = AdaptiveSecondStage(constants=constants, constant_only=constant_only, intervals=False)
    learner = RLearner(case.schema, PrivacyBudget(drawn.epsilon, delta), second_stage=stage, noise=noise)
    learner.fit(case.records.x, case.records.a, case.records.y)
    decision = learner.release_function().rule().answer(case.queries)
    wrong = (case.truth > 0) != (decision > 0)
    return float((case.truth.abs() * wrong).sum() / case.truth.abs().sum())


def main() -> None:
    """Compare values one constant at a time, or one set of constants with those in use."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--only", nargs="+", choices=VALUES, default=list(VALUES))
    parser.add_argument("--set", nargs="+", default=[], help="name=value, together against those in use")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "rule_tuning.csv")
    words = parser.parse_args()
    torch.set_num_threads(1)
    base = RuleConstants()
    if words.set:
        pairs = dict(word.split("=", 1) for word in words.set)
        others = {" ".join(words.set): replace(base, **{name: json.loads(value) for name, value in pairs.items()})}
    else:
        others = {f"{name}={value}": replace(base, **{name: value}) for name in words.only for value in VALUES[name]}
    first: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in ("constant", *others)}
    for seed in track(range(words.first, words.first + words.settings), "settings"):
        drawn = setting(seed)
        if drawn is None:
            continue
        first.append(lost(drawn, base))
        found["constant"].append(lost(drawn, base, constant_only=True))
        for name, constants in others.items():
            found[name].append(lost(drawn, constants))
    print(f"in use: {fmean(first):.4f} of the mean absolute effect, {len(first)} laws")
    lines = []
    for name, values in found.items():
        apart = [value - own for value, own in zip(values, first, strict=True)]
        error = stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
        lines.append({"constants": name, "regret": fmean(values), "difference": fmean(apart), "error": error})
        print(f"{name:40s} {fmean(values):.4f}  {fmean(apart):+.4f} ± {error:.4f}")
    if not words.set:
        with words.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: f"{v:.4f}" if isinstance(v, float) else v for k, v in line.items()} for line in lines)


if __name__ == "__main__":
    main()
