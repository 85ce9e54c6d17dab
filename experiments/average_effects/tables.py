"""The confounded design: the paper's mechanism as printed, its correction and peers; tables and figures.

Repeats that are done stand in runs/average_effects and are not done again. All noise is from fixed seeds, so that the
numbers can be had again: nothing made here is private.

    python -m experiments.average_effects.tables
"""

import argparse
from pathlib import Path

from rich.progress import Progress

from experiments.average_effects.designs import CONFOUNDED
from experiments.average_effects.figures import draw_coverage, draw_mse
from experiments.average_effects.pages import page
from experiments.average_effects.runs import SIZES, Study, run, seconds, single_thread
from experiments.average_effects.summaries import Cells, summarise

LONG = (5_000, 50_000)  # records of a data set where coverage is looked at with more repeats


def studies(repeats: int, long: int, sizes: tuple[int, ...]) -> list[Study]:
    """All methods; and coverage by more repeats."""
    every = Study(CONFOUNDED.name, CONFOUNDED, repeats, sizes)
    return [every, Study("coverage", CONFOUNDED, long, LONG, ("certified",))]


def main() -> None:
    """Run what is not done, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--long", type=int, default=2000, help="repeats of the study of coverage")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--work", type=Path, default=Path("runs/average_effects"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    single_thread()
    for folder in (words.work, words.out):
        folder.mkdir(parents=True, exist_ok=True)
    with Progress() as progress:
        for study in studies(words.repeats, words.long, tuple(words.sizes)):
            lines = run(study, words.work, progress)
            Cells(summarise(study.design, lines)).write(words.out / f"{study.name}.csv")
    print(page(words.out))
    draw_mse(words.out)
    draw_coverage(words.out)
    print(f"{seconds(words.work):.0f} s of one core in all")


if __name__ == "__main__":
    main()
