"""Coverage of average effects' intervals on generated data: trials, confounded laws with right models, and wrong ones.

``python -m experiments.average_effects.random_intervals`` writes ``random_intervals.csv`` and prints its
table; cells that are done are kept. All noise is from fixed seeds: nothing here is private.
"""

import argparse
import math
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

from experiments.csv_files import Lines, resume
from experiments.defaults.random_laws import random_setting
from experiments.tables import table
from torchdpcate import CovariateBalancingEffect, NoiseSource, PrivacyBudget
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.average.composed import ComposedAverageEffect
from torchdpcate.estimators.average.learner import AverageEffectLearner

HERE = Path(__file__).parent
CELLS = ((1_500, 0.5), (1_500, 1.0), (5_000, 0.5), (5_000, 1.0))
COVARIATES = (2, 4, 6, 10)
DELTA, LEVEL = 1e-5, 0.95
FIRST = 9_000  # seed of a law, of which no constant was made
NAMES = ("law", "n", "epsilon", "method", "draws", "rmse", "covered", "width")
TRIAL, CONFOUNDED, WRONG = "trial, outcome linear", "both models linear", "neither model right"
LAWS = (TRIAL, CONFOUNDED, WRONG)
BALANCING, COMPOSED = "covariate_balancing", "composed"


def drawn(law: str, n: int, seed: int) -> tuple[TableSchema, CausalData, float]:
    """Return public facts, records and the average effect of a random law, in outcome units.

    Covariates, their public ranges and the overlap are those of ``random_laws``. Linear ones: an effect of .3, a
    baseline of up to two standard deviations of the noise, which is one, and a logit of one, or a coin that falls on
    heads in 20 to 80 % of all cases; public outcome bounds of 6 either side, which next to no outcome meets.
    """
    setting = random_setting(FIRST + seed, n=n, epsilon=1.0, covariates=COVARIATES[seed % len(COVARIATES)])
    schema, x = setting.case.schema, setting.case.records.x
    if law == WRONG:
        effects = torch.cat([setting.effects, setting.case.truth])
        return schema, setting.case.records, float(effects.mean())
    g = np.random.default_rng([seed, n, 77])
    z, domain = (x - x.mean(0)) / x.std(0).clamp_min(1e-9), schema.domain
    slopes, of_logit = (torch.from_numpy(g.normal(size=x.shape[1])) / math.sqrt(x.shape[1]) for _ in range(2))
    share = torch.sigmoid(z @ of_logit) if law == CONFOUNDED else torch.full((n,), g.uniform(0.2, 0.8)).double()
    a = torch.from_numpy(g.uniform(size=n)) < share.clamp(domain.overlap, 1 - domain.overlap)
    y = float(g.choice([0.5, 1.0, 2.0])) * (z @ slopes) + 0.3 * a + torch.from_numpy(g.normal(size=n))
    unit = domain.outcome_range / 12
    outcome = domain.clip_outcome(domain.outcome_low + unit * (y + 6))
    return schema, CausalData(x, a.double(), outcome), 0.3 * unit


def learner(method: str, schema: TableSchema, epsilon: float, seed: int) -> AverageEffectLearner:
    """Return an estimator; covariate balancing is pure."""
    noise = NoiseSource.fixed(seed)
    if method == BALANCING:
        return CovariateBalancingEffect(schema, PrivacyBudget(epsilon, 0.0), noise=noise)
    return ComposedAverageEffect(schema, PrivacyBudget(epsilon, DELTA), noise=noise)


def measure(draws: int, law: str, n: int, epsilon: float, method: str) -> Iterator[list[object]]:
    """Yield the line of a cell: errors and widths over the public outcome range."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    errors, halves = [], []
    for seed in range(draws):
        schema, records, effect = drawn(law, n, seed)
        release = learner(method, schema, epsilon, seed).fit(records.x, records.a, records.y).release()
        low, high = release.interval(LEVEL)
        unit = schema.domain.outcome_range
        errors.append((float(release.estimate) - effect) / unit)
        halves.append(float(high - low) / 2 / unit)
    error, half = torch.tensor(errors), torch.tensor(halves)
    covered = (error.abs() <= half).double().mean().item()
    yield [draws, f"{error.square().mean().sqrt().item():.5f}", f"{covered:.4f}", f"{2 * half.mean().item():.5f}"]


def page(lines: Lines) -> str:
    """Return the page."""
    cells = {(line["law"], line["n"], line["epsilon"], line["method"]): line for line in lines}
    rows = [["law", "n", "epsilon", BALANCING, COMPOSED]]
    for law, (n, epsilon) in product(LAWS, CELLS):
        found = [cells.get((law, str(n), str(epsilon), method)) for method in (BALANCING, COMPOSED)]
        rows.append([law, f"{n:,}", f"{epsilon:g}", *map(_words, found)])
    return WORDS.format(table=table(rows))


def _words(line: Mapping[str, str] | None) -> str:
    if line is None:
        return "-"
    return f"{float(line['covered']):.1%} of {line['draws']}, {float(line['width']):.4f}, {float(line['rmse']):.4f}"


WORDS = """# Intervals of average effects on generated data

Written by `python -m experiments.average_effects.random_intervals`.
Covariates, public ranges and overlap of generated data
(2, 4, 6 or 10 covariates, ranges up to three times as wide as they need be), a law a draw: coverage of nominal 95 %
intervals, their mean width, and root mean squared error, over the outcome's public range. *Trial*: treated at random,
in 20 to 80 % of all cases, which the domain does not state; the outcome is linear. *Both models linear*: the log-odds
of treatment too. *Neither model right*: the generated data as they are, with squares, kinks, waves, steps and products.
`covariate_balancing` is pure, `composed` has delta = 1e-5.

{table}"""


def main() -> None:
    """Compute what is not done, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=HERE)
    given = parser.parse_args()
    path = given.folder / "random_intervals.csv"
    cells = [(law, *cell, method) for law, cell, method in product(LAWS, CELLS, (BALANCING, COMPOSED))]
    lines = resume(path, NAMES, cells, partial(measure, given.draws))
    print(page(lines))


if __name__ == "__main__":
    main()
