"""Draw which target is worth asking at which n, from the csv files of three studies.

    python -m experiments.defaults.which_target

Each panel holds errors over those of a simpler answer; below one the target beats it. Nothing is computed anew.
"""

from pathlib import Path
from statistics import fmean

import pandas as pd
from matplotlib.axes import Axes

from torchdpcate.evaluation.figures import new_grid, save_figure

STUDIES = Path(__file__).parents[1]
FIGURE = STUDIES.parent / "docs" / "figures" / "which_target.png"
LAWS = ("niu_a", "niu_b", "niu_d", "niu_e")
"""Laws whose effect varies, tried at the same sizes."""
BUDGETS = ("0.5", "1", "4")


def effects() -> pd.DataFrame:
    """Return the default effect's RMSE over the private constant's: median over laws, by n and epsilon."""
    cells = pd.read_csv(STUDIES / "defaults" / "table.csv", dtype={"epsilon": str})
    cells = cells[cells.data.isin(LAWS) & cells.epsilon.isin(BUDGETS)]
    errors = cells.pivot_table(index=["data", "n", "epsilon"], columns="method", values="rmse")
    ratio = (errors["default"] / errors["constant"]).groupby(["n", "epsilon"]).agg(["median", "count"])
    return ratio["median"][ratio["count"] == len(LAWS)].unstack()


def rules() -> pd.DataFrame:
    """Return the default rule's regret over the best constant's at epsilon = 1: mean over laws, by n and design."""
    lines = pd.read_csv(STUDIES / "rules_and_selection" / "rules.csv")
    return lines[lines.method == "rule"].groupby(["n", "design"]).regret.mean().unstack()


def averages() -> pd.DataFrame:
    """Return the default average effect's RMSE over the effect at epsilon = 1: by n, trials and observational."""
    cells = pd.read_csv(STUDIES / "average_effects" / "defaults.csv").query("epsilon == 1")
    kind = cells.design.str.split(",").str[0]
    return (cells["default"] / cells["zero"]).groupby([cells.n, kind]).agg(fmean).unstack()


def draw() -> None:
    """Draw the three panels."""
    figure, panels = new_grid(1, 3, (12.0, 3.8))
    shown = [
        (effects().add_prefix("epsilon = "), "effect as a function", "RMSE / private constant's"),
        (rules(), "rule, epsilon = 1", "regret / that of one treatment for all"),
        (averages(), "average effect, epsilon = 1", "RMSE / effect (a tenth of the range)"),
    ]
    for axes, (table, title, label) in zip(panels, shown, strict=True):
        _lines(axes, table, title, label)
    save_figure(figure, FIGURE)


def _lines(axes: Axes, table: pd.DataFrame, title: str, label: str) -> None:
    for name in table.columns:
        found = table[name].dropna()
        axes.plot(found.index, found, marker="o", label=str(name))
    axes.axhline(1, color="grey", linewidth=1)
    axes.set(xscale="log", xlabel="records", ylabel=label, title=title, ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    draw()
    for found in (effects(), rules(), averages()):
        print(found.round(2).to_string())
