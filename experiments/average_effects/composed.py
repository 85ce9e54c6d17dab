"""Average effects by one composition beside the other choices of ``effect=``: errors, widths and coverage.

``python -m experiments.average_effects.composed`` prints its table and writes ``composed.csv``. All noise is from fixed
seeds: nothing here is private.
"""

import argparse
import math
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.average_effects.defaults import DESIGNS
from experiments.defaults.random_laws import random_setting
from torchdpcate import Domain, NoiseSource, PrivacyBudget
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.average.composed import ComposedAverageEffect
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect
from torchdpcate.estimators.average.known_propensity import KnownPropensityEffect
from torchdpcate.estimators.average.learner import AverageEffectLearner

HERE = Path(__file__).parent
SIZES, EPSILONS, DELTA, LEVEL = (500, 1_500, 5_000, 20_000), (0.5, 1.0, 4.0), 1e-5, 0.95
_FIRST = 5_000  # seed of a random law, which none has that constants were tuned on


@dataclass(frozen=True, eq=False)
class Drawn:
    """Records of one draw.

    Attributes:
        records: The records.
        facts: Public facts.
        effect: The average effect that is estimated.
        unit: Standard deviation of the outcomes, by which errors are divided.
    """

    records: CausalData
    facts: Domain | TableSchema
    effect: float
    unit: float


