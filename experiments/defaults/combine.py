"""Combined releases of 3, 8 and 20 sites: coverage of their intervals, and errors beside other ways to use the sites.

Laws like a hospital's tables; sites of 1,200 records, or of 300 to 5,000; effects the same at all sites, or with a
part of each site's own. What is done stands in runs/defaults/combine.csv. Writes combine.csv, prints its
tables, draws combine.png.

    python -m experiments.defaults.combine --draws 30 --processes 2
    python -m experiments.defaults.combine --draws 2 --out /tmp/combine
"""

import argparse
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
from matplotlib.figure import Figure
from rich.progress import track
from torch import Tensor

from experiments.csv_files import Appender, read_rows, write_rows
from experiments.defaults.methods import DELTA
from experiments.designs.hospital import Hospital
from experiments.tables import paragraph, table
from torchdpcate.data.records import CausalData, public_generator
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.combination import combine
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
POINTS, LEVEL, REPORTED = 20, 0.95, 1_000
"""Points of the law; the first seed of laws that are reported: choices were made on seeds 0 to 3."""


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
    functions = made.function is not None
    middle, low, high = made.means(LEVEL)[0].tolist()
    each, ends = [r.average_effect for r in releases], [r.average(LEVEL) for r in releases]
    pooled = nan if whole is None else (whole.average_effect - truth) ** 2
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


SHARES = ("average", "points", "own_average", "own_held")
ERRORS = (
    *("combined", "pooled", "own", "nonprivate"),
    *("combined_points", "unshrunk_points", "pooled_points", "own_points"),
)
"""Columns of a cell that are means of shares, and roots of mean squared errors."""


@dataclass(frozen=True)
class Cell:
    """Means over the draws of one law, sizes, effects and number of sites; errors are roots of mean squares.

    Attributes:
        law: Name of the law; of all trials together ``trials``.
        sizes: ``equal``, ``unequal``, or ``both``.
        effects: ``equal`` or ``varying``.
        sites: K.
        groups: Groups of sites.
        average: As of ``Draw``, as are the others.
        average_error: Standard error of that share, over draws.
        points: Share.
        points_error: Its standard error.
        own_average: Share.
        own_held: Share.
        width: Mean.
        combined: Error.
        pooled: Error.
        own: Error.
        nonprivate: Error.
        combined_points: Error.
        unshrunk_points: Error.
        pooled_points: Error.
        own_points: Error.
    """

    law: str
    sizes: str
    effects: str
    sites: int
    groups: int
    average: float
    average_error: float
    points: float
    points_error: float
    own_average: float
    own_held: float
    width: float
    combined: float
    pooled: float
    own: float
    nonprivate: float
    combined_points: float
    unshrunk_points: float
    pooled_points: float
    own_points: float


def summarised(rows: list[Draw]) -> Iterator[Cell]:
    """Cells of the draws, those of all trials together first."""
    trials = [row for row in rows if row.law != "confounded"]
    for effects in EFFECTS:
        for sites in SITES:
            yield _cell(
                "trials", "both", effects, sites, [r for r in trials if (r.effects, r.sites) == (effects, sites)]
            )
    for law in LAWS:
        for sizes in SIZES:
            for effects in EFFECTS:
                for sites in SITES:
                    key = law, sizes, effects, sites
                    yield _cell(*key, [r for r in rows if (r.law, r.sizes, r.effects, r.sites) == key])


def _cell(law: str, sizes: str, effects: str, sites: int, rows: list[Draw]) -> Cell:
    means = {name: float(np.mean([getattr(row, name) for row in rows])) for name in (*SHARES, "width", *ERRORS)}
    roots = {name: math.sqrt(means[name]) for name in ERRORS}
    shares = {name: np.array([getattr(row, name) for row in rows]) for name in SHARES[:2]}
    spread = {f"{name}_error": float(own.std(ddof=1)) / math.sqrt(len(own)) for name, own in shares.items()}
    return Cell(law, sizes, effects, sites, len(rows) * GROUPS[sites], **(means | roots | spread))


