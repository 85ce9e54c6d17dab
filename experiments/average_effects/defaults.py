"""What the pure estimators of average effects release, beside zero, difference in means and the non-private estimate.

``python -m experiments.average_effects.defaults`` writes ``defaults.csv`` and prints it. All noise is from fixed
seeds: nothing here is private.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.covariate_balancing.outcome_table import DifferenceInMeans
from torchdpcate import Domain, NoiseSource, PrivacyBudget, TableSchema
from torchdpcate.causal.estimand import ATE
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect
from torchdpcate.estimators.average.effect_plan import ErrorPrior
from torchdpcate.estimators.average.known_propensity import KnownPropensityEffect
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.stacked_records import Batch, StackedRecords
from torchdpcate.release.estimate import half_width

HERE = Path(__file__).parent
SIDE_BY_SIDE: dict[str, type[AverageEffectLearner]] = {
    "known_propensity": KnownPropensityEffect,
    "covariate_balancing": CovariateBalancingEffect,
}
"""Estimators that are run on many data sets at once."""
SIZES, EPSILONS, DELTA = (500, 1_500, 5_000, 15_000, 50_000), (0.5, 1.0, 4.0), 0.0
EFFECT, DEVIATION = 0.1, 0.12
SLOPES = torch.tensor([0.12, 0.10, -0.08, 0.06], dtype=torch.float64)
ODDS = torch.tensor([0.8, 0.8, -0.5, -0.6], dtype=torch.float64)
AT_ONCE = 4_000_000  # numbers of covariates in memory
MOST_RECORDS = 1_500_000  # in all data sets of a cell


@dataclass(frozen=True)
class Design:
    """A law of records with four covariates in [-1, 1], outcomes in [0, 1] and an effect of 0.1 on everybody.

    Attributes:
        title: What it is called in tables.
        domain: Public facts.
        propensity: P(A = 1) at covariates [..., 4].
    """

    title: str
    domain: Domain
    propensity: Callable[[Tensor], Tensor]

    def data_sets(self, runs: int, n: int, seed: int) -> StackedRecords:
        """Return data sets side by side; where a propensity is known it is their one feature."""
        generator = torch.Generator().manual_seed(seed)
        x = 2 * torch.rand(runs, n, 4, generator=generator, dtype=torch.float64) - 1
        x[..., 3] = x[..., 3].sign()
        e = self.propensity(x)
        z = (torch.rand(runs, n, generator=generator, dtype=torch.float64) < e).double()
        error = DEVIATION * torch.randn(runs, n, generator=generator, dtype=torch.float64)
        y = (0.4 + x @ SLOPES + EFFECT * (z - 0.5) + error).clamp(0, 1)
        known = self.domain.known_propensity is not None
        psi = e[..., None] if known else on_domain(None, self.domain)(x.reshape(-1, 4)).reshape(runs, n, -1)
        return StackedRecords(Batch(x, psi, z, y))


def _domain(**facts: object) -> Domain:
    two = [False, False, False, True]
    return Domain([-1.0] * 4, [1.0] * 4, 0.0, 1.0, 0.1, two_levels=two, **facts)  # type: ignore[arg-type]


DESIGNS = (
    Design("trial, a fair coin", _domain(propensity=0.5), lambda x: torch.full_like(x[..., 0], 0.5)),
    Design("trial, one in five treated", _domain(propensity=0.2), lambda x: torch.full_like(x[..., 0], 0.2)),
    Design(
        "trial, 0.3 and 0.6 in two strata",
        _domain(propensity={"x3": {-1: 0.3, 1: 0.6}}),
        lambda x: torch.tensor([0.3, 0.6], dtype=torch.float64)[(x[..., 3] > 0).long()],
    ),
    Design("observational", _domain(), lambda x: torch.sigmoid(x @ ODDS)),
)


def cell(design: Design, n: int, epsilon: float, repeats: int) -> dict[str, object]:
    """Return root mean squared errors, the plan and the coverage of one cell of the table."""
    effect = "covariate_balancing" if design.domain.known_propensity is None else "known_propensity"
    learner = SIDE_BY_SIDE[effect](design.domain, PrivacyBudget(epsilon, DELTA))
    # the plan is judged at the design's own deviation of what no estimator here adjusts for: the default prior is wider
    spread = math.sqrt(DEVIATION**2 + (SLOPES[:3].square().sum() / 3 + SLOPES[3] ** 2).item())
    prior = ErrorPrior(
        deviation=spread if design.domain.known_propensity is not None else DEVIATION,
        treated=ErrorPrior.of(design.domain).treated,
    )
    errors: dict[str, list[Tensor]] = {"default": [], "difference in means": [], "non-private": [], "covered": []}
    for seed, runs in _rounds(n, repeats):
        records, noise = design.data_sets(runs, n, seed), NoiseSource.fixed(seed)
        found, exact = _default(design, records, epsilon, effect, seed)
        facts = n, TableSchema.of(design.domain), ATE(design.domain.overlap), PrivacyBudget(epsilon, 0.0)
        plain = DifferenceInMeans(*facts).run(records, noise)
        for name, estimate in (("default", found), ("difference in means", plain), ("non-private", exact)):
            errors[name].append(estimate.estimate - EFFECT)
        half = half_width(0.95, found.gaussian, found.laplace)
        errors["covered"].append(((found.estimate - EFFECT).abs() <= half).double())
    every = {name: torch.cat(parts) for name, parts in errors.items()}
    row: dict[str, object] = {
        "design": design.title,
        "n": n,
        "epsilon": epsilon,
        "effect": effect,
        "zero": EFFECT,
    }
    row |= {name: every[name].square().mean().sqrt().item() for name in list(every)[:3]}
    row |= {"covered": every["covered"].mean().item(), "repeats": len(every["covered"])}
    planned, usual = learner.planned_error(n, prior), learner.planned_error(n)
    return row | {"planned": planned.total, "planned, default prior": usual.total}


def _default(
    design: Design, records: StackedRecords, epsilon: float, effect: str, seed: int
) -> tuple[NoisyEstimate, NoisyEstimate]:
    """Return the chosen estimates with and without noise."""
    noise = NoiseSource.fixed(seed + 1_000_000)
    private, exact = (
        SIDE_BY_SIDE[effect](design.domain, budget).plan(records.n) for budget in (PrivacyBudget(epsilon, DELTA), None)
    )
    return private.run(records, noise), exact.without_noise(records)


def _rounds(n: int, repeats: int) -> Iterator[tuple[int, int]]:
    """Yield seeds with how many data sets fit into memory together."""
    at_once = max(1, AT_ONCE // (5 * n))
    for start in range(0, repeats, at_once):
        yield start, min(at_once, repeats - start)


def page(table: pd.DataFrame) -> str:
    """Return the page of a table of cells."""
    heads = ("design", "n", "epsilon", "default is", "default", "private difference in means", "non-private", "zero")
    lines = [f"| {' | '.join((*heads, 'planned', 'coverage'))} |", "|" + " --- |" * 10]
    for row in table.to_dict("records"):
        numbers = (row[name] for name in ("default", "difference in means", "non-private", "zero", "planned"))
        shown = " | ".join(f"{number:.4f}" for number in numbers)
        start = f"| {row['design']} | {row['n']:,} | {row['epsilon']:g} | {row['effect']}"
        lines.append(f"{start} | {shown} | {row['covered']:.1%} |")
    ratio = table["planned"] / table["default"]
    within = ((ratio < 1.5) & (ratio > 1 / 1.5)).mean()
    words = {"repeats": int(table["repeats"].max()), "fewest": int(table["repeats"].min()), "cells": len(table)}
    return WORDS.format(table="\n".join(lines), within=f"{within:.0%}", **words)


WORDS = """# Pure average effects

