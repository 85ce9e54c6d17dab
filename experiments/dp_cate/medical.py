"""Figure 6 of the DP-CATE paper: effect of ventilation on red blood cells against hematocrit, by budget.

One run a budget on the cohort of docs/clinical_data.md; a run that is there already is read. The paper asks at the
records of its test patients; here 1,312 public points are requested at, for queries are published. Writes
medical_LABEL.png and .csv into the folder of runs.

    python -m experiments.dp_cate.medical --path DEMO --label demo --runs RUNS --batch-size 16
    python -m experiments.dp_cate.medical --path EXTRACT --label full --runs RUNS
    python -m experiments.dp_cate.medical --path mimiciv/3.1 --label mimic_iv --runs RUNS
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.dp_cate.figure_runs import markdown, together, trained
from torchdpcate.data.domain import unit_grid
from torchdpcate.evaluation.figures import new_grid, save_figure

EPSILONS = (0.5, 1, 5, 30)
QUERIES = 1312
CELL_VOLUME = 90  # fL, the middle of the usual range of 80 to 100

# ranges of no points in APACHE II, of glucose in APACHE III: public, as the bounds are
USUAL = {
    "heart_rate": (70, 109),
    "sodium": (130, 149),
    "glucose": (60, 199),
    "hematocrit": (20, 60),
    "respiratory_rate": (12, 24),
    "age": (15, 90),
}
DEMO = (
    "**These are the demonstration files, not the paper's data**: every patient died, and there are fewer than a "
    "hundred. The figure has the paper's shape and says nothing of ventilation: with so few, the noise of one number "
    "for all is as large as the outcome's range, and kernel ridge at finite queries is noise alone."
)
METHODS = {
    "composition on all records, function": [],
    "two blocks, kernel ridge, finite queries": ["second_stage=kernel_ridge", "release=queries", "mechanism=influence"],
}
"""The default of the library, and what is nearest to the paper."""


def public_points(count: int = QUERIES) -> pd.DataFrame:
    """Patients as the clinic knows them: covariates over usual ranges, red cells by hematocrit, both genders."""
    u = unit_grid(count, len(USUAL) + 1).numpy()
    points = {name: low + (high - low) * u[:, i] for i, (name, (low, high)) in enumerate(USUAL.items())}
    frame = pd.DataFrame(points)
    frame["red_blood_cell_count"] = (10 * frame["hematocrit"] / CELL_VOLUME).clip(2.0, 6.1)
    frame["gender"] = np.where(u[:, -1] < 0.5, "F", "M")
    return frame


def words_of(method: str, epsilon: float, given: argparse.Namespace, points: Path) -> list[str]:
    """Return the words of a run."""
    words = ["data=mimic", f"data.path={given.path}", f"privacy.epsilon={epsilon:g}", "force=true"]
    words += [f"data.per_person={given.per_person}", f"queries.path={points}", "trainer.progress=false"]
    small = [f"nuisance.batch_size={given.batch_size}"] if METHODS[method] and given.batch_size else []
    return [*words, *METHODS[method], *small]


def collect(given: argparse.Namespace) -> pd.DataFrame:
    """Return one row a method, budget and point."""
    frame, rows = public_points(), []
    given.runs.mkdir(parents=True, exist_ok=True)
    frame.to_csv(given.runs / "points.csv", index=False)
    for method in METHODS:
        for epsilon in EPSILONS:
            folder = given.runs / f"{list(METHODS).index(method)}_{epsilon:g}"
            found = trained(folder, words_of(method, epsilon, given, given.runs / "points.csv"))
            if found is None:
                continue
            release, summary = found
            own = {"method": method, "epsilon": epsilon, "n": summary["n"], "level": release.privacy.level}
            effects = release.effect(frame)
            rows.append(pd.DataFrame({**own, "hematocrit": frame["hematocrit"], "effect": effects}))
    return together(rows)


def draw(found: pd.DataFrame, label: str, folder: Path) -> None:
    """Draw effects against hematocrit, a row a method, a panel a budget."""
    methods = list(found["method"].unique())
    figure, axes = new_grid(len(methods), len(EPSILONS), (12.0, 2.9 * len(methods)), sharex=True, sharey="row")
    for at, (method, epsilon) in enumerate((m, e) for m in methods for e in EPSILONS):
        own = found[(found["method"] == method) & (found["epsilon"] == epsilon)]
        axes[at].plot(own["hematocrit"], own["effect"], ".", markersize=2)
        axes[at].axhline(0, color="grey", linewidth=0.5)
        axes[at].set_title(f"{method}\nepsilon = {epsilon:g}", fontsize=7)
        axes[at].set_xlabel("hematocrit (%)")
        axes[at].set_ylabel("effect (10^6/uL)")
    n = int(found["n"].iloc[0])
    what = "DEMONSTRATION FILES, not the paper's data" if label.startswith("demo") else label
    figure.suptitle(f"Effect of ventilation on red blood cells, {what}: {n:,} records")
    save_figure(figure, folder / f"medical_{label}.png")


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return mean and spread of the released effects."""
    groups = found.groupby(["method", "level", "epsilon"], sort=False)["effect"]
    return groups.agg(["mean", "std", "min", "max"]).reset_index()


def page(found: pd.DataFrame, given: argparse.Namespace) -> str:
    """Return the page: what was run, and spread and mean of the released effects."""
    demo = f"{DEMO}\n\n" if given.label.startswith("demo") else ""
    command = f"python -m experiments.dp_cate.medical --path PATH --label {given.label} --runs RUNS"
    command += f" --per-person {given.per_person}" if given.per_person > 1 else ""
    command += f" --batch-size {given.batch_size}" if given.batch_size else ""
    return (
        f"# Figure 6 of the DP-CATE paper: {given.label}\n\n{demo}Written by `{command}`: {int(found['n'].iloc[0]):,} "
        f"records, {given.per_person} of each person, delta = 1e-5, {QUERIES:,} public points. The cohort, its bounds "
        "and how it differs from the paper's: [clinical data](../../docs/clinical_data.md). The paper's budgets are "
        f"printed in its figure alone.\n\n"
        f"\n\n{markdown(summary(found))}"
    )


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--per-person", type=int, default=1)
    parser.add_argument("--batch-size", type=int, help="of the nuisances' networks, where 128 are more than there are")
    given = parser.parse_args()
    found = collect(given)
    draw(found, given.label, given.runs)
    summary(found).to_csv(given.runs / f"medical_{given.label}.csv", index=False, float_format="%.3f")
    print(page(found, given))


if __name__ == "__main__":
    main()
