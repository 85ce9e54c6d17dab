"""Regret of the default rule with and without lines, and whether the intervals of its values hold.

``python -m experiments.hospital.rules [--records 5000] [--epsilon 1] [--seeds 0:20] [--law NAME] [--cost]``

Higher outcomes are better; with ``--cost`` a treatment costs what it gains on average. Regrets, and half widths, are
over the mean size of gains.
"""

import argparse
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from experiments.hospital.cases import DELTA
from experiments.hospital.laws import LAWS
from torchdpcate import PrivacyBudget
from torchdpcate.composition.constants import RuleConstants
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.release.averages import VALUES

_STAGE = AdaptiveSecondStage(constants=RuleConstants(), intervals=False)


def row_of(law: str, seed: int, n: int, epsilon: float, costs: bool) -> dict[str, float | str]:
    """Return regrets on one draw of a law, and whether each value is held."""
    draw = LAWS[law](np.random.default_rng([seed, *law.encode()]), n)
    cost = float(draw.effect.mean()) if costs else 0.0
    gain, budget = draw.effect - cost, PrivacyBudget(epsilon, DELTA)
    domain = Domain.from_dict(draw.schema.domain.to_dict() | {"better": "higher"})
    size, best = np.abs(gain).mean(), np.maximum(gain, 0).mean()
    found: dict[str, float | str] = {"law": law, "constant": (best - max(gain.mean(), 0)) / size}
    for name, stage in (("rule", _STAGE), ("no lines", replace(_STAGE, lines=False))):
        release = EffectRule(domain, budget, cost=cost, second_stage=stage).fit(draw.x, draw.a, draw.y).release()
        treated = release.decide(draw.x) > 0
        found[name] = (best - (gain * treated).mean()) / size
        truths = dict(zip(VALUES, ((gain * treated).mean(), -(gain * ~treated).mean()), strict=True))
        for line in () if release.averages is None else release.averages.values:
            low, high = release.averages.interval(line)
            found |= {f"{line}: held": float(low <= truths[line] <= high), f"{line}: width": (high - low) / 2 / size}
    return found


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", default="0:20")
    parser.add_argument("--law", action="append")
    parser.add_argument("--cost", action="store_true")
    words = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    without = ("hump", "product", "3 % treated", "trial, days", "trial, three arms", "three arms")
    laws = words.law or [law for law in LAWS if law not in without]
    facts = words.records, words.epsilon, words.cost
    found = pd.DataFrame(row_of(law, seed, *facts) for law in laws for seed in range(*map(int, words.seeds.split(":"))))
    print(found.groupby("law", sort=False).mean().round(3).to_string())
    print(found.mean(numeric_only=True).round(3).to_string())


if __name__ == "__main__":
    _main()
