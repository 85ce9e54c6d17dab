"""Growth of time and memory with records, queries and policies: what each size takes, and fitted exponents.

Every size runs in a process of its own, on one thread; time is processor time, memory the peak of what is resident. A
run of `torchdpcate train` counts beyond what it takes at its least size, which is the program's start; of the others
imports, data and set-up are not counted. Sizes of `scale.py` are taken from its scale.csv. An exponent is
the slope of a least-squares line through the logarithms, over sizes where growth is no longer hidden by a constant.

    python experiments/benchmarks/growth.py

What growth.csv has is not measured again; its table is printed and growth.png drawn.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from experiments.benchmarks import function_noise, gamma, policy_utilities, scale
from experiments.benchmarks.average_effects import most_memory
from experiments.csv_files import read_lines, read_rows, resume
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.cate.mechanisms.perturbation import GaussianProcess
from torchdpcate.estimators.selection.scores import utilities
from torchdpcate.evaluation.figures import new_grid
from torchdpcate.privacy.noise import NoiseSource

HERE = Path(__file__).parent
NAMES = ("series", "size", "seconds", "mib")
RECORDS, COVARIATES = 100_000, 20  # of the policies
LEAST_SECONDS, LEAST_MIB = 0.02, 2.0  # below these a figure is left out of fits


@dataclass(frozen=True)
class Series:
    """What grows, and where it is fitted.

    Attributes:
        by: What its size counts.
        sizes: Those measured.
        fitted: Least size that fits take.
        measure: Returns seconds and MiB at a size.
        program: Whether these are of a program, whose start is taken off.
    """

    by: str
    sizes: tuple[int, ...]
    fitted: int
    measure: Callable[[int], tuple[float, float]]
    program: bool = False


@dataclass
class Point:
    """A line of growth.csv: processor seconds and MiB of a series at a size."""

    series: str
    size: int
    seconds: float
    mib: float
    note: str = ""


def grown(work: Callable[[], object]) -> tuple[float, float]:
    """Return processor seconds of a call, and by how much it raised this process' resident memory in MiB (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, start = most_memory(), time.process_time()
    work()
    return time.process_time() - start, most_memory() - before


def train(n: int, *words: str) -> tuple[float, float]:
    """Return what `torchdpcate train` takes on n records of 30 covariates."""
    with TemporaryDirectory() as folder:
        scale.write_all(Path(folder), n)
        run = scale.trained(Path(folder), 1, words)
    return run.processor_seconds, run.peak_mib


def in_memory(n: int) -> tuple[float, float]:
    """The default."""
    return train(n)


def streamed(n: int) -> tuple[float, float]:
    """The default on a stream."""
    return train(n, "data.stream=true")


def blocks(n: int) -> tuple[float, float]:
    """Two blocks: networks by DP-SGD, a linear head by objective perturbation."""
    return train(n, "second_stage=linear")


def fourier(n: int) -> tuple[float, float]:
    """Two blocks with a head on Fourier features."""
    return train(n, "second_stage=linear", "features=fourier")


def kernel(n: int) -> tuple[float, float]:
    """Two blocks with a kernel head."""
    return train(n, "second_stage=kernel_ridge", "mechanism=gaussian_process")


def sensitivity(queries: int) -> tuple[float, float]:
    """Gross-error sensitivity of a neural head at a number of queries, its influence function included."""
    gamma.QUERIES = queries
    problem = gamma.neural_problem(1e-2)
    return grown(lambda: gamma.ours(problem, seed=0))


def noise(queries: int) -> tuple[float, float]:
    """Gaussian-process noise on a kernel head at queries of full rank, all at once."""
    stage = function_noise.stages(30, 1_000)["kernel, q = 30"]
    points = stage.block.domain.grid(queries)
    stage.correction(points[:2])  # the fit is not counted
    mechanism = GaussianProcess()
    return grown(lambda: mechanism.prepare(stage, points, function_noise.BUDGET).draw(NoiseSource.system(), 1))


