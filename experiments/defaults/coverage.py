"""Coverage of intervals, with all privacy noise: default releases of trials, and of observational data behind the gate.

Designs A to E of Niu et al. with a coin for the treatment, B with a coin of .3, and B with skewed noise in the treated
arm alone; and two observational laws whose models are right, with ``intervals=true`` where the plan's gate allows it.
Targets: the projection that the release names, at 20 queries, 10 contrasts of them, and the mean effect; integrals over
30,000 points. What is done stands in runs/defaults/coverage.csv. Writes coverage.csv, prints its table, draws
coverage.png.

    python -m experiments.defaults.coverage --draws 200 --processes 2
    python -m experiments.defaults.coverage --draws 20 --sizes 4000 --out /tmp/coverage
"""

import argparse
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import torch
from matplotlib.figure import Figure
from rich.progress import track
from torch import Tensor

from experiments.csv_files import Appender, read_rows, write_rows
from experiments.defaults.methods import DELTA
from experiments.defaults.targets import MET, MISSED, NEAR
from experiments.designs.niu import Niu
from experiments.tables import paragraph, table
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData, public_generator
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.composed import ComposedRelease

SIZES, EPSILONS = (1_500, 4_000, 16_000, 30_000), (1.0, 4.0)
TRIALS = {  # design, P(A = 1), and whether the treated arm's noise is skewed
    "A": ("A", 0.5, False),
    "B": ("B", 0.5, False),
    "C": ("C", 0.5, False),
    "D": ("D", 0.5, False),
    "E": ("E", 0.5, False),
    "B, 0.3": ("B", 0.3, False),
    "B, skewed": ("B", 0.5, True),
}
OBSERVED = ("observed, 4", "observed, 6")
"""Observational laws of so many covariates whose logit, mean outcome and effect follow the features."""
POPULATION, QUERIES, CONTRASTS = 30_000, 20, 10
SKEW = 1.5  # standard deviation of the treated arm's exponential noise
LEVEL, NORMAL = 0.95, 1.959964


@dataclass(frozen=True)
class Draw:
    """What one release's intervals did.

    Attributes:
        trial: Name of the design.
        n: Records.
        epsilon: Budget.
        seed: Of records and noise.
        queries: 1 or 0 for each query whose interval holds the target; empty where the release withholds intervals.
        contrasts: The same of the contrasts.
        average: The same of the mean effect.
        width: Mean width at the queries, in outcome units.
        ratio: That over the width without privacy, same features.
    """

    trial: str
    n: int
    epsilon: float
    seed: int
    queries: str
    contrasts: str
    average: str
    width: float
    ratio: float

    @property
    def key(self) -> tuple[str, int, float, int]:
        """What is done once."""
        return self.trial, self.n, self.epsilon, self.seed


def draw(key: tuple[str, int, float, int]) -> Draw:
    """Release once and look at its intervals."""
    trial, n, epsilon, seed = key
    noise, budget = NoiseSource.fixed(zlib.crc32(f"coverage, {key}".encode())), PrivacyBudget(epsilon, DELTA)
    if trial in OBSERVED:
        records, pi, domain = _observed(trial, n, seed)
        learner = RLearner(domain, budget, second_stage=AdaptiveSecondStage(intervals=True), noise=noise)
        release = learner.fit(records.x, records.a, records.y).release_function()
        assert isinstance(release, ComposedRelease)
        if release.law is None:
            return Draw(*key, "", "", "", math.nan, math.nan)
        points, effect = _observed_population(trial)
        weights = _released_propensity(learner, release, points)
    else:
        design, coin, skewed = TRIALS[trial]
        study = Niu(design, coin, n=n + 2, train_fraction=n / (n + 2), seed=seed).load()
        records = _skewed(study.records, study.domain, seed) if skewed else study.records
        release = RLearner(study.schema, budget, noise=noise).fit(records.x, records.a, records.y).release_function()
        points, effect = _population(design)
        pi, weights = torch.full_like(records.y, coin), torch.full_like(effect, coin)
    assert isinstance(release, ComposedRelease)
    target = target_of(release, points, effect, weights)
    queries = points[:QUERIES]
    other = points[QUERIES : QUERIES + CONTRASTS]
    law, psi = replace(release._required_law(), missed=0.0), release.features(queries)  # of the projection alone
    at, apart = law.interval(psi, LEVEL), law.contrast(psi[:CONTRASTS], release.features(other), LEVEL)
    mean = law.average_interval(LEVEL)[None]
    truth = target(queries)
    width = float((at[:, 1] - at[:, 0]).mean())
    h = weights * (1 - weights)
    return Draw(
        *key,
        held(at, truth),
        held(apart, truth[:CONTRASTS] - target(other)),
        held(mean, ((h * effect).sum() / h.sum())[None]),
        width,
        width / _without_privacy(release, records, pi, queries),
    )


