"""Private logistic propensities before and after: ``python -m experiments.less_noise.logistic`` prints logistic.md.

Slope and curvature of one record, apart as before or together: noise scale, and root mean squared error of the fitted
propensity, on the same generated data sets. All noise is from fixed seeds: nothing here is private.
"""

import argparse
import math

import torch

from experiments.less_noise.average import LAWS, N, data_sets, domain
from experiments.words import table
from torchdpcate import NoiseSource, PrivacyBudget
from torchdpcate.erm import Logistic
from torchdpcate.erm.objective_fit import ObjectiveFit
from torchdpcate.erm.perturbation import GRIDS
from torchdpcate.erm.records import arm
from torchdpcate.features.user_maps import on_domain

EPSILONS, AT_ONCE = (0.1, 0.25, 0.5, 1.0), 50


def compared(law: str, draws: int, epsilon: float) -> list[str]:
    """Return a line of the table: noise scale and root error of either formula."""
    features, share = on_domain(None, domain(law)), LAWS[law][2]
    budget, fit = PrivacyBudget(epsilon, 0.0), ObjectiveFit("box")
    ways = [fit._prepared(Logistic(), N, features, budget, GRIDS[0], together) for together in (False, True)]
    errors: list[list[torch.Tensor]] = [[], []]
    for seed in range(math.ceil(draws / AT_ONCE)):
        records = data_sets(law, AT_ONCE, seed)
        for way, found in zip(ways, errors, strict=True):
            theta = way.draw(records, arm, NoiseSource.fixed(seed), AT_ONCE)
            score = (records.batch.psi * theta[:, None]).sum(2)
            found.append((score.sigmoid() - share).square().mean(1))
    before, after = (torch.cat(found) for found in errors)
    scales = [way.public["tilt_scale"] for way in ways]
    roots = [before.mean().sqrt().item(), after.mean().sqrt().item()]
    numbers = [f"{x:.4g}" for x in scales] + [f"{x:.5f}" for x in roots] + [f"{100 * (roots[1] / roots[0] - 1):.0f} %"]
    return [law, f"{epsilon:g}", *numbers]


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    draws = parser.parse_args().draws
    head = ["law", "epsilon", "scale, apart", "together", "root error, apart", "together", "change"]
    lines = [compared(law, draws, epsilon) for law in LAWS for epsilon in EPSILONS if law != "skewed outcomes"]
    print(
        "# Private logistic propensities\n\n"
        f"Written by `python -m experiments.less_noise.logistic`. {N:,} records, four covariates, {draws} data sets\n"
        "a cell, the same for both; epsilon is the propensity's alone. *Apart*: the largest slope and the largest\n"
        "curvature of a record, as before. *Together*: what one record can have of both\n"
        "([proof](../../docs/guarantees/objective_gamma.md)). Root mean squared error of the fitted propensity.\n"
    )
    print(table([head, *lines]))


if __name__ == "__main__":
    main()
