"""Figures: movement per learner, and regret against epsilon."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.policy_selection.calibrations import FROZEN
from experiments.policy_selection.cells import Cells
from experiments.policy_selection.choice import EPSILONS
from experiments.policy_selection.design import NAMES
from experiments.policy_selection.words import LEARNERS

SHOWN = {
    "control, as printed": ("control, certificate as printed (57.2)", "C3", "-"),
    "control, bounded range": ("control, bounded range (27.2)", "C1", "-"),
    "control, localised gradient": ("control, localised gradient (20)", "C8", "-"),
    "control, localised fits": ("control, localised fits (2.9)", "C2", "-"),
    "ridge, private target": ("ridge, private target: the library's default (5.5)", "C7", "-"),
    "truth, bounded range": ("the truth, bounded range (20)", "0.35", "-"),
    "private, convex": ("private nuisances, convex (20)", "C0", "-"),
    "private, DP-SGD": ("private nuisances, DP-SGD (20)", "C9", "-"),
    "constants": ("constants 1/2 (2)", "C4", "-"),
    "constants, target 0.4": ("constants, mean outcome 0.4 (2.4)", "C4", ":"),
    "trees, naive": ("boosted trees, naive (44): heuristic", "C5", "--"),
    "trees, sampled x 1.3": ("boosted trees, sampled x 1.3: heuristic", "C6", "--"),
}


def draw_movement(folder: Path) -> None:
    """Spreads by one training record beside the floor and the certificates, from table1.csv."""
    cells = Cells.read(folder / "table1.csv")
    drawing = Figure(figsize=(9.6, 4.6), layout="constrained")
    panels = drawing.subplots(1, 2, sharey=True, sharex=True)
    for panel, (data, title) in zip(panels, NAMES.items(), strict=True):
        rows = [row for row in cells.rows(data, "spread") if cells.find(data, "spread", row=row).largest > 0]  # type: ignore[union-attr]
        for place, row in enumerate(reversed(rows)):
            found = cells.find(data, "spread", row=row)
            assert found is not None
            panel.plot([found.smallest, found.largest], [place, place], color="C0", lw=2.5, solid_capstyle="round")
            panel.plot([found.mean], [place], "o", color="C0", ms=5, label="training record: mean, and range")
            own = cells.find(data, "own spread", row=row)
            assert own is not None
            panel.plot([own.mean], [place], "x", color="0.4", ms=6, label="scoring record: mean")
            for key, factor, mark, colour, label in (
                ("certified spread", 1, "|", "C2", "certified spread"),
                ("paper", 2, "|", "C3", "as printed: 2 n rho*"),
            ):
                limit = cells.find(data, key, row=row)
                if limit is not None:
                    panel.plot([factor * limit.mean], [place], mark, color=colour, ms=14, mew=2.5, label=label)
        panel.axvline(FROZEN, color="black", ls=":", lw=1.2, label="2 S = 20: a scoring record's bound")
        panel.axvline(44, color="0.5", ls="--", lw=1.2, label="44: naive, 2 B_psi two-sided")
        panel.set_yticks(range(len(rows)), [LEARNERS[row] for row in reversed(rows)], fontsize=9)
        panel.set(title=title, xscale="log", xlabel="spread of the utilities, outcome units")
        panel.grid(axis="x", alpha=0.3)
    _legend(drawing, panels[0], 3)
    drawing.savefig(folder / "movement.png", dpi=130)


def draw_regret(folder: Path) -> None:
    """Regret against epsilon by permute-and-flip, from table3.csv."""
    cells = Cells.read(folder / "table3.csv")
    drawing = Figure(figsize=(9.6, 6.0), layout="constrained")
    panels = drawing.subplots(1, 2, sharey=True)
    for panel, (data, title) in zip(panels, NAMES.items(), strict=True):
        for row, (label, colour, dash) in SHOWN.items():
            line = [
                cells.find(data, "regret", row=row, mechanism="permute_and_flip", epsilon=f"{e:g}") for e in EPSILONS
            ]
            found = [cell for cell in line if cell is not None]
            panel.errorbar(
                EPSILONS,
                [cell.mean for cell in found],
                [2 * cell.error for cell in found],
                color=colour,
                ls=dash,
                marker="o",
                ms=3,
                lw=1.4,
                label=label,
            )
        uniform = cells.find(data, "regret", row="uniform")
        assert uniform is not None
        panel.axhline(uniform.mean, color="black", ls=":", lw=1.2, label="any policy, each as likely")
        panel.set(title=title, xscale="log", xlabel="epsilon in all", ylim=(-0.0005, None))
        panel.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("true regret per record (bars: two standard errors)")
    _legend(drawing, panels[0], 2, "nuisances and calibration (spread); permute-and-flip")
    drawing.savefig(folder / "regret.png", dpi=130)


def _legend(drawing: Figure, panel: object, columns: int, title: str | None = None) -> None:
    handles, labels = panel.get_legend_handles_labels()  # type: ignore[attr-defined]
    entries = dict(zip(labels, handles, strict=True))
    style: dict[str, Any] = {"ncols": columns, "frameon": False, "fontsize": 8, "title": title, "title_fontsize": 8}
    drawing.legend(list(entries.values()), list(entries), loc="outside lower center", **style)
