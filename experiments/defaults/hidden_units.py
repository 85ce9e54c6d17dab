"""Effects with features of hidden units against the plan's features alone, on random laws and on Niu's.

Mean squared errors of the effect at 3,000 other points over its variance (of a constant effect over 1). Laws are drawn
by seeds: constants were chosen by those of ``TUNED``, and the table has those of ``REPORTED`` alone. Adds to
hidden_units.csv beside this file; ``--draw`` prints its means and draws hidden_units.png.

    python -m experiments.defaults.hidden_units --n 32000 --epsilon 4
    python -m experiments.defaults.hidden_units --draw
"""

import argparse
import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from experiments.defaults.nuisances import DELTA, KINDS, REACH, Law, errors, law_of
from experiments.tables import table
from torchdpcate.composition.constants import of_kind
from torchdpcate.composition.settings import Auto
from torchdpcate.composition.steps import total_mu
from torchdpcate.data.domain import Domain
from torchdpcate.privacy.budget import PrivacyBudget

TUNED, REPORTED = range(9), range(100, 103)
"""Seeds of laws by which constants were chosen, and seeds of the table's."""
Function = Callable[[Tensor], Tensor]
FEATURES, UNITS, CONSTANT, NOT_PRIVATE = "features", "hidden units", "constant", "features, not private"
METHODS = (FEATURES, UNITS, CONSTANT, NOT_PRIVATE)
HERE = Path(__file__)


def rotated(q: int, terms: int, size: float, of: torch.Generator) -> Function:
    """Return a sum of steps, waves and bumps along random directions of q covariates."""
    directions = torch.randn(terms, q, generator=of, dtype=torch.float64)
    directions = directions / directions.norm(dim=1, keepdim=True)
    kinds = torch.randint(0, 3, (terms,), generator=of).tolist()
    sizes = size * (0.5 + torch.rand(terms, generator=of, dtype=torch.float64))
    of_kinds: tuple[Function, ...] = (
        lambda u: torch.tanh(2.5 * u),
        lambda u: torch.sin(2 * u),
        lambda u: 2 * torch.exp(-2 * u.square()),
    )
    return lambda x: torch.stack(
        [s * of_kinds[k](x @ d) for s, k, d in zip(sizes, kinds, directions, strict=True)]
    ).sum(0)


def tree(q: int, depth: int, size: float, of: torch.Generator) -> Function:
    """Return a full tree of random covariates, cuts and values."""
    columns = torch.randint(0, q, (2**depth,), generator=of)
    cuts, values = torch.randn(2, 2**depth, generator=of, dtype=torch.float64)

    def value(x: Tensor) -> Tensor:
        at = torch.ones(len(x), dtype=torch.long)
        for _ in range(depth):
            at = 2 * at + (x.gather(1, columns[at][:, None])[:, 0] > cuts[at] / 2).long()
        return size * values[at - 2**depth]

    return value


def product(q: int, of: torch.Generator) -> Function:
    """Return a product of three covariates, or nearly that of their signs."""
    places, steep = torch.randperm(q, generator=of)[:3], float(torch.rand(1, generator=of)) < 0.5
    return lambda x: torch.tanh(4 * x[:, places]).prod(1) if steep else x[:, places].prod(1)


def additive(q: int, of: torch.Generator) -> Function:
    """Return a line, a kink and a wave of three covariates."""
    i, j, k = torch.randperm(q, generator=of)[:3].tolist()
    a, b, c = torch.randn(3, generator=of, dtype=torch.float64).tolist()
    return lambda x: a * x[:, i] + b * x[:, j].clamp_min(0) + c * torch.sin(2 * x[:, k])


# effect, then baseline, of q covariates
FAMILIES: dict[str, Callable[[int, torch.Generator], tuple[Function, Function]]] = {
    "rotated": lambda q, of: (rotated(q, 2, 1.0, of), rotated(q, 3, 1.5, of)),
    "rotated, additive baseline": lambda q, of: (rotated(q, 2, 1.0, of), additive(q, of)),
    "tree": lambda q, of: (tree(q, 3, 1.0, of), tree(q, 3, 1.5, of)),
    "tree, additive baseline": lambda q, of: (tree(q, 3, 1.0, of), additive(q, of)),
    "product of three": lambda q, of: (product(q, of), additive(q, of)),
    "additive": lambda q, of: (additive(q, of), additive(q, of)),
    "additive, rotated baseline": lambda q, of: (additive(q, of), rotated(q, 3, 1.5, of)),
    "constant": lambda q, of: (lambda x: torch.ones(len(x), dtype=torch.float64), rotated(q, 3, 1.5, of)),
}


