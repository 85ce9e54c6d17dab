"""Outcome weighted learning: supplementary Table 1 of Giddens et al., and certified variants at the same epsilon.

Writes table1.md, .csv and .png beside itself. Noise comes from a fixed seed, so that the numbers can be had again:
nothing made here is private.

    python -m experiments.owl.table1
"""

import argparse
import csv
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from experiments.owl.batch import Batch, accuracy, mean_and_error
from experiments.owl.page import write_page
from experiments.owl.references import EPSILONS, NOTE, PAPER, SIZES
from experiments.owl.trial import VALIDATION, Trials
from torchdpcate.estimators.rules.outcome import Outcome, PrivateResidual, Shifted, SignedResidual
from torchdpcate.estimators.rules.ridge import default_ridge
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

DELTA = 1e-5  # of the Gaussian rows
GRID = [10 ** (k / 4) for k in range(-10, 13)]  # ridges, in units where the largest weight is 1
SIGNED = SignedResidual(centre=0.0, clip=3.0)
RANGE, WRONG = SignedResidual(0.0, 7.5), SignedResidual(2.0, 3.0)  # what less public knowledge costs
SHIFTED = Shifted(-7.5, 7.5)
QUANTILES = PrivateResidual()


@dataclass(frozen=True)
class Row:
    """One row of the table: what is released and how.

    Attributes:
        name: Its key among the references.
        label: What the page calls it.
        outcome: Public form of the outcome; None is the paper's leaking shift.
        centred: Whether covariates are scaled to [-1, 1] rather than [0, 1].
        way: ``output`` or ``objective``.
        kind: Law of the noise.
        tuned: Whether the ridge is tuned on independent data sets; else it is the library's default.
    """

    name: str
    label: str
    outcome: Outcome | None
    centred: bool
    way: str
    kind: str
    tuned: bool = True

    @property
    def level(self) -> str:
        """How far the claim is proved, were the noise not seed-marked."""
        return "heuristic" if self.outcome is None else "certified"


ROWS = (
    Row("paper", "the paper: output, gamma, sample-minimum shift", None, False, "output", "gamma"),
    Row("public", "output, gamma, public shift", SHIFTED, False, "output", "gamma"),
    Row("public_gaussian", "output, Gaussian, public shift", SHIFTED, False, "output", "gaussian"),
    Row("objective", "objective, gamma, public shift", SHIFTED, False, "objective", "gamma"),
    Row("objective_gaussian", "objective, Gaussian, public shift", SHIFTED, False, "objective", "gaussian"),
    Row("objective_box", "objective, box, public shift", SHIFTED, False, "objective", "box"),
    Row("signed_output", "signed residual, centred, output, gamma", SIGNED, True, "output", "gamma"),
    Row("signed_objective", "signed residual, centred, objective, gamma", SIGNED, True, "objective", "gamma"),
    Row("signed_gaussian", "signed residual, centred, objective, Gaussian", SIGNED, True, "objective", "gaussian"),
    Row("signed_box", "signed residual, centred, objective, box", SIGNED, True, "objective", "box"),
    Row("signed_default", "the same, ridge not tuned", SIGNED, True, "objective", "box", tuned=False),
    Row(
        "plain_default",
        "public shift, not centred, objective, box, not tuned",
        SHIFTED,
        False,
        "objective",
        "box",
        False,
    ),
    Row(
        "centred_default", "public shift, centred, objective, box, not tuned", SHIFTED, True, "objective", "box", False
    ),
    Row("half_default", "signed, not centred, objective, box, not tuned", SIGNED, False, "objective", "box", False),
    Row("range_default", "signed with K = 7.5, centred, box, not tuned", RANGE, True, "objective", "box", False),
    Row(
        "private_default",
        "signed, c and K private, centred, box, not tuned",
        QUANTILES,
        True,
        "objective",
        "box",
        False,
    ),
    Row("wrong_default", "signed with c = 2, centred, box, not tuned", WRONG, True, "objective", "box", False),
)


