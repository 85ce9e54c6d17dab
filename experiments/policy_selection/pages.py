"""The pages of the tables, from their csv files alone."""

from collections.abc import Callable
from pathlib import Path

from experiments.policy_selection.calibrations import FROZEN, NAIVE
from experiments.policy_selection.cells import Cells
from experiments.policy_selection.choice import EPSILONS, MECHANISMS
from experiments.policy_selection.control_page import table5
from experiments.policy_selection.design import CONTROL, NAMES, N
from experiments.policy_selection.references import REGRET
from experiments.policy_selection.words import (
    LEARNERS,
    REGIMES,
    RUN,
    both,
    fixed,
    getter,
    large,
    regret,
    repeats,
    width,
)
from experiments.words import paragraph, table

CHOICES = {
    "truth, two-sided range": "the truth: two-sided, 2 (2 / zeta - 1)",
    "truth, bounded range": "the truth: bounded range, 2 S",
    "control, naive": "control: naive, 2 B_psi two-sided",
    "control, as printed": "control: certificate as printed, two-sided",
    "control, bounded range": "control: bounded range",
    "control, localised gradient": "control: bounded range, localised gradient",
    "control, localised fits": "control: bounded range, localised fits (the library's)",
    "ridge, smallest": "ridge, the smallest without extra noise",
    "ridge, private target": "ridge, the library's default: private target",
    "trees, naive": "boosted trees: naive, 2 B_psi two-sided",
    "trees, sampled x 1.3": "boosted trees: sampled movement x 1.3",
    "frozen trees": "boosted trees of other people, frozen",
    "private, convex": "private nuisances: convex",
    "private, convex, one propensity": "private nuisances: convex, one propensity for all",
    "private, DP-SGD": "private nuisances: networks by DP-SGD",
    "constants": "frozen constants, 1/2 each",
    "constants, all records": "the same, all 3,000 records score",
    "constants, target 0.4": "constants, mean outcome 0.4",
    "constants, target 0": "constants, mean outcome 0",
}

UNPRIVATE = {
    "uniform": "any policy, each as likely",
    "argmax: truth": "largest utility: the truth",
    "argmax: control": "largest utility: control, lambda = 50",
    "argmax: ridge 1": "largest utility: ridge, lambda = 1",
    "argmax: trees": "largest utility: boosted trees",
    "argmax: constants": "largest utility: constants, 1/2 each",
}
SPREADS = ("as printed", "bounded range", "localised gradient", "localised fits")
MECHANISM = {"permute_and_flip": "permute-and-flip", "exponential": "the exponential mechanism"}


def table1(cells: Cells) -> str:
    """Movements of all learners, and how good they look."""
    about = (
        f"Utilities are sums of n = {N:,} scores. 2 B_psi = {NAIVE / 2:g} bounds what a *scoring* record does to "
        f"|U|, and 2 S = {FROZEN:g} by how much it spreads U over the policies: the floors that calibrations "
        "without spillover take. *Spread* is max - min of the change over the 160 policies, which is what a "
        "choice can see. Scoring and training record: twelve targeted replacements of each, by exact refits. "
        "Errors are root mean squares against the truth; their product and the largest bias of a policy's value "
        "are what double robustness looks at. Mean ± standard error over repetitions; *largest* of all "
        "repetitions."
    )
    parts = ["# Table 1: how far one replaced record moves the utilities\n", RUN, paragraph(about)]
    for data, title in NAMES.items():
        moves = [
            [
                *(
                    "nuisances",
                    "regime",
                    "scoring record: spread, largest",
                    "training record: max abs change",
                    "largest",
                ),
                *("spread, largest", "above 2 B_psi", "above 2 S", "n rho* (paper)", "certified spread"),
            ]
        ]
        quality = [
            [
                *("nuisances", "outcome error", "propensity error", "product", "largest bias of a value"),
                "training record: spread, largest",
            ]
        ]
        for row in cells.rows(data, "movement"):
            get = getter(cells, data, row)
            moved = get("movement")
            spill = ["0 (nothing is trained)", *["-"] * 4]
            if moved.level in ("stability", "none"):
                spill = [both(moved), large(moved.largest), large(get("spread").largest)]
                spill += [f"{get(key).mean:.0%}" for key in ("above floor", "above range")]
            limits = [fixed(cells.find(data, key, row=row)) for key in ("paper", "certified spread")]
            first = [LEARNERS[row], REGIMES[moved.level], large(get("own spread").largest)]
            moves.append([*first, *spill, *limits])
            errors = [both(get(key)) for key in ("outcome error", "propensity error", "product", "bias")]
            quality.append([LEARNERS[row], *errors, large(get("spread").largest)])
        parts += [f"## {title}, {repeats(cells, data, 'movement')}\n", table(moves), table(quality)]
    return "\n".join(parts)


