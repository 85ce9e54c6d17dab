"""Noise of the joint convex nuisances: ``python -m experiments.less_noise.convex_nuisances`` prints its page."""

import math

from experiments.words import paragraph, table
from torchdpcate.fit.convex import joint_objective
from torchdpcate.fit.gaussian_scale import Corners, gaussian_scale
from torchdpcate.fit.private_fit import SOLVER_SHARE
from torchdpcate.privacy.budget import PrivacyBudget

N, SIZE, SHARES = 1_350, 15, (0.05, 0.2, 0.4, 0.6)
BUDGETS = ((0.25, 1e-6), (0.5, 1e-5), (1.0, 1e-5), (4.0, 1e-5), (1.0, 1e-3))


def line(epsilon: float, delta: float, share: float) -> list[str]:
    """Return a line of the page."""
    joint = joint_objective(N, SIZE, 1.0, PrivacyBudget(epsilon, delta), share=share, jacobian_share=0.3)
    assert joint.objective_noise is not None
    after, spent, kept = joint.objective_noise.scale, joint.objective_noise.jacobian, 1 - SOLVER_SHARE
    by_length = Corners(((8 - 2 * share, 1.0),), convex=True)
    before = gaussian_scale(kept * epsilon, kept * delta, 2 * joint.gradient_bound, spent, 4, [by_length])
    exponent = f"1e{round(math.log10(delta))}"
    return [
        f"{epsilon:g}",
        exponent,
        f"{share:g}",
        f"{before:.4g}",
        f"{after:.4g}",
        f"{100 * (after / before - 1):.1f} %",
    ]


def main() -> None:
    """Print the page."""
    print("# Convex nuisances: all corners of the worst pair\n")
    print(
        paragraph(
            "Printed by `python -m experiments.less_noise.convex_nuisances`. Noise of each coefficient's linear term, "
            f"n = {N:,}, threshold 1. Before, each of sixteen points counted by its squared length; now by its own "
            "delta ([proof](../../docs/guarantees/objective_perturbation.md)). "
            "The default share of the propensity is 0.2."
        )
    )
    head = ["epsilon", "delta", "share of the propensity", "before", "now", "change"]
    print(table([head, *(line(*budget, share) for budget in BUDGETS for share in SHARES)]), end="")


if __name__ == "__main__":
    main()
