"""How far one record really moves a fit, against what Theorem 1 of Schroeder et al. (2025) takes for it.

Records are those of Dataset 1 (Oprescu et al. 2019). The nuisances are trained without privacy on records of their
own: the study is of the second stage, for which they are fixed and public. Besides it, data made to break the
claim, for an R-learner with a known propensity: one treated record holds back twenty controls (linear head), and one
record decides which of two minima the training ends in (neural head). Writes influence_truth.csv, .json and .png
beside this file; the .md says what was found.

    python -m experiments.audit.influence_truth
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.audit.measure import Case, breaking_ratio, influence_versus_truth, scale_delta, truth_figure
from torchdpcate import Dataset1, RLearner
from torchdpcate._files import write_text
from torchdpcate.causal.score import RScore
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.cate.mechanisms.local_sensitivity import InfluencePerturbation
from torchdpcate.evaluation.figures import save_figure
from torchdpcate.fit.feature_maps import Fourier, Legendre
from torchdpcate.fit.nuisance_kinds import Nuisances
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.heads.recipes import LinearSecondStage, NeuralSecondStage
from torchdpcate.heads.stage import LinearStage, NeuralStage, SecondStageBlock
from torchdpcate.privacy.calibration import smoothness

HERE = Path(__file__).parent
RECORDS, QUERIES = 20_000, 300
CROWD, PROPENSITY = 20, 0.05


@cache
def nuisances() -> Nuisances:
    """Public nuisances: trained without privacy on records that are used for nothing else."""
    study = Dataset1(n=3_000, seed=1_000).load()
    learner = RLearner(study.domain, None, second_stage=LinearSecondStage())
    return learner.fit(study.records.x, study.records.a, study.records.y).nuisances_


@cache
def records(seed: int) -> tuple[CausalData, Tensor, Domain]:
    """Records, of which a case takes the first n, and held-out queries."""
    study = Dataset1(n=RECORDS, seed=seed, queries=QUERIES).load()
    return study.records, study.queries, study.domain


def block(n: int, seed: int) -> SecondStageBlock:
    """The first n records as a second-stage block of the R-learner; as in the paper, the head has no offset."""
    data, _, domain = records(seed)
    score, eta = RScore(), nuisances()

    def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return score.regression(a, y, eta.predict(x))

    with torch.no_grad():
        s, w = regression(data.x[:n], data.a[:n], data.y[:n])
    return SecondStageBlock(data.x[:n], s, w, regression, domain, score.bounds(domain))


def legendre(n: int, degree: int, seed: int) -> Case:
    """Polynomials with a fixed ridge."""
    own = block(n, seed)
    return Case(LinearStage(own, Legendre(degree).setup(own.domain), 1e-3), records(seed)[1])


def fourier(n: int, pairs: int, seed: int) -> Case:
    """Random features with the ridge that scikit-learn's KernelRidge has by default."""
    own = block(n, seed)
    return Case(LinearStage(own, Fourier(pairs, bandwidth=0.5).setup(own.domain), 1 / n), records(seed)[1])


def neural(n: int, width: int, seed: int, ridge: float) -> Case:
    """The paper's neural head, two hidden layers."""
    recipe = NeuralSecondStage(width=width, ridge=ridge)
    fit = partial(recipe.fit, nuisances=nuisances(), trainer=partial(default_trainer, accelerator="cpu"), seed=seed)
    return Case(fit(block(n, seed)), records(seed)[1], retrain=fit)


def crowd_held_back(n: int, crowd: int, seed: int) -> Case:
    """One treated record at x = 0 holds back a crowd of controls there; all others lie at x = 1, orthogonal to it."""
    domain, score = Domain([0.0], [1.0], -1.0, 1.0, overlap=PROPENSITY), RScore()
    features = Fourier(pairs=1).setup(domain)
    features.frequencies.fill_(math.pi / 4)  # psi(0) and psi(1) at a right angle
    x, a, y = torch.ones(n, 1, dtype=torch.float64), *torch.zeros(2, n, dtype=torch.float64)
    x[: crowd + 1], y[: crowd + 1], a[0] = 0.0, -1.0, 1.0

    def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y, a - PROPENSITY

    own = SecondStageBlock(x, *regression(x, a, y), regression, domain, score.bounds(domain))
    return Case(LinearStage(own, features, 0.1 / n), torch.zeros(1, 1, dtype=torch.float64))


