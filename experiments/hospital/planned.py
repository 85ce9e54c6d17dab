"""What plans say of the effect's error before any record is read, beside the error that there is, on random laws.

``python -m experiments.hospital.planned --out ROWS.csv [--seeds 1000:1002] [--law NAME]`` adds a row for each law,
seed, n and epsilon, and prints what they say. The outcome's deviation is stated: that of people who are not among the
records. Seeds 0 to 2 are those by which the prior of errors (``plans/effect.yaml``) was chosen.
"""

import argparse
import warnings
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from experiments.frame.study import seed_of
from experiments.hospital.cases import DELTA, Case
from experiments.hospital.laws import LAWS
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.planned_noise import worth_asking
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

SIZES, EPSILONS = (1_000, 5_000, 20_000), (0.5, 1.0, 3.0)
WITHIN = 0.7, 1.5
"""Planned over realised errors that are near enough."""


def row(case: Case, law: str, seed: int, n: int, epsilon: float) -> dict[str, object]:
    """Return what is planned and realised of the default effect, and of the private constant, in outcome units."""
    people, errors = case.people, {}
    domain = copy(case.schema.domain)
    domain.outcome_sd = float(f"{people.y.std():.2g}")
    schema = replace(case.schema, domain=domain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fixed seeds
        for name, stage in {
            "error": AdaptiveSecondStage(),
            "constant": AdaptiveSecondStage(constant_only=True),
        }.items():
            noise = NoiseSource.fixed(seed_of(law, seed, n, epsilon, name))
            learner = RLearner(schema, PrivacyBudget(epsilon, DELTA), second_stage=stage, noise=noise)
            if name == "error":
                planned = learner.expected_noise(n)
            learner.check(n)
            release = learner.fit(case.records.x, case.records.codes, case.records.y).release_function()
            errors[name] = float(np.sqrt(np.mean((np.asarray(release.effect(people.x)) - people.effect) ** 2)))
    return {
        **{"law": law, "seed": seed, "n": n, "epsilon": epsilon, "planned": planned.value, **errors},
        "deviation": people.effect.std(),
        "outcome": people.y.std(),
        "verdict": worth_asking(planned.value, schema, planned.relative),
    }


def said(rows: pd.DataFrame) -> str:
    """Return how many cells are planned well, and what became of each verdict."""
    ratio = (rows.planned / rows.error).groupby([rows.law, rows.n, rows.epsilon]).median()
    near = ratio.between(*WITHIN)
    lines = [f"planned / realised within {WITHIN[0]} to {WITHIN[1]}: {near.sum()} of {len(near)} cells"]
    for verdict, own in rows.groupby("verdict"):
        better = int((own.error < own.constant).sum())
        lines.append(f"{verdict}: {len(own)}, of which {better} ended better than the private constant")
    return "\n".join(lines)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="1000:1002")
    parser.add_argument("--law", action="append", choices=LAWS, metavar="NAME")
    words = parser.parse_args()
    torch.set_num_threads(1)
    laws = words.law or [law for law in LAWS if "three arms" not in law]
    for seed in range(*map(int, words.seeds.split(":"))):
        for law in laws:
            for n in SIZES:
                case = Case.of(law, seed, n)
                rows = pd.DataFrame([row(case, law, seed, n, epsilon) for epsilon in EPSILONS])
                rows.to_csv(words.out, mode="a", header=not words.out.exists(), index=False, float_format="%.4g")
    print(said(pd.read_csv(words.out)))


if __name__ == "__main__":
    _main()
