"""Should a plan of few requests keep more covariates? ``python -m experiments.less_noise.kept`` prints kept.md.

On random laws alone, at 250 to 4,000 records and epsilon from .5 to 2: settings in which the plan leaves covariates
out. All noise is from fixed seeds: nothing here is private.
"""

import argparse
import math
import warnings
from collections.abc import Callable, Iterator
from itertools import count, islice
from unittest.mock import patch

import numpy as np
import torch

from experiments.cells import standard_error
from experiments.defaults.random_laws import Setting, random_setting
from experiments.defaults.tune import FLOOR, error
from experiments.words import table
from torchdpcate.composition.builder import composed_plan
from torchdpcate.composition.gaussian_builder import Builder
from torchdpcate.composition.plan import CONSTANT, PlanFacts
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.privacy.budget import PrivacyBudget

FEW, MANY = (6, 8, 10, 12), (20, 40)
SIZES, EPSILONS, DELTA = {FEW: (500, 4_000), MANY: (250, 900)}, (0.5, 1.0, 2.0), 1e-5
FIRST = 500_000  # seed of a law


def _all(plan: PlanFacts) -> int:
    return plan.covariates


def _most(plan: PlanFacts) -> int:
    return min(plan.covariates, plan.constants.most)


Way = tuple[str, Callable[[PlanFacts], int], bool]
WAYS: dict[tuple[int, ...], tuple[Way, ...]] = {
    FEW: (("effect as requested, all kept", _all, False), ("a constant, all kept", _all, True)),
    MANY: (("a constant, twelve kept", _most, True), ("a constant, all kept", _all, True)),
}
"""What is compared with the plan: which covariates it keeps, and whether its effect is one number."""


def settings(covariates: tuple[int, ...]) -> Iterator[Setting]:
    """Yield settings whose plan leaves covariates out; of many covariates those in which it asks for a constant."""
    for seed in count(FIRST):
        g = np.random.default_rng([seed, 41])
        q, epsilon = int(g.choice(covariates)), float(g.choice(EPSILONS))
        n = round(math.exp(g.uniform(*np.log(SIZES[covariates]))))
        plan = composed_plan(n, PrivacyBudget(epsilon, DELTA), q, overlap=0.1)
        if plan.screens and (covariates == FEW or plan.form == CONSTANT):
            yield random_setting(seed, n=n, epsilon=epsilon, covariates=q)


def compared(covariates: tuple[int, ...], draws: int) -> list[list[str]]:
    """Return a line for each way: how the logarithm of the squared error changes."""
    found: dict[str, list[float]] = {name: [] for name, *_ in WAYS[covariates]}
    for setting in islice(settings(covariates), draws):
        base = error(setting, AdaptiveSecondStage())
        for name, kept, constant in WAYS[covariates]:
            with patch.object(Builder, "best_retained", kept):
                own = error(setting, AdaptiveSecondStage(constant_only=constant))
            found[name].append(math.log((own + FLOOR**2) / (base + FLOOR**2)))
    q = " or ".join([", ".join(map(str, covariates[:-1])), str(covariates[-1])])
    return [
        [q, name, f"{np.mean(values):+.2f} ± {standard_error(values):.2f}", str(len(values))]
        for name, values in found.items()
    ]


WORDS = """# Covariates that a plan leaves out

Printed by `python -m experiments.less_noise.kept`. On random laws, in settings in which the plan of a heterogeneous
effect leaves covariates out: the mean change of the logarithm of its squared error where it keeps them, or where its
effect is one number. Of twenty covariates and more, settings in which it asks for a constant. Nothing here is clearly
less, so plans stay as they are: what is left out may confound, but all that is kept costs noise in three regressions.

{table}"""


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=120)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    lines = [line for covariates in WAYS for line in compared(covariates, given.draws)]
    head = ["covariates", "instead", "change of the logarithm", "settings"]
    print(WORDS.format(table=table([head, *lines])), end="")


if __name__ == "__main__":
    main()
