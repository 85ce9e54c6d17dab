"""Combined releases of 3, 8 and 20 sites: coverage of their intervals, and errors beside other ways to use the sites.

Laws like a hospital's tables; sites of 1,200 records, or of 300 to 5,000; effects the same at all sites, or with a
part of each site's own. What is done stands in runs/defaults/combine.csv. Writes combine.csv, combine.md, combine.png.

    python -m experiments.defaults.combine --draws 30 --processes 2
    python -m experiments.defaults.combine --draws 2 --out /tmp/combine
"""

import math
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from experiments.defaults.methods import DELTA
from experiments.rows import Appender, read_rows
from torchdpcate.data.records import CausalData
from torchdpcate.data.split import public_generator
from torchdpcate.estimators.average.automatic import AverageEffect
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.papers.hospital import Hospital
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.combine import combine
from torchdpcate.release.combined import CombinedEffect
from torchdpcate.release.meta_analysis import RANDOM

LAWS: dict[str, dict[str, Any]] = {
    "constant": {"outcome": "score", "effect": "constant", "trial": True, "columns": 8},
    "additive": {"outcome": "score", "effect": "smooth", "trial": True, "columns": 8},
    "interaction": {"outcome": "score", "effect": "threshold", "trial": True, "columns": 6},
    "costs": {"outcome": "cost", "effect": "smooth", "trial": True, "columns": 10},
    "death": {"outcome": "death", "effect": "subgroup", "trial": True, "columns": 8},
    "confounded": {"outcome": "score", "effect": "subgroup", "columns": 8},
}
"""Arguments of ``Hospital``; of the confounded one average effects are combined, of the trials effect functions."""
SIZES = {"equal": [1_200] * 20, "unequal": [round(300 * (5_000 / 300) ** (k / 19)) for k in range(20)]}
EFFECTS = {"equal": 0.0, "varying": 0.2}
"""Standard deviation of a site's own part of the effect, in deviations of the outcome."""
SITES, GROUPS = (3, 8, 20), {3: 6, 8: 2, 20: 1}
POINTS, LEVEL, TUNING, REPORTED = 20, 0.95, 0, 1_000
"""Points of the law where effects are asked for; seeds of laws: the first ones of either kind."""


@dataclass(frozen=True)
class Draw:
    """What the combinations of one law's sites did; errors are squared ones over the variance of the outcome.

    Attributes:
        law: Name of the law.
        sizes: ``equal`` or ``unequal``.
        effects: ``equal`` or ``varying``.
        sites: K.
        seed: Of the law's constants, the records and the noise.
        average: Share of the groups of sites whose interval holds the mean effect.
        points: Share of the points' intervals that hold the effect there; nan of averages alone.
        width: Mean width of the interval of the mean effect, in deviations of the outcome.
        combined: Error of the combined mean effect.
        pooled: Of one release of all records of a group.
        own: Of each site's release alone.
        nonprivate: Of the random-effects meta-analysis of estimates without privacy.
        own_average: Share of the sites' own intervals that hold it; nan of effects that vary.
        own_held: The same of the points.
        combined_points: Error of the combined effects at the points.
        unshrunk_points: Of the meta-analysis of the sites' unshrunk estimates.
        pooled_points: Of one release of all records.
        own_points: Of each site's release alone.
    """

    law: str
    sizes: str
    effects: str
    sites: int
    seed: int
    average: float
    points: float
    width: float
    combined: float
    pooled: float
    own: float
    nonprivate: float
    own_average: float
    own_held: float
    combined_points: float
    unshrunk_points: float
    pooled_points: float
    own_points: float


def draws(key: tuple[str, str, str, int]) -> list[Draw]:
    """Release all sites of a law once, and combine them."""
    law, sizes, effects, seed = key
    source = Hospital(law=seed, n=1_000, seed=seed, **LAWS[law])
    generator = public_generator(seed, f"combine, {key}")
    counts = [SIZES[sizes][k] for k in torch.randperm(20, generator=generator).tolist()]
    many = source.draw(20_000, generator)
    sd = float(many.y.std())
    own = EFFECTS[effects] * sd * 12**0.5 * torch.rand(20, generator=generator, dtype=torch.float64)
    shift = EFFECTS[effects] * sd * 3**0.5  # its mean
    records = [
        _moved(source, source.draw(n, generator), u, generator) for n, u in zip(counts, own.tolist(), strict=True)
    ]
    points, average = many.x[:POINTS], law == "confounded"
    found = [_release(source, r, (*key, k), average) for k, r in enumerate(records)]
    share = _moves(source, many.x)
    truth = source.average_effect("ATE") + shift * float(share.mean())
    at = source.effect(points) + shift * share[:POINTS]
    alone = [_without_privacy(r) for r in records]
    result = []
    for k in SITES:
        rows = []
        for group in range(GROUPS[k]):
            place = slice(group * k, (group + 1) * k)
            whole = None
            if group == 0:
                joined = CausalData(
                    *(torch.cat([getattr(r, name) for r in records[place]]) for name in ("x", "a", "y"))
                )
                whole = _release(source, joined, (*key, 100 + k), average)
            rows.append(_group(found[place], whole, alone[place], points, at, truth, sd, EFFECTS[effects] == 0))
        means = np.nanmean(np.array(rows), 0)
        result.append(Draw(law, sizes, effects, k, seed, *means.tolist()))
    return result


