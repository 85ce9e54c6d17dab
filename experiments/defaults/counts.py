"""Counts: an outcome regression of logarithms beside one of the counts themselves.

python -m experiments.defaults.counts --laws 12
"""

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from rich.progress import track

from experiments.defaults.methods import DELTA
from experiments.defaults.sources import Case
from experiments.words import paragraph, table
from torchdpcate.composition.gaussian_builder import Builder
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.cate.learner import CATELearner, DRLearner, RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

QUERIES = 1_000
CELLS: list[tuple[type[CATELearner], int, float]] = [
    *((RLearner, n, epsilon) for n, epsilon in ((500, 1.0), (1_500, 1.0), (4_000, 1.0), (4_000, 4.0), (16_000, 4.0))),
    *((DRLearner, n, epsilon) for n, epsilon in ((1_500, 1.0), (4_000, 4.0))),
]
_ABOUT = (
    "Poisson counts with log-linear means in both arms: 2, 5 or 8 normal covariates, mean levels .5, 2, 10 and 40, "
    "standard deviation of the logarithm .3, .6 or .9, a propensity that depends on the first covariate, delta = 1e-5. "
    "Root mean squared errors of the effect over its standard deviation, geometric means over laws; *ratio*: with its "
    "standard error over laws, the same noise seeds; *worst*: the largest ratio of any law."
)


def law(seed: int, n: int) -> Case:
    """Return records and queries of a law."""
    generator = torch.Generator().manual_seed(seed)
    k, level, size = [2, 5, 8][seed % 3], [0.5, 2.0, 10.0, 40.0][seed // 3 % 4], [0.3, 0.6, 0.9][seed % 5 % 3]
    x = torch.randn(n + QUERIES, k, generator=generator, dtype=torch.float64).clamp(-3, 3)
    slopes, differ = (torch.randn(k, generator=generator, dtype=torch.float64) for _ in range(2))
    a = (torch.rand(n + QUERIES, generator=generator) < torch.sigmoid(0.8 * x[:, 0])).double()
    base = math.log(level) + size * (x @ slopes) / slopes.norm() - size**2 / 2
    control, treated = base.exp(), (base + 0.3 + 0.3 * (x @ differ) / differ.norm()).exp()
    high = float(math.ceil(3 * level * math.exp(3 * size + 1)))
    y = torch.poisson(torch.where(a > 0.5, treated, control), generator=generator).clamp(0, high)
    domain = Domain([-3.0] * k, [3.0] * k, 0.0, high, overlap=0.1, outcome_kind="count")
    return Case(TableSchema.of(domain), CausalData(x[:n], a[:n], y[:n]), x[n:], (treated - control)[n:])


@contextmanager
def link(logarithm: bool) -> Iterator[None]:
    """Fits within have this link."""
    with patch.object(Builder, "log_link", property(lambda _: logarithm)):
        yield


def error(kind: type[CATELearner], case: Case, epsilon: float, seed: int) -> float:
    """Return the error of a release over the standard deviation of the effect."""
    learner = kind(case.schema, PrivacyBudget(epsilon, DELTA), noise=NoiseSource.fixed(seed))
    learner.fit(case.records.x, case.records.a, case.records.y)
    effect = torch.as_tensor(learner.release_function().effect_tensor(case.queries))
    return math.sqrt(case.error(effect)[0]) / case.truth.std().item()


def line(kind: type[CATELearner], n: int, epsilon: float, laws: int) -> list[str]:
    """Return one line of the table."""
    found: list[list[float]] = [[], []]
    for seed in range(laws):
        case = law(seed, n)
        for logarithm in (0, 1):
            with link(bool(logarithm)):
                found[logarithm].append(error(kind, case, epsilon, seed))
    counts, logs = (torch.tensor(errors).log() for errors in found)
    ratio = (logs - counts).mean().exp()
    spread = ratio * (logs - counts).std() / math.sqrt(laws)
    means = [f"{errors.mean().exp():.3f}" for errors in (logs, counts)]
    worst = f"{(logs - counts).max().exp():.2f}"
    return [kind.__name__, f"{n:,}", f"{epsilon:g}", *means, f"{ratio:.3f} ± {spread:.3f}", worst]


def main() -> None:
    """Fit all and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--laws", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    torch.set_num_threads(1)
    heads = ["learner", "records", "epsilon", "logarithms", "counts", "ratio", "worst"]
    lines = [heads, *(line(*cell, words.laws) for cell in track(CELLS, "cells"))]
    head = "# Outcome regressions of counts\n\nWritten by `python -m experiments.defaults.counts`.\n"
    text = "\n".join([head, paragraph(f"{words.laws} laws. {_ABOUT}"), table(lines)])
    (words.out / "counts.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