def policies(kind: str, M: int) -> tuple[float, float]:
    """Utilities of a library of policies of a kind."""
    scores, x = policy_utilities.records(RECORDS, COVARIATES, 2)
    domain = Domain([-1.0] * COVARIATES, [1.0] * COVARIATES, 0.0, 1.0)
    library = PolicyLibrary.of(policy_utilities.libraries(M, COVARIATES, 2)[kind]).setup(domain, (0, 1))
    return grown(lambda: utilities(scores, library, x))


def linear_policies(M: int) -> tuple[float, float]:
    """Linear policies."""
    return policies("linear", M)


def thresholds(M: int) -> tuple[float, float]:
    """Thresholds on one covariate."""
    return policies("thresholds", M)


STREAMED = "train, default, streamed"
SERIES = {
    "train, default, in memory": Series("n", (1_000, 10_000, 100_000, 300_000), 100_000, in_memory, program=True),
    STREAMED: Series("n", (1_000, 10_000, 100_000), 100_000, streamed, program=True),
    "train, blocks, linear head": Series("n", (1_000, 10_000, 100_000), 10_000, blocks, program=True),
    "train, blocks, Fourier features": Series("n", (1_000, 10_000, 100_000), 10_000, fourier, program=True),
    "train, blocks, kernel": Series("n", (1_000, 3_000, 10_000, 20_000), 3_000, kernel, program=True),
    "gamma of a neural head": Series("q", (10, 100, 1_000, 10_000), 100, sensitivity),
    "function noise, full rank": Series("q", (10, 100, 1_000, 3_000, 5_000), 1_000, noise),
    "utilities of linear policies": Series("policies", (20, 100, 1_000, 10_000), 100, linear_policies),
    "utilities of thresholds": Series("policies", (20, 100, 1_000, 10_000), 100, thresholds),
}


def measured(series: str, size: int) -> Iterator[tuple[str, str]]:
    """Measure one size in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as process:
        seconds, mib = process.submit(SERIES[series].measure, size).result()
    print(f"{series}, {SERIES[series].by} = {size:,}: {seconds:.2f} s, {mib:.0f} MiB", flush=True)
    yield f"{seconds:.4g}", f"{mib:.4g}"


def all_points(path: Path) -> dict[str, list[Point]]:
    """Return what a csv file has of each series, by size, with the sizes of ``scale.py`` on one thread."""
    found = [
        Point(line["series"], int(line["size"]), float(line["seconds"]), float(line["mib"]))
        for line in read_lines(path)
    ]
    if scale.FIGURES.exists():
        for row in read_rows(scale.FIGURES, scale.Figures):
            if (row.threads, row.way, row.covariates) == (1, "stream", scale.COLUMNS):
                found.append(Point(STREAMED, row.rows, row.processor_seconds, row.peak_mib, row.note))
    latest = {(point.series, point.size): point for point in found}
    return {name: sorted((p for p in latest.values() if p.series == name), key=lambda p: p.size) for name in SERIES}


def beyond_start(points: Sequence[Point], program: bool) -> list[Point]:
    """Return figures beyond those of the least size, where they are of a program."""
    if not program:
        return list(points)
    start = points[0]
    return [Point(p.series, p.size, p.seconds - start.seconds, p.mib - start.mib) for p in points[1:]]


def fitted(sizes: Sequence[float], values: Sequence[float], least: float) -> tuple[float, float, list[float]] | None:
    """Return exponent and factor of a power law, and the sizes it was fitted to; None where fewer than two tell.

    Args:
        sizes: Positive.
        values: At them.
        least: Values below it are left out.

    Example:
        >>> exponent, factor, used = fitted([1, 10, 100], [0.0, 30, 300], 1.0)
        >>> round(exponent, 6), round(factor, 6), used
        (1.0, 3.0, [10, 100])
    """
    used = [(s, v) for s, v in zip(sizes, values, strict=True) if v >= least]
    if len(used) < 2:
        return None
    slope, constant = np.polyfit(*np.log(np.array(used, dtype=float)).T, 1)
    return float(slope), float(np.exp(constant)), [s for s, _ in used]


def fits(name: str, points: Sequence[Point]) -> dict[str, tuple[float, float, list[float]] | None]:
    """Return the power laws of a series' time and memory."""
    series = SERIES[name]
    ready = [p for p in beyond_start(points, series.program) if p.size >= series.fitted]
    sizes = [float(p.size) for p in ready]
    return {
        "seconds": fitted(sizes, [p.seconds for p in ready], LEAST_SECONDS),
        "mib": fitted(sizes, [p.mib for p in ready], LEAST_MIB),
    }


