"""The default ridge of neural heads: errors and noise by ridge, beside the nuisances' own effect and a constant.

``python -m experiments.dp_cate.neural_ridge`` measures neural_ridge.csv anew (ten minutes of one core) and prints the
error with the default ridge, or the nearest of those that were measured, over the best of them, over the nuisances' own
effect, and over the private constant. The rule was chosen on seed 0; the others report it. Records are 1,500, nine
tenths of which train, half of them each stage; noise is counted by its variance.

``python -m experiments.dp_cate.neural_ridge --constants`` trains networks alone, under these laws and random ones
(``experiments.defaults.random_laws``) on other seeds, and prints what ``network_error`` and ``NetworkErrors`` would be
by their errors beside what they are (two minutes of one core).
"""

import argparse
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from experiments.defaults.random_laws import random_setting
from experiments.defaults.sources import Case
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.cate.mechanisms.local_sensitivity import InfluencePerturbation
from torchdpcate.evaluation.comparison import pehe
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.nuisances import network_error
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.heads.recipes import NeuralSecondStage, PlugInSecondStage
from torchdpcate.papers.confounded import Confounded
from torchdpcate.papers.oprescu import Dataset1, Dataset2
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, theorem1_multiplier

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


SIZES, LAWS = (1_350, 2_700, 8_000), range(940, 958)
VARIES, HARDLY = (
    0.02,
    0.005,
)  # deviations of effects in outcome ranges from which, and up to which, constants are fitted


def network_errors() -> Iterator[dict[str, object]]:
    """Yield errors of the effect of networks that all records trained, in outcome ranges, a law, size and budget each.

    Half of the random laws have an outcome of two values.
    """
    for law, kind in itertools.product(LAWS, ("continuous", "binary")):
        drawn = random_setting(law, n=SIZES[law % len(SIZES)], kind=kind)
        yield _errors(kind, drawn.epsilon, law, drawn.case)
    for (name, source), n, epsilon in itertools.product(SOURCES.items(), SIZES[:2], EPSILONS):
        study = source(n=round(n / 0.9), seed=LAWS[0]).load()
        schema = TableSchema.from_domain(study.domain)
        yield _errors(name, epsilon, LAWS[0], Case(schema, study.records, study.queries, study.effect))


def _errors(law: str, epsilon: float, seed: int, case: Case) -> dict[str, object]:
    domain, records = case.schema.domain, case.records
    budget, networks = PrivacyBudget(epsilon, DELTA), NuisanceConfig(engine="chain")
    learner = RLearner(domain, budget, nuisance=networks, second_stage=PlugInSecondStage(), seed=seed)
    found = torch.as_tensor(learner.fit(records.x, records.a, records.y).plug_in_effect(case.queries))
    effect, truth = found / domain.outcome_range, case.truth / domain.outcome_range
    return {
        "law": law,
        "binary": domain.outcome_kind == "binary",
        "q": domain.dimension,
        "size": records.n / analytic_gaussian_sigma(epsilon, DELTA),
        "in_use": network_error(records.n, domain.dimension, budget),
        "error": pehe(effect, truth),
        "mean": float(effect.mean() - truth.mean()),
        "spread": float(effect.std()),
        "varies": float(truth.std()),
    }


def constants(table: pd.DataFrame) -> pd.DataFrame:
    """Return the constants that these errors make, beside those in use.

    Factor and powers by least squares of logarithms, where effects vary by more than the error in use; the mean's error
    as a root mean square; noise as the spread of networks where effects hardly vary.

    Args:
        table: As ``network_errors`` yields it.
    """
    vary, hardly = table[table["varies"] > table["in_use"]], table[table["varies"] < HARDLY]
    design = np.column_stack([np.ones(len(vary)), np.log(vary["q"]), np.log(vary["size"])])
    fitted = np.linalg.lstsq(design, np.log(vary["error"]), rcond=None)[0]
    apart = np.log(vary["error"] / vary["in_use"])
    mean = (table["mean"] / table["in_use"]).pow(2).groupby(table["binary"]).mean().pow(0.5)
    noise = hardly["spread"] / hardly["in_use"]
    found = {
        "factor": (math.exp(fitted[0]), 0.45),
        "power of q": (fitted[1], 0.25),
        "power of n mu": (fitted[2], -1 / 3),
        "error over that in use, geometric mean": (math.exp(apart.mean()), 1.0),
        "its logarithm's deviation": (apart.std(), math.nan),
        "error of the mean": (mean.get(False, math.nan), 0.15),
        "the same, binary": (mean.get(True, math.nan), 0.6),
        "noise": (noise.median(), 0.4),
    }
    return pd.DataFrame(found, index=["fitted", "in use"]).T


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--constants", action="store_true", help="errors of networks alone")
    if parser.parse_args().constants:
        errors = pd.DataFrame(network_errors())
        print(errors.round(4).to_string(), constants(errors).round(3).to_string(), sep="\n")
    else:
        cells = [(source, epsilon, seed) for source in SOURCES for epsilon in EPSILONS for seed in SEEDS]
        pd.DataFrame([row for cell in cells for row in measured(*cell)]).to_csv(TABLE, index=False, float_format="%.4g")
        print(ratios(pd.read_csv(TABLE)).groupby(level=[0, 1]).mean().round(3).to_string())
