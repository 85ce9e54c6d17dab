"""The page and figure of the table."""

import math
from pathlib import Path

from experiments.owl.references import EPSILONS

Cell = dict
FAR = 3.0  # standard errors of the difference, beyond which a cell is marked
HEAD = """\
# Outcome weighted learning: Table 1 and what is certified beside it

Written by `python -m experiments.owl.table1`. {repeats} data sets a cell, each with 1,000 fresh records for accuracy
(share of decisions that are the best rule's, per cent) and empirical value (mean outcome of the fresh records treated
as the rule says). Mean ± standard error. **Noise comes from a fixed seed, so nothing here is private**; the level is
that of the same mechanism with noise from the system.

The trial is that of Giddens et al. (arXiv 2307.13127): four uniform covariates, a fair coin, weights B / 0.5 of at
most W = 30, Huber hinge with h = 0.5. Features are (1, x) / sqrt 5 with x in [0, 1], which reproduces the non-private
row. The ridge is the best of {grid} values from {low:.2g} to {high:.0f}, four to a factor of ten and in units where
the largest weight is 1 (times 30 in the paper's), on an independent draw of {repeats} data sets, for each row, n and
epsilon: a tuning that a simulation has and a user has not. Rows that are not tuned take the library's public default.
Gaussian rows have delta = 1e-5, all others delta = 0.
"""


def _shown(epsilon: float) -> str:
    return "no privacy" if epsilon == math.inf else f"eps = {epsilon:g}"


def paper_table(cells: list[Cell]) -> str:
    """Ours beside the paper's and the theory note's, under the paper's settings."""
    lines = [
        "| n | budget | ours | theory note 9.4 | the paper | value | ridge |",
        "| --- " * 7 + "|",
    ]
    for cell in (cell for cell in cells if cell["row"] == "paper"):
        printed = "not in our material" if cell["paper"] is None else f"{cell['paper']:.2f}"
        note = "" if cell["note"] is None else f"{cell['note']:.2f}"
        lines.append(
            f"| {cell['n']} | {_shown(cell['epsilon'])} | {cell['accuracy']:.2f} ± {cell['accuracy_error']:.2f} "
            f"| {note} | {printed} | {cell['value']:.2f} ± {cell['value_error']:.2f} | {cell['gamma']:.3g} |"
        )
    return "\n".join(lines)


def deviates(cell: Cell) -> bool:
    """Whether a cell is further from the note's than two standard errors of this size explain."""
    if cell["note"] is None:
        return False
    return abs(cell["accuracy"] - cell["note"]) > FAR * math.sqrt(2) * cell["accuracy_error"] + 0.05


def rows_table(cells: list[Cell], labels: dict[str, str], n: int, key: str) -> str:
    """All rows at one size; ``key`` is accuracy or value."""
    lines = ["| row | " + " | ".join(map(_shown, EPSILONS)) + " |", "| --- " * (1 + len(EPSILONS)) + "|"]
    found = {(cell["row"], cell["epsilon"]): cell for cell in cells if cell["n"] == n}
    for name, label in labels.items():
        shown = []
        for epsilon in EPSILONS:
            cell = found[name, epsilon]
            if key == "value":
                shown.append(f"{cell['value']:.2f}")
                continue
            note = "" if cell["note"] is None else f" ({cell['note']:.1f}){' *' if deviates(cell) else ''}"
            shown.append(f"{cell['accuracy']:.1f} ± {cell['accuracy_error']:.1f}{note}")
        lines.append(f"| {label} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def write_page(folder: Path, cells: list[Cell], labels: dict[str, str], repeats: int, grid: list[float]) -> None:
    """Write table1.md, whose reading is kept as it stands, and table1.png."""
    sizes = sorted({cell["n"] for cell in cells})
    parts = [HEAD.format(repeats=repeats, grid=len(grid), low=grid[0], high=grid[-1])]
    parts += ["## Under the paper's settings (level heuristic: the shift leaks)\n", paper_table(cells) + "\n"]
    for n in sizes:
        parts += [
            f"## Every row at n = {n:,}\n",
            "Accuracy; in brackets theory note 9.4, a star beyond three standard errors of the difference.\n",
            rows_table(cells, labels, n, "accuracy") + "\n",
            "Empirical value.\n",
            rows_table(cells, labels, n, "value") + "\n",
        ]
    path = folder / "table1.md"
    kept = path.read_text(encoding="utf-8").partition("## Reading it")[2] if path.exists() else ""
    text = "\n".join(parts) + (f"\n## Reading it{kept}" if kept else "")
    path.write_text(text, encoding="utf-8")
    figure(folder / "table1.png", cells, labels, sizes)


def figure(path: Path, cells: list[Cell], labels: dict[str, str], sizes: list[int]) -> None:
    """Accuracy against epsilon, a panel a size."""
    from matplotlib.figure import Figure

    shown = ("paper", "public", "objective", "signed_output", "signed_objective", "signed_box")
    drawing = Figure(figsize=(9, 7), layout="constrained")
    panels = drawing.subplots(2, 2, sharex=True, sharey=True, squeeze=False).flat
    for panel, n in zip(panels, sizes, strict=False):
        for k, name in enumerate(shown):
            line = [c for c in cells if c["n"] == n and c["row"] == name and c["epsilon"] < math.inf]
            panel.errorbar(
                [c["epsilon"] for c in line],
                [c["accuracy"] for c in line],
                [2 * c["accuracy_error"] for c in line],
                color=f"C{k}",
                marker="o",
                markersize=3,
                linewidth=1.2,
                label=labels[name],
            )
        printed = [c for c in cells if c["n"] == n and c["paper"] is not None and c["epsilon"] < math.inf]
        panel.plot(
            [c["epsilon"] for c in printed],
            [c["paper"] for c in printed],
            "kx",
            markersize=7,
            label="printed in the paper",
        )
        best = next(c for c in cells if c["n"] == n and c["row"] == "paper" and c["epsilon"] == math.inf)
        panel.axhline(best["accuracy"], color="0.6", linestyle="--", linewidth=1, label="the paper's, without privacy")
        panel.set(title=f"n = {n:,}", xlabel="epsilon" if n in sizes[-2:] else "", xscale="log", ylim=(45, 101))
        panel.set_xticks(EPSILONS[:-1], [f"{e:g}" for e in EPSILONS[:-1]])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    drawing.supylabel("accuracy, % (bars: two standard errors)")
    handles, names = drawing.axes[0].get_legend_handles_labels()
    drawing.legend(handles, names, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    drawing.savefig(path, dpi=130)
