"""Two-stage ERM on three scenarios and a confounded one: the paper's formulas beside certified ones.

Writes scenarios.md, .csv and .png, and confounded.png, beside itself. Noise comes from a fixed seed: nothing made here
is private.

    python -m experiments.two_stage_rule.scenarios
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from experiments.dp_werm.batch import accuracy, mean_and_error
from experiments.two_stage_rule import printed
from experiments.two_stage_rule.laws import Law, confounded, scenario
from experiments.two_stage_rule.methods import Certified, CertifiedSquared, FirstStage, Method, Printed
from experiments.two_stage_rule.tables import (
    Cell,
    Row,
    as_markdown,
    draw,
    row,
    run_table,
    seeded,
    write_csv,
    write_page,
)
from torchdpcate.estimators.rules.outcome import SignedResidual
from torchdpcate.nuisance.weights.logistic import LogisticWeights
from torchdpcate.nuisance.weights.mmd import MMDWeights
from torchdpcate.nuisance.weights.private import PrivateWeights
from torchdpcate.nuisance.weights.tilting import TiltingWeights
from torchdpcate.privacy.noise import NoiseSource

EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, None)
LARGE = (0.1, 0.5, 1.0, 4.0, None)
FRESH = 2000
WIDE_BALL = (15.0, 28.0)  # M_y and s of the printed rows
NARROW, WIDE = SignedResidual(0.0, 2.0), SignedResidual(0.0, 5.0)
IPW, ENTROPY, MMD = LogisticWeights(ridge=0.1), TiltingWeights(ridge=0.1), MMDWeights(ridge=1.0)
HEAD = """\
# Two-stage ERM: the printed formulas and certified ones

Written by `python -m experiments.two_stage_rule.scenarios`. Share of the best rule's decisions among {fresh:,} fresh
records, mean ± standard error over {repeats} data sets; in brackets the theory note `policy_learning`, section 9, a
star beyond three standard errors of the difference. **Noise comes from a fixed seed, so nothing here is private**; the
level is that of the same mechanism with noise from the system. Heuristic rows carry no claim: the epsilon above them
is what their printed formula is fed. "Refused": the settings leave no noise that would do, so nothing is released.

Lee & Chen's generators (arXiv 2602.12604, Fig. 2) are not in our material, so these laws are ours:

- x uniform on [-1, 1]^p, A by the propensity sigmoid(0.55 (x0 - x1)), within 0.25 and 0.75, Y = (A - 1/2) tau(x) +
  N(0, 1), no main effect. *Linear*: tau = 7 (x0 + x1 - x2 - x3), whose non-private accuracy, l1 norm (28) and range of
  outcomes (15) are those behind section 9.1. *Quadratic*: 7 (x0 + 3 x1^2 - 1). *Tree*: 7 where x1 > -1/2 (x0 > 0) or
  x2 > 1/2 (x0 <= 0), else -7. A linear rule, without intercept, can fit the first alone.
- *Confounded* (section 9.3): logit 1.2 x0 - 1.2 x1, clipped to [0.1, 0.9], Y = 4 + (A - 1/2)(3 x2 + 3 x3 - 3 x4) +
  N(0, variance 2). The note's "N(0, 2)" read as a standard deviation fits its non-private numbers less well.

Printed rows: squared loss on an l1 ball, M_y = 15 and s = 28 unless stated, weights that sum to n, (3.8) or (3.9), W1
and W2 as named; inverse propensity weights are the paper's 1 / pi(1|x) for everybody. Certified rows: Huber hinge with
h = 0.5 on signed outcomes clipped at M_y, weights over their public bound, objective perturbation at the library's
scales, pure but for Gaussian (delta = 1e-5); the ridge is public, not tuned: the determinants cost 5 % of epsilon.
"""


def printed_rows(references: bool) -> list[Row]:
    """The paper's formulas."""
    notes = (".50 .49 .49 .48 .52", ".49 .51 .51 .54 .57", ".49 .50 .51 .50 .51 .987") if references else ("", "", "")
    return [
        row("printed, entropy weights, O(.) = 1", Printed(ENTROPY, printed.entropy, *WIDE_BALL), notes[0], EPSILONS),
        row("printed, MMD weights, (4.19)", Printed(MMD, printed.mmd, *WIDE_BALL)),
        row(
            "printed, IPW: the baseline, Cor. 3.4",
            Printed(IPW, printed.universal, *WIDE_BALL),
            notes[2],
            EPSILONS,
        ),
        row("printed, best case W1 = 1", Printed(ENTROPY, printed.best_case, *WIDE_BALL), notes[1], EPSILONS),
        row("printed, best case, Gaussian (3.9)", Printed(ENTROPY, printed.best_case, *WIDE_BALL, kind="gaussian")),
    ]


