"""Private policy selection on ACIC 2016 and Gaussian covariates: tables 1, 2, 3 and 5 with their pages and figures.

Repetitions that are done stand in runs/policy_selection and are not done again. Private nuisances have their noise from
fixed seeds, so that the numbers can be had again: nothing made here is private.

    python -m experiments.policy_selection.tables --acic x.csv
"""

import argparse
from pathlib import Path

import torch

from experiments.policy_selection.cells import Cell, Cells, summarise
from experiments.policy_selection.choice import choice, default, networks
from experiments.policy_selection.design import Population
from experiments.policy_selection.figures import draw_movement, draw_regret
from experiments.policy_selection.movement import default_ridge, guided, movement, sweep
from experiments.policy_selection.pages import PAGES, write_page
from experiments.policy_selection.runs import run, seconds

TABLES = {
    "table1": (movement, default_ridge),
    "table2": (sweep,),
    "table3": (choice, default, networks),
    "table5": (movement, default_ridge, guided),
}
MOST = {  # repetitions of what is slow, by measure and population
    ("movement", "gaussian"): 25,
    ("default_ridge", "gaussian"): 25,
    ("sweep", "gaussian"): 25,
    ("networks", "acic"): 20,
    ("networks", "gaussian"): 20,
    ("guided", "acic"): 5,
    ("guided", "gaussian"): 5,
}
RATIOS, SHARED = "ratio", ("least e", "most e", "least mu", "most mu", "movement", "spread")


def belongs(table: str, cell: Cell) -> bool:
    """Whether a cell of the movements stands in table 1 or, with ratios and the control's ranges, in table 5."""
    if table == "table1":
        return not cell.calibration
    if table == "table5":
        return bool(cell.calibration) or not cell.level or (cell.row == "ridge 50" and cell.measure in SHARED)
    return True


def main() -> None:
    """Run what is not done, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--acic", type=Path, required=True, help="x.csv of ACIC 2016")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--work", type=Path, default=Path("runs/policy_selection"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    torch.set_num_threads(1)
    words.work.mkdir(parents=True, exist_ok=True)
    populations = [Population("acic", words.acic), Population("gaussian")]
    for table, measures in TABLES.items():
        cells = [
            cell
            for measure in measures
            for population in populations
            for cell in summarise(
                population.name,
                run(
                    measure,
                    population,
                    min(words.repeats, MOST.get((measure.__name__, population.name), words.repeats)),
                    words.work,
                ),
            )
            if belongs(table, cell)
        ]
        Cells(cells).write(words.out / f"{table}.csv")
    for table in PAGES:
        write_page(words.out, table)
    draw_movement(words.out)
    draw_regret(words.out)
    print(f"{seconds(words.work):.0f} s of repetitions on one thread")


if __name__ == "__main__":
    main()
