"""Nuisances of the composed estimator: features alone against a hidden layer beside them, or in their place.

For each law, n and epsilon: error of the outcome regression and of the propensity at the records, and of the effect at
3,000 other points, all as mean squares over their variance (the effect's over 1 where it is constant). Laws A to E are
Niu's; F to I are of this file: kinks, rotated bumps, a tree, products of three. Adds to nuisances.csv beside this file.

    python -m experiments.defaults.nuisances --laws FGHI --n 64000 --epsilon 4 --seeds 2
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.designs.niu import Niu
from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.linear_fit import NoisyNewton
from torchdpcate.composition.records import fit_composition, rows_of
from torchdpcate.composition.settings import Additive, Auto, ComposedNuisance, WideAndDeep
from torchdpcate.composition.steps import total_mu
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

COVARIATES, REACH, QUERIES, DELTA = 8, 3.0, 3_000, 1e-5
SMALL = 1e-6  # a variance that counts as none
KINDS: dict[str, ComposedNuisance] = {
    "additive": Additive(NoisyNewton()),
    "wide_and_deep": WideAndDeep(),
    "mlp": WideAndDeep(share=0.8, features=False),
    "deep_outcome": Auto(outcome_from=1.0),
}


class Law(NamedTuple):
    """Baseline b, effect tau and propensity e of a law, all of covariates [n, q].

    Attributes:
        domain: Public bounds.
        covariates: Of n records, from a generator.
    """

    domain: Domain
    covariates: Callable[[int, torch.Generator], Tensor]
    baseline: Callable[[Tensor], Tensor]
    effect: Callable[[Tensor], Tensor]
    propensity: Callable[[Tensor], Tensor]


def _normal(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, COVARIATES, generator=generator, dtype=torch.float64).clamp(-REACH, REACH)


def _directions() -> Tensor:
    found = torch.randn(3, COVARIATES, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return found / found.norm(dim=1, keepdim=True)


def _kinks() -> Law:
    return Law(
        _domain(),
        _normal,
        lambda x: 2.0 * (x[:, 0] > 0) + 2.0 * (x[:, 1] > 0.5) * (x[:, 2] > 0) - 1.5 * (x[:, 3] < -0.5),
        lambda x: 1 + x[:, 1],
        lambda x: torch.where(x[:, 0] > 0, 0.7, 0.3).double(),
    )


def _bumps() -> Law:
    d = _directions()
    return Law(
        _domain(),
        _normal,
        lambda x: 3 * torch.exp(-2 * (x @ d[0]) ** 2) + 2 * torch.tanh(3 * x @ d[1]) + 2 * torch.sin(2 * x @ d[2]),
        lambda x: torch.tanh(2 * x @ d[1]),
        lambda x: torch.sigmoid(1.5 * torch.tanh(2 * x @ d[0])),
    )


def _tree() -> Law:
    def baseline(x: Tensor) -> Tensor:
        left = torch.where(x[:, 1] > 0, torch.where(x[:, 2] > 0, 3.0, 1.0), -1.0)
        right = torch.where(x[:, 3] > 0, torch.where(x[:, 4] > 0, 2.0, -2.0), 0.0)
        return torch.where(x[:, 0] > 0, left, right).double()

    def propensity(x: Tensor) -> Tensor:
        return torch.where(x[:, 1] > 0, torch.where(x[:, 3] > 0, 0.8, 0.5), 0.25).double()

    return Law(_domain(), _normal, baseline, lambda x: (x[:, 0] > 0).double(), propensity)


def _products() -> Law:
    return Law(
        _domain(),
        _normal,
        lambda x: 2 * torch.sin(2 * x[:, 0]) * x[:, 1] + x[:, 2] * x[:, 3] * x[:, 4] + torch.cos(3 * x[:, 5]),
        lambda x: x[:, 2],
        lambda x: torch.sigmoid(-x[:, 0] * x[:, 1]),
    )


def _domain() -> Domain:
    return Domain([-REACH] * COVARIATES, [REACH] * COVARIATES, -12.0, 14.0, 0.1)


def _niu(design: str) -> Law:
    study = Niu(design)
    law, domain = study._law, study.domain()
    return Law(
        domain,
        lambda n, generator: domain.clip_covariates(law.covariates(n, generator)),
        law.baseline,
        law.effect,
        law.propensity,
    )


OWN: dict[str, Callable[[], Law]] = {"F": _kinks, "G": _bumps, "H": _tree, "I": _products}


def law_of(name: str) -> Law:
    """Return a law by its letter."""
    return OWN[name]() if name in OWN else _niu(name)


def errors(law: Law, n: int, epsilon: float, nuisance: ComposedNuisance, seed: int) -> tuple[float, float, float]:
    """Return relative errors of outcome regression, propensity and effect of one fit.

    Args:
        law: Of the records.
        n: Number of records.
        epsilon: Of the fit.
        nuisance: How nuisances are learnt.
        seed: Of the records.
    """
    generator, domain = torch.Generator().manual_seed(seed), law.domain
    x, queries = law.covariates(n, generator), law.covariates(QUERIES, generator)
    e, effect = law.propensity(x), law.effect(x)
    a = (torch.rand(n, generator=generator, dtype=torch.float64) < e).double()
    mean = law.baseline(x) + e * effect
    y = law.baseline(x) + a * effect + torch.randn(n, generator=generator, dtype=torch.float64)
    plan = plan_within(n, PrivacyBudget(epsilon, DELTA), domain)
    levels = [len(column.unique()) == 2 for column in x.T]
    records = CausalData(x, a, domain.clip_outcome(y))
    # a session without a ledger: noise is drawn, nothing is charged
    session = FitSession(NoiseSource.system())
    fit = fit_composition(rows_of(records, domain), domain, plan, session, levels, nuisance=nuisance)
    found = fit.features(domain.scale(queries)) @ fit.effect.shrunk
    overlap = domain.overlap
    return (
        _relative(fit.outcome, mean),
        _relative(fit.propensity, e.clamp(overlap, 1 - overlap)),
        _relative(found, law.effect(queries)),
    )


def _relative(found: Tensor, truth: Tensor) -> float:
    variance = float(truth.var(unbiased=False))
    return float((found - truth).square().mean()) / (variance if variance > SMALL else 1.0)


def main() -> None:
    """Fit, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--laws", default="FGHIABCDE")
    parser.add_argument("--n", type=int, nargs="+", default=[16_000, 64_000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    fresh = not options.output.exists()
    with options.output.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(
                ["law", "n", "epsilon", "n_mu", "nuisance", "seed", "outcome", "propensity", "effect", "steps"]
            )
        for n in options.n:
            for epsilon in options.epsilon:
                size = n * total_mu(PrivacyBudget(epsilon, DELTA))
                for name in options.laws:
                    for kind in options.kinds:
                        rows = [errors(law_of(name), n, epsilon, KINDS[kind], seed) for seed in range(options.seeds)]
                        for seed, row in enumerate(rows):
                            writer.writerow(
                                [name, n, epsilon, round(size), kind, seed, *(f"{v:.5f}" for v in row), "whole"]
                            )
                        file.flush()
                        means = " ".join(f"{fmean(column):.4f}" for column in zip(*rows, strict=True))
                        print(f"{name} n {n} epsilon {epsilon:g} n mu {size:.0f} {kind:14s} {means}", flush=True)


if __name__ == "__main__":
    main()