def certified_rows(references: bool) -> list[Row]:
    """The library's mechanisms."""
    lines = (
        ("squared loss, known pi, gamma, s = M_y = 3", CertifiedSquared("known", "gamma", 3.0), ".49 .51 .52 .64 .74"),
        ("known pi, gamma, M_y = 2", Certified("known", "gamma", NARROW), ".50 .52 .54 .71 .81"),
        ("known pi, box, M_y = 2", Certified("known", "box", NARROW), ".50 .54 .58 .79 .87"),
        ("known pi, Gaussian, M_y = 2", Certified("known", "gaussian", NARROW), ""),
        ("constant, gamma, M_y = 2", Certified("constant", "gamma", NARROW), ".50 .54 .58 .79 .87"),
        ("constant, box, M_y = 2", Certified("constant", "box", NARROW), ".51 .57 .63 .85 .91"),
        ("known pi, gamma, M_y = 5", Certified("known", "gamma", WIDE), "- - - .68 .79"),
        ("ipw, rho = 1, gamma, M_y = 5", Certified(LogisticWeights(ridge=1.0), "gamma", WIDE), ".49 .50 .51 .59 .67"),
        ("ipw, rho = 0.1, gamma, M_y = 5", Certified(IPW, "gamma", WIDE), ".49 .50 .50 .54 .58"),
        ("entropy, rho = 1, gamma, M_y = 5", Certified(TiltingWeights(ridge=1.0), "gamma", WIDE), ""),
        ("mmd, rho = 1, gamma, M_y = 5", Certified(MMD, "gamma", WIDE), ""),
        ("private, n rho = 40, gamma, M_y = 5", _private("gamma"), "- .51 .53 .63 .72"),
        ("private, box, M_y = 2", Certified(PrivateWeights(), "box", NARROW), ""),
        ("private, own block, box, M_y = 2", Certified(PrivateWeights(block_fraction=0.25), "box", NARROW), ""),
    )
    return [row(label, method, notes if references else "", EPSILONS) for label, method, notes in lines]


def _private(kind: str) -> Certified:
    return Certified(PrivateWeights(budget_fraction=0.25, ridge=40.0, perturbation=kind), kind, WIDE)


def four_rows() -> list[Row]:
    """Section 9.2: four covariates, 1,140 records."""
    lines = (
        ("printed, entropy weights, O(.) = 1", Printed(ENTROPY, printed.entropy, *WIDE_BALL), ""),
        ("printed, best case W1 = 1", Printed(ENTROPY, printed.best_case, *WIDE_BALL), ".53 .55 .60 .84 .92"),
        ("printed, best case, s = M_y = 5", Printed(ENTROPY, printed.best_case, 5.0, 5.0), ".56 .66 .72 .84 .88"),
        ("known pi, gamma, M_y = 2", Certified("known", "gamma", NARROW), ".57 .76 .86 .96 .98"),
        ("known pi, box, M_y = 2", Certified("known", "box", NARROW), ".61 .82 .90 .97 .98"),
        ("constant, box, M_y = 2", Certified("constant", "box", NARROW), ""),
        ("private, box, M_y = 2", Certified(PrivateWeights(), "box", NARROW), ""),
    )
    return [row(label, method, notes, EPSILONS) for label, method, notes in lines]


def confounded_rows(n: int) -> list[Row]:
    """Section 9.3, and what public knowledge of the mean outcome adds; the program of MMD is for small n."""
    plain, centred = SignedResidual(0.0, 6.0), SignedResidual(4.0, 4.0)
    noted = n == 4000
    sequential = PrivateWeights(budget_fraction=1 / 3, ridge=10.0, perturbation="gamma")
    split = PrivateWeights(block_fraction=0.25, ridge=10.0, perturbation="gamma")
    lines = [
        ("known pi, gamma", Certified("known", "gamma", plain), "- - .82 .93 .947"),
        ("known pi, box", Certified("known", "box", plain), ""),
        ("constant, gamma", Certified("constant", "gamma", plain), "- - - - .705"),
        ("private, a third, n rho = 10, gamma", Certified(sequential, "gamma", plain), "- - .73 .85"),
        ("private, own block of a quarter, gamma", Certified(split, "gamma", plain), "- - .72 .78"),
        ("private, box, library's ridge", Certified(PrivateWeights(), "box", plain), ""),
        ("ipw, rho = 0.1, gamma", Certified(IPW, "gamma", plain), "- - .61 .70"),
        ("ipw, rho = 1, gamma", Certified(LogisticWeights(ridge=1.0), "gamma", plain), ""),
        ("ipw, rho = 0.01, gamma", Certified(LogisticWeights(ridge=0.01), "gamma", plain), ""),
        ("entropy, rho = 0.1, gamma", Certified(ENTROPY, "gamma", plain), ""),
        ("entropy, rho = 1, gamma", Certified(TiltingWeights(ridge=1.0), "gamma", plain), ""),
        ("known pi, box, c = 4, K = 4", Certified("known", "box", centred), ""),
        ("private, box, c = 4, K = 4", Certified(PrivateWeights(), "box", centred), ""),
        ("constant, box, c = 4, K = 4", Certified("constant", "box", centred), ""),
    ]
    if not noted:
        lines.insert(11, ("mmd, rho = 1, gamma", Certified(MMD, "gamma", plain), ""))
        lines.insert(12, ("mmd, rho = 0.01, gamma", Certified(MMDWeights(ridge=0.01), "gamma", plain), ""))
    return [row(label, method, notes if noted else "", LARGE) for label, method, notes in lines]