def write(cells: list[Cell], folder: Path) -> None:
    """Write combine.csv, print its tables, draw combine.png."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "combine.csv", Cell, cells, digits=5)
    shares = [["law", "sizes", "effects", "sites", "groups", "mean effect", "at points", "sites' own", "at points"]]
    errors = [["law", "sizes", "effects", "sites", *["combined", "pooled", "own", "non-private"], *_AT_POINTS]]
    for cell in cells:
        key = [cell.law, cell.sizes, cell.effects, str(cell.sites)]
        held = [f"{cell.average:.3f} ({cell.average_error:.3f})"]
        held.append("" if math.isnan(cell.points) else f"{cell.points:.3f} ({cell.points_error:.3f})")
        held += [_shown(cell.own_average), _shown(cell.own_held)]
        shares.append([*key, str(cell.groups), *held])
        errors.append([*key, *(_shown(getattr(cell, name)) for name in ERRORS)])
    title = "# Combined releases of several sites\n\nWritten by `python -m experiments.defaults.combine`.\n"
    parts = [title, paragraph(_ABOUT), "## Coverage of 95 % intervals\n", table(shares)]
    parts += ["## Root mean squared errors, in deviations of the outcome\n", paragraph(_ERRORS), table(errors)]
    print("\n".join(parts))
    _draw_figure(cells, folder / "combine.png")


def _shown(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _draw_figure(cells: list[Cell], path: Path) -> None:
    drawing = Figure(figsize=(9.0, 3.4), layout="constrained")
    panels = drawing.subplots(1, 3)
    together = [cell for cell in cells if cell.law == "trials"]
    for effects, style in zip(EFFECTS, ("-", "--"), strict=True):
        own = [cell for cell in together if cell.effects == effects]
        at = [cell.sites for cell in own]
        for name, colour in (("average", "C0"), ("points", "C1")):
            held, error = ([getattr(cell, f) for cell in own] for f in (name, f"{name}_error"))
            label = f"{'mean effect' if name == 'average' else 'at points'}, {effects} effects"
            panels[0].errorbar(at, held, error, color=colour, ls=style, marker="o", ms=4, capsize=2, label=label)
        for panel, names in zip(panels[1:], (ERRORS[:4], ERRORS[4:]), strict=True):
            for name in names:
                way = name.removesuffix("_points")
                label, values = (way if effects == "equal" else None), [getattr(cell, name) for cell in own]
                panel.plot(at, values, color=_COLOURS[way], ls=style, marker="o", ms=4, label=label)
    panels[0].axhspan(0.93, 0.97, color="C2", alpha=0.12, lw=0)
    panels[0].set(ylabel="share of intervals that hold the truth", ylim=(0.86, 1.0))
    panels[1].set(title="dashed: effects vary", ylabel="RMSE of the mean effect (outcome sd)", yscale="log")
    panels[2].set(ylabel="RMSE of effects at points (outcome sd)", yscale="log")
    for panel in panels:
        panel.set(xscale="log", xlabel="sites")
        panel.set_xticks(SITES, [str(k) for k in SITES])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend(fontsize=6.5, frameon=False)
    for panel, ticks in zip(panels[1:], ((0.01, 0.03, 0.1, 0.3), (0.1, 0.2, 0.3)), strict=True):
        panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    drawing.savefig(path, dpi=130)


_COLOURS = {"combined": "C0", "pooled": "C1", "own": "C2", "nonprivate": "C3", "unshrunk": "C4"}
_AT_POINTS = ("at points: combined", "unshrunk", "pooled", "own")
_ABOUT = (
    "Releases at epsilon = 1, delta = 1e-5 of the sites of a law like a hospital's tables (`papers/hospital.py`; "
    "costs are skewed with a wide range, covariates have rare levels), combined with `between=random`. Of trials the "
    "default effect functions are combined, of *confounded* records average effects. *Sizes*: 1,200 records at each "
    "site, or 300 to 5,000. *Effects*: the same at all sites, or each with a uniform part of its own of standard "
    "deviation .2 of the outcome's. *Groups*: disjoint groups of 3, 8 or 20 of the same 20 sites; each draw is another "
    "law. *Mean effect*: share of the groups whose interval holds the mean over sites of the average effect, with its "
    "standard error over draws. *At points*: of the intervals at 20 patients of the law, for the mean over sites of "
    "the effect there. *Sites' own*: of each site's own release, where effects are equal: what a site's intervals lack "
    "is lacking in the combination too. *trials*: all trials and sizes together. Noise is from fixed seeds."
)
_ERRORS = (
    "*Pooled*: one release of all records of a group. *Own*: each site's own release. *Non-private*: random-effects "
    "meta-analysis (statsmodels, Paule-Mandel) of doubly robust estimates without privacy. *Unshrunk*: the pointwise "
    "meta-analysis of the sites' unshrunk estimates, the middle of the intervals. Shrinking that once after pooling "
    "(by covariate, empirical Bayes) instead of averaging what each site shrunk had 1.18 times the error of *combined* "
    "at points over the trials of seeds 0 to 2 (geometric mean), with a threshold at three times the noise 1.06 times."
)


def main() -> None:
    """Run what is not done, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=list(LAWS), default=list(LAWS))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(REPORTED, REPORTED + words.draws)
    keys = [
        (law, sizes, effects, seed) for seed in seeds for law in words.only for sizes in SIZES for effects in EFFECTS
    ]
    write(list(summarised(run(keys, words.work / "combine.csv", words.processes))), words.out)


if __name__ == "__main__":
    main()
