"""Tables 3 to 6 of Ohnishi & Awan (2024) as we read them, and the same on the confounded design; pages and figures.

Repeats that are done stand in runs/average_effects and are not done again. All noise is from fixed seeds, so that the
numbers can be had again: nothing made here is private.

    python -m experiments.average_effects.tables --lalonde FOLDER
"""

import argparse
from pathlib import Path

from rich.progress import Progress

from experiments.average_effects import lalonde
from experiments.average_effects.cells import Cells, summarise
from experiments.average_effects.designs import DESIGNS
from experiments.average_effects.figures import draw_coverage, draw_mse
from experiments.average_effects.pages import COVERAGE, PAGES, file_of, write_page
from experiments.average_effects.runs import SIZES, Study, run, seconds, single_thread

LONG = (5_000, 50_000)  # records of a data set where coverage is looked at with more repeats


def studies(repeats: int, long: int, sizes: tuple[int, ...]) -> list[Study]:
    """All designs by all methods; and coverage where adjustment matters, by more repeats."""
    own = [Study(design.name, design, repeats, sizes) for design in DESIGNS.values()]
    return [*own, Study(COVERAGE, DESIGNS["confounded"], long, LONG, ("certified",))]


def main() -> None:
    """Run what is not done, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--long", type=int, default=2000, help="repeats of the study of coverage")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--lalonde", type=Path, help="folder with nsw_dw.csv and psid_controls.csv")
    parser.add_argument("--work", type=Path, default=Path("runs/average_effects"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    single_thread()
    for folder in (words.work, words.out):
        folder.mkdir(parents=True, exist_ok=True)
    with Progress() as progress:
        for study in studies(words.repeats, words.long, tuple(words.sizes)):
            lines = run(study, words.work, progress)
            Cells(summarise(study.design, lines)).write(words.out / file_of(study.name))
    if words.lalonde is not None:
        lalonde.write(words.lalonde, words.out / "lalonde.csv")
    for page in PAGES:
        write_page(words.out, page)
    draw_mse(words.out)
    draw_coverage(words.out)
    print(f"{seconds(words.work):.0f} s of one core in all")


if __name__ == "__main__":
    main()
