"""The study of Schroeder et al. (2025), Figures 3, 4, 5 and 9: ``torchdpcate study dp_cate``."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from experiments.dp_cate.learners import (
    CONSTANT,
    CORRECTED,
    DEFAULT,
    FUNCTION,
    KERNEL,
    NETWORK,
    NETWORKS,
    PAPER,
    PRIVATE_CONSTANT,
    SMOOTH,
    Answers,
    N,
    answers,
    load,
    network,
)
from experiments.frame.page import mean
from experiments.frame.study import CERTIFIED as BESIDE
from experiments.frame.study import FREE, NO_PRIVACY, OTHER, PRINTED, Cell, Found, Place, Settings, Study
from experiments.frame.table import Row, Summary
from experiments.tables import paragraph, table
from torchdpcate.evaluation.comparison import pehe
from torchdpcate.evaluation.figures import new_grid, save_figure

EPSILONS, QUICK_EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0), (1.0, 10.0)
SEEDS, NETWORK_SEEDS = 10, 3
METRIC = "PEHE"
FIGURES = {("dataset_1", "R"): "Figures 3 and 4", ("dataset_2", "R"): "Figure 5", ("dataset_1", "DR"): "Figure 9"}
SHOWN = {
    "figure_3": ("Figures 3 and 4", "R", (KERNEL, NETWORK, *NETWORKS, DEFAULT)),
    "figure_4": ("Figures 3 and 4", "R", (FUNCTION, CORRECTED, DEFAULT)),
    "figure_9": ("Figure 9", "DR", (KERNEL, NETWORK, *NETWORKS, DEFAULT)),
}
"""Predictions of seed 0 against x0, by budget: table, learner and rows of panels."""
ORDER = (KERNEL, NETWORK, *NETWORKS, FUNCTION, CORRECTED, SMOOTH, DEFAULT, PRIVATE_CONSTANT, CONSTANT)
ABOUT = """\
PEHE is the root mean squared error at 300 held-out points, mean ± standard error over data sets of 3,000 records, of
which 2,700 train. The paper prints no number. Its text says that noise falls as the budget grows, that kernel ridge
and network are nearly the same, that the function release behaves as the finite queries do, and that the DR-learner
has the pattern of the R-learner.

Open in the paper, and chosen here: epsilon; delta = 1e-5 in all; beta and gamma with a joint support of at most five
covariates; DP-SGD with 20 epochs, clip 1 and the mean of the last half of the weights, all networks of the nuisances
in one run at the whole budget of their half, counted for a replaced record, which is less noise than epsilon/2 for
each; propensities clipped to [.05, .95]; kernels with the defaults of scikit-learn, lambda = 1/n and h = sqrt(q/2);
the network's ridge .01, which leaves nearly a constant, and 1e-4 and 1e-5 at two budgets, at which it learns and
needs several times the noise, on up to three data sets; the 50 basis functions are cosines and sines at 25 random
frequencies; L is the range of outcomes. Second stages are shrunk, and their answers are not clipped. "Without
privacy" has nuisances without privacy.

*Kernel ridge* and *neural network*: Theorem 1 at 300 queries; data sets on which the network came to no strict
minimum, so that it has no influence function, or its polish did not end, are left out of its means. *Function*:
Theorem 3 as printed, with its kernel of height (sqrt(2 pi) h)^-q, under which lambda = 1 leaves nearly zero: at q =
30 the height is 1e-30, and the release is zero at every budget. The bound of equation 19 is 4 (sqrt(2 pi) h)^(-q/2)
times what one record moves; where that is below .755 a nominal (1, 1e-5) does not hold: at q = 8, h = 1 two data sets
of 200 records have an epsilon of 9.98 (21 November 2026). *Function, corrected*: the unit kernel with lambda = 1,
noise by the squared loss's own bound.
*Kernel ridge, smooth sensitivity*: Theorem 1's answers with the scale for which a proof holds. *Certified default*:
`RLearner` as it comes, one composition on all 2,700 records, beside both learners of the paper; its row without
privacy is the learner without a budget, which fits other nuisances and may be worse than a private one. *Best constant*
needs the truth.

Level: what is proved with noise from the system; the noise here has fixed seeds. "None holds": a condition of the
theorem fails, or its constant is wrong. Whether nuisances are certified says nothing of the release then.

Figures 6 and 7: `python -m experiments.dp_cate.medical` and `experiments.dp_cate.expression`, on other data than the
paper's, see medical_demo.csv and expression_demo.csv."""