def _moves(source: Hospital, x: Tensor) -> Tensor:
    """Return how much of a site's own part a patient has: all of it, or of deaths the chance to survive treated."""
    if source.outcome != "death":
        return torch.ones(len(x), dtype=torch.float64)
    return 1 - source._outcome.mean(source._law.traits(x), 1.0)


def _moved(source: Hospital, records: CausalData, own: float, generator: torch.Generator) -> CausalData:
    """Return records whose treated have a site's own part of the effect."""
    y = records.y + own * records.a
    if source.outcome == "death":
        coin = torch.rand(records.n, generator=generator, dtype=torch.float64) < own
        y = torch.maximum(records.y, records.a * coin)
    return CausalData(records.x, records.a, source.domain().clip_outcome(y))


def _release(source: Hospital, records: CausalData, key: tuple, average: bool) -> Any:
    noise, budget = NoiseSource.fixed(zlib.crc32(f"combine, {key}".encode())), PrivacyBudget(1.0, DELTA)
    if average:
        return AverageEffect(source.schema(), budget, noise=noise).fit(records.x, records.a, records.y).release()
    return RLearner(source.schema(), budget, noise=noise).fit(records.x, records.a, records.y).release_function()


def _without_privacy(records: CausalData) -> tuple[float, float]:
    """Return mean and variance of doubly robust scores: linear outcomes of both arms, logistic propensity."""
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.preprocessing import StandardScaler

    x, a, y = StandardScaler().fit_transform(records.x.numpy()), records.a.numpy(), records.y.numpy()
    pi = LogisticRegression(C=1.0, max_iter=500).fit(x, a).predict_proba(x)[:, 1].clip(0.05, 0.95)
    m0, m1 = (LinearRegression().fit(x[a == z], y[a == z]).predict(x) for z in (0, 1))
    score = m1 - m0 + a * (y - m1) / pi - (1 - a) * (y - m0) / (1 - pi)
    return float(score.mean()), float(score.var() / len(score))


def _group(
    releases: list,
    whole: Any,
    alone: list[tuple[float, float]],
    points: Tensor,
    at: Tensor,
    truth: float,
    sd: float,
    equal: bool,
) -> list[float]:
    """Return what one group of sites did, in the order of ``Draw``."""
    from statsmodels.stats.meta_analysis import combine_effects

    nan = math.nan
    made = combine(releases, [str(k) for k in range(len(releases))], RANDOM)
    functions = isinstance(made, CombinedEffect)
    middle = made.average_effect if functions else float(made.estimate[0])
    low, high = made.average(LEVEL) if functions else made.interval(LEVEL)[0]
    each = [r.average_effect if functions else r.estimate for r in releases]
    pooled = nan if whole is None else ((whole.average_effect if functions else whole.estimate) - truth) ** 2
    ends = [r.average(LEVEL) if functions else r.interval(LEVEL) for r in releases]
    values, variances = (np.array(column) for column in zip(*alone, strict=True))
    nonprivate = combine_effects(values, variances, method_re="iterated").mean_effect_re
    numbers = [
        float(low <= truth <= high),
        nan,
        (high - low) / sd,
        (middle - truth) ** 2 / sd**2,
        pooled / sd**2,
        fmean((e - truth) ** 2 for e in each) / sd**2,
        (nonprivate - truth) ** 2 / sd**2,
        fmean(float(low <= truth <= high) for low, high in ends) if equal else nan,
        *[nan] * 5,
    ]
    if functions:
        numbers[1] = _held(made.interval(points, LEVEL), at)
        numbers[8] = fmean(_held(r.interval(points, LEVEL), at) for r in releases) if equal else nan
        errors = [made.effect_tensor(points) - at, made.pooled_at(points).mean - at]
        errors.append(torch.full_like(at, nan) if whole is None else whole.effect_tensor(points) - at)
        errors.append(torch.stack([r.effect_tensor(points) for r in releases]) - at)
        numbers[9:] = [float(e.square().mean()) / sd**2 for e in errors]
    return numbers


def _held(interval: np.ndarray, truth: Tensor) -> float:
    """Return the share of intervals [m, 2] that hold their truth [m]."""
    ends = torch.from_numpy(interval)
    return float(((ends[:, 0] <= truth) & (truth <= ends[:, 1])).double().mean())


def run(keys: Iterable[tuple[str, str, str, int]], path: Path, processes: int) -> list[Draw]:
    """Do what is not in the file yet, and return all of it that is requested."""
    wanted = set(keys)
    done = [row for row in read_rows(path, Draw) if (row.law, row.sizes, row.effects, row.seed) in wanted]
    left = sorted(wanted - {(r.law, r.sizes, r.effects, r.seed) for r in done}, key=lambda key: key[-1])
    with Appender(path, [field.name for field in fields(Draw)]) as file:
        for rows in track(_all(left, processes), "draws", total=len(left)):
            done += rows
            for row in rows:
                file.write(row)
    return done


def _all(keys: list, processes: int) -> Iterator[list[Draw]]:
    if processes == 1:
        yield from map(draws, keys)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(draws, keys)
