"""Five sites that may not pool their records: one composition on noisy sums beside releases that are combined.

Squared errors of the effect at 300 points over its variance (of a constant effect over 1), at epsilon = 1 and
delta = 1e-5 a record. Adds to table.csv beside this file; ``--draw`` prints its means and draws table.png.

    python -m experiments.sites.study
    python -m experiments.sites.study --draw
"""

import argparse
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from experiments.csv_files import Appender, read_lines
from experiments.designs.niu import Niu
from experiments.tables import paragraph, standard_error, table
from torchdpcate import PrivacyBudget, RLearner, combine
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.composition.sites import Meeting, Site
from torchdpcate.data.records import CausalData
from torchdpcate.data.study import Study

SITES, BUDGET = 5, PrivacyBudget(1.0, 1e-5)
LAWS = {"A": "confounded", "B": "a trial", "D": "kinks"}
"""Designs of Niu et al. (2022)."""
REPEATS = {300: 20, 1_000: 40, 3_000: 20, 10_000: 8, 20_000: 4}
"""Data sets of each number of records a site."""
LEAST = 2_900
"""Records from which on a release has intervals at this budget, its propensity estimated."""
POOLED, TOGETHER, COMBINED, ALONE, NOT_PRIVATE = "pooled", "sites", "combined", "one site alone", "pooled, not private"
METHODS = (POOLED, TOGETHER, COMBINED, ALONE, NOT_PRIVATE)
HERE = Path(__file__).parent
NAMES = ["law", "n", "seed", *METHODS]


def effects(study: Study, records: CausalData, stage: AdaptiveSecondStage, budget: PrivacyBudget | None) -> RLearner:
    """Return the learner of some records, fitted."""
    return RLearner(study.schema, budget, second_stage=stage).fit(records.x, records.a, records.y)


def together(study: Study, parts: Sequence[CausalData]) -> Tensor:
    """Return the effects at the queries by one composition of all sites, each in a thread."""
    sizes = {f"site {place}": part.n for place, part in enumerate(parts)}
    meeting, found = Meeting(list(sizes)), dict[str, Tensor]()

    def run(name: str, part: CausalData) -> None:
        try:
            stage = AdaptiveSecondStage(site=Site(name, sizes, meeting.link(name), again=True))
            found[name] = effects(study, part, stage, BUDGET).release_function().effect_tensor(study.queries)
        except BaseException:
            meeting.leave()
            raise

    threads = [threading.Thread(target=run, args=pair) for pair in zip(sizes, parts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return next(iter(found.values()))


def combined(study: Study, parts: Sequence[CausalData]) -> Tensor:
    """Return the effects at the queries by ``combine``, or where releases have no intervals by their planned errors."""
    stage = AdaptiveSecondStage(intervals=True if parts[0].n >= LEAST else "auto")
    learners = [effects(study, part, stage, BUDGET) for part in parts]
    releases = [learner.release_function() for learner in learners]
    if all(release.law is not None for release in releases):
        names = [f"site {place}" for place in range(len(parts))]
        return combine(releases, names).effect_tensor(study.queries)
    weights = torch.tensor([learner.planned_error() ** -2 for learner in learners], dtype=torch.float64)
    each = torch.stack([release.effect_tensor(study.queries) for release in releases])
    return (weights[:, None] * each).sum(0) / weights.sum()


def errors(law: str, n: int, seed: int) -> dict[str, float]:
    """Return the squared error of each method on one data set of n records a site."""
    torch.manual_seed(seed)
    study = Niu(design=law, n=math.ceil(SITES * n / 0.9) + 10, queries=300, seed=seed).load()
    every = study.records
    parts = [CausalData(every.x[k : k + n], every.a[k : k + n], every.y[k : k + n]) for k in range(0, SITES * n, n)]
    pooled = CausalData(every.x[: SITES * n], every.a[: SITES * n], every.y[: SITES * n])
    stage, queries = AdaptiveSecondStage(), study.queries
    found = {
        POOLED: effects(study, pooled, stage, BUDGET).release_function().effect_tensor(queries),
        TOGETHER: together(study, parts),
        COMBINED: combined(study, parts),
        ALONE: effects(study, parts[0], stage, BUDGET).release_function().effect_tensor(queries),
        NOT_PRIVATE: torch.from_numpy(effects(study, pooled, stage, None).nonprivate_effect(queries.numpy())),
    }
    spread = float(study.effect.var())
    scale = spread if spread > 1e-9 else 1.0
    return {name: float((effect - study.effect).square().mean()) / scale for name, effect in found.items()}


def run(path: Path, laws: Sequence[str], repeats: dict[int, int]) -> None:
    """Add what is missing of the table."""
    done = {(line["law"], int(line["n"]), int(line["seed"])) for line in read_lines(path)}
    with Appender(path, NAMES) as file:
        for n, times in repeats.items():
            for law in laws:
                for seed in range(times):
                    if (law, n, seed) not in done:
                        file.write([law, n, seed, *(f"{each:.5g}" for each in errors(law, n, seed).values())])


def means(lines: list[dict[str, str]], law: str, n: int, method: str) -> tuple[float, float]:
    """Return the mean of a method's errors, and its standard error."""
    values = [float(line[method]) for line in lines if line["law"] == law and int(line["n"]) == n]
    return fmean(values), standard_error(values)


def draw(path: Path) -> None:
    """Print the means of table.csv and draw table.png."""
    lines = read_lines(path)
    sizes = sorted({int(line["n"]) for line in lines})
    rows = [["law", "records a site", "data sets", *METHODS]]
    figure, axes = plt.subplots(1, len(LAWS), figsize=(10, 3.4), sharey=True, layout="constrained")
    for axis, (law, words) in zip(axes, LAWS.items(), strict=True):
        for n in sizes:
            found = [means(lines, law, n, method) for method in METHODS]
            count = sum(line["law"] == law and int(line["n"]) == n for line in lines)
            rows.append([f"{law}, {words}", f"{n:,}", str(count), *(f"{m:.3g} ± {s:.1g}" for m, s in found)])
        for method, style in zip(METHODS, ("o-", "s-", "^-", "v:", "k--"), strict=True):
            axis.loglog(sizes, [means(lines, law, n, method)[0] for n in sizes], style, label=method, markersize=4)
        axis.set(title=f"{law}: {words}", xlabel="records a site")
    axes[0].set_ylabel("squared error over the effect's variance")
    axes[0].legend(fontsize=8)
    figure.savefig(path.with_suffix(".png"), dpi=110)
    text = (
        f"{SITES} sites with as many records each, at epsilon = 1 and delta = 1e-5 a record: squared error of the "
        "effect over its variance, mean ± standard error over data sets of Niu's designs. *Pooled*: one release of all "
        "records. *Sites*: one composition by noisy sums (local noise). *Combined*: the sites' own releases, with "
        "intervals, by `torchdpcate combine`; where there are none (at 300 and 1,000 records, now and then at 3,000), "
        "their mean weighted by the inverse of their planned squared errors. `python -m experiments.sites.study`, then "
        "`--draw`."
    )
    print(f"{paragraph(text)}\n{table(rows)}")


def main() -> None:
    """Run the study, or draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="print means and draw")
    parser.add_argument("--laws", nargs="+", default=list(LAWS), choices=LAWS, help="designs")
    parser.add_argument("--n", nargs="+", type=int, default=list(REPEATS), help="records a site")
    given, path = parser.parse_args(), HERE / "table.csv"
    if not given.draw:
        run(path, given.laws, {n: REPEATS[n] for n in given.n})
    draw(path)


if __name__ == "__main__":
    main()
