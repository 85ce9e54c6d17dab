"""The constants of plans for rules, tuned on generated data alone.

Laws are those of ``experiments.defaults.random_laws``, with changes by their seed: of every other one most of the
effect's mean is taken from it, so that its sign is mixed; in two of five the effect is WEAK times as large; in a third
of them a fair coin decides, which the domain knows; laws with a constant effect are left out. For each set of
constants: mean over laws of the regret of the rule, over the mean absolute effect, as all constants in use have it, and
as the difference to them on the same records and seeds of noise. What the study's table shows is not looked at here.
Seeds from SMALL_FROM on are laws of 2 to 20 covariates, 200 to 2,000 records and epsilon from .5 to 4; in half of them
treatment raises one arm as much as it lowers the other, so that covariates may tell of the effect and not of the
outcome. By such laws it was chosen when a plan is reduced.

    python -m experiments.rules_and_selection.tune --settings 200
    python -m experiments.rules_and_selection.tune --set head_variance=0.5 --first 100000
    python -m experiments.rules_and_selection.tune --set reduced_below=0 --first 1000000 --settings 500
    python -m experiments.rules_and_selection.tune --kind binary --set binary_part=0.01

Of binary outcomes and counts laws are as they are drawn; on every other one a treatment costs its mean effect.
By 164 laws of 1,000 to 40,000 records, epsilon .5 to 4, the prior variances of binary outcomes are .003 of those of
others: the regret falls from .355 to .295 of the mean absolute effect (by .061 ± .018; a constant rule's is .356), with
.001 of them to .319 and with .0003 to .325. On counts no such part was clearly better (.3 of them: by .025 ± .024).
"""

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.progress import track

from experiments.defaults.random_laws import random_setting
from experiments.rules_and_selection.rule_cases import RuleCase
from experiments.tables import standard_error
from experiments.tuning import Tuning
from torchdpcate.composition.constants import RuleConstants
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.records import CausalData, public_generator
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

VALUES: dict[str, tuple[Any, ...]] = {
    "head_variance": (0.1, 0.2, 0.5, 1.0),
    "constant_variance": (0.1, 1.0, 3.0),
    "nuisance_share": (0.15, 0.35, 0.45),
    "reduced_below": (0.0, 150.0),
    "reduced_correlation": (0.9, 1.0),
    "found_share": (0.0, 1.0),
    "linear_below": (0.0, 1_000.0, 2_000.0, 8_000.0, 1e9),
}
WEAK = 0.35
SMALL_FROM = 1_000_000


@dataclass(frozen=True, eq=False)
class Setting:
    """A law's records, and a budget."""

    case: RuleCase
    epsilon: float
    name: str
    cost: float = 0.0


def setting(seed: int, n: int | None = None, epsilon: float | None = None, kind: str = "continuous") -> Setting | None:
    """Return the setting of a seed, of n records and a budget if given; None where the effect is constant."""
    covariates = None
    if seed >= SMALL_FROM:
        rng = np.random.default_rng([seed, 77])
        n = n or round(math.exp(rng.uniform(math.log(200), math.log(2_000))))
        epsilon = epsilon or float(rng.choice([0.5, 1.0, 2.0, 4.0]))
        covariates = int(rng.choice([2, 3, 4, 6, 8, 10, 12, 20]))
    drawn = random_setting(seed, n, epsilon, covariates, kind)
    records, effect, truth = drawn.case.records, drawn.effects, drawn.case.truth
    if float(truth.std()) < 1e-9:
        return None
    if kind != "continuous":
        case, cost = drawn.case, float(effect.mean()) * (seed % 2)
        return Setting(RuleCase(case.schema, case.records, case.queries, truth - cost), drawn.epsilon, drawn.name, cost)
    generator = public_generator(seed, "rules")
    untreated, a = records.y - records.a * effect, records.a
    if seed % 5 < 2:
        effect, truth = WEAK * effect, WEAK * truth
    if seed >= SMALL_FROM and seed % 4 > 1:
        untreated = untreated - effect / 2
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
    decision = learner.release_function().rule(cost=drawn.cost).answer(case.queries)
    wrong = (case.truth > 0) != (decision > 0)
    return float((case.truth.abs() * wrong).sum() / case.truth.abs().sum())


def main() -> None:
    """Compare values one constant at a time, or one set of constants with those in use."""
    tuning = Tuning.requested(
        __doc__.splitlines()[0], RuleConstants(), VALUES, Path(__file__).parent / "rule_tuning.csv"
    )
    first: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in ("constant", *tuning.others)}
    for seed in track(tuning.seeds, "settings"):
        drawn = setting(seed, kind=tuning.kind, **tuning.fixed)
        if drawn is None:
            continue
        first.append(lost(drawn, tuning.base))
        found["constant"].append(lost(drawn, tuning.base, constant_only=True))
        for name, constants in tuning.others.items():
            found[name].append(lost(drawn, constants))
    print(f"in use: {fmean(first):.4f} of the mean absolute effect, {len(first)} laws")
    lines = []
    for name, values in found.items():
        apart = [value - own for value, own in zip(values, first, strict=True)]
        error = standard_error(apart)
        lines.append({"constants": name, "regret": fmean(values), "difference": fmean(apart), "error": error})
        print(f"{name:40s} {fmean(values):.4f}  {fmean(apart):+.4f} ± {error:.4f}")
    tuning.write(lines)


if __name__ == "__main__":
    main()