@cache
def allowed(trial: str, n: int, epsilon: float) -> bool:
    """Whether the plan of a cell has intervals."""
    if trial not in OBSERVED:
        return True
    try:
        AdaptiveSecondStage(intervals=True).plan(n, PrivacyBudget(epsilon, DELTA), _observed(trial, 2, 0)[2])
    except InputError:
        return False
    return True


def _observed(trial: str, n: int, seed: int) -> tuple[CausalData, Tensor, Domain]:
    """Return records of an observational law, their propensities and the domain."""
    k = int(trial.split()[-1])
    x, generator = _covariates(n, k, seed), public_generator(seed, f"{trial}, outcomes")
    pi, m, effect = _law(x)
    a = (torch.rand(n, generator=generator, dtype=torch.float64) < pi).double()
    y = m + (a - pi) * effect + torch.randn(n, generator=generator, dtype=torch.float64)
    domain = Domain([-3.0] * k, [3.0] * k, -9.0, 11.0, overlap=0.1)
    return CausalData(x, a, domain.clip_outcome(y)), pi, domain


def _covariates(n: int, k: int, seed: int) -> Tensor:
    generator = public_generator(seed, f"observed, {k}")
    return torch.randn(n, k, generator=generator, dtype=torch.float64).clamp(-3, 3)


