"""Figure 7 of the DP-CATE paper: a constant effect on gene expression, against the sum of genes, by budget.

One run a budget of data=tcga; a run that is there already is read. The paper asks at 2,659 patients; here as many
public points are requested at. Writes expression_LABEL.png and .csv into the folder of runs.

    python -m experiments.dp_cate.expression --path xena_layout.tsv.gz --label demo --runs RUNS \
        --words data.low=0 data.high=24
    python -m experiments.dp_cate.expression --path TCGA.tsv.gz --genes genes.txt --label full --runs RUNS
"""

import argparse
from pathlib import Path

import pandas as pd

from experiments.dp_cate.figure_runs import markdown, together, trained
from torchdpcate.evaluation.figures import new_grid, save_figure

EPSILONS = (0.5, 1, 5, 30)
QUERIES, MODIFIERS, EFFECT = 2659, 10, 1.0


def collect(given: argparse.Namespace) -> pd.DataFrame:
    """Return one row a budget and public point."""
    rows = []
    for epsilon in EPSILONS:
        words = ["data=tcga", f"data.path={given.path}", f"privacy.epsilon={epsilon:g}", "force=true"]
        words += [f"data.genes={given.genes}"] if given.genes else []
        found = trained(given.runs / f"{epsilon:g}", [*words, "trainer.progress=false", *given.words])
        if found is None:
            continue
        release, summary = found
        points = release.schema.grid(QUERIES)
        total = release.schema.domain.scale(points)[:, :MODIFIERS].sum(1)
        own = {"epsilon": epsilon, "n": summary["n"], "genes": points.shape[1], "level": release.privacy.level}
        rows.append(pd.DataFrame({**own, "sum": total.numpy(), "effect": release.effect(points)}))
    return together(rows)


def draw(found: pd.DataFrame, label: str, folder: Path) -> None:
    """Draw effects against the sum of genes, a panel a budget."""
    figure, axes = new_grid(1, len(EPSILONS), (12.0, 3.0), sharex=True, sharey="row")
    for at, epsilon in enumerate(EPSILONS):
        own = found[found["epsilon"] == epsilon]
        axes[at].plot(own["sum"], own["effect"], ".", markersize=2)
        axes[at].axhline(EFFECT, color="grey", linewidth=0.5)
        axes[at].set_title(f"epsilon = {epsilon:g}", fontsize=7)
        axes[at].set_xlabel(f"sum of {MODIFIERS} genes, scaled")
        axes[at].set_ylabel("effect")
    figure.suptitle(f"A constant effect of 1 on gene expression, {label}: {int(found['n'].iloc[0]):,} patients")
    save_figure(figure, folder / f"expression_{label}.png")


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return mean, spread and error of the released effects."""
    found = found.assign(square=(found["effect"] - EFFECT) ** 2)
    table = found.groupby(["level", "epsilon"], sort=False).agg(
        mean=("effect", "mean"), std=("effect", "std"), pehe=("square", lambda s: s.mean() ** 0.5)
    )
    return table.reset_index()


def page(found: pd.DataFrame, given: argparse.Namespace) -> str:
    """Return the page: what was run, and the released effects' mean, spread and error."""
    demo = "**These are not the paper's data**: a hundred genes of a sample of patients.\n\n"
    words = " ".join(["--words", *given.words]) if given.words else ""
    command = f"python -m experiments.dp_cate.expression --path PATH --label {given.label} --runs RUNS {words}".strip()
    first = found.iloc[0]
    return (
        f"# Figure 7 of the DP-CATE paper: {given.label}\n\n{demo if given.label == 'demo' else ''}Written by "
        f"`{command}`: {first['n']:,} patients, {first['genes']} genes, delta = 1e-5, {QUERIES:,} public points, "
        "one run a budget. The "
        f"genes of the treatment are the first {MODIFIERS}, not those of largest variance. The true effect is 1.\n\n"
        f""
        f"{markdown(summary(found))}"
    )


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", required=True)
    parser.add_argument("--genes", help="file of a public list of genes")
    parser.add_argument("--label", required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--words", nargs="*", default=[], help="further words of torchdpcate train")
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    found = collect(given)
    draw(found, given.label, given.runs)
    summary(found).to_csv(given.runs / f"expression_{given.label}.csv", index=False, float_format="%.3f")
    print(page(found, given))


if __name__ == "__main__":
    main()
