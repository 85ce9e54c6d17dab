"""Gaussian objective noise of monotone losses: `python -m experiments.less_noise.monotone_losses` prints its page."""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from experiments.less_noise.weights import confounded
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.fit.losses import HuberHinge, LossBounds
from torchdpcate.fit.private_fit import SOLVER_SHARE, ObjectiveNoise, PrivateFit, WeightBounds
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.noise import NoiseSource

EPSILONS, DELTAS = (0.1, 0.5, 1.0, 4.0), (1e-2, 1e-5, 1e-8)
REPEATS, SIZE, FRESH, DELTA = 40, 2_000, 5_000, 1e-5
_OBJECTIVE = PrivateFit.objective


def any_loss(fit: PrivateFit, *given: Any, **words: Any) -> ObjectiveNoise:
    """Return the noise of a loss of which slope and curvature alone are known."""
    return _OBJECTIVE(replace(fit, loss=LossBounds(fit.loss.slope, fit.loss.curvature)), *given, **words)


def scales() -> Iterator[str]:
    """Yield lines of the table of scales, weights up to 1."""
    yield "| epsilon | delta | sigma before | after | change | after over the least |"
    yield "| --- | --- | --- | --- | --- | --- |"
    bounds, loss = WeightBounds.per_record(1.0), HuberHinge(0.5)
    for epsilon, delta in itertools.product(EPSILONS, DELTAS):
        before, after = (
            PrivateFit(of, bounds, 20 * loss.curvature / epsilon, size=10).objective(
                PrivacyBudget(epsilon, delta), "gaussian"
            )
            for of in (LossBounds(loss.slope, loss.curvature), LossBounds.of(loss))
        )
        share = 1 - SOLVER_SHARE
        least = analytic_gaussian_sigma(epsilon * share - after.jacobian, delta * share, bounds.first)
        change = f"{100 * (after.scale / before.scale - 1):.1f} % | {after.scale / least:.6f}"
        yield f"| {epsilon:g} | {delta:g} | {before.scale:.3f} | {after.scale:.3f} | {change} |"


def accuracy(epsilon: float) -> tuple[float, float, float]:
    """Return the share of right decisions before and after on the same draws, and their difference's error."""
    domain, found = Domain([-1.0] * 4, [1.0] * 4, -2.0, 2.0, overlap=0.05), []
    for seed in range(REPEATS):
        data, _ = confounded(SIZE, seed)
        fresh, effect = confounded(FRESH, 10_000 + seed)
        pair = []
        for after in (False, True):
            learner = OutcomeWeightedLearner(
                domain,
                PrivacyBudget(epsilon, DELTA),
                features=Legendre(2),
                perturbation="gaussian",
                noise=NoiseSource.fixed(seed),
            ).fit(data.x, data.a, data.y)
            with nullcontext() if after else patch.object(PrivateFit, "objective", any_loss):
                rule = learner.release()
            pair.append(float(((torch.as_tensor(rule.score(fresh.x)) > 0) == (effect > 0)).double().mean()))
        found.append(pair)
    shares = torch.tensor(found, dtype=torch.float64)
    error = (shares[:, 1] - shares[:, 0]).std() / REPEATS**0.5
    return float(shares[:, 0].mean()), float(shares[:, 1].mean()), float(error)


def accuracies() -> Iterator[str]:
    """Yield lines of the table of right decisions."""
    yield "| epsilon | right decisions before | after | error of the difference |"
    yield "| --- | --- | --- | --- |"
    for epsilon in EPSILONS[1:]:
        before, after, error = accuracy(epsilon)
        yield f"| {epsilon:g} | {before:.4f} | {after:.4f} | {error:.4f} |"


def main() -> None:
    """Print the page."""
    print("# Gaussian objective noise of monotone losses: less noise\n")
    print("Printed by `python -m experiments.less_noise.monotone_losses`. The proof is on the")
    print("[mechanism's page](../../docs/guarantees/objective_perturbation.md).")
    print(
        "Weights up to 1, Huber's hinge, determinants at a twentieth of epsilon. The least: what two opposite gradients"
    )
    print("need, one Gaussian mechanism of the whole shift.\n")
    print("\n".join(scales()))
    print(
        f"\nOutcome-weighted rules of {SIZE:,} confounded records, four covariates, Legendre polynomials of degree two,"
    )
    print(f"delta = {DELTA:g}, {REPEATS} draws, the same for both.\n")
    print("\n".join(accuracies()))


if __name__ == "__main__":
    main()