def two_minima(n: int, seed: int) -> dict:
    """Figures of two neighbours between which training a head of one hidden unit ends in another minimum.

    The effect is 1 at x = -1 and at x = 1 and 0 between: one unit can follow one side only. With the records moved
    one by one from the right to the left, training changes sides somewhere, and bisection finds the record.
    """
    domain, score = Domain([-1.0], [1.0], -1.0, 1.0, overlap=0.1), RScore()
    recipe = NeuralSecondStage(width=1, depth=1, ridge=3e-4, epochs=10)
    queries, sides = torch.linspace(-1, 1, 21, dtype=torch.float64)[:, None], n - n // 5

    def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y, a - 0.5

    def fit(left: int) -> NeuralStage:
        x, a = torch.zeros(n, 1, dtype=torch.float64), (torch.arange(n) % 2).double()
        x[:left], x[left:sides] = -1.0, 1.0
        y = torch.where(x[:, 0] == 0, 0.0, 2 * a - 1)
        own = SecondStageBlock(x, *regression(x, a, y), regression, domain, score.bounds(domain))
        return recipe.fit(own, nuisances(), trainer=partial(default_trainer, accelerator="cpu"), seed=seed)

    few, many = 0, sides
    while many - few > 1:
        middle = (few + many) // 2
        answers = fit(middle).correction(queries)
        few, many = (middle, many) if answers[0] < answers[-1] else (few, middle)
    pair = [fit(few), fit(many)]
    change = float((pair[0].correction(queries) - pair[1].correction(queries)).norm())
    gammas = [InfluencePerturbation(starts=256).gross_error_sensitivity(stage, queries) for stage in pair]
    scale, xi = max(gammas) * math.sqrt(math.log(n)) / n, smoothness(1.0, 1e-5, len(queries))
    p, gamma_ratio = pair[0].theta.numel(), max(gammas) / min(gammas)
    row = {"n": n, "parameter": 1, "p": p, "per_record": p / n, "gamma": max(gammas), "scale": scale, "xi": xi}
    row |= {"change": change, "ratio": change / scale, "retrained_ratio": change / scale, "gamma_ratio": gamma_ratio}
    row |= {"smooth_ratio": gamma_ratio / math.exp(xi), "leak": math.log(gamma_ratio) / xi}
    row["delta_scale"] = scale_delta(gamma_ratio, len(queries), 1.0)
    return row | {"note": "both heads trained from scratch"}


LINEAR_NS, NEURAL_NS = [100, 316, 1_000, 3_162, 10_000], [100, 316, 1_000, 3_162]
HEADS: dict[str, Callable[[int], pd.DataFrame]] = {
    "Legendre, ridge 0.001": lambda seed: influence_versus_truth(legendre, LINEAR_NS, [2, 8, 32], seed),
    "Fourier, ridge 1/n": lambda seed: influence_versus_truth(fourier, LINEAR_NS, [4, 16, 64], seed),
    "neural, ridge 0.001": lambda seed: influence_versus_truth(partial(neural, ridge=1e-3), NEURAL_NS, [4, 16], seed),
    "neural, ridge 0.0001": lambda seed: influence_versus_truth(
        partial(neural, ridge=1e-4), NEURAL_NS[:3], [4, 16], seed
    ),
    "linear, made to break, ridge 0.1/n": lambda seed: influence_versus_truth(
        crowd_held_back, LINEAR_NS, [CROWD], seed
    ),
    "neural, made to break": lambda seed: pd.DataFrame([two_minima(n, seed) for n in LINEAR_NS]),
}


def summary(table: pd.DataFrame) -> dict[str, dict]:
    """The worst figures of each kind of head, for release cards."""
    found = {}
    for head, rows in table.groupby("head", sort=False):
        worst = rows.loc[rows["ratio"].idxmax()]
        found[str(head)] = {
            "n": [int(rows["n"].min()), int(rows["n"].max())],
            "parameters_per_record": [
                float(f"{rows['per_record'].min():.3g}"),
                float(f"{rows['per_record'].max():.3g}"),
            ],
            "worst_change_over_scale": _number(worst["ratio"]),
            "at": {"n": int(worst["n"]), "p": int(worst["p"])},
            "worst_retrained_over_scale": _number(rows["retrained_ratio"].max()),
            "worst_gamma_ratio": _number(rows["gamma_ratio"].max()),
            "ln_gamma_ratio_over_xi": [_number(rows["leak"].min()), _number(rows["leak"].max())],
            "worst_delta_of_the_scale_alone": _number(rows["delta_scale"].max()),
            "missing": int(rows["ratio"].isna().sum()),
        }
    return found


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.4g}")


def main() -> None:
    """Measure and write the table, the summary and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--heads", nargs="+", default=list(HEADS), choices=list(HEADS))
    parser.add_argument("--out", type=Path, default=HERE)
    words = parser.parse_args()
    tables, begin = [], time.perf_counter()
    for head in words.heads:
        table = HEADS[head](words.seed)
        table.insert(0, "head", head)
        print(table.drop(columns=["xi", "scale", "change", "note"]).round(3).to_string(), flush=True)
        tables.append(table)
        print(f"{head}: {time.perf_counter() - begin:.0f} s so far on {torch.get_num_threads()} thread(s)", flush=True)
    table = pd.concat(tables, ignore_index=True)
    table.to_csv(words.out / "influence_truth.csv", index=False, float_format="%.6g")
    facts = {"epsilon": 1.0, "delta": 1e-5, "seed": words.seed, "breaking_ratio": _number(breaking_ratio(1.0, 1e-5))}
    heads = ",\n".join(f"    {json.dumps(head)}: {json.dumps(found)}" for head, found in summary(table).items())
    text = f'{json.dumps(facts, indent=2)[:-2]},\n  "heads": {{\n{heads}\n  }}\n}}\n'
    write_text(words.out / "influence_truth.json", text)
    save_figure(truth_figure(table), words.out / "influence_truth.png")


if __name__ == "__main__":
    main()
