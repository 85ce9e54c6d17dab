"""Error against budget on Dataset 2: the issue's table, by two sweeps of the command line.

Writes error_against_budget.csv, .md and .png beside this file; the runs go to --runs.

    python experiments/dp_cate/error_against_budget.py --runs /tmp/sweeps
"""

import argparse
import json
from pathlib import Path

import pandas as pd

from torchdpcate.cli.main import main as torchdpcate
from torchdpcate.cli.tasks.effects import ESTIMATES
from torchdpcate.evaluation.comparison import budget_figure
from torchdpcate.evaluation.figures import save_figure

HERE = Path(__file__).parent
EPSILONS = (0.5, 1, 4, 16, 1000)


def sweep(runs: Path, n: int, seeds: int) -> None:
    """Run the sweep of one size, unless its folder is there from before."""
    folder = runs / f"n{n}"
    if folder.exists():
        return
    words = ["-m", f"data.n={n}", f"seed={','.join(map(str, range(seeds)))}", f"run_dir={folder}"]
    words += [f"privacy.epsilon={','.join(map(str, EPSILONS))}", "trainer.progress=false", "second_stage=linear"]
    words += ["force=true"]  # the figure shows what noise beyond the outcome's range does
    if code := torchdpcate(["train", *words]):
        raise SystemExit(code)


def collect(runs: Path) -> pd.DataFrame:
    """One row a run and estimate."""
    rows = []
    for path in sorted(runs.glob("n*/*/summary.json")):
        summary = json.loads(path.read_text(encoding="utf-8"))
        facts = {"n": int(path.parts[-3][1:]), "epsilon": summary["requested"]["epsilon"], "seed": summary["seed"]}
        rows += [{**facts, "estimate": label, "pehe": summary[key]} for key, label in ESTIMATES.items()]
    return pd.DataFrame(rows)


def table(errors: pd.DataFrame) -> str:
    """Means over seeds with their standard errors, as markdown."""
    groups = errors.groupby(["n", "estimate", "epsilon"], sort=False)["pehe"]
    cells = (groups.mean().map("{:.2f}".format) + " ± " + groups.sem().map("{:.2f}".format)).unstack("epsilon")
    cells = cells[sorted(cells.columns)]
    head = "| samples | estimate | " + " | ".join(f"eps = {e:g}" for e in cells.columns) + " |"
    body = [
        f"| {n:,} | {name} | " + " | ".join(row) + " |"
        for (n, name), row in zip(cells.index, cells.to_numpy(), strict=True)
    ]
    return "\n".join([head, "| --- " * (2 + len(cells.columns)) + "|", *body])


def main() -> None:
    """Sweep, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--n", type=int, nargs="+", default=[3000, 30000])
    words = parser.parse_args()
    for n in words.n:
        sweep(words.runs, n, words.seeds)
    errors = collect(words.runs)
    errors.to_csv(HERE / "error_against_budget.csv", index=False)
    for n, rows in errors.groupby("n"):
        save_figure(budget_figure(rows.rename(columns={"estimate": "line"})), HERE / f"error_against_budget_n{n}.png")
    text = (
        "# Error against budget, Dataset 2\n\n"
        f"PEHE (root mean squared error at 300 held-out points), mean ± standard error over {words.seeds} seeds. Total "
        "budget (epsilon, 1e-5), R-learner, default settings; 90 % of the samples train.\n"
        "Written by `python experiments/dp_cate/error_against_budget.py --runs FOLDER`.\n\n"
    )
    path = HERE / "error_against_budget.md"
    kept = path.read_text(encoding="utf-8").partition("\n## ")[2] if path.exists() else ""
    path.write_text(text + table(errors) + "\n" + (f"\n## {kept}" if kept else ""), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
