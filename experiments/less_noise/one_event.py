"""A sum and its squares as one event: ``python -m experiments.less_noise.one_event`` prints one_event.md.

Before and after on the same data sets, of ``experiments/average_effects/defaults.py``. All noise is from fixed seeds:
nothing here is private.
"""

import argparse
import math
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from experiments.average_effects.defaults import DESIGNS, EFFECT
from experiments.words import paragraph, table
from torchdpcate import NoiseSource, PrivacyBudget, TableSchema
from torchdpcate.causal.estimand import ATE
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.average.doubly_robust import (
    DoublyRobust,
    default_nuisances,
    score_records,
)
from torchdpcate.estimators.average.known_propensity import DesignPlan, contrast
from torchdpcate.estimators.average.peers import SubsampleAggregate, group_estimates
from torchdpcate.estimators.average.ratio_of_sums import UPPER, NoisyEstimate
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.estimate import half_width

N, DELTA, EPSILONS = 5_000, 1e-5, (0.5, 1.0, 5.0)
TRIAL, OBSERVED = DESIGNS[0], DESIGNS[-1]

Law = tuple[Tensor, Tensor, Tensor]
"""Estimates, their Gaussian deviations and the scales of their Laplace noise, [runs] each."""


def apart(terms: Tensor, width: Tensor, reach: Callable[[Tensor], Tensor], epsilons: tuple[float, float]) -> Law:
    """Return estimates whose sum and squared deviations are charged one after the other, as they were.

    Args:
        terms: Whose mean is the estimate, [runs, n].
        width: Of their range, [runs].
        reach: Returns the most that one record moves the squared deviations from released means [runs].
        epsilons: Of the sum, and of the squares.
    """
    n, noise = terms.shape[1], NoiseSource.fixed(1).laplace(2 * len(terms), 1.0).reshape(2, -1)
    scale = width / epsilons[0]
    tau = ((terms.sum(1) + scale * noise[0]) / n).clamp(-1, 1)
    scale_q = reach(tau) / epsilons[1]
    squares = (terms - tau[:, None]).square().sum(1) + scale_q * noise[1]
    return tau, (squares + UPPER * scale_q).clamp_min(0).sqrt() / n, scale / n


def of_groups(repeats: int, epsilon: float) -> tuple[Law, Law]:
    """Return estimates by small groups."""
    plan = SubsampleAggregate(N, TableSchema.of(OBSERVED.domain), ATE(0.1), PrivacyBudget(epsilon, 0.0))
    terms = torch.cat([group_estimates(OBSERVED.data_sets(10, N, seed), plan) for seed in range(repeats // 10)])
    two, most = torch.full((len(terms),), 2.0, dtype=torch.float64), 4 * (1 - 1 / plan.many)
    before = apart(terms, two, lambda tau: torch.full_like(tau, most), (epsilon / 2, epsilon / 2))
    exact, session = plan.readout({}).sums("sums", {}).exact(terms), FitSession(NoiseSource.fixed(1))
    return before, _law(plan.estimate({"sums": plan.ask_each(session, 1, "sums", exact)}))


def of_scores(repeats: int, epsilon: float) -> tuple[Law, Law]:
    """Return doubly robust estimates by nuisances of another half."""
    schema, recipe = TableSchema.of(OBSERVED.domain), default_nuisances(OBSERVED.domain)
    plan = DoublyRobust(N, schema, ATE(0.1), PrivacyBudget(epsilon, DELTA), recipe=recipe)
    stacked = OBSERVED.data_sets(repeats, N, 0).batch
    records = CausalData(stacked.x, stacked.z, stacked.y)
    learnt = plan.learn(records, FitSession(NoiseSource.fixed(2)))
    scored, ranges = score_records(records, plan, learnt["nuisances"]), plan.readout(learnt).ranges
    terms, _ = ranges.clip(*plan.estimand.score(*scored))
    shares = 0.75 / 0.95 * epsilon, 0.2 / 0.95 * epsilon
    before = apart(terms, ranges.change, lambda tau: ranges.reach(tau).square(), shares)
    answers = plan.sums(records, FitSession(NoiseSource.fixed(1)), learnt)
    return before, _law(plan.estimate(answers))


def of_trials(repeats: int, epsilon: float) -> tuple[Law, Law]:
    """Return estimates by a known propensity; the centre costs the same before and after."""
    plan = DesignPlan(N, TableSchema.of(TRIAL.domain), ATE(0.1), PrivacyBudget(epsilon, 0.0))
    facts, records = plan.facts, TRIAL.data_sets(repeats, N, 0)
    after = plan.run(records, NoiseSource.fixed(1))
    shares = 0.73 / 0.95 * epsilon, 0.14 / 0.95 * epsilon
    centre = facts.centre(after.released["centre"], shares[0])
    terms, within = contrast(facts, centre, records.batch), facts.terms(centre)
    before = apart(terms, within.high - within.low, lambda tau: facts.reach(centre, tau).square(), shares)
    return before, _law(after)


ESTIMATORS = {"subsample_aggregate": of_groups, "doubly_robust": of_scores, "known_propensity": of_trials}


def _law(found: NoisyEstimate) -> Law:
    return found.estimate, found.gaussian, found.laplace[:, 0]


def _judged(law: Law) -> Iterator[float]:
    """Yield the noise's deviation, the RMSE, the mean length of 95 % intervals and their coverage."""
    estimate, gaussian, laplace = law
    error, half = estimate - EFFECT, half_width(0.95, gaussian, laplace[:, None])
    yield laplace.mean().item() * math.sqrt(2)
    yield error.square().mean().sqrt().item()
    yield 2 * half.mean().item()
    yield (error.abs() <= half).double().mean().item()


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=400, help="data sets a cell, a multiple of ten")
    repeats = parser.parse_args().repeats
    warnings.simplefilter("ignore")
    print("# A sum and its squares as one event\n")
    print(
        paragraph(
            f"Printed by `python -m experiments.less_noise.one_event`: {repeats} data sets of {N:,} records a cell, "
            "observational ones for the first two estimators, trials with a fair coin for the last "
            "([designs](../average_effects/defaults.md)); ATE, overlap .1. Before, the sum and the squares that the "
            "interval rests on were charged one after the other; now together, which is the cost of the sum alone "
            "([proof](../../docs/guarantees/average_effects.md)). Deviation of the noise in the estimate, root "
            "error, mean length of 95 % intervals, and how often they hold the effect: before → now."
        )
    )
    lines = [["effect", "epsilon", "noise", "RMSE", "length", "coverage"]]
    for name, make in ESTIMATORS.items():
        for epsilon in EPSILONS:
            pairs = zip(*map(_judged, make(repeats, epsilon)), strict=True)
            shown = [f"{a:.4f} → {b:.4f}" if k < 3 else f"{a:.3f} → {b:.3f}" for k, (a, b) in enumerate(pairs)]
            lines.append([f"`{name}`", f"{epsilon:g}", *shown])
    print(table(lines), end="")


if __name__ == "__main__":
    main()
