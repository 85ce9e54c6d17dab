"""Figure 7 of the DP-CATE paper: a constant effect on gene expression, against the sum of genes, by budget.

One run a method and budget of data=tcga; a run that is there already is read. The paper asks at 2,659 patients; here as
many public points are requested at. Writes expression_LABEL.png and .csv into the folder of runs.

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
DEFAULT = "composition on all records, function"
_QUERIES = ["release=queries", "mechanism=influence"]
METHODS = {
    DEFAULT: [],
    "two blocks, kernel ridge, finite queries": ["second_stage=kernel_ridge", *_QUERIES],
    "two blocks, network, finite queries": ["second_stage=neural", *_QUERIES],
}
"""The default of the library, and the paper's two learners."""


def collect(given: argparse.Namespace) -> pd.DataFrame:
    """Return one row a method, budget and public point.

    Raises:
        SystemExit: The default released nothing: its schema has the public points.
    """
    rows, points, path = [], None, given.runs / "points.csv"
    for method, own_words in METHODS.items():
        for epsilon in EPSILONS:
            words = ["data=tcga", f"data.path={given.path}", f"privacy.epsilon={epsilon:g}", "force=true", *own_words]
            words += [f"data.genes={given.genes}"] if given.genes else []
            words += [f"queries.path={path}"] if own_words else []
            words += [f"nuisance.batch_size={given.batch_size}"] if own_words and given.batch_size else []
            folder = given.runs / f"{list(METHODS).index(method)}_{epsilon:g}"
            found = trained(folder, [*words, "trainer.progress=false", *given.words])
            if found is None:
                continue
            release, summary = found
            if points is None:
                points = release.schema.grid(QUERIES)
                sums = release.schema.domain.scale(points)[:, :MODIFIERS].sum(1).numpy()
                frame = pd.DataFrame(points.numpy(), columns=release.schema.columns)
                frame.to_csv(path, index=False)
            own = {"method": method, "epsilon": epsilon, "n": summary["n"], "genes": points.shape[1]}
            own |= {"level": release.privacy.level}
            rows.append(pd.DataFrame({**own, "sum": sums, "effect": release.effect(points)}))
        if points is None:
            raise SystemExit("the default released nothing; what each run said is above")
    return together(rows)


def draw(found: pd.DataFrame, label: str, folder: Path) -> None:
    """Draw effects against the sum of genes, a row a method, a panel a budget."""
    methods = list(found["method"].unique())
    figure, axes = new_grid(len(methods), len(EPSILONS), (12.0, 2.9 * len(methods)), sharex=True, sharey="row")
    for at, (method, epsilon) in enumerate((m, e) for m in methods for e in EPSILONS):
        own = found[(found["method"] == method) & (found["epsilon"] == epsilon)]
        axes[at].plot(own["sum"], own["effect"], ".", markersize=2)
        axes[at].axhline(EFFECT, color="grey", linewidth=0.5)
        axes[at].set_title(f"{method}\nepsilon = {epsilon:g}", fontsize=7)
        axes[at].set_xlabel(f"sum of {MODIFIERS} genes, scaled")
        axes[at].set_ylabel("effect")
    figure.suptitle(f"A constant effect of 1 on gene expression, {label}: {int(found['n'].iloc[0]):,} patients")
    save_figure(figure, folder / f"expression_{label}.png")


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return mean, spread and error of the released effects."""
    found = found.assign(square=(found["effect"] - EFFECT) ** 2)
    table = found.groupby(["method", "level", "epsilon"], sort=False).agg(
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
        f"one run a method and budget. The genes of the treatment are the first {MODIFIERS}, not those of largest "
        "variance. The true effect is 1.\n\n"
        f"{markdown(summary(found))}"
    )


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", required=True)
    parser.add_argument("--genes", help="file of a public list of genes")
    parser.add_argument("--label", required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, help="of the nuisances' networks, where 128 are more than there are")
    parser.add_argument("--words", nargs="*", default=[], help="further words of torchdpcate train")
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    found = collect(given)
    draw(found, given.label, given.runs)
    summary(found).to_csv(given.runs / f"expression_{given.label}.csv", index=False, float_format="%.3f")
    print(page(found, given))


if __name__ == "__main__":
    main()
