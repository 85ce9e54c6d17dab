"""Two-stage ERM on the twins: survival of the heavier and the lighter twin, 1,140 pairs, four covariates.

Writes twins.md, .csv and .png beside itself. Noise comes from a fixed seed: nothing made here is private.

    python -m experiments.two_stage_rule.twins --twins Twin_data.csv
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.dp_werm.batch import scores
from experiments.two_stage_rule import printed
from experiments.two_stage_rule.laws import Sample
from experiments.two_stage_rule.methods import Certified, FirstStage, Method, Printed
from experiments.two_stage_rule.tables import Row, as_markdown, draw, row, run_table, seeded, write_csv, write_page
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.outcome import SignedResidual
from torchdpcate.nuisance.weights.logistic import LogisticWeights
from torchdpcate.nuisance.weights.mmd import MMDWeights
from torchdpcate.nuisance.weights.private import PrivateWeights
from torchdpcate.nuisance.weights.tilting import TiltingWeights
from torchdpcate.privacy.noise import NoiseSource

EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, None)
N = 1140
BOX = {"gestat": (20, 42), "wtgain": (0, 60), "nprevist": (0, 30), "dmage": (12, 50)}
LOGIT = (0.4, 0.3, -0.2, -0.2)  # of treatment, in the covariates over [-1, 1]: within 0.25 and 0.75
OVERLAP = 0.25
DRAWN = (7.0, 7.0, -7.0, -7.0)  # the drawn outcome's effect, less 3 so that either arm is right for many
HEAD = """\
# Two-stage ERM on the twins

Written by `python -m experiments.two_stage_rule.twins --twins Twin_data.csv` on the {pairs:,} pairs of twins (Almond,
Chay & Lee 2005; Louizos et al. 2017; the file of Yoon et al. 2018). {repeats} repeats; mean ± standard error. **Noise
comes from a fixed seed, so nothing here is private**; the level is that of the same mechanism with noise from the
system. Heuristic rows carry no claim: the epsilon above them is what their printed formula is fed.

Our choices, all without looking at outcomes; Lee & Chen's are not in our material. Treatment 1 is the heavier twin,
the outcome survival of the first year. Covariates: weeks of gestation in [20, 42], the mother's weight gain in [0, 60]
pounds, prenatal visits in [0, 30], the mother's age in [12, 50], clipped there and scaled to [-1, 1]. Each repeat draws
{n:,} pairs, shows of each the twin that sigmoid(0.4 gestation + 0.3 gain - 0.2 visits - 0.2 age) selects (within 0.25
and 0.75), or its opposite, and tests on the other {rest:,}, of which both outcomes are seen. Rules are linear with an
intercept. Printed rows: M_y = 1 and s = 2 for survival, 15 and 31 for the drawn outcome, else as in `scenarios.md`.
Certified rows: hinge, ridge not tuned, outcome minus a public c over K: c = K = 0.8 for survival (that one in six of
this cohort dies is published), c = 0 and K = 2 for the drawn outcome, which is Y = (A - 1/2) tau + N(0, 1) with
tau = 7 (gestation + gain - visits - age) - 3 on the same pairs and treatments, tested on all pairs.
"""


@dataclass(frozen=True, eq=False)
class Twins:
    """All pairs: scaled covariates [pairs, 4] and survival [pairs, 2] of the lighter and the heavier."""

    z: Tensor
    alive: Tensor

    @classmethod
    def read(cls, path: Path) -> "Twins":
        """Read Twin_data.csv; days survived, 9999 is alive."""
        frame = pd.read_csv(path)
        columns = [2 * (frame[c].clip(low, high) - low) / (high - low) - 1 for c, (low, high) in BOX.items()]
        z = torch.tensor(pd.concat(columns, axis=1).to_numpy(float))
        return cls(z, torch.tensor((frame[["outcome(t=0)", "outcome(t=1)"]] >= 9999).to_numpy(float)))

    @property
    def survival_gain(self) -> Tensor:
        """Survival of the heavier minus the lighter's, [pairs]."""
        return self.alive[:, 1] - self.alive[:, 0]

    @property
    def drawn_effect(self) -> Tensor:
        """Effect of the drawn outcome, [pairs]."""
        return self.z @ self.z.new_tensor(DRAWN) - 3.0


@dataclass(frozen=True, eq=False)
class Draw:
    """Repeats: pairs to learn from and to test on, and what was seen of the former."""

    train: Sample
    test: Tensor
    fresh: Sample

    @classmethod
    def of(cls, twins: Twins, repeats: int, sign: float, drawn: bool) -> "Draw":
        """Draw pairs, treatments (``sign`` turns the propensity round) and outcomes: survival, or drawn ones."""
        generator = seeded(7)
        order = torch.stack([torch.randperm(len(twins.z), generator=generator) for _ in range(repeats)])
        chosen, test = order[:, :N], order[:, N:]
        x = twins.z[chosen]
        propensity = torch.sigmoid(sign * (x @ x.new_tensor(LOGIT)))
        a = (torch.rand(propensity.shape, generator=generator, dtype=torch.float64) < propensity).double()
        if drawn:
            noise = torch.randn(a.shape, generator=generator, dtype=torch.float64)
            y = (a - 0.5) * twins.drawn_effect[chosen] + noise
        else:
            y = torch.where(a == 1, twins.alive[chosen, 1], twins.alive[chosen, 0])
        blank = torch.zeros_like(test, dtype=torch.float64)
        return cls(Sample(x, a, y, propensity), test, Sample(twins.z[test], blank, blank, blank))


