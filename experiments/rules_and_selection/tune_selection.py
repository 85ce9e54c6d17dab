"""The constants of plans that score policies, tuned on generated data alone.

Every second law is one of ``tune.setting``; in all others a product of two covariates confounds: it is added to the
outcome, and to the logit of a treatment that is drawn anew beside a linear function. Policies are those of
``selection.linear_library``. For each set of constants: mean over laws of the regret that the exact law of the choice
has, over that of a policy drawn at random, and the difference to the constants in use on the same records and seeds of
noise. What the study's table shows is not looked at here.

    python -m experiments.rules_and_selection.tune_selection --settings 200
    python -m experiments.rules_and_selection.tune_selection --set outcome_variance=0.5 clip_growth=6 --first 1000
"""

import math
import zlib
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.progress import track

from experiments.defaults.random_laws import EPSILONS, random_setting
from experiments.rules_and_selection.rule_cases import RuleCase
from experiments.rules_and_selection.selection import linear_library, regrets
from experiments.rules_and_selection.tune import WEAK, Setting
from experiments.rules_and_selection.tune import setting as usual_setting
from experiments.tables import standard_error
from experiments.tuning import Tuning
from torchdpcate.composition.constants import PlanConstants, SelectionConstants
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.selection.composed import ComposedScores
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

SIZES = (1_000, 16_000)
_FAR = 3.0  # product of two covariates, in standard deviations
VALUES: dict[str, tuple[Any, ...]] = {
    "nuisance_share": (0.25, 0.6),
    "outcome_variance": (1.0,),
    "part_shares": ((0.5, 0.15, 0.3, 0.03, 0.02),),
    "rough_sizes": ((30.0, 300.0), (100.0, 1_000.0)),
    "least_clip": (0.5, 2.0),
    "clip_growth": (4.0,),
    "farthest": (0.0, 0.05),
}
EFFECTS = "those of effects"


def confounded(seed: int, n: int | None = None) -> Setting | None:
    """Return a law in which a product of two covariates confounds, of n records if given.

    None where the effect is constant.
    """
    rng = np.random.default_rng([seed, 77])
    any_n = round(math.exp(rng.uniform(*np.log(SIZES))))
    n = any_n if n is None else n
    drawn = random_setting(seed, n=n, epsilon=float(rng.choice(EPSILONS[:4])))
    records, effect, truth = drawn.case.records, drawn.effects, drawn.case.truth
    if float(truth.std()) < 1e-9:
        return None
    untreated = records.y - records.a * effect
    x = torch.cat([records.x, drawn.case.queries])
    z = (x - x.mean(0)) / x.std(0).clamp_min(1e-9)
    i, j = rng.choice(x.shape[1], 2, replace=False)
    product = z[:, i] * z[:, j]
    product = ((product - product.mean()) / product.std())[:n].clamp(-_FAR, _FAR)
    slope = torch.from_numpy(rng.normal(size=x.shape[1]) / math.sqrt(x.shape[1]))
    logit = float(rng.choice([0.0, 0.5, 1.0])) * (z[:n] @ slope) + float(rng.choice([0.7, 1.5])) * product
    facts, overlap = drawn.case.schema.to_dict(), drawn.case.schema.domain.overlap
    pi = torch.sigmoid(logit + 0.5 * rng.normal()).clamp(overlap, 1 - overlap)
    a = torch.from_numpy((rng.uniform(size=n) < pi.numpy()).astype(float))
    weak = float(rng.choice([1.0, WEAK]))
    shift = weak * float(effect.mean()) * (1 - 0.3 * rng.normal())
    confounding = float(rng.choice([0.5, 1.0, 2.0]) * rng.choice([-1, 1])) * drawn.noise * product
    outcome = facts["outcome"]
    y = (untreated + confounding + a * (weak * effect - shift)).clamp(outcome["low"], outcome["high"])
    schema = TableSchema.from_dict(facts).handling("clip")
    case = RuleCase(schema, CausalData(records.x, a, y), drawn.case.queries, weak * truth - shift)
    return Setting(case, drawn.epsilon, drawn.name)


def setting(seed: int) -> Setting | None:
    """Return the setting of a seed; None where the effect is constant, or a coin decides on the treatment."""
    found = confounded(seed) if seed % 2 else usual_setting(seed)
    return None if found is None or found.case.schema.domain.known_propensity is not None else found


def lost(drawn: Setting, constants: SelectionConstants) -> float:
    """Return the expected regret of the choice by these constants, over that of a policy drawn at random."""
    case, noise = drawn.case, NoiseSource.fixed(zlib.crc32(drawn.name.encode()))
    policies, scores = linear_library(case.schema), ComposedScores(constants=constants)
    budget = PrivacyBudget(drawn.epsilon, 1e-5)
    selector = PolicySelector(case.schema, budget, policies=policies, nuisance=scores, noise=noise)
    selector.fit(case.records.x, case.records.a, case.records.y)
    regret = regrets(policies, case.schema, case.queries, case.truth)
    assert selector.mechanism_ is not None
    return float(selector.mechanism_.probabilities(selector.utilities_) @ regret / regret.mean())


def main() -> None:
    """Compare values one constant at a time, or one set of constants with those in use."""
    base = SelectionConstants()
    of_effects = SelectionConstants(**asdict(PlanConstants()), least_clip=2.0, clip_growth=4.0, farthest=1 / 20)
    tuning = Tuning.requested(__doc__.splitlines()[0], base, VALUES, Path(__file__).parent / "selection_tuning.csv")
    others: dict[str, SelectionConstants] = {EFFECTS: of_effects, **tuning.others}
    first: list[tuple[float, int]] = []
    found: dict[str, list[float]] = {name: [] for name in others}
    for seed in track(tuning.seeds, "settings"):
        drawn = setting(seed, **tuning.fixed)
        if drawn is None:
            continue
        first.append((lost(drawn, base), seed % 2))
        for name, constants in others.items():
            found[name].append(lost(drawn, constants))
    lines = []
    for kind, among in {"all": (0, 1), "a product confounds": (1,), "usual": (0,)}.items():
        own = [value for value, odd in first if odd in among]
        if not own:
            continue
        print(f"{kind}: {fmean(own):.4f} in use, {len(own)} laws")
        for name, values in found.items():
            apart = [value - mine for value, (mine, odd) in zip(values, first, strict=True) if odd in among]
            error = standard_error(apart)
            lines.append({"laws": kind, "constants": name, "difference": fmean(apart), "error": error})
            print(f"  {name:50s} {fmean(apart):+.4f} ± {error:.4f}")
    tuning.write(lines)


if __name__ == "__main__":
    main()
