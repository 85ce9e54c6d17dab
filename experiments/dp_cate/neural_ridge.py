"""The default ridge of neural heads: errors and noise by ridge, beside the nuisances' own effect and a constant.

``python -m experiments.dp_cate.neural_ridge`` measures neural_ridge.csv anew (ten minutes of one core) and prints the
error with the default ridge, or the nearest of those that were measured, over the best of them, over the nuisances' own
effect, and over the private constant. The rule was chosen on seed 0; the others report it. Records are 1,500, nine
tenths of which train, half of them each stage; noise is counted by its variance.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.cate.mechanisms.local_sensitivity import InfluencePerturbation
from torchdpcate.evaluation.comparison import pehe
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.heads.recipes import NeuralSecondStage
from torchdpcate.papers.confounded import Confounded
from torchdpcate.papers.oprescu import Dataset1, Dataset2
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import theorem1_multiplier

TABLE = Path(__file__).with_suffix(".csv")
SOURCES = {"dataset1": Dataset1, "dataset2": Dataset2, "confounded": Confounded}
EPSILONS, SEEDS, RIDGES = (1.0, 4.0, 10.0), (0, 1, 2), (1e-2, 1.0, 10.0, 100.0, 1e3)
N, DELTA, WIDTH = 1_500, 1e-5, 8


def measured(source: str, epsilon: float, seed: int) -> Iterator[dict[str, object]]:
    """Yield error and noise of heads by ridge, in outcome units."""
    study, budget = SOURCES[source](n=N, seed=seed).load(), PrivacyBudget(epsilon, DELTA)
    records, truth, queries = study.records, study.effect, study.queries
    assert truth is not None
    assert queries is not None

    def fitted(**settings: object) -> RLearner:
        own = RLearner(study.domain, budget, seed=seed, **settings)  # type: ignore[arg-type]
        return own.fit(records.x, records.a, records.y)

    constant = fitted(second_stage=AdaptiveSecondStage(constant_only=True)).release_function().effect(queries)
    recipe = NeuralSecondStage(width=WIDTH, ridge=RIDGES[-1])
    learner = fitted(nuisance=NuisanceConfig(), second_stage=recipe)
    plug_in, block = torch.as_tensor(learner.plug_in_effect(queries)), learner.stage_.block
    block, n = block.in_units_of(1 / study.domain.outcome_range), len(block.s)
    rule = NeuralSecondStage().ridge_for(n, budget, study.domain, block.bounds)
    common = {"data": source, "epsilon": epsilon, "seed": seed, "rule": rule, "plug_in": pehe(plug_in, truth)}
    common["constant"] = pehe(torch.as_tensor(constant), truth)
    for ridge in RIDGES:
        own = replace(recipe, ridge=ridge)
        stage = own.fit(block, learner.nuisances_, trainer=default_trainer, budget=budget, seed=seed)
        gamma = InfluencePerturbation(starts=32).gross_error_sensitivity(stage, queries)
        bias, noise = pehe(plug_in + stage.correction(queries), truth), gamma * theorem1_multiplier(epsilon, DELTA, n)
        yield {**common, "ridge": ridge, "error": math.hypot(bias, noise), "noise": noise}


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rule's error over that of the best ridge, of the nuisances' own effect, and of the constant.

    Args:
        table: As ``measured`` yields it.
    """
    found = {}
    for case, rows in table.groupby(["data", "epsilon", "seed"]):
        nearest = rows.loc[(rows["ridge"] / rows["rule"]).map(math.log).abs().idxmin()]
        found[case] = {"best": nearest["error"] / rows["error"].min()}
        found[case] |= {name: nearest["error"] / nearest[name] for name in ("plug_in", "constant")}
    return pd.DataFrame(found).T


if __name__ == "__main__":
    cells = [(source, epsilon, seed) for source in SOURCES for epsilon in EPSILONS for seed in SEEDS]
    pd.DataFrame([row for cell in cells for row in measured(*cell)]).to_csv(TABLE, index=False, float_format="%.4g")
    print(ratios(pd.read_csv(TABLE)).groupby(level=[0, 1]).mean().round(3).to_string())