def rows(outcome: SignedResidual, most_outcome: float, radius: float) -> list[Row]:
    """Printed and certified methods."""
    ipw, entropy, mmd = LogisticWeights(ridge=0.1), TiltingWeights(ridge=0.1), MMDWeights(ridge=1.0)
    paper = [
        ("printed, entropy weights, O(.) = 1", Printed(entropy, printed.entropy, most_outcome, radius, intercept=True)),
        ("printed, MMD weights, (4.19)", Printed(mmd, printed.mmd, most_outcome, radius, intercept=True)),
        ("printed, IPW: the baseline, Cor. 3.4", Printed(ipw, printed.universal, most_outcome, radius, intercept=True)),
        ("printed, best case W1 = 1", Printed(entropy, printed.best_case, most_outcome, radius, intercept=True)),
        (
            "printed, best case, Gaussian (3.9)",
            Printed(entropy, printed.best_case, most_outcome, radius, "gaussian", True),
        ),
    ]
    ours = [
        (f"{label}, {kind}", Certified(weights, kind, outcome, degree=1))
        for label, weights, kinds in (
            ("known pi", "known", ("gamma", "box", "gaussian")),
            ("constant", "constant", ("gamma", "box", "gaussian")),
            ("private", PrivateWeights(), ("box",)),
            ("private, own block", PrivateWeights(block_fraction=0.25), ("box",)),
            ("ipw, rho = 0.1", ipw, ("gamma",)),
            ("entropy, rho = 0.1", entropy, ("gamma",)),
            ("mmd, rho = 1", mmd, ("gamma",)),
        )
        for kind in kinds
    ]
    return [row(label, method) for label, method in (*paper, *ours)]


def simple_rules(twins: Twins) -> str:
    """What needs no records, and the best that a linear rule could do, over all pairs."""
    gain, alive = twins.survival_gain, twins.alive
    apart = gain != 0
    share, heavier = apart.double().mean().item(), (gain[apart] > 0).double().mean().item()
    lines = [
        "## What there is to learn about survival\n",
        f"In {share:.1%} of the pairs one twin died: accuracy is among these, and survival of the twins chosen is "
        f"{alive.amin(1).mean():.3f} + {share:.3f} times it.\n",
        "| rule | accuracy | survival |\n| --- | --- | --- |",
        f"| the heavier for all | {heavier:.3f} | {alive[:, 1].mean():.4f} |",
        f"| the lighter for all | {1 - heavier:.3f} | {alive[:, 0].mean():.4f} |",
        f"| a coin | 0.500 | {alive.mean():.4f} |",
        f"| logistic regression on both twins of all pairs, in sample | {best_linear(twins):.3f} | |",
        f"| whoever lives | 1.000 | {alive.amax(1).mean():.4f} |\n",
    ]
    return "\n".join(lines)


def best_linear(twins: Twins) -> float:
    """Accuracy of a logistic regression on the outcomes of both twins of all pairs, on these pairs themselves."""
    from sklearn.linear_model import LogisticRegression

    apart = twins.survival_gain != 0
    z, label = twins.z[apart].numpy(), (twins.survival_gain[apart] > 0).numpy()
    return float(LogisticRegression(C=1e4).fit(z, label).score(z, label))


def main() -> None:
    """Run both tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--twins", type=Path, required=True, help="Twin_data.csv")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    torch.set_num_threads(1)
    start, twins = time.perf_counter(), Twins.read(words.twins)
    low, high = [-1.0] * len(BOX), [1.0] * len(BOX)
    survival = Domain(low, high, 0.0, 1.0, OVERLAP), rows(SignedResidual(0.8, 0.8), 1.0, 2.0)
    other = Domain(low, high, -15.0, 15.0, OVERLAP), rows(SignedResidual(0.0, 2.0), 15.0, 31.0)
    studies = {
        "Survival, late births show the heavier": (1.0, False, *survival),
        "Survival, early births show the heavier": (-1.0, False, *survival),
        "Drawn outcome": (1.0, True, *other),
    }
    cells, parts = [], []
    for name, (sign, drawn, domain, lines) in studies.items():
        draws = Draw.of(twins, words.repeats, sign, drawn)
        effect = (twins.drawn_effect if drawn else twins.survival_gain)[draws.test]

        def measure(method: Method, theta: Tensor, draws: Draw = draws, effect: Tensor = effect) -> dict[str, Tensor]:
            treat = scores(method.features(draws.fresh), theta) > 0
            apart = effect != 0
            right = ((treat == (effect > 0)) & apart).double().sum(1) / apart.double().sum(1)
            alive = twins.alive[draws.test]
            return {"accuracy": right, "survival": torch.where(treat, alive[..., 1], alive[..., 0]).mean(1)}

        found = run_table(name, lines, FirstStage(draws.train, domain, NoiseSource.fixed(5)), EPSILONS, measure)
        parts.append(f"## {name}\n\n{as_markdown(found)}\n")
        cells += found
    head = HEAD.format(pairs=len(twins.z), n=N, rest=len(twins.z) - N, repeats=words.repeats)
    write_csv(words.out / "twins.csv", cells)
    write_page(words.out / "twins.md", "\n".join([head, simple_rules(twins), *parts]))
    shown = {
        "printed, entropy weights, O(.) = 1": "printed, entropy weights (heuristic)",
        "printed, best case W1 = 1": "printed, best case (heuristic)",
        "constant, box": "certified, constant weights, box",
        "known pi, box": "certified, known propensity, box",
        "private, box": "certified, private propensity, box",
        "mmd, rho = 1, gamma": "certified, MMD weights with their indirect sensitivity, gamma",
    }
    draw(words.out / "twins.png", cells, {name: name for name in studies}, shown)
    print(f"{len(cells)} cells in {time.perf_counter() - start:.0f} s on one thread")


if __name__ == "__main__":
    main()
