"""The page that sets ours beside the theory note's numbers: simulations and LaLonde's data."""

from collections.abc import Callable, Iterator
from pathlib import Path

from experiments.average_effects import lalonde
from experiments.average_effects.cells import Cell, Cells
from experiments.average_effects.references import (
    LALONDE,
    NOTE_COVERAGE,
    NOTE_LENGTH,
    NOTE_MSE,
    NOTE_ONE,
    PUBLISHED_LALONDE,
    PUBLISHED_LENGTH,
    PUBLISHED_MSE,
    Numbers,
)
from experiments.average_effects.runs import EPSILONS
from experiments.average_effects.words import NONE, ROWS, RUN, coverage, length, mse, printed
from experiments.words import paragraph, table

_ABOUT = (
    "What the theory note `covariate_balancing` has in section 6, and what the paper has as the note carries it, "
    "beside ours. The note's simulations have 100 to 200 runs, so that their errors are known to 10 or 15 %. "
    "Scenario 1 is rebuilt from a few words (README), which the printed mechanism feels most. Certified lines choose "
    "their loss themselves; the note's of scenario 1 are logistic, its outcome table's from the balancing loss."
)
_LALONDE = (
    "Effect of the programme on having earnings in 1978, without privacy. The interval's variance takes the pooled "
    "sample variance, as the published one does; with PSID it has no use without a clip, as propensities reach 0."
)
Kind = tuple[str, dict[str, dict[str, Numbers]], Callable[[Cell | None], str], Callable[[float], str]]
KINDS: tuple[Kind, ...] = (
    ("1000 MSE", NOTE_MSE, mse, printed),
    ("covered, %", NOTE_COVERAGE, coverage, lambda value: f"{100 * value:.1f}"),
    ("length", NOTE_LENGTH, length, lambda value: f"{value:#.3g}"),
)


def check(folder: Path) -> str:
    """Ours beside the note's and the published."""
    parts = ["# Beside the theory note\n", RUN, paragraph(_ABOUT)]
    for design in NOTE_MSE:
        cells = Cells.read(folder / f"{design.replace(' ', '_')}.csv")
        head = ["", "mechanism", "N", *(f"{whose}, eps = {e:g}" for e in EPSILONS for whose in ("ours", "note"))]
        parts += [f"## {design.capitalize()}\n", table([head, *_lines(cells, design)])]
    return "\n".join([*parts, "## LaLonde's data, without privacy\n", paragraph(_LALONDE), table(_lalonde(folder))])


def _lines(cells: Cells, design: str) -> Iterator[list[str]]:
    for what, notes, ours, shown in KINDS:
        for row, numbers in notes[design].items():
            yield from _compared(cells, what, row, ROWS[row][0], numbers, ours, shown)
    if design == "scenario 1":
        label = f"{ROWS['literal'][0]}, beside the published"
        yield from _compared(cells, "1000 MSE", "literal", label, PUBLISHED_MSE, mse, printed)
        yield from _compared(cells, "length", "literal", label, PUBLISHED_LENGTH, length, lambda value: f"{value:.2f}")
        for row, single in NOTE_ONE.items():
            for n, value in single.items():
                if n in cells.sizes:
                    pair = [mse(cells.get(n, row, 1.0)), printed(value)]
                    yield ["1000 MSE", ROWS[row][0], f"{n:,}", NONE, NONE, *pair, NONE, NONE]


def _compared(
    cells: Cells,
    what: str,
    row: str,
    label: str,
    numbers: Numbers,
    ours: Callable[[Cell | None], str],
    shown: Callable[[float], str],
) -> Iterator[list[str]]:
    for n, values in numbers.items():
        if n in cells.sizes:
            pairs = [(ours(cells.get(n, row, e)), shown(v)) for e, v in zip(EPSILONS, values, strict=True)]
            yield [what, label, f"{n:,}", *(word for pair in pairs for word in pair)]


def _lalonde(folder: Path) -> list[list[str]]:
    lines = [["sample", "features", "records", "ours", "note", "published"]]
    for row in lalonde.read(folder / "lalonde.csv"):
        at, low, high = LALONDE[row["sample"], row["features"]]
        ours, note = f"{float(row['estimate']):.6f}", f"{at:.6g}"
        if low is not None and high is not None:
            ours += f" ({float(row['low']):.4f}, {float(row['high']):.4f})"
            note += f" ({low:.4f}, {high:.4f})"
        published = PUBLISHED_LALONDE[row["sample"]] if row["features"] == "no intercept" else NONE
        lines.append([row["sample"], row["features"], f"{int(row['n']):,}", ours, note, published])
    return lines