def _law(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return propensity, mean outcome and effect; the first two covariates confound."""
    pi = torch.sigmoid(0.6 * x[:, 0] - 0.5 * x[:, 1]).clamp(0.1, 0.9)
    m = 0.5 + 1.5 * x[:, 0] + 0.5 * x[:, 1].square() - x[:, 2] + 0.5 * x[:, 3]
    return pi, m, 1 + 0.6 * x[:, 0] - 0.4 * x[:, 2]


@cache
def _observed_population(trial: str) -> tuple[Tensor, Tensor]:
    """Points of the law [30,000, k], of a seed that no draw has, and the effect there."""
    x = _covariates(POPULATION, int(trial.split()[-1]), 10**6)
    return x, _law(x)[2]


def _released_propensity(learner: RLearner, release: ComposedRelease, points: Tensor) -> Tensor:
    """Return the propensity whose weights the release's target has, at points."""
    assert release.numbers is not None
    assert release.numbers.nuisances is not None
    z = release.standardisation(release.domain.scale(points))
    regression = learner.plan_.propensity([False] * points.shape[1])
    overlap = release.domain.overlap
    return torch.sigmoid(regression.basis(z) @ release.numbers.nuisances.propensity).clamp(overlap, 1 - overlap)


def _skewed(records: CausalData, domain: Domain, seed: int) -> CausalData:
    """The records with exponential noise of mean zero added to the treated, within the outcome's bounds."""
    uniform = torch.rand(records.n, generator=public_generator(seed, "skew"), dtype=torch.float64)
    y = records.y + records.a * SKEW * (-torch.log1p(-uniform) - 1.0)
    return CausalData(records.x, records.a, domain.clip_outcome(y))


@cache
def _population(design: str) -> tuple[Tensor, Tensor]:
    """Points of the law [30,000, 6], of a seed that no draw has, and the effect there."""
    study = Niu(design, n=POPULATION + 2, train_fraction=POPULATION / (POPULATION + 2), seed=10**6).load()
    assert study.truth is not None
    effect = study.truth(study.records.x)
    assert effect is not None
    return study.records.x, effect


def target_of(release: ComposedRelease, points: Tensor, effect: Tensor, pi: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function that the release's intervals are about: see ``EffectLaw``."""
    law, psi, h = release._required_law(), release.features(points), pi * (1 - pi)
    weight = h / (psi.norm(dim=1) * torch.maximum(pi, 1 - pi))
    reduced = psi @ law.directions
    theta = law.directions @ torch.linalg.lstsq(
        weight.sqrt()[:, None] * reduced, (weight.sqrt() * effect)[:, None]
    ).solution.squeeze(1)
    moved = (h * (effect - psi @ theta)).sum() / h.sum()
    return lambda x: release.features(x) @ theta + moved


def _without_privacy(release: ComposedRelease, records: CausalData, pi: Tensor, queries: Tensor) -> float:
    """Return the mean width at the queries of least squares on the same features, by the sandwich variance."""
    law = release._required_law()
    psi, at = release.features(records.x), release.features(queries) @ law.directions
    m = psi @ torch.linalg.lstsq(psi, records.y[:, None]).solution.squeeze(1)
    rows = (psi @ law.directions) * (records.a - pi)[:, None]
    inverse = torch.linalg.pinv(rows.T @ rows)
    residual = records.y - m
    residual = residual - rows @ (inverse @ (rows.T @ residual))
    scores = rows * residual[:, None]
    covariance = inverse @ (scores.T @ scores) @ inverse
    return float(2 * NORMAL * ((at @ covariance) * at).sum(1).clamp_min(0).sqrt().mean())


def held(interval: Tensor, truth: Tensor) -> str:
    """Return 1 or 0 for each interval, [m, 2], that holds its truth, [m]."""
    inside = (interval[:, 0] <= truth) & (truth <= interval[:, 1])
    return "".join(str(int(value)) for value in inside)


def run(keys: Iterable[tuple[str, int, float, int]], path: Path, processes: int) -> list[Draw]:
    """Do what is not in the file yet, and return all of it that is requested."""
    wanted = list(keys)
    done = {found.key: found for found in read_rows(path, Draw)}
    left = [key for key in wanted if key not in done]
    with Appender(path, [field.name for field in fields(Draw)]) as file:
        for found in track(_all(left, processes), "draws", total=len(left)):
            done[found.key] = found
            file.write(found)
    return [done[key] for key in wanted]


def _all(keys: list[tuple[str, int, float, int]], processes: int) -> Iterator[Draw]:
    if processes == 1:
        yield from map(draw, keys)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(draw, keys, chunksize=4)


@dataclass(frozen=True)
class Coverage:
    """One cell: shares of the draws whose intervals hold their target.

    Attributes:
        trial: Name of the design.
        n: Records.
        epsilon: Budget.
        draws: Releases with intervals.
        withheld: Others, whose released noise is beyond the gate.
        queries: Mean over the queries.
        worst: Of the worst query.
        contrasts: Mean over the contrasts.
        average: Of the mean effect.
        width: Mean width at the queries, in outcome units.
        ratio: Median over the draws of that over the width without privacy.
    """

    trial: str
    n: int
    epsilon: float
    draws: int
    withheld: int
    queries: float
    worst: float
    contrasts: float
    average: float
    width: float
    ratio: float

    @property
    def verdict(self) -> str:
        """``met``, ``within noise`` (up to two standard errors of a share of the draws) or ``missed``.

        Met: the queries' share within .92 and .98, no query below .88, a ratio of at most 1.5 from 4,000 records on.
        """
        if self.ratio > 1.5 and self.n >= 4_000:
            return MISSED
        two = 2 * math.sqrt(0.05 * 0.95 / self.draws)
        away = max(0.92 - self.queries, self.queries - 0.98, 0.88 - self.worst)
        return MET if away <= 0 else NEAR if away <= two else MISSED


def summarised(draws: Iterable[Draw]) -> Iterator[Coverage]:
    """Cells of the draws."""
    cells: dict[tuple[str, int, float], list[Draw]] = {}
    for one in draws:
        cells.setdefault((one.trial, one.n, one.epsilon), []).append(one)
    for key, found in cells.items():
        rows = [row for row in found if row.queries]
        each = [fmean(int(row.queries[i]) for row in rows) for i in range(QUERIES)]
        contrasts = fmean(row.contrasts.count("1") / CONTRASTS for row in rows)
        ratios = sorted(row.ratio for row in rows)
        average, width = fmean(int(row.average) for row in rows), fmean(row.width for row in rows)
        shares = (fmean(each), min(each), contrasts, average)
        yield Coverage(*key, len(rows), len(found) - len(rows), *shares, width, ratios[len(ratios) // 2])


def write(cells: list[Coverage], folder: Path) -> None:
    """Write coverage.csv, print its table, draw coverage.png."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "coverage.csv", Coverage, cells, digits=5)
    shown = ["draws", "withheld", "queries", "worst query", "contrasts", "average", "width", "ratio"]
    head = ["trial", "records", "epsilon", *shown]
    lines = [[*head, ""]]
    for c in cells:
        shares = [f"{share:.3f}" for share in (c.queries, c.worst, c.contrasts, c.average)]
        key = [c.trial, f"{c.n:,}", f"{c.epsilon:g}", str(c.draws), str(c.withheld)]
        lines.append([*key, *shares, f"{c.width:.2f}", f"{c.ratio:.2f}", c.verdict])
    words = [cell.verdict for cell in cells]
    text = f"{_ABOUT} Met in {words.count(MET)}, within noise in {words.count(NEAR)} of {len(cells)} cells."
    title = "# Coverage of 95 % intervals\n\nWritten by `python -m experiments.defaults.coverage`.\n"
    print("\n".join([title, paragraph(text), table(lines)]))
    _draw_figure(cells, folder / "coverage.png")


def _draw_figure(cells: list[Coverage], path: Path) -> None:
    drawing = Figure(figsize=(9.0, 3.6), layout="constrained")
    panels = drawing.subplots(1, 2)
    for i, trial in enumerate(dict.fromkeys(cell.trial for cell in cells)):
        for epsilon, marker in zip(EPSILONS, "os", strict=True):
            own = [cell for cell in cells if (cell.trial, cell.epsilon) == (trial, epsilon)]
            label = f"{trial}, eps = {epsilon:g}"
            for panel, name in zip(panels, ("queries", "ratio"), strict=True):
                style = {"color": f"C{i}", "marker": marker, "ms": 4, "lw": 1, "ls": "-" if epsilon == 1 else ":"}
                panel.plot([cell.n for cell in own], [getattr(cell, name) for cell in own], label=label, **style)
    panels[0].axhspan(0.92, 0.98, color="C2", alpha=0.1, lw=0)
    panels[0].set(ylabel="share of queries' intervals\nthat hold the target", ylim=(0.8, 1.0))
    panels[1].axhline(1.5, color="0.5", ls="--", lw=1)
    panels[1].set(ylabel="width over that without privacy", yscale="log")
    sizes = sorted({cell.n for cell in cells})
    for panel in panels:
        panel.set(xscale="log", xlabel="records")
        panel.set_xticks(sizes, [f"{n:,}" for n in sizes])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[1].set_yticks([1, 1.5, 2, 3], ["1", "1.5", "2", "3"])
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside right center", frameon=False, fontsize=7.5)
    drawing.savefig(path, dpi=130)


_ABOUT = (
    "Default releases of randomised trials whose propensity the domain knows, and, named *observed*, releases with "
    "`second_stage.intervals=true` of observational data of 4 and 6 covariates whose logit, mean outcome and effect "
    "follow the features, where the plan's gate allows it; *withheld* counts those whose released noise is beyond it. "
    "*Queries*: share of the intervals at 20 "
    "fixed points of the law that hold the release's target there, mean over the points; *worst query*: least share of "
    "a point; *ratio*: median over the draws of the mean width over that of least squares on the same features without "
    "privacy. *Met*: queries within .92 and .98, no query below .88, and a ratio of at most 1.5 from 4,000 records on; "
    "*within noise*: shares up to two standard errors of a share of the draws. Noise is from fixed seeds."
)


def main() -> None:
    """Run what is not done, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--only", nargs="+", choices=[*TRIALS, *OBSERVED], default=[*TRIALS, *OBSERVED])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    torch.set_num_threads(1)
    cells = [(t, n, e) for t in words.only for n in words.sizes for e in EPSILONS if allowed(t, n, e)]
    keys = [(*cell, seed) for cell in cells for seed in range(words.draws)]
    write(list(summarised(run(keys, words.work / "coverage.csv", words.processes))), words.out)


if __name__ == "__main__":
    main()
