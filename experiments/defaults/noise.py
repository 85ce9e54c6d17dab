"""The plan's noise beside that of repeated releases: the same records, other noise.

python -m experiments.defaults.noise --releases 10
"""

import argparse
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from rich.progress import track
from torch import Tensor

from experiments.csv_files import write_rows
from experiments.defaults.formats import number
from experiments.defaults.methods import DELTA
from experiments.defaults.sources import Source, sources
from experiments.tables import paragraph, table
from torchdpcate.composition.planned import effect_errors, planned_noise
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

EPSILONS, SIZES, FACTOR = (1.0, 4.0), (500, 1_500, 2_700, 4_000, 9_000, 16_000), 1.5


@dataclass(frozen=True)
class Line:
    """One cell, all in units of the outcome.

    Attributes:
        data: Name of the source.
        n: Records.
        epsilon: Budget.
        expected: What ``expected_noise(n)`` says before any record is read: the error by noise and prior.
        expected_at_scale: The same with the residual scale that was released, as ``expected_noise`` takes it.
        planned_at_scale: Planned noise of the effect before it is shrunk, with that scale.
        estimates: Root mean square over queries of the standard deviation over releases, before shrinkage.
        noise: The same of the effect as released.
        error: Root mean squared error, mean over releases.
    """

    data: str
    n: int
    epsilon: float
    expected: float
    expected_at_scale: float
    planned_at_scale: float
    estimates: float
    noise: float
    error: float


PLANS = {"expected": "error", "expected_at_scale": "error", "planned_at_scale": "estimates"}  # and what is seen of it


def measure(source: Source, n: int, epsilon: float, releases: int) -> Line:
    """Return the line of one cell, on the records of seed 0."""
    case = source.draw(n, 0)
    effects, estimates, errors, scales = [], [], [], []
    for run in range(releases):
        noise = NoiseSource.fixed(zlib.crc32(f"noise, {source.name}, {n}, {epsilon:g}, {run}".encode()))
        learner = RLearner(case.schema, PrivacyBudget(epsilon, DELTA), noise=noise)
        release = learner.fit(case.records.x, case.records.a, case.records.y).release_function()
        effects.append(release.effect_tensor(case.queries))
        estimates.append(release.features(case.queries) @ release.estimates)
        errors.append(math.sqrt(case.error(effects[-1])[0]))
        scales.append(release.scale)
    plan, domain, scale = learner.plan_, case.schema.domain, median(scales)
    planned = effect_errors(plan, domain, scale).total, planned_noise(plan, scale)
    numbers = learner.expected_noise(n).value, *planned
    return Line(source.name, n, epsilon, *numbers, _spread(estimates), _spread(effects), sum(errors) / releases)


def _spread(values: list[Tensor]) -> float:
    return torch.stack(values).var(0).mean().sqrt().item()


def write(lines: list[Line], folder: Path) -> None:
    """Write noise.csv and print its table."""
    write_rows(folder / "noise.csv", Line, lines, digits=5)
    shares = [sum(within(line, name) for line in lines) / len(lines) for name in PLANS]
    verdicts = paragraph(
        f"Within a factor of {FACTOR:g} of what is seen, the target being 90 % of the cells: noise at S "
        f"{shares[2]:.0%}, expected error {shares[0]:.0%}, at S {shares[1]:.0%} of {len(lines)} cells."
    )
    head = "# The plan's noise beside that of repeated releases\n\nWritten by `python -m experiments.defaults.noise`.\n"
    print("\n".join([head, paragraph(_ABOUT), verdicts, table(list(_cells(lines)))]))


def within(line: Line, name: str) -> bool:
    """Whether a prediction is within the factor of the noise that was seen."""
    return 1 / FACTOR <= _ratio(line, name) <= FACTOR


def _ratio(line: Line, name: str) -> float:
    return getattr(line, name) / getattr(line, PLANS[name])


def _cells(lines: list[Line]) -> Iterator[list[str]]:
    heads = [
        "noise at S",
        "seen",
        "shrunk",
        "expected",
        "at S",
        "error",
        "noise / seen",
        "expected / error",
        "at S / error",
    ]
    yield ["data", "records", "epsilon", *heads]
    for line in lines:
        ratios = [f"{_ratio(line, name):.2f}" for name in ("planned_at_scale", "expected", "expected_at_scale")]
        seen = [line.planned_at_scale, line.estimates, line.noise, line.expected, line.expected_at_scale, line.error]
        yield [line.data, f"{line.n:,}", f"{line.epsilon:g}", *map(number, seen), *ratios]


_ABOUT = (
    "Same records (seed 0), releases with other noise, in units of the outcome. *Noise at S*: planned noise of "
    "the effect before it is shrunk, with the residual scale S that was released; *seen*: root mean square over "
    "the queries of its standard deviation over the releases; *shrunk*: the same as released. *Expected*: what "
    "`expected_noise(n)` says before any record is read, the error by noise and by the prior of what is not requested"
    " for, with a fourteenth of the range for S, which cannot be right for every table; *at S*: the same with S. "
    "*Error*: root mean squared error, which has bias and sampling too, and effects that vary more or less than "
    "the prior expects."
)


def main() -> None:
    """Measure all cells and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--releases", type=int, default=10)
    parser.add_argument("--data", type=Path, help="folder of the real tables")
    parser.add_argument("--only", nargs="+", default=["niu", "dataset"], help="data whose names begin so")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [s for s in sources(words.data) if s.missing is None and s.name.startswith(tuple(words.only))]
    cells = [(source, n, e) for source in chosen for n in source.sizes if n in words.sizes for e in EPSILONS]
    write([measure(*cell, words.releases) for cell in track(cells, "cells")], words.out)


if __name__ == "__main__":
    main()
