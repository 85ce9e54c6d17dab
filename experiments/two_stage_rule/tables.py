"""What every table of these studies is: methods by budgets on one law, measured, written and drawn."""

import csv
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.dp_werm.batch import mean_and_error
from experiments.two_stage_rule.methods import FirstStage, Method
from torchdpcate.errors import InputError

FAR = 3.0  # standard errors of a difference, beyond which a cell is marked


@dataclass(frozen=True)
class Row:
    """One method, and the theory note's accuracies by budget where it has some."""

    label: str
    method: Method
    references: dict[float | None, float]


@dataclass(frozen=True, eq=False)
class Cell:
    """One method at one budget; ``values`` of the runs, None where the mechanism refuses."""

    table: str
    row: Row
    epsilon: float | None
    values: dict[str, Tensor] | None

    @property
    def reference(self) -> float | None:
        """The theory note's number."""
        return self.row.references.get(self.epsilon)

    def of(self, key: str) -> tuple[float, float]:
        """Mean and standard error of one measure."""
        assert self.values is not None
        return mean_and_error(self.values[key])

    @property
    def deviates(self) -> bool:
        """Whether the reference is further off than two such standard errors and its rounding explain."""
        if self.reference is None or self.values is None:
            return False
        mean, error = self.of("accuracy")
        return abs(mean - self.reference) > FAR * math.sqrt(2) * error + 0.005


def row(label: str, method: Method, references: str = "", epsilons: Iterable[float | None] = ()) -> Row:
    """A row with references as words, ``-`` for none."""
    found = {e: float(word) for e, word in zip(epsilons, references.split(), strict=False) if word != "-"}
    return Row(label, method, found)


def run_table(
    name: str,
    rows: list[Row],
    first: FirstStage,
    epsilons: Iterable[float | None],
    measure: Callable[[Method, Tensor], dict[str, Tensor]],
) -> list[Cell]:
    """Every row at every budget."""
    cells, start = [], time.perf_counter()
    for one in rows:
        for epsilon in epsilons:
            try:
                values = measure(one.method, one.method(first, epsilon))
            except InputError:
                values = None  # the ridge or budget is too small: nothing would be released
            cells.append(Cell(name, one, epsilon, values))
    print(f"{name}: {len(cells)} cells in {time.perf_counter() - start:.1f} s", flush=True)
    return cells


def shown(epsilon: float | None) -> str:
    """A budget as a column's head."""
    return "no privacy" if epsilon is None else f"eps = {epsilon:g}"


def as_markdown(cells: list[Cell]) -> str:
    """Accuracies as one table; the note's in brackets, a star where ours are further off than chance explains."""
    epsilons = list(dict.fromkeys(cell.epsilon for cell in cells))
    lines = ["| method | level | " + " | ".join(map(shown, epsilons)) + " |", "| --- " * (2 + len(epsilons)) + "|"]
    for label in dict.fromkeys(cell.row.label for cell in cells):
        found = [cell for cell in cells if cell.row.label == label]
        lines.append(f"| {label} | {found[0].row.method.level} | " + " | ".join(map(_word, found)) + " |")
    return "\n".join(lines)


def _word(cell: Cell) -> str:
    if cell.values is None:
        return "refused"
    mean, error = cell.of("accuracy")
    note = "" if cell.reference is None else f" ({cell.reference:g}){' *' if cell.deviates else ''}"
    return f"{mean:.3f} ± {error:.3f}{note}"


def write_csv(path: Path, cells: list[Cell]) -> None:
    """One line a cell and measure."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["table", "method", "level", "epsilon", "measure", "mean", "standard_error", "reference"])
        for cell in cells:
            budget = "none" if cell.epsilon is None else cell.epsilon
            facts = [cell.table, cell.row.label, cell.row.method.level, budget]
            for key in cell.values or {}:
                mean, error = cell.of(key)
                note = cell.reference if key == "accuracy" else None
                writer.writerow([*facts, key, f"{mean:.5f}", f"{error:.5f}", "" if note is None else note])


def write_page(path: Path, text: str) -> None:
    """Write a page, keeping its reading as it stands."""
    kept = path.read_text(encoding="utf-8").partition("## Reading it")[2] if path.exists() else ""
    path.write_text(text + (f"\n## Reading it{kept}" if kept else ""), encoding="utf-8")


def draw(path: Path, cells: list[Cell], tables: dict[str, str], labels: dict[str, str]) -> None:
    """A panel a table: accuracy against epsilon for some of the methods.

    Args:
        path: Of the png.
        cells: All cells.
        tables: Names of tables and their panels' titles.
        labels: Labels of the rows to draw, and what the legend calls them.
    """
    from matplotlib.figure import Figure

    across = 2 if len(tables) == 4 else min(3, len(tables))
    down = -(-len(tables) // across)
    drawing = Figure(figsize=(3.6 * across, 3.1 * down + 1.2), layout="constrained")
    panels = list(drawing.subplots(down, across, sharey=True, squeeze=False).flat)
    for panel, (name, title) in zip(panels, tables.items(), strict=False):
        for k, (label, legend) in enumerate(labels.items()):
            line = [c for c in cells if (c.table, c.row.label) == (name, label) and c.values and c.epsilon]
            means, errors = zip(*(c.of("accuracy") for c in line), strict=True) if line else ((), ())
            spread = [2 * error for error in errors]
            style = {"marker": "o", "markersize": 3, "linewidth": 1.2, "color": f"C{k}", "label": legend}
            panel.errorbar([c.epsilon for c in line], means, spread, **style)
        panel.set(title=title, xlabel="epsilon", xscale="log")
        budgets = sorted({c.epsilon for c in cells if c.table == name and c.epsilon})
        panel.set_xticks(budgets, [f"{epsilon:g}" for epsilon in budgets])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    for panel in panels[len(tables) :]:
        panel.remove()
    drawing.supylabel("accuracy (bars: two standard errors)")
    handles, names = panels[0].get_legend_handles_labels()
    drawing.legend(handles, names, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    drawing.savefig(path, dpi=130)


def seeded(seed: int) -> torch.Generator:
    """A generator of data, public."""
    return torch.Generator().manual_seed(seed)
