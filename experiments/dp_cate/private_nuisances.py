"""Better private nuisances: screening, convex fits and private tuning, against records and budget.

Run `python experiments/dp_cate/private_nuisances.py --acic X.CSV`; it writes the table's numbers beside itself (csv)
and prints them as Markdown. Every number is a root mean squared error at 300 held-out points over that of the best
constant effect (its own standard deviation there).
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from torchdpcate.data.study import Study
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.evaluation.comparison import pehe
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.papers.oprescu import Dataset1, Dataset2
from torchdpcate.papers.semi_synthetic import SemiSynthetic
from torchdpcate.privacy.budget import PrivacyBudget

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 4.0, 16.0, None)  # None: the learner without privacy


class Stage(LinearSecondStage):
    """With the threshold that the recorded table has."""

    quantile = 0.75


STAGE = Stage()
BEST = {"nuisance": ConvexNuisanceConfig(), "second_stage": STAGE}
BEFORE = {"nuisance": NuisanceConfig(), "second_stage": LinearSecondStage()}
Make = Callable[[int], Study]


def errors(study: Study, epsilon: float | None, seed: int, **settings: object) -> dict[str, float]:
    """Errors of the release, its head without noise and the plug-in, over a constant effect's."""
    budget = None if epsilon is None else PrivacyBudget(epsilon, DELTA)
    learner = RLearner(study.domain, budget, seed=seed, **settings)  # type: ignore[arg-type]
    learner.fit(study.records.x, study.records.a, study.records.y)
    truth, queries = study.effect, study.queries
    assert truth is not None
    assert queries is not None
    found = {"head": learner.nonprivate_effect(queries), "plug-in": learner.plug_in_effect(queries)}
    found["release"] = found["head"] if epsilon is None else learner.release_function().effect(queries)
    constant = pehe(truth.mean().expand_as(truth), truth)
    return {name: pehe(torch.as_tensor(effect), truth) / constant for name, effect in found.items()}


def budgets(acic: str) -> Iterator[tuple[str, Make, int, dict[str, object], tuple[float | None, ...]]]:
    """What the first table runs: name, data by seed, seeds, settings, budgets."""
    real = "ACIC 2016 covariates, 4,322"
    for n, seeds in ((3_000, 10), (30_000, 5), (300_000, 2)):
        yield f"Dataset 2, {n * 9 // 10:,}", lambda s, n=n: Dataset2(n=n, seed=s).load(), seeds, BEST, EPSILONS
    yield "Dataset 1, 2,700", lambda s: Dataset1(n=3_000, seed=s).load(), 10, BEST, EPSILONS
    yield "Dataset 1, 27,000", lambda s: Dataset1(n=30_000, seed=s).load(), 5, BEST, EPSILONS
    if acic:
        yield real, lambda s: SemiSynthetic(acic, "acic2016", out_of_bounds="clip", seed=s).load(), 5, BEST, EPSILONS


def parts(acic: str) -> Iterator[tuple[str, Make, int, dict[str, object], tuple[float | None, ...]]]:
    """What the second table runs at epsilon = 1: one part changed at a time."""
    changes: dict[str, dict[str, object]] = {
        "all parts": {},
        "tune=none": {"tune": None},
        "tune=none, threshold = outcome range": {"tune": None, "second_stage": "range"},
        "threshold: 0.9-quantile": {"second_stage": LinearSecondStage()},
        "screen=none": {"screen": None},
        "nuisance=narrow": {"nuisance": NuisanceConfig(width=16)},
        "nuisance=narrow, batch 1,024": {"nuisance": NuisanceConfig(width=16, batch_size=1024, learning_rate=1.6)},
        "nuisance=narrow, screen=none": {"nuisance": NuisanceConfig(width=16), "screen": None},
        "degree 3": {"nuisance": ConvexNuisanceConfig(degree=3)},
        "one propensity for all": {"nuisance": ConvexNuisanceConfig(propensity_degree=0)},
        "split 0.3": {"split": 0.3},
        "split 0.7": {"split": 0.7},
        "screen.share=0.15": {},
    }
    sources: list[tuple[str, Make, int]] = [
        ("Dataset 2, 2,700", lambda s: Dataset2(n=3_000, seed=s).load(), 10),
        ("Dataset 2, 27,000", lambda s: Dataset2(n=30_000, seed=s).load(), 4),
    ]
    if acic:
        real: Make = lambda s: SemiSynthetic(acic, "acic2016", out_of_bounds="clip", seed=s).load()  # noqa: E731
        sources.append(("ACIC 2016, 4,322", real, 4))
    for name, make, seeds in sources:
        for label, change in changes.items():
            settings = BEST | change
            if settings["second_stage"] == "range":
                settings["second_stage"] = LinearSecondStage(threshold=make(0).domain.outcome_range)
            yield f"{name}: {label}", make, seeds, settings, (1.0,)


def networks(acic: str) -> Iterator[tuple[str, Make, int, dict[str, object], tuple[float | None, ...]]]:
    """What the third table runs: DP-SGD on the screened columns, by batch size, rate and steps."""
    for n, seeds, batches in ((3_000, 5, (128, 512, 1_024)), (30_000, 2, (512, 1_024, 4_096))):
        for batch in batches:
            for factor, epochs in ((0.5, 20), (1.0, 20), (2.0, 20), (1.0, 60)):
                config = NuisanceConfig(16, 0.2 * batch / 128 * factor, batch, epochs)
                label = f"Dataset 2, {n * 9 // 10:,}: batch {batch:,}, rate x {factor:g}, {epochs} epochs"
                yield label, lambda s, n=n: Dataset2(n=n, seed=s).load(), seeds, BEST | {"nuisance": config}, (1.0,)


def main() -> None:
    """Run the requested tables and write their numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--acic", default="", help="x.csv of the ACIC 2016 competition; left out: without it")
    parser.add_argument("--tables", nargs="+", default=["budgets", "parts", "networks"])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    kinds = {"budgets": budgets, "parts": parts, "networks": networks}
    rows, start = [], time.perf_counter()
    for table in options.tables:
        for name, make, seeds, settings, epsilons in kinds[table](options.acic):
            studies = [make(seed) for seed in range(seeds)]
            for epsilon in epsilons:
                found = [errors(study, epsilon, seed, **settings) for seed, study in enumerate(studies)]
                for estimate in ("release", "head", "plug-in"):
                    values = torch.tensor([one[estimate] for one in found])
                    spread = (values.std() / len(values) ** 0.5).item() if seeds > 1 else 0.0
                    numbers = [round(values.mean().item(), 4), round(spread, 4)]
                    rows.append([table, name, "none" if epsilon is None else epsilon, estimate, seeds, *numbers])
                shown = "  ".join(f"{r[3]} {r[5]:.3f} ± {r[6]:.3f}" for r in rows[-3:])
                print(f"{name} | epsilon = {rows[-1][2]} | {shown}", flush=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["table", "case", "epsilon", "estimate", "seeds", "error", "standard_error"])
        writer.writerows(rows)
    print(f"measured in {time.perf_counter() - start:.0f} s on one thread")


if __name__ == "__main__":
    main()