def page(found: dict[str, list[Point]]) -> str:
    """Return the table."""
    lines = [
        "# Growth of time and memory",
        "",
        "Made by `growth.py`: processor seconds and peak MiB of resident memory, on one thread of a busy machine of",
        "two CPU cores without a GPU. Rows of `train` are of the program from end to end (30 covariates, parquet),",
        "whose start is the least size; fits are of what comes on top. A dash: too little to fit.",
        "",
        "| what | by | seconds and MiB at each size | time grows with | memory with | fitted on |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, points in found.items():
        if not points:
            continue
        series, laws = SERIES[name], fits(name, points)
        notes = (f" ({p.note})" if p.note else "" for p in points)
        cells = "; ".join(
            f"{p.size:,}: {seconds_of(p)} s, {p.mib:,.0f}{note}" for p, note in zip(points, notes, strict=True)
        )
        used = next((law[2] for law in laws.values() if law), [])
        span = f"{used[0]:,.0f} to {used[-1]:,.0f}" if used else "-"
        powers = [f"{series.by}^{law[0]:.2f}" if law else "-" for law in laws.values()]
        lines.append(f"| {name} | {series.by} | {cells} | {powers[0]} | {powers[1]} | {span} |")
    return "\n".join(lines) + "\n"


def seconds_of(point: Point) -> str:
    """Return seconds as a table has them."""
    return f"{point.seconds:,.0f}" if point.seconds >= 100 else f"{point.seconds:.3g}"


def draw(found: dict[str, list[Point]], path: Path) -> None:
    """Draw time and memory against size, one row of panels for each kind of size, with the fitted lines."""
    kinds = {"n": "records", "q": "queries", "policies": "policies"}
    figure, panels = new_grid(3, 2, (10.0, 11.0))
    for row, (by, word) in enumerate(kinds.items()):
        names = [name for name in found if SERIES[name].by == by and found[name]]
        for axes, what, label in zip(
            panels[2 * row : 2 * row + 2], ("seconds", "mib"), ("processor seconds", "MiB"), strict=True
        ):
            for color, name in enumerate(names):
                points = beyond_start(found[name], SERIES[name].program)
                shown = [(p.size, getattr(p, what)) for p in points if getattr(p, what) > 0]
                law = fits(name, found[name])[what]
                text = f"{name.removeprefix('train, ')}: {by}^{law[0]:.2f}" if law else name.removeprefix("train, ")
                if shown:
                    axes.plot(*zip(*shown, strict=True), "o", color=f"C{color}", label=text, markersize=4)
                if law:
                    ends = np.array([law[2][0], law[2][-1]])
                    axes.plot(ends, law[1] * ends ** law[0], "-", color=f"C{color}", linewidth=1)
            rest = ", beyond the start" if by == "n" else ""
            axes.set(xscale="log", yscale="log", xlabel=word, ylabel=label + rest)
            if names:
                axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure what is missing, print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of the names of the series to measure")
    options = parser.parse_args()
    cells = [(name, size) for name, series in SERIES.items() if options.only in name for size in series.sizes]
    resume(HERE / "growth.csv", NAMES, cells, measured)
    found = all_points(HERE / "growth.csv")
    print(page(found))
    draw(found, HERE / "growth.png")


if __name__ == "__main__":
    main()
