"""How the default feature map and noise ratio of the linear head were chosen.

For each n and epsilon on Dataset 2 (Oprescu et al. 2019) the nuisances are trained once a seed, and every head is
released several times from them by objective perturbation. Writes second_stage_defaults.md beside this file.

    python experiments/dp_cate/second_stage_defaults.py --n 3000 30000 --epsilon 0.5 1 4 16 --seeds 3
"""

import argparse
from pathlib import Path

import pandas as pd
from rich.progress import track

from torchdpcate import Dataset2, LinearSecondStage, NoiseSource, PrivacyBudget, RLearner
from torchdpcate.estimators.cate.mechanisms.perturbation import ObjectivePerturbation
from torchdpcate.evaluation.comparison import pehe
from torchdpcate.fit.feature_maps import Identity, Legendre
from torchdpcate.heads.stage import LinearStage
from torchdpcate.privacy.session import FitSession

FEATURES = {"identity": Identity(), "legendre 2": Legendre(2), "legendre 3": Legendre(3)}
RATIOS = (0.1, 0.25, 0.5, 1.0, 2.0)
RELEASES = 3


def heads(n: int, epsilon: float, seed: int) -> list[dict]:
    """Errors of every head from one training of the nuisances."""
    study, budget = Dataset2(n=n, seed=seed).load(), PrivacyBudget(epsilon, 1e-5)
    learner = RLearner(study.domain, budget, seed=seed, second_stage=LinearSecondStage())
    learner.fit(study.records.x, study.records.a, study.records.y)
    block, rows = learner.stage_.block, []
    offset = learner.plug_in_effect(study.queries)
    for name, features in FEATURES.items():
        for ratio in RATIOS:
            recipe = LinearSecondStage(noise_ratio=ratio)
            ridge = recipe.ridge_for(block.bounds.weight, len(block.s), budget)
            stage = LinearStage(block, features.setup(study.domain), ridge, learner.threshold_)
            psi = stage.features(study.queries).numpy()
            for _ in range(RELEASES):
                head = ObjectivePerturbation().privatize(stage, budget, FitSession(NoiseSource.system()))
                error = pehe(offset + psi @ head.output.numpy(), study.effect)
                rows.append({"features": name, "noise ratio": ratio, "pehe": error})
    plug_in = {"features": "plug-in", "noise ratio": float("nan"), "pehe": pehe(offset, study.effect)}
    return [{"n": n, "epsilon": epsilon, **row} for row in [*rows, plug_in]]


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[3000, 30000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1, 4, 16])
    parser.add_argument("--seeds", type=int, default=3)
    words = parser.parse_args()
    jobs = [(n, e, s) for n in words.n for e in words.epsilon for s in range(words.seeds)]
    rows = pd.DataFrame([row for job in track(jobs) for row in heads(*job)])
    rows["setting"] = "n=" + rows["n"].astype(str) + ", eps=" + rows["epsilon"].astype(str)
    table = rows.pivot_table(
        index=["features", "noise ratio"], columns="setting", values="pehe", sort=False, dropna=False
    ).dropna(how="all")
    lines = [
        "# Feature map and noise ratio of the linear head",
        "",
        f"PEHE on Dataset 2, mean over {words.seeds} seeds and {RELEASES} releases each; total delta 1e-5.",
        "Written by `python experiments/dp_cate/second_stage_defaults.py`.",
        "",
        "| features | noise ratio | " + " | ".join(table.columns) + " |",
        "| --- " * (2 + len(table.columns)) + "|",
        *(
            f"| {name} | {ratio:g} | " + " | ".join(f"{v:.2f}" for v in values) + " |"
            for (name, ratio), values in zip(table.index, table.to_numpy(), strict=True)
        ),
    ]
    path = Path(__file__).with_suffix(".md")
    path.write_text("\n".join(lines).replace("nan", "-") + "\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
