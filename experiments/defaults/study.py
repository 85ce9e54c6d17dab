"""Errors of the release at default settings, beside the private constant and others, on all data of the study.

What is done stands in runs/defaults/runs.csv and is not done again. Writes table.csv
and figures, and prints every cell and which targets were reached.

    python -m experiments.defaults.study --data ../shared/data --processes 2
    python -m experiments.defaults.study --quick --out /tmp/defaults
"""

import argparse
from pathlib import Path

import torch

from experiments.defaults.runs import EPSILONS, plan, read, run
from experiments.defaults.sources import Source, sources
from experiments.defaults.summaries import Cells
from experiments.defaults.tables import cells_page, draw
from experiments.defaults.verdicts import made

QUICK = {"seeds": 2, "sizes": [500, 445, 1_500, 2_700], "epsilons": [1.0]}


def main() -> None:
    """Run what is not done, and write the tables."""
    words = _words()
    if words.quick:
        for name, value in QUICK.items():
            setattr(words, name, value)
    torch.set_num_threads(1)
    every = list(sources(words.data))
    there = [source for source in every if source.missing is None]
    skipped = [source.missing for source in every if source.missing is not None]
    print(*(f"left out: {reason}" for reason in skipped), sep="\n")
    chosen = [source for source in there if not words.only or any(source.name.startswith(name) for name in words.only)]
    path = words.work / "runs.csv"
    run(path, plan(chosen, range(words.seeds), path, words.epsilons, words.sizes, words.methods), words.processes)
    write(Cells.of(read(path), [source.name for source in every]), every, words.out)


def write(cells: Cells, every: list[Source], folder: Path) -> None:
    """Write all files that the cells make."""
    folder.mkdir(parents=True, exist_ok=True)
    cells.write(folder / "table.csv")
    cells = Cells.read(folder / "table.csv")  # so that all can be printed again from the file
    print(cells_page(cells), made(cells), sep="\n")
    titles = {source.name: source.title for source in every}
    groups = {
        "niu": [name for name in titles if name.startswith("niu")],
        "datasets": ["dataset1", "dataset2"],
        "acic": [name for name in titles if name.startswith("acic")],
        "tables": [name for name in titles if name.startswith(("twins", "lbidd", "lalonde"))],
    }
    draw(cells, {file: {name: titles[name] for name in names} for file, names in groups.items()}, folder)


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="folder with acic2016, twins, lbidd, lalonde; without it they stay out"
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", help="these numbers of records alone")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--only", nargs="+", help="data whose names begin so")
    parser.add_argument("--methods", nargs="+", help="these rows alone")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two seeds of small samples at epsilon = 1")
    parser.add_argument("--work", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    return parser.parse_args()


if __name__ == "__main__":
    main()
