"""Differentially private effects by DP-EBM (Niu et al. 2022): the study of their designs A to E."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from experiments.frame.study import NO_PRIVACY, Cell, Found, Place, Settings, Study, batches
from experiments.frame.table import Row, Summary
from experiments.niu import figure
from experiments.niu.methods import LEARNERS, METRIC, OURS, PUBLIC, RECORDS, UNSPENT, private, run, without

DESIGNS = "ABCDE"
SIZES = (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000)
EPSILONS = ("1", "2", "4", "8", "16", "128")
SMALL = (500, 1_000, 2_000, 4_000, 8_000)
"""Where DP-EBM is run."""
FEW = ("1", "4", "16")
"""Budgets at which it is run with bounds of the records."""
SEEDS, BATCH, EBM_SEEDS = 10, 5, 3
QUICK_SIZES, QUICK_EPSILONS, QUICK_SEEDS = (1_000, 4_000), ("1", "4"), 2
ABOUT = """\
Mean squared error of the effect at 10,000 fresh points of the law, tails included; n records make all stages. The
published numbers are those that the authors keep with their notebooks: means over 5 seeds, each the mean of 5 disjoint
data sets. 128 is no budget of the paper's figures but is in its file.

*As printed* is DP-EBM in their learners with **public** bounds: those of `data=niu`, and for the scores of the DR- and
R-learner what the clipped propensity allows, 21 and 20 times the outcome's range. Theirs take all bounds from the
records, which their epsilon does not cover, so that their noise is smaller: *printed - published* is what the records'
own bounds hide. With bounds of the records, their notebook's way, DP-EBM stands among the other methods; no guarantee
holds for it. Its S- and DR-learner have the published errors, its R-learner larger ones: InterpretML has changed since.
*Conditional*: on InterpretML's own accounting, which we did not check; the R-learner's noise has the scale of the
largest weight in the records, so that none holds for it. Each stage spends the whole epsilon on other records
(parallel composition).

*Certified* is the library's default, `RLearner(schema, PrivacyBudget(epsilon, 1e-5))`, and nothing else said; the
private constant, among the other methods, is the same plan with a constant head and the whole budget. The best constant
is the variance of the effect at the test points.

Published rows without privacy are learners with Lasso (alpha = .01; logistic regression with C = .01 for the
propensity). Ours beside them is the default fit without privacy: another method, so that no difference is computed."""


class Niu(Study):
    """All published errors of designs A to E."""

    name = "niu"
    title = "Private effects by DP-EBM: Niu et al. (2022)"
    published = ("niu/published_mse.csv",)
    about = ABOUT
    stand_ins: ClassVar[frozenset[str]] = frozenset(map(without, DESIGNS))
    renamed: ClassVar[Mapping[str, str]] = {
        "design": "setting",
        "learner": "method",
        "sd_over_seeds": "sd_or_se",
        "seeds": "repeats",
    }
    given: ClassVar[Mapping[str, str]] = {"qualifier": "=", "spread_kind": "sd over seeds"}

    def cells(self, settings: Settings) -> Iterable[Cell]:
        """Yield cells of a few seeds; the first batch of all of ours, then DP-EBM, then the other seeds."""
        sizes, epsilons = (QUICK_SIZES, QUICK_EPSILONS) if settings.quick else (SIZES, EPSILONS)
        small = tuple(n for n in sizes if n in SMALL)
        seeds, ebm_seeds = (QUICK_SEEDS, 1) if settings.quick else (SEEDS, EBM_SEEDS)
        for first, runs in batches(seeds, BATCH):
            yield from _cells(UNSPENT, sizes, (NO_PRIVACY,), first, runs)
            yield from _cells(OURS, sizes, epsilons, first, runs)
            if first == 0 and _installed():
                yield from _cells(PUBLIC, small, epsilons, 0, ebm_seeds)
                yield from _cells(RECORDS, small, tuple(one for one in epsilons if one in FEW), 0, ebm_seeds)

    def compute(self, cell: Cell, settings: Settings) -> Iterable[Found]:
        """See `Study`."""
        return run(**cell)  # type: ignore[arg-type]

    def place(self, file: str, line: Mapping[str, str]) -> Place | None:
        """Return the place of a published number; `Voting` has none."""
        design, learner = line["setting"], line["method"]
        if design not in DESIGNS:
            return None
        epsilon = f"{float(line['epsilon']):g}"
        table = without(design) if epsilon == NO_PRIVACY else private(design)
        return Place(table, design, line["n"], epsilon, learner, METRIC)

    def order(self, place: Place) -> tuple[float, ...]:
        """Private tables first, then by design, n, epsilon and learner."""
        at = (place.setting, int(place.n), float(place.epsilon), list(LEARNERS).index(place.variant))
        return (float(place.epsilon == NO_PRIVACY), float(DESIGNS.index(at[0])), *at[1:])

    def missing(self, settings: Settings) -> list[str]:
        """Return that the voters' covariates are nowhere, and InterpretML if it is not installed."""
        lines = ["Voting: its covariates are those of a voter file that is not at hand; its published errors stay out."]
        if not _installed():
            lines.append("DP-EBM: interpret is not installed: pip install 'torchdpcate[peers-interpret]'.")
        return lines

    def draw(self, rows: Sequence[Row], found: Sequence[Summary], folder: Path) -> None:
        """Draw errors against n."""
        figure.draw(folder / "error_against_n.png", rows, found)


STUDY = Niu()


def _cells(group: str, sizes: Sequence[int], epsilons: Sequence[str], first: int, runs: int) -> Iterable[Cell]:
    for n in sizes:
        for design in DESIGNS:
            for epsilon in epsilons:
                yield {"group": group, "design": design, "n": n, "epsilon": epsilon, "first": first, "runs": runs}


def _installed() -> bool:
    return find_spec("interpret") is not None
