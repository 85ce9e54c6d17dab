"""Steps of the regressions at large n mu: errors and biases of the effect with momentum, and of sixty steps without.

All have ``RECORDS`` records, and n mu is made by epsilon: what is compared is whether the steps arrive. The numbers of
``large`` in ``plans/effect.yaml`` were chosen by other seeds (0 to 2, 50 and 51 of the designs, 100 to 104, 200, 201,
1,000 and 1,001 of the other laws) and by how much of an error steps leave at a curvature. Nuisances are of features
alone: no hidden layer is beside them. Adds to steps.csv beside this file, and prints, beside sixty steps: geometric
means over fits of the ratios of mean squared errors, of which a hundredth of the outcome's deviation is taken not to
count, the largest ratio, that of sums, and the mean size of the mean error in deviations of the outcome.

    python -m experiments.defaults.steps [--sizes 10500 30000] [--show]
"""

import argparse
import csv
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from experiments.defaults.hospital_laws import hospital_case
from experiments.defaults.random_laws import random_setting
from experiments.defaults.sources import QUERIES, Case
from experiments.designs.niu import Niu
from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.constants import of_kind
from torchdpcate.composition.linear_fit import NoisyNewton
from torchdpcate.composition.records import fit_composition, rows_of
from torchdpcate.composition.settings import Additive
from torchdpcate.composition.steps import total_mu
from torchdpcate.data.study import GeneratedStudy
from torchdpcate.papers.confounded import Confounded
from torchdpcate.papers.oprescu import Dataset1, Dataset2
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

HERE = Path(__file__)
RECORDS, DELTA = 20_000, 1e-5
SIZES = (10_500.0, 30_000.0, 100_000.0, 1_000_000.0)
_MOMENTUM = {"burn_in": 0.4, "size": 0.5, "momentum": 0.5}
WAYS = {
    "sixty": {"steps": 60, "burn_in": 0.2, "size": 0.27, "momentum": 0.0},
    "sixty, momentum": {"steps": 60, "burn_in": 0.2, "size": 0.27, "momentum": 0.6},
    "forty, momentum": {"steps": 40, **_MOMENTUM},
    "thirty, momentum": {"steps": 30, **_MOMENTUM},
    "sixteen, momentum": {"steps": 16, **_MOMENTUM, "burn_in": 0.5},
}
LEAST = 1e-4  # squared error in deviations of the outcome, below which ratios tell nothing
NAMES = ("n_mu", "law", "seed", "way", "square", "bias")


def epsilon_of(size: float, n: int = RECORDS) -> float:
    """Return the epsilon at which n records have this n mu."""
    low, high = 1e-3, 1e7
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if n * total_mu(PrivacyBudget(middle, DELTA)) < size else (low, middle)
    return math.sqrt(low * high)


def cases() -> Iterator[tuple[str, int, Case]]:
    """Yield name, seed and records of each law."""
    designs = {"Dataset 1": Dataset1, "Dataset 2": Dataset2, "confounded": Confounded}
    for name, make in (designs | {f"Niu {design}": partial(Niu, design) for design in "ABCDE"}).items():
        for seed in (52, 53):
            total = RECORDS + QUERIES
            study: GeneratedStudy = make(n=total, train_fraction=RECORDS / total, queries=QUERIES, seed=seed)
            loaded = study.load()
            assert loaded.queries is not None
            assert loaded.effect is not None
            yield name, seed, Case(loaded.schema, loaded.records, loaded.queries, loaded.effect)
    for family in ("cohort", "costs", "interaction"):
        for seed in (1_002, 1_003):
            yield family, seed, hospital_case(family, seed, RECORDS)
    for kind in ("continuous", "binary", "count"):
        for seed in (202, 203):
            yield f"random, {kind}", seed, random_setting(seed, RECORDS, 1.0, kind=kind).case


def errors(case: Case, size: float, way: str, seed: int) -> tuple[float, float]:
    """Return mean square and mean of the effect's error, in deviations of the outcome."""
    of_kind("effect")["large"] = ({**WAYS[way], "from": 0.0},)
    records, domain = case.records, case.schema.domain
    plan = plan_within(records.n, PrivacyBudget(epsilon_of(size), DELTA), domain)
    levels = [len(column.unique()) == 2 for column in records.x.T]
    session = FitSession(NoiseSource.fixed(seed))  # without a ledger: noise is drawn, nothing is charged
    fit = fit_composition(rows_of(records, domain), domain, plan, session, levels, nuisance=Additive(NoisyNewton()))
    square, mean = case.error(fit.features(domain.scale(case.queries)) @ fit.effect.shrunk)
    deviation = float(records.y.std())
    return square / deviation**2, mean / deviation


def show(path: Path) -> None:
    """Print the table."""
    found = pd.read_csv(path)
    for size, rows in found.groupby("n_mu"):
        squares = rows.pivot(index=["law", "seed"], columns="way", values="square")
        ratios = (squares + LEAST).div(squares["sixty"] + LEAST, axis=0).map(math.log)
        biases = rows.assign(bias=rows.bias.abs()).groupby("way").bias.mean()
        print(f"n mu {size:,.0f}, {len(ratios)} fits a way")
        for way in WAYS:
            error = float(ratios[way].std()) / math.sqrt(len(ratios))
            ends = f"{math.exp(ratios[way].mean()):.3f} (log: ± {error:.3f}), most {math.exp(ratios[way].max()):.2f}"
            print(f"  {way:18s} {ends}, sums {squares[way].sum() / squares['sixty'].sum():.3f}, bias {biases[way]:.4f}")


def main() -> None:
    """Fit, add to the file, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", type=float, nargs="+", default=list(SIZES), help="n mu")
    parser.add_argument("--output", type=Path, default=HERE.with_suffix(".csv"))
    parser.add_argument("--show", action="store_true", help="print what the file has alone")
    options = parser.parse_args()
    if not options.show:
        torch.set_num_threads(1)
        fresh = not options.output.exists()
        with options.output.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if fresh:
                writer.writerow(NAMES)
            for law, seed, case in cases():
                for size in options.sizes:
                    for way in WAYS:
                        square, bias = errors(case, size, way, seed)
                        writer.writerow((f"{size:.0f}", law, seed, way, f"{square:.4g}", f"{bias:.4g}"))
                        file.flush()
    show(options.output)


if __name__ == "__main__":
    main()
