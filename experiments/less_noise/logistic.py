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
from torchdpcate.composition.pure_fits import LARGEST, least_ridge
from torchdpcate.estimators.rules.weighted_erm import default_ridge
from torchdpcate.fit import Logistic
from torchdpcate.fit.linear_fits import ObjectiveFit
from torchdpcate.fit.losses import LossBounds
from torchdpcate.fit.private_fit import PrivateFit, WeightBounds
from torchdpcate.fit.stacked_records import arm
from torchdpcate.fit.user_maps import on_domain
from torchdpcate.fit.weights.private import PrivateWeights

EPSILONS, AT_ONCE = (0.1, 0.25, 0.5, 1.0), 50
_LEARNED = 11  # features of a propensity


class Apart(Logistic):
    """The logistic loss as any other of its slope and curvature."""


def compared(law: str, draws: int, epsilon: float) -> list[str]:
    """Return a line of the table: noise scale and RMSE of either formula."""
    features, share = on_domain(None, domain(law)), LAWS[law][2]
    budget, fit = PrivacyBudget(epsilon, 0.0), ObjectiveFit("box")
    ways = [fit.prepare(loss, N, features, budget) for loss in (Apart(), Logistic())]
    errors: list[list[torch.Tensor]] = [[], []]
    for seed in range(math.ceil(draws / AT_ONCE)):
        records = data_sets(law, AT_ONCE, seed)
        for way, found in zip(ways, errors, strict=True):
            theta = way.draw(records, arm, NoiseSource.fixed(seed), AT_ONCE)
            score = (records.batch.psi * theta[:, None]).sum(2)
            found.append((score.sigmoid() - share).square().mean(1))
    before, after = (torch.cat(found) for found in errors)
    scales = [way.public["perturbation_scale"] for way in ways]
    roots = [before.mean().sqrt().item(), after.mean().sqrt().item()]
    numbers = [f"{x:.4g}" for x in scales] + [f"{x:.5f}" for x in roots] + [f"{100 * (roots[1] / roots[0] - 1):.0f} %"]
    return [law, f"{epsilon:g}", *numbers]


def elsewhere() -> list[list[str]]:
    """Return a line for each other user at its default ridge: what determinants cost, and the noise scale."""
    lines = []
    for epsilon in EPSILONS:
        budget = PrivacyBudget(epsilon, 0.0)
        known, weights = WeightBounds.per_record(1.0), PrivateWeights()
        rows = {
            "propensity of private weights": (1.0, weights.ridge_for(N, _LEARNED, budget)),
            "binary outcome, delta = 0": (LARGEST, least_ridge(epsilon, Logistic.curvature)),
            "rule, n = 500": (1.0, default_ridge(500, epsilon, known, Logistic.curvature)),
        }
        for name, (curved, ridge) in rows.items():
            before, after = (
                PrivateFit(LossBounds(1.0, curved / 4, logistic=together), known, ridge, _LEARNED).objective(
                    budget, "gamma"
                )
                for together in (False, True)
            )
            costs = [f"{100 * way.jacobian / epsilon:.1f} %" for way in (before, after)]
            scales = [f"{way.scale:.4g}" for way in (before, after)]
            lines.append([name, f"{epsilon:g}", *costs, *scales, f"{100 * (after.scale / before.scale - 1):.0f} %"])
    return sorted(lines, key=lambda line: line[0])


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    draws = parser.parse_args().draws
    head = ["law", "epsilon", "scale, apart", "together", "RMSE, apart", "together", "change"]
    lines = [compared(law, draws, epsilon) for law in LAWS for epsilon in EPSILONS if law != "skewed outcomes"]
    print(
        "# Logistic losses: slope and curvature together\n\n"
        f"Written by `python -m experiments.less_noise.logistic`. {N:,} records, four covariates, {draws} data sets\n"
        "a cell, the same for both; epsilon is the propensity's alone. *Apart*: the largest slope and the largest\n"
        "curvature of a record, as before. *Together*: what one record can have of both\n"
        "([proof](../../docs/guarantees/objective_perturbation.md)). "
        "Root mean squared error of the fitted propensity.\n"
    )
    print(table([head, *lines]))
    print(
        "Other users at their default ridges: what of epsilon determinants take, and the scale of the noise. The\n"
        f"propensity has {_LEARNED} features and {N:,} records, the rule weights of 1.\n"
    )
    head = ["user", "epsilon", "determinants, apart", "together", "scale, apart", "together", "change"]
    print(table([head, *elsewhere()]), end="")


if __name__ == "__main__":
    main()