Written by `python -m experiments.average_effects.defaults`. Root mean squared error of what the pure estimator releases
(`effect=known_propensity` in trials, else `effect=covariate_balancing`), of the private difference in means at the same
budget, of that estimator without noise, and of zero, over {repeats} data sets a cell ({fewest} of the largest). The
budget has no delta; with one the default is a line of a composition. Outcomes lie in [0, 1], the effect is 0.1, four
covariates move the outcome by a standard deviation of 0.12 beside a residual of 0.12. In the observational design they
move treatment too, and the difference in means estimates something else. *Planned* is the planned standard error with
the design's own deviation of outcomes in place of the prior's 0.2.

The prior's four constants of private nuisances (`slope`, `confounding`, `reach`, `product`) were set by hand on the
observational design's law with 4, 10 and 40 covariates, overlap bounds of 0.05 and 0.2, n = 500 and 5,000 and epsilon =
0.5 and 4 (30 data sets a cell, 15 with 40 covariates), and compared with the errors of
the confounded design (`confounded.csv`). The trials, and LaLonde's, were used for no choice. The planned error is
within a factor 1.5 of the simulated one in {within} of the {cells} cells below.

What it says. In the trials the default has the error of the difference in means or less, most so from few records or
little epsilon, and follows a stratified design where the difference in means is off by 0.035. From 5,000 records on it
is close to the estimate without noise. In the observational design nothing valid is useful from 500 records at epsilon
= 0.5: zero is nearer to the truth, and so is the difference in means, whose bias does not fall with n. The plan says so
before anything is spent (0.18 of the outcome's range), and the intervals hold the truth.

{table}
"""


def main(arguments: Mapping[str, object] | None = None) -> None:
    """Compute all cells and write the table, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--folder", type=Path, default=HERE)
    given = parser.parse_args()
    rows = [
        cell(design, n, epsilon, min(given.repeats, MOST_RECORDS // n))
        for design in DESIGNS
        for n in given.sizes
        for epsilon in EPSILONS
    ]
    table = pd.DataFrame(rows)
    table.to_csv(given.folder / "defaults.csv", index=False, float_format="%.6g")
    print(page(table))


if __name__ == "__main__":
    main()