def table(name: str, law: Law, n: int, rows: list[Row], epsilons: tuple[float | None, ...], repeats: int) -> list[Cell]:
    """One table on fresh data."""
    seed = sum(map(ord, name))
    generator, noise = seeded(seed), NoiseSource.fixed(seed)
    sample, fresh = law.draw(repeats, n, generator), law.draw(repeats, FRESH, generator)
    effect = law.effect(fresh.x)

    def measure(method: Method, theta: Tensor) -> dict[str, Tensor]:
        return {"accuracy": accuracy(method.features(fresh), theta, effect)}

    return run_table(name, rows, FirstStage(sample, law.domain, noise), epsilons, measure)


def one_propensity_for_all(repeats: int) -> str:
    """Squared loss without privacy on the confounded law, weights 1 / pi(a|x) and 1 / pi(1|x)."""
    law, generator = confounded(), seeded(93)
    sample, fresh = law.draw(repeats, 4000, generator), law.draw(repeats, FRESH, generator)
    treated = sample.propensity.clamp(0.1, 0.9)
    signed = 2 * sample.a - 1
    words = []
    for own in (True, False):
        weights = 1 / (torch.where(sample.a == 1, treated, 1 - treated) if own else treated)
        weighted = sample.x * weights[..., None]
        theta = torch.linalg.solve(weighted.mT @ sample.x, (weighted.mT @ (2 * signed * sample.y)[..., None]))[..., 0]
        words.append("{:.3f} ± {:.3f}".format(*mean_and_error(accuracy(fresh.x, theta, law.effect(fresh.x)))))
    return f"| 1 / pi(a given x) | {words[0]} | 0.953 |\n| 1 / pi(1 given x) for everybody | {words[1]} | 0.730 |"


def main() -> None:
    """Run all tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    torch.set_num_threads(1)
    start, repeats = time.perf_counter(), words.repeats
    curved = [
        row("known pi, box, M_y = 2, Legendre features of degree 2", Certified("known", "box", NARROW, degree=2)),
        row("constant, box, M_y = 2, Legendre features of degree 2", Certified("constant", "box", NARROW, degree=2)),
    ]
    rows = [*printed_rows(False), *certified_rows(False), *curved]
    tables = {
        "Linear, n = 400, p = 10 (section 9.1)": (scenario("linear"), 400, printed_rows(True) + certified_rows(True)),
        "Quadratic, n = 400, p = 10": (scenario("quadratic"), 400, rows),
        "Tree, n = 400, p = 10": (scenario("tree"), 400, rows),
        "Linear, n = 1,140, p = 4 (section 9.2)": (scenario("linear", 4), 1140, four_rows()),
        "Confounded, n = 4,000, p = 10 (section 9.3)": (confounded(), 4000, confounded_rows(4000)),
        "Confounded, n = 1,000, p = 10": (confounded(), 1000, confounded_rows(1000)),
    }
    cells, parts = [], [HEAD.format(fresh=FRESH, repeats=repeats)]
    for name, (law, n, lines) in tables.items():
        found = table(name, law, n, lines, LARGE if law.overlap == 0.1 else EPSILONS, repeats)
        cells += found
        parts.append(f"## {name}\n\n{as_markdown(found)}\n")
    parts += [
        "## The weight 1 / pi(1|x) for everybody is wrong\n",
        "Confounded, n = 4,000, squared loss without privacy, known pi.\n",
        "| weight | accuracy | theory note 9.3 |\n| --- | --- | --- |\n" + one_propensity_for_all(repeats) + "\n",
    ]
    write_csv(words.out / "scenarios.csv", cells)
    write_page(words.out / "scenarios.md", "\n".join(parts))
    drawn = {
        "printed, entropy weights, O(.) = 1": "printed, entropy weights (heuristic)",
        "printed, best case W1 = 1": "printed, best case (heuristic)",
        "constant, box, M_y = 2": "certified, constant weights, box",
        "known pi, box, M_y = 2": "certified, known propensity, box",
        "private, box, M_y = 2": "certified, private propensity, box",
    }
    titles = {name: name.split(" (")[0] for name in tables}
    draw(words.out / "scenarios.png", cells, dict(list(titles.items())[:4]), drawn)
    drawn = {
        "constant, gamma": "constant weights, gamma",
        "known pi, box": "known propensity, box",
        "private, box, library's ridge": "private propensity, box",
        "ipw, rho = 0.1, gamma": "ipw with certified indirect sensitivity, gamma",
        "private, box, c = 4, K = 4": "private propensity, box, outcome centred at 4",
        "constant, box, c = 4, K = 4": "constant weights, box, outcome centred at 4",
    }
    draw(words.out / "confounded.png", cells, dict(list(titles.items())[4:]), drawn)
    print(f"{len(cells)} cells in {time.perf_counter() - start:.0f} s on one thread")


if __name__ == "__main__":
    main()
