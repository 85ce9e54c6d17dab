"""The construction that separates double robustness from privacy: known propensities, a nearest neighbour's outcomes.

Propensities are known, so that the product of the nuisances' errors, which bounds the bias of doubly robust scores, is
zero. Outcomes of treated records are learnt by the nearest training record. All n scoring records are untreated and lie
nearest to one treated training record, whose outcome is 0 in a data set and 1 in its neighbour. The utility of treating
everybody then moves by

    sum_i |mu_1(x_i) - mu_1'(x_i)| = n,

whatever the number of training records, while one scoring record moves it by 2 (1 + 1 / zeta) = 22 at most, by which a
choice is calibrated that looks at scores alone. The log-likelihood ratio of the chosen policy is then up to
epsilon n / 44, both policies' constants counted. Printed beside it: the same by outcomes from a ridge regression of the
training records, whose movement the certificate of ``docs/guarantees`` bounds.

    python -m experiments.spillover.construction [--n 300 1200 3000] [--training 1500] [--epsilon 1]

Source: Anonymous, "Double robustness is not a privacy certificate", theorem 1; a nearest neighbour is our choice.
"""

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from experiments.spillover.likelihood import log_likelihood_ratio
from experiments.spillover.pairs import FLOOR

RIDGE = 0.01
Learner = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From treated training covariates [m] and outcomes [m], to outcomes at scoring covariates [n]."""


def nearest(x: Tensor, y: Tensor, scoring: Tensor) -> Tensor:
    """Return the outcome of the nearest training record, [n]."""
    return y[torch.cdist(scoring[:, None], x[:, None]).argmin(1)]


def ridge(x: Tensor, y: Tensor, scoring: Tensor) -> Tensor:
    """Return a line by ridge regression of outcomes within [0, 1], [n]."""
    features = torch.stack([torch.ones_like(x), x], 1)
    system = features.T @ features / len(x) + RIDGE * torch.eye(2, dtype=x.dtype)
    theta = torch.linalg.solve(system, features.T @ y / len(x))
    return (torch.stack([torch.ones_like(scoring), scoring], 1) @ theta).clamp(0, 1)


def utilities(learner: Learner, outcome: float, n: int, training: int) -> Tensor:
    """Return the utilities of treating nobody and everybody, [2], where the anchor's outcome is the given one.

    Args:
        learner: Of the treated records' outcomes.
        outcome: The anchor's.
        n: Scoring records, all untreated, with outcome 1/2.
        training: Treated training records, the anchor among them.
    """
    others = torch.linspace(-1.0, 0.0, training - 1, dtype=torch.float64)
    x, y = torch.cat([others, torch.ones(1)]).double(), torch.full((training,), 0.5, dtype=torch.float64)
    y[-1] = outcome
    treated = learner(x, y, torch.linspace(0.75, 1.0, n, dtype=torch.float64))
    # untreated records add no residual to the score of treating them, and their own outcome to that of leaving them
    return torch.stack([torch.full((n,), 0.5, dtype=torch.float64).sum(), treated.sum()])


def main() -> None:
    """Print movements and likelihood ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[300, 1_200, 3_000], help="scoring records")
    parser.add_argument("--training", type=int, default=1_500, help="treated training records")
    parser.add_argument("--epsilon", type=float, default=1.0)
    given = parser.parse_args()
    table = Table(title="One training outcome changed; propensities known, so no bias", title_justify="left")
    for name in ("outcomes by", "n", "movement", "of one scoring record", "log-likelihood ratio / epsilon"):
        table.add_column(name, justify="left" if name == "outcomes by" else "right")
    for name, learner in (("nearest record", nearest), ("ridge regression", ridge)):
        for n in given.n:
            before, after = (utilities(learner, outcome, n, given.training) for outcome in (0.0, 1.0))
            ratio = log_likelihood_ratio("exponential", given.epsilon, 2 * FLOOR, before, after) / given.epsilon
            table.add_row(name, f"{n:,}", f"{(before - after).abs().max():.4g}", f"at most {FLOOR:.0f}", f"{ratio:.4g}")
    Console().print(table)


if __name__ == "__main__":
    main()
