"""Recurrent nuisances on rows of hours: an effect that hangs on how the hours went, on MIMIC-Extract's demonstration.

A row is a full hour of a stay with the 24 hours before it, six variables each, carried forward within the row and else
the middle of their bounds. Treatment and outcome are generated, so that the effect is known: it grows with the heart
rate of the last six hours (level), or with its rise since the first six (rise). Test rows are of other persons. Printed
is the root mean squared error of mu1 - mu0 there, over the effect's standard deviation; medians of seeds. A record is
a row, no person.

    python -m experiments.dp_cate.hours [--data ../shared/data/mimic_extract_layout] [--seeds 1]
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from experiments.dp_cate.figure_runs import markdown
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.fit.nuisance_config import NuisanceConfig, RecurrentConfig
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.fit.training import train
from torchdpcate.papers.mimic import read_extract
from torchdpcate.papers.mimic_hours import VARIABLES
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

WINDOW, ENDS = 24, 6
LOW, HIGH = (40, 120, 1.5, 60, 15, 5), (160, 160, 6.5, 300, 55, 45)  # public ranges, in the order of VARIABLES
TYPICAL = (60, 120), (130, 149), (3, 5), (80, 200), (25, 40), (12, 28)  # of nine in ten, as clinics know them
BUDGETS = (None, 8.0)
KINDS = {"recurrent": RecurrentConfig, "mlp": NuisanceConfig}


def rows(path: Path) -> tuple[Tensor, np.ndarray]:
    """Return rows of hours, float64 [n, 6 x 24], and the person of each."""
    hours = read_extract(path)
    start = np.searchsorted(hours.stay, hours.stay, side="left")
    points = np.flatnonzero(np.arange(hours.n) - start >= WINDOW)
    before = hours.values[points[:, None] - np.arange(WINDOW, 0, -1)]  # [n, 24, 6]
    frames = (pd.DataFrame(before[:, :, place]).ffill(axis=1) for place in range(len(VARIABLES)))
    middle = zip(frames, LOW, HIGH, strict=True)
    filled = [frame.fillna((low + high) / 2).clip(low, high).to_numpy() for frame, low, high in middle]
    return torch.from_numpy(np.concatenate(filled, 1)), hours.person[points]


def domain() -> Domain:
    """Return the public bounds of the rows; outcomes lie in [0, 1]."""
    names = [f"{variable.name}_h{hour}" for variable in VARIABLES for hour in range(WINDOW)]
    low, high = (np.repeat(ends, WINDOW).tolist() for ends in (LOW, HIGH))
    typical = [range_ for range_ in TYPICAL for _ in range(WINDOW)]
    return Domain(low, high, 0.0, 1.0, names=names, propensity=0.5, typical=typical)


def generated(x: Tensor, law: str, seed: int) -> tuple[CausalData, Tensor]:
    """Return records of generated treatments and outcomes, and the effect of each."""
    generator = torch.Generator().manual_seed(seed)
    pulse = x[:, :WINDOW]
    first, last = pulse[:, :ENDS].mean(1), pulse[:, -ENDS:].mean(1)
    effect = 0.3 * torch.tanh((last - 85) / 15 if law == "level" else (last - first) / 10)
    a = (torch.rand(len(x), generator=generator) < 0.5).double()
    base = 0.5 + 0.2 * torch.tanh((x[:, 3 * WINDOW : 4 * WINDOW].mean(1) - 140) / 40)
    y = base + (a - 0.5) * effect + 0.05 * torch.randn(len(x), generator=generator).double()
    return CausalData(x, a, y.clamp(0, 1)), effect


def error(law: str, kind: str, epsilon: float | None, x: Tensor, person: np.ndarray, seed: int) -> float:
    """Return the error of one training on rows of other persons than the tested, over that of the best constant."""
    records, effect = generated(x, law, seed)
    persons = np.unique(person)
    test = torch.from_numpy(np.isin(person, np.random.default_rng(seed).permutation(persons)[: len(persons) // 4]))
    own = CausalData(records.x[~test], records.a[~test], records.y[~test])
    config = KINDS[kind](width=16, batch_size=512, epochs=20)
    plan = None if epsilon is None else config.plan(own.n, PrivacyBudget(epsilon, 1e-5))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = config.module(domain())
    settings = {"batch_size": config.batch_size, "epochs": config.epochs, "noise": NoiseSource.fixed(seed)}
    train(module, own, partial(default_trainer, accelerator="cpu"), seed=seed, plan=plan, **settings)
    found = module.trained().effect(records.x[test])
    return float((found - effect[test]).square().mean().sqrt() / effect[test].std(correction=0))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mimic_extract_layout"))
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    if not given.data.is_dir():
        print(f"skipped: {given.data} is not there; give --data, a folder of MIMIC-Extract's tables as parquet")
        return
    torch.set_num_threads(1)
    x, person = rows(given.data)
    print(f"{len(x):,} rows of {len(np.unique(person))} persons, {x.shape[1]} columns; a constant has 1.00")
    found = [
        {
            "effect": law,
            "nuisance": kind,
            **{str(e or "not private"): _median(law, kind, e, x, person, given.seeds) for e in BUDGETS},
        }
        for law in ("level", "rise")
        for kind in KINDS
    ]
    print(markdown(pd.DataFrame(found)))


def _median(law: str, kind: str, epsilon: float | None, x: Tensor, person: np.ndarray, seeds: int) -> str:
    return f"{np.median([error(law, kind, epsilon, x, person, seed) for seed in range(seeds)]):.2f}"


if __name__ == "__main__":
    main()