@dataclass(frozen=True, eq=False)
class Side:
    """Data sets of one size with their fresh records, for tuning or for measuring."""

    train: Trials
    fresh: Trials

    @classmethod
    def draw(cls, runs: int, n: int, seed: int) -> "Side":
        """Draw both."""
        generator = torch.Generator().manual_seed(seed)
        return cls(Trials.draw(runs, n, generator), Trials.draw(runs, VALIDATION, generator))

    def measure(
        self, row: Row, problem: Batch, gamma: float, epsilon: float, noise: NoiseSource
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Accuracy in per cent and empirical value of each run's release."""
        if epsilon == math.inf:
            theta = problem.fit(gamma)
        else:
            budget = PrivacyBudget(epsilon, DELTA if row.kind == "gaussian" else 0.0)
            theta = problem.release(gamma, row.way, row.kind, budget, noise)
        psi = self.fresh.features(row.centred)
        return 100 * accuracy(psi, theta, self.fresh.effect), self.fresh.value(psi, theta)


def ridge(row: Row, side: Side, problem: Batch, epsilon: float) -> float:
    """The ridge of the grid with the best mean accuracy on the data sets for tuning, or the default."""
    n = side.train.y.shape[1]
    if not row.tuned:
        return default_ridge(n, min(epsilon, 1e3), problem.bounds, problem.loss.curvature)
    grid = [gamma for gamma in GRID if problem.affordable(gamma, row.way, epsilon)]

    def reached(gamma: float) -> float:
        # the same draws for every ridge, so that their differences and not the noise decide
        return side.measure(row, problem, gamma, epsilon, NoiseSource.fixed(n))[0].mean().item()

    return max(grid, key=reached)


def problem(side: Side, row: Row, epsilon: float, noise: NoiseSource) -> Batch:
    """The weighted problems of one side, whose outcome may have to be paid for."""
    if isinstance(row.outcome, PrivateResidual):
        return side.train.private(row.outcome, epsilon, noise)
    return side.train.problem(row.outcome, row.centred)


def cells(runs: int, sizes: tuple[int, ...]) -> Iterator[dict[str, object]]:
    """Every cell of every row: tuned on one draw of data sets, measured on another."""
    for n in sizes:
        tuning, measured = Side.draw(runs, n, seed=n), Side.draw(runs, n, seed=100_000 + n)
        noise = NoiseSource.fixed(100_000 + n)
        for row in ROWS:
            start = time.perf_counter()
            for epsilon in EPSILONS:
                before, after = (problem(side, row, epsilon, noise) for side in (tuning, measured))
                spent = epsilon * (1 - (row.outcome.budget_fraction if row.outcome is not None else 0.0))
                gamma = ridge(row, tuning, before, spent)
                found, value = measured.measure(row, after, gamma, spent, noise)
                (mean, error), (worth, doubt) = mean_and_error(found), mean_and_error(value)
                yield {
                    "row": row.name,
                    "level": row.level,
                    "n": n,
                    "epsilon": epsilon,
                    "gamma": gamma,
                    "accuracy": mean,
                    "accuracy_error": error,
                    "value": worth,
                    "value_error": doubt,
                    "note": NOTE.get(row.name, {}).get((n, epsilon)),
                    "paper": PAPER.get((n, epsilon)) if row.name == "paper" else None,
                }
            print(f"n = {n}: {row.label}: {time.perf_counter() - start:.1f} s", flush=True)


def main() -> None:
    """Run the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--n", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    found = list(cells(words.repeats, tuple(words.n)))
    with (words.out / "table1.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        for cell in found:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in cell.items()})
    seconds = time.perf_counter() - start
    write_page(words.out, found, {row.name: row.label for row in ROWS}, words.repeats, GRID)
    print(f"{len(found)} cells in {seconds:.0f} s on one thread")


if __name__ == "__main__":
    main()