def table2(cells: Cells) -> str:
    """The ridge, from weak to strong."""
    about = (
        "Lambda in the units of the paper's features (R_x^2 = 21), of outcome models and propensity alike; "
        f"{CONTROL:g} is the paper's positive control. Movement by twelve targeted training records. Spreads are "
        "public constants: *as printed* twice max{2 B_psi, n rho*}; *bounded range* and *localised gradient* "
        "those of the note's section 6; *localised fits* the library's. Regret is the true one per record, "
        "expected by permute-and-flip at epsilon = 1 with that spread, ± its standard error; *not private* takes "
        "the largest utility."
    )
    parts = ["# Table 2: the ridge against movement, certificates, quality and regret\n", RUN, paragraph(about)]
    spreads, quality = SPREADS, ("outcome error", "propensity error", "product", "bias")
    for data, title in NAMES.items():
        moves = [["lambda", "max abs change", "largest", "n rho*", *(f"spread: {name}" for name in spreads)]]
        worth = [["lambda", *quality, "regret, not private", *(f"regret: {name}" for name in spreads)]]
        for row in cells.rows(data, "movement"):
            get = getter(cells, data, row)
            public = [fixed(get(name)) for name in ("paper", *spreads)]
            moves.append([row, both(get("movement")), large(get("movement").largest), *public])
            regrets = [regret(get(f"regret, {name}")) for name in ("argmax", *spreads)]
            worth.append([row, *(f"{get(key).mean:.4f}" for key in quality), *regrets])
        parts += [f"## {title}, {repeats(cells, data, 'movement')}\n", table(moves), table(worth)]
    return "\n".join(parts)


def table3(cells: Cells) -> str:
    """Regrets of the choice."""
    about = (
        "Mean outcome lost per record against the best of the 160 policies, expected under the exact law of the "
        "choice; ± standard error over data sets. All rows of a column have the same total epsilon: nuisances and "
        "choice of the private rows spend it on blocks of their own (delta = 1e-5 there, 0 elsewhere). A "
        "heuristic row is calibrated *as if* it had that epsilon, and has none. **Private nuisances have their "
        "noise from fixed seeds, so nothing here is private**; the level is that of the same mechanism with noise "
        "from the system."
    )
    parts = ["# Table 3: true regret of the private choice\n", RUN, paragraph(about)]
    for data, title in NAMES.items():
        flat = [["choice without privacy", "regret"]]
        for cell in cells.having(data, "regret", mechanism=""):
            flat.append([UNPRIVATE[cell.row], f"{cell.mean:.4f}" if cell.row == "uniform" else regret(cell)])
        parts += [f"## {title}, {repeats(cells, data, 'regret')}\n", table(flat)]
        for mechanism in reversed(MECHANISMS):
            parts += [f"By {MECHANISM[mechanism]}:\n", table(_choices(cells, data, mechanism))]
    return "\n".join([*parts, "## Beside the note's simulation (section 9.5)\n", beside_note(cells)])


def _choices(cells: Cells, data: str, mechanism: str) -> list[list[str]]:
    """All rows of one mechanism."""
    lines = [["nuisances and calibration", "level", "spread", *(f"eps = {e:g}" for e in EPSILONS)]]
    for row, label in CHOICES.items():
        keys = {"row": row, "mechanism": mechanism}
        found = [cells.find(data, "regret", **keys, epsilon=f"{e:g}") for e in EPSILONS]
        spread = cells.find(data, "width", **keys, epsilon="1")
        assert spread is not None
        whole = cells.find(data, "regret", row="uniform")
        assert whole is not None
        few = f" ({spread.repeats} repetitions)" if spread.repeats < whole.repeats else ""
        lines.append([label + few, spread.level, width(spread), *(regret(cell) for cell in found if cell)])
    return lines


def beside_note(cells: Cells) -> str:
    """Ours on Gaussian covariates, and the note's."""
    about = (
        "Its design is the same in kind (rare region, 20 Gaussian covariates, m = n = 1,500, 160 policies, 60 "
        "repetitions) but is not in our material in detail: ours is a reading of it."
    )
    lines = [["row", "mechanism", "epsilon", "ours", "note 9.5"]]
    for (row, mechanism), values in REGRET.items():
        for epsilon, note in values.items():
            keys = {"row": row}
            if mechanism is not None:
                keys |= {"mechanism": mechanism, "epsilon": f"{epsilon:g}"}
            cell = cells.find("gaussian", "regret", **keys)
            assert cell is not None
            ours = f"{cell.mean:.4f}" if row == "uniform" else regret(cell)
            shown = ["-", "-"] if mechanism is None else [MECHANISM[mechanism], f"{epsilon:g}"]
            lines.append([(CHOICES | UNPRIVATE)[row], *shown, ours, f"{note:.4f}"])
    return paragraph(about) + "\n" + table(lines)


PAGES: dict[str, Callable[[Cells], str]] = {"table1": table1, "table2": table2, "table3": table3, "table5": table5}


def write_page(folder: Path, name: str) -> None:
    """Write one page from its csv file, keeping its reading as it stands."""
    path = folder / f"{name}.md"
    kept = path.read_text(encoding="utf-8").partition("## Reading it")[2] if path.exists() else ""
    text = PAGES[name](Cells.read(folder / f"{name}.csv"))
    path.write_text(text + (f"\n## Reading it{kept}" if kept else ""), encoding="utf-8")