def _generator(name: str, n: int, seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{name}, {n}, {seed}".encode()))


def _linear(n: int, seed: int, *, skewed: bool = False, wide: float = 1.0) -> Drawn:
    """Logit, both means and the effect are linear; bounds are ``wide`` times ten standard deviations."""
    g = _generator("linear", n, seed)
    x = torch.randn(n, 4, generator=g, dtype=torch.float64).clamp(-3, 3)
    pi = torch.sigmoid(0.6 * x[:, 0] - 0.5 * x[:, 1]).clamp(0.1, 0.9)
    a = (torch.rand(n, generator=g, dtype=torch.float64) < pi).double()
    noise = torch.randn(n, generator=g, dtype=torch.float64)
    if skewed:
        rare = -torch.rand(n, generator=g, dtype=torch.float64).log() - 1
        noise = torch.where(a > 0.5, 1.5 * rare, noise)
    y = 0.5 + x[:, 0] + 0.5 * x[:, 1] - x[:, 2] + a * (1 + 0.6 * x[:, 0] - 0.4 * x[:, 2]) + noise
    domain = Domain([-3.0] * 4, [3.0] * 4, -10.0 * wide, 12.0 * wide, overlap=0.1)
    return Drawn(CausalData(x, a, domain.clip_outcome(y)), domain, 1.0, float(y.std()))


def _binary(n: int, seed: int) -> Drawn:
    g = _generator("binary", n, seed)

    def chances(x: Tensor) -> tuple[Tensor, Tensor]:
        base = -0.4 + 0.8 * x[:, 0] - 0.6 * x[:, 1]
        return torch.sigmoid(base), torch.sigmoid(base + 0.8)

    x = torch.randn(n, 4, generator=g, dtype=torch.float64).clamp(-3, 3)
    pi = torch.sigmoid(0.6 * x[:, 0] - 0.5 * x[:, 1]).clamp(0.1, 0.9)
    a = (torch.rand(n, generator=g, dtype=torch.float64) < pi).double()
    low, high = chances(x)
    y = (torch.rand(n, generator=g, dtype=torch.float64) < torch.where(a > 0.5, high, low)).double()
    far = chances(torch.randn(400_000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).clamp(-3, 3))
    domain = Domain([-3.0] * 4, [3.0] * 4, 0.0, 1.0, overlap=0.1, outcome_kind="binary")
    return Drawn(CausalData(x, a, y), domain, float((far[1] - far[0]).mean()), float(y.std()))


def _bounded(place: int, stated: bool, n: int, seed: int) -> Drawn:
    """A design of the default's study, outcomes in [0, 1]; its propensity stated or not."""
    design = DESIGNS[place]
    batch = design.data_sets(1, n, seed).batch
    domain = Domain.from_dict({k: v for k, v in design.domain.to_dict().items() if stated or k != "propensity"})
    records = CausalData(batch.x[0], batch.z[0], batch.y[0])
    return Drawn(records, domain, 0.1, float(records.y.std()))


def _random(kind: str, n: int, seed: int) -> Drawn:
    setting = random_setting(_FIRST + seed, n=n, epsilon=1.0, kind=kind)
    case = setting.case
    effect = torch.cat([setting.effects, case.truth])
    return Drawn(case.records, case.schema, float(effect.mean()), float(case.records.y.std()))


LAWS: dict[str, Callable[[int, int], Drawn]] = {
    "linear, wide bounds": _linear,
    "linear, four times as wide": lambda n, seed: _linear(n, seed, wide=4.0),
    "linear, skewed treated arm": lambda n, seed: _linear(n, seed, skewed=True),
    "binary, confounded": _binary,
    "observational, in [0, 1]": lambda n, seed: _bounded(3, False, n, seed),
    "randomised, not stated, in [0, 1]": lambda n, seed: _bounded(0, False, n, seed),
    "trial, a fair coin, in [0, 1]": lambda n, seed: _bounded(0, True, n, seed),
    "trial, one in five, in [0, 1]": lambda n, seed: _bounded(1, True, n, seed),
    "random laws": lambda n, seed: _random("continuous", n, seed),
    "random laws, binary": lambda n, seed: _random("binary", n, seed),
}


def _learner(kind: type[AverageEffectLearner], drawn: Drawn, epsilon: float, key: str) -> AverageEffectLearner:
    noise = NoiseSource.fixed(zlib.crc32(f"{kind.__name__} {key}".encode()))
    return kind(drawn.facts, PrivacyBudget(epsilon, DELTA), noise=noise)


def one(key: tuple[str, int, float, int]) -> dict[str, object]:
    """Return errors, over the outcome's standard deviation, and whether intervals hold the effect, of one draw."""
    law, n, epsilon, seed = key
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    drawn = LAWS[law](n, seed)
    known = TableSchema.of(drawn.facts).domain.known_propensity is not None
    others = KnownPropensityEffect if known else CovariateBalancingEffect
    row: dict[str, object] = dict(zip(("law", "n", "epsilon", "seed"), key, strict=True))
    row["zero"] = drawn.effect / drawn.unit
    x, a, y = drawn.records.x, drawn.records.a, drawn.records.y
    for name, kind in (("composed", ComposedAverageEffect), ("before", others)):
        learner = _learner(kind, drawn, epsilon, str(key)).fit(x, a, y)  # type: ignore[type-abstract]
        release = learner.release()
        low, high = release.interval(LEVEL)
        row[name] = (float(release.estimate) - drawn.effect) / drawn.unit
        row[f"{name} held"] = float(low <= drawn.effect <= high)
        row[f"{name} width"] = float(high - low) / drawn.unit
        if name == "composed":
            row["non-private"] = (learner.nonprivate_estimate().value - drawn.effect) / drawn.unit
    row["difference"] = (float(y[a > 0.5].mean() - y[a < 0.5].mean()) - drawn.effect) / drawn.unit
    return row


def keys(draws: int, laws: list[str], sizes: list[int], epsilons: list[float]) -> Iterator[tuple[str, int, float, int]]:
    """Yield what is drawn once each."""
    for law, n, epsilon in product(laws, sizes, epsilons):
        for seed in range(draws):
            yield law, n, epsilon, seed


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return root mean squared errors, medians of errors, coverage and widths of each cell."""

    def of(cell: pd.DataFrame) -> pd.Series:
        names = ("composed", "before", "non-private", "difference", "zero")
        found = {name: math.sqrt((cell[name] ** 2).mean()) for name in names}
        found |= {f"{name} median": cell[name].abs().median() for name in ("composed", "before")}
        for name in ("composed", "before"):
            found |= {f"{name} {what}": cell[f"{name} {what}"].mean() for what in ("held", "width")}
        return pd.Series(found | {"draws": float(len(cell))})

    return rows.groupby(["law", "n", "epsilon"], sort=False)[list(rows.columns[3:])].apply(of).reset_index()


def main() -> None:
    """Compute all cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--laws", nargs="+", default=list(LAWS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=HERE)
    given = parser.parse_args()
    every = list(keys(given.draws, given.laws, given.sizes, given.epsilons))
    if given.processes > 1:
        with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
            rows = list(pool.map(one, every, chunksize=8))
    else:
        rows = [one(key) for key in every]
    table = summary(pd.DataFrame(rows))
    table.to_csv(given.folder / "composed.csv", index=False, float_format="%.5g")
    print(table.to_string())


if __name__ == "__main__":
    main()