class DPCate(Study):
    """Figures 3, 4, 5 and 9."""

    name = "dp_cate"
    title = "Effects with privacy: Schröder, Melnychuk & Feuerriegel (2025)"
    about = ABOUT

    def cells(self, settings: Settings) -> Iterator[Cell]:
        """Yield a data set, learner and budget each, one seed after the other; then likewise networks that learn."""
        for seed in range(1 if settings.quick else SEEDS):
            for epsilon in ("inf", *(f"{e:g}" for e in (QUICK_EPSILONS if settings.quick else EPSILONS))):
                for source, learner in FIGURES:
                    yield {"source": source, "learner": learner, "epsilon": epsilon, "seed": seed}
        quick = product([one for one in FIGURES if one[0] == "dataset_1"], list(NETWORKS)[:1])
        learning = list(quick if settings.quick else product(FIGURES, NETWORKS))
        for seed in range(1 if settings.quick else NETWORK_SEEDS):
            for epsilon in ("inf", *(f"{e:g}" for e in QUICK_EPSILONS)):
                for (source, learner), method in learning:
                    yield {"source": source, "learner": learner, "epsilon": epsilon, "seed": seed, "method": method}

    def compute(self, cell: Cell, settings: Settings) -> Iterator[Found]:
        """Yield each method's error."""
        source, learner, epsilon, seed = (str(cell[key]) for key in ("source", "learner", "epsilon", "seed"))
        truth = load(source, int(seed)).effect
        assert truth is not None
        for one in _found(source, learner, float(epsilon), int(seed), cell.get("method")):
            place = Place(FIGURES[source, learner], f"{source}, {learner}", str(N), epsilon, one.method, METRIC)
            yield Found(place, _role(one.method, epsilon), one.method, one.level, [pehe(one.effects, truth)])

    def page(self, found: Sequence[Summary], notes: Sequence[str]) -> str:
        """Return a table of errors by budget for each figure."""
        parts = [f"# {self.title}\n", *(paragraph(" ".join(note.split())) for note in (*notes, *ABOUT.split("\n\n")))]
        epsilons = sorted({one.place.epsilon for one in found}, key=float)
        for name in FIGURES.values():
            own = {(one.method, one.place.epsilon): one for one in found if one.place.table == name}
            lines = [["method", "level", *(f"eps = {e}" if e != NO_PRIVACY else "no privacy" for e in epsilons)]]
            for method in ORDER:
                cells = [own.get((method, epsilon)) for epsilon in epsilons]
                levels = list(dict.fromkeys(one.level for one in cells if one))
                private = [level for level in levels if level != "not private"] or levels
                if levels:
                    lines.append([method, " or ".join(private), *map(mean, cells)])
            if len(lines) > 1:
                parts += [f"## {name}\n", table(lines)]
        return "\n".join(parts)

    def draw(self, rows: Sequence[Row], found: Sequence[Summary], folder: Path) -> None:
        """Draw predictions of seed 0 against x0, and errors by budget."""
        for name, (figure, learner, methods) in SHOWN.items():
            places = {one.place.epsilon for one in found if one.place.table == figure}
            epsilons = sorted(float(epsilon) for epsilon in places - {NO_PRIVACY})
            if epsilons:
                _predictions(folder / f"{name}.png", name, learner, methods, epsilons)
        _errors(folder / "figure_5.png", [one for one in found if one.place.table == "Figure 5"])


def _found(source: str, learner: str, epsilon: float, seed: int, method: object) -> Sequence[Answers]:
    """Return the answers of one of the networks, or of all other methods."""
    if method is None:
        return answers(source, learner, epsilon, seed)
    one = network(source, learner, epsilon, seed, str(method))
    return [] if one is None else [one]


def _role(method: str, epsilon: str) -> str:
    if method in (*PAPER, *NETWORKS):
        return FREE if epsilon == NO_PRIVACY else PRINTED
    return BESIDE if method == DEFAULT and epsilon != NO_PRIVACY else OTHER


def _predictions(path: Path, name: str, learner: str, methods: Sequence[str], epsilons: Sequence[float]) -> None:
    study = load("dataset_1", 0)
    assert study.queries is not None
    assert study.effect is not None
    x, order = study.queries[:, 0], study.queries[:, 0].argsort()
    size = (2.6 * len(epsilons) + 0.6, 2.2 * len(methods))
    figure, panels = new_grid(len(methods), len(epsilons), size, sharex=True, sharey="row")
    for at, (method, epsilon) in enumerate((m, e) for m in methods for e in epsilons):
        small = method in NETWORKS
        if small and epsilon not in QUICK_EPSILONS:
            panels[at].set_axis_off()
            continue
        found = _found("dataset_1", learner, epsilon, 0, method if small else None)
        one = next((one for one in found if one.method == method), None)
        panels[at].tick_params(labelleft=small or at % len(epsilons) == 0)
        if one is None:
            panels[at].set_title(f"{method}, epsilon = {epsilon:g}\n(no strict minimum)", fontsize=8)
            panels[at].set_axis_off()
            continue
        panels[at].plot(x, one.effects, ".", markersize=2.5)
        panels[at].plot(x[order], study.effect[order], "k-", linewidth=1)
        panels[at].set_title(f"{method}, epsilon = {epsilon:g}\n({one.level})", fontsize=8)
    for panel in panels[:: len(epsilons)]:
        panel.set_ylabel("effect")
    for panel in panels[-len(epsilons) :]:
        panel.set_xlabel("x0")
    figure.suptitle(f"As {name.replace('_', ' ')}: {learner}-learner, Dataset 1, 300 queries; line: true effect")
    save_figure(figure, path)


def _errors(path: Path, found: Sequence[Summary]) -> None:
    """Errors less that of the learner without privacy; where a method has none of the paper's, kernel ridge's."""
    own = {(one.method, one.place.epsilon): one.mean for one in found}
    if (KERNEL, NO_PRIVACY) not in own:
        return
    figure, (panel,) = new_grid(1, 1, (7.0, 4.6))
    for k, method in enumerate(m for m in ORDER if m not in (SMOOTH, CONSTANT)):
        centre = own[method if (method, NO_PRIVACY) in own and method != DEFAULT else KERNEL, NO_PRIVACY]
        points = sorted((float(e), value - centre) for (m, e), value in own.items() if m == method and e != NO_PRIVACY)
        if points:
            panel.plot(*zip(*points, strict=True), marker="o", markersize=3, color=f"C{k}", label=method)
    panel.axhline(0, color="grey", linewidth=0.8)
    panel.set(xscale="log", yscale="symlog", xlabel="epsilon", ylabel="PEHE less that without privacy")
    panel.set_title("As figure 5: Dataset 2, R-learner; default and constant less kernel ridge's", fontsize=9)
    panel.margins(y=0.1)
    panel.legend(fontsize=7, frameon=False)
    save_figure(figure, path)


STUDY = DPCate()