def random_law(family: str, seed: int) -> Law:
    """Return a law of 4 to 10 normal covariates and a logit that is a step along a direction."""
    of = torch.Generator().manual_seed(seed)
    q = int(torch.randint(4, 11, (1,), generator=of))
    effect, baseline = FAMILIES[family](q, of)
    logit = rotated(q, 1, 1.0, of)

    def covariates(n: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n, q, generator=generator, dtype=torch.float64).clamp(-REACH, REACH)

    domain = Domain([-REACH] * q, [REACH] * q, -12.0, 14.0, 0.1)
    return Law(domain, covariates, baseline, effect, lambda x: torch.sigmoid(logit(x)))


def error(law: Law, n: int, epsilon: float, method: str, least: float, seed: int) -> float:
    """Return the relative error of the effect by one method; networks from n mu = ``least`` on."""
    hidden = {"hidden": method == UNITS, "constant_only": method == CONSTANT}
    if method == NOT_PRIVATE:
        return errors(law, n, None, KINDS["additive"], seed)[2]
    return errors(law, n, epsilon, Auto(outcome_from=least), seed, **hidden)[2]


def main() -> None:
    """Fit and add to the table, or draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--families", nargs="+", default=[*FAMILIES, "Niu"])
    parser.add_argument("--n", type=int, nargs="+", default=[32_000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[4.0])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--laws", type=int, nargs="+", default=list(REPORTED))
    parser.add_argument("--least", type=float, default=2e4, help="n mu from which on there are networks")
    parser.add_argument("--output", type=Path, default=HERE.with_suffix(".csv"))
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    if options.draw:
        draw(options.output)
        return
    of_kind("effect")["units"] |= {"size": options.least, "records": 0}
    torch.set_num_threads(1)
    for n in options.n:
        for epsilon in options.epsilon:
            for family in options.families:
                names = "ABCDE" if family == "Niu" else options.laws
                for name in names:
                    law = law_of(name) if family == "Niu" else random_law(family, name)
                    found = [error(law, n, epsilon, method, options.least, 0) for method in options.methods]
                    label = f"Niu {name}" if family == "Niu" else family
                    write(options.output, label, name, n, epsilon, options.methods, found)


def write(
    path: Path, label: str, name: str | int, n: int, epsilon: float, methods: Sequence[str], found: Sequence[float]
) -> None:
    """Add the errors of one law to a file."""
    size, fresh = round(n * total_mu(PrivacyBudget(epsilon, DELTA))), not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(["law", "seed", "n", "epsilon", "n_mu", "method", "error"])
        for method, value in zip(methods, found, strict=True):
            writer.writerow([label, name, n, epsilon, size, method, f"{value:.4f}"])
    print(label, name, f"n mu {size}", *(f"{m} {v:.4f}" for m, v in zip(methods, found, strict=True)), flush=True)


def _means(rows: list[dict[str, str]], size: int, label: str) -> list[float | None]:
    each = [
        [float(r["error"]) for r in rows if (r["law"], r["method"]) == (label, m) and int(r["n_mu"]) == size]
        for m in METHODS
    ]
    return [fmean(values) if values else None for values in each]


def draw(path: Path) -> None:
    """Print the means and draw hidden_units.png beside this file."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    sizes, labels = sorted({int(row["n_mu"]) for row in rows}), list(dict.fromkeys(row["law"] for row in rows))
    parts = []
    for size in sizes:
        means = {label: _means(rows, size, label) for label in labels}
        shown = [
            [label, *("" if value is None else f"{value:.4f}" for value in found)]
            for label, found in means.items()
            if any(found)
        ]
        one = next(row for row in rows if int(row["n_mu"]) == size)
        parts += [f"**n = {int(one['n']):,}, epsilon = {float(one['epsilon']):g} (n mu = {size:,}).**\n"]
        parts += [table([["law", *METHODS], *shown])]
    print("\n".join(parts))
    figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    for size, marker in zip(sizes, MARKERS, strict=False):
        found = {label: _means(rows, size, label) for label in labels}
        ratios = {label: units / plain for label, (plain, units, *_) in found.items() if plain and units}
        axes.plot(list(ratios.values()), list(ratios), marker, fillstyle="none", label=f"n mu = {size:,}")
    axes.axvline(1, color="grey", linewidth=1)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="squared error with hidden units over that of features alone")
    axes.legend()
    figure.savefig(HERE.with_suffix(".png"), dpi=150)


MARKERS = ("o", "s", "^", "d", "v")


if __name__ == "__main__":
    main()
