"""Noise of averages by released weights, of tables and counts: ``python -m experiments.less_noise.released_bounds``.

It prints released_bounds.md. All noise is from fixed seeds: nothing here is private.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from experiments.average_effects.defaults import DESIGNS, ODDS, Design
from experiments.words import paragraph, table
from torchdpcate import NoiseSource, PrivacyBudget, TableSchema
from torchdpcate.causal.estimand import ATE, ESTIMANDS, make_estimand
from torchdpcate.estimators.average.balanced_difference import BalancedDifference, joint_cost, record_cost
from torchdpcate.estimators.average.covariate_balancing import make_plan
from torchdpcate.estimators.average.outcome_table import OutcomeTable
from torchdpcate.estimators.average.peers import HorvitzThompson
from torchdpcate.estimators.average.weighted import EffectFacts
from torchdpcate.fit.user_maps import on_domain
from torchdpcate.privacy.session import FitSession

N, RUNS, OVERLAPS, STRENGTHS = 5_000, 40, (0.1, 0.05), (0.0, 0.5, 1.0)
OBSERVED, PURE = DESIGNS[-1], PrivacyBudget(1.0, 0.0)


def tables(design: Design, name: str, overlap: float) -> float:
    """Return the noise in estimates by tables over what it was by bounds for all, and Laplace noise of ATT and ATC."""
    estimand = make_estimand(name, overlap)
    plan = make_plan(N, on_domain(None, design.domain), estimand, PURE, readout="outcome_table")
    records = design.data_sets(RUNS, N, 0)
    learnt = plan.learn(records, FitSession(NoiseSource.fixed(1)))
    facts, total = plan.released(learnt), plan.total(records, learnt)

    def pulls(facts: EffectFacts) -> Tensor:
        found = OutcomeTable(facts, plan.epsilons).planned(total)
        assert found.polytope is not None
        return found.polytope

    now, everywhere = pulls(facts), pulls(replace(facts, ranges=None))
    before = _deviation(everywhere) if estimand.symmetric else math.sqrt(8) * everywhere.norm(dim=1)
    return _mean(_deviation(now) / before)


def sums(design: Design, overlap: float) -> tuple[float, float]:
    """Return the noise by released weights over that by bounds for all: of Horvitz-Thompson sums, and of balance."""
    plan = HorvitzThompson(N, TableSchema.of(design.domain), ATE(overlap), PURE)
    records = design.data_sets(RUNS, N, 0)
    own, everywhere = plan.readout(plan.learn(records, FitSession(NoiseSource.fixed(1)))), plan.readout({})
    largest = own.facts.weight_bounds.amax(-1) / ATE(overlap).largest
    return _mean(own.scales({})["sum"] / everywhere.scales({})["sum"]), _mean(largest)


def counts(name: str, overlap: float) -> float:
    """Return the noise of a balanced difference whose joint cost knows a count over that with N in full beside it."""
    facts = EffectFacts(N, make_estimand(name, overlap), 0.3, 0.7)
    scales, of = BalancedDifference(facts, BalancedDifference.parts).scales({}), facts.estimand
    (treated, control), least = facts.weight_bounds.split(1, -1), torch.tensor([of.smallest], dtype=torch.float64)
    low, high = (torch.tensor([end], dtype=torch.float64) for end in (facts.low, facts.high))
    others = {part: scale for part, scale in scales.items() if part != "size"}
    before = joint_cost((least, treated[0]), (least, control[0]), (low, high), others) + 1 / scales["size"]
    return (record_cost(facts, scales) / before).item()


def _deviation(pulls: Tensor) -> Tensor:
    return (4.8 * pulls.square().sum(1) - 1.2 * (pulls.sum(1).square() - pulls.square().sum(1))).sqrt()


def _mean(ratios: Tensor) -> float:
    return ratios.log().mean().exp().item()


def _ratios() -> Iterator[list[str]]:
    yield ["confounding", "overlap", *(f"table, {name}" for name in ESTIMANDS), "Horvitz-Thompson", "balance"]
    for strength in STRENGTHS:
        design = replace(OBSERVED, propensity=lambda x, strength=strength: torch.sigmoid(strength * (x @ ODDS)))
        for overlap in OVERLAPS:
            found = [tables(design, name, overlap) for name in ESTIMANDS]
            ratios = [*found, *sums(design, overlap)]
            yield [f"{strength:g}", f"{overlap:g}", *(f"{ratio:.3f}" for ratio in ratios)]


def _counts() -> Iterator[list[str]]:
    yield ["estimand", *(f"overlap {overlap:g}" for overlap in (0.05, 0.1, 0.3))]
    for name in ("ATT", "ATC"):
        yield [name, *(f"{counts(name, overlap):.3f}" for overlap in (0.05, 0.1, 0.3))]


def main() -> None:
    """Print the page."""
    print("# Noise by released weights, and counts\n")
    print(
        paragraph(
            f"Printed by `python -m experiments.less_noise.released_bounds`: noise now over noise before, epsilon = 1, "
            f"geometric means of {RUNS} data sets of {N:,} records whose propensity is fitted privately. Confounding: "
            "what the log-odds of treatment of the observational [design](../average_effects/defaults.md) are "
            "multiplied by. In [outcome tables](../../docs/guarantees/average_effects.md), the "
            "[Horvitz-Thompson sum](../../docs/guarantees/average_effects.md) of the ATE and the weighted half of its "
            "[balance statistics](../../docs/guarantees/average_effects.md), noise was by bounds of weights for all "
            "coefficients, and of tables for ATT and ATC Laplace noise."
        )
    )
    print(table(list(_ratios())))
    print("All three sums of a [balanced difference](../../docs/guarantees/average_effects.md), by bounds for all:\n")
    print(table(list(_counts())), end="")


if __name__ == "__main__":
    main()
