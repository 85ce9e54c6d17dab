"""Time of a composition's outcome regression and propensity: Opacus in Lightning at rate 1 against plain noisy steps.

python experiments/benchmarks/composed_nuisances.py [--records 27000] [--features 30] [--steps 100] [--rounds 3]
"""

import argparse
import time

import torch
from torch import Tensor

from torchdpcate.composition.linear_fit import FitPlan, HuberFit, LogisticFit, NoisyNewton, Solver
from torchdpcate.composition.settings import LightningFit
from torchdpcate.composition.steps import NoisySteps, Shares
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

SOLVERS: dict[str, Solver] = {
    "noisy steps": NoisyNewton(),
    "Lightning": LightningFit(),
}


def both(solver: Solver, psi: Tensor, y: Tensor, steps: int) -> None:
    """Fit a Huber and a logistic regression."""
    noisy = NoisySteps(FitSession(NoiseSource.system()), Shares(0.1, {"outcome": 0.5, "propensity": 0.5}))
    weights = 1 / psi.norm(dim=1)
    curvature = (weights[:, None] * psi.square()).sum(0)
    for fit, step, inside in (
        (HuberFit(psi, weights, y, 1.0), "outcome", 0.7),
        (LogisticFit(psi, weights, (y > 0).double(), 1.0), "propensity", 0.2),
    ):
        plan = FitPlan(step, inside * curvature, 0.05 * curvature, steps, steps // 5, 0.2, 0.25)
        solver.solve(fit, plan, noisy)


def main() -> None:
    """Print seconds of the fits, the least of some rounds; imports are not counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=27_000)
    parser.add_argument("--features", type=int, default=30)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    psi = torch.randn(options.records, options.features, generator=generator, dtype=torch.float64)
    y = torch.randn(options.records, generator=generator, dtype=torch.float64)
    for name, solver in SOLVERS.items():
        both(solver, psi, y, 5)
        times = []
        for _ in range(options.rounds):
            wall, busy = time.perf_counter(), time.process_time()
            both(solver, psi, y, options.steps)
            times.append((time.perf_counter() - wall, time.process_time() - busy))
        wall, busy = (min(column) for column in zip(*times, strict=True))
        print(f"2 x {options.steps} steps by {name}: {wall:.2f} s, {busy:.2f} s of CPU time", flush=True)


if __name__ == "__main__":
    main()
