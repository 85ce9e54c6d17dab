"""Two-stage rules before and after, on generated data: `python -m experiments.less_noise.two_stage_rule` prints it.

`before` is the noise of releases before these proofs: the first certificate of the weights, and objective noise without
the shape of its loss.
"""

import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from unittest.mock import patch

import torch

from experiments.defaults.random_laws import random_setting
from experiments.less_noise.monotone_losses import any_loss
from experiments.less_noise.weights import FirstLogistic, FirstTilting
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.rules.learner import TwoStageRule
from torchdpcate.fit.private_fit import PrivateFit
from torchdpcate.fit.weights.balancing import LogisticWeights, TiltingWeights
from torchdpcate.fit.weights.private import PrivateWeights
from torchdpcate.fit.weights.scheme import KnownWeights, WeightScheme
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

WEIGHTS: dict[str, tuple[WeightScheme, WeightScheme]] = {
    "known": (KnownWeights(), KnownWeights()),
    "ipw": (FirstLogistic(), LogisticWeights()),
    "entropy": (FirstTilting(), TiltingWeights()),
    "private": (PrivateWeights(), PrivateWeights()),
}
SIZES, EPSILONS, DELTA = (500, 2_000, 8_000), (0.5, 1.0, 4.0), 1e-5
FIRST, LAWS, RUNS = 40_000, 100, 40
_PROPENSITY = "propensity"


@dataclass(frozen=True, eq=False)
class Law:
    """A law whose best rule treats about half.

    Attributes:
        schema: Public facts.
        records: Records with their known propensities.
        queries: Where rules decide, [m, q].
        effect: There, [m].
    """

    schema: TableSchema
    records: CausalData
    queries: torch.Tensor
    effect: torch.Tensor

    def known(self) -> TableSchema:
        """The schema that knows the propensity."""
        return TableSchema.from_dict({**self.schema.to_dict(), "propensity": _PROPENSITY}).handling("clip")


@cache
def law(seed: int) -> Law | None:
    """Return a seed's law with as many records as the largest size; None where the effect is constant."""
    drawn = random_setting(seed, n=max(SIZES), epsilon=1.0)
    case, middle = drawn.case, drawn.effects.median()
    if float(drawn.effects.std()) < 1e-9:
        return None
    y = case.records.y - case.records.a * middle
    y = y.clamp(case.schema.domain.outcome_low, case.schema.domain.outcome_high)
    records = CausalData(case.records.x, case.records.a, y, drawn.propensities)
    return Law(case.schema, records, case.queries, case.truth - middle)


def right(drawn: Law, seed: int, scheme: WeightScheme, n: int, budget: PrivacyBudget, earlier: bool) -> float:
    """Return the share of right decisions of the rules of several runs, on the same draws before and after."""
    records, known = drawn.records.subset(torch.arange(n)), isinstance(scheme, KnownWeights)
    schema = drawn.known() if known else drawn.schema
    propensity = {"propensity": records.propensity} if known else {}
    rule = TwoStageRule(schema, budget, weights=scheme, ridge_bound=1e12, noise=NoiseSource.fixed(seed))
    with ExitStack() as undo:
        if earlier:
            undo.enter_context(patch.object(PrivateFit, "objective", any_loss))
        rule.fit(records.x, records.a, records.y, **propensity)
        problem = rule.problem_
        mechanism = rule._mechanism(problem.public)
        law = mechanism.law(problem.public, rule._rule_budget(budget))
        theta = law.draw(NoiseSource.fixed(seed), RUNS, problem.exact(law))
    scores = rule.features_(drawn.queries) @ theta.T
    return float(((scores > 0) == (drawn.effect > 0)[:, None]).double().mean())


def cells() -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield the words of each cell, and what was right in each law, before and after."""
    for (name, (before, after)), n, epsilon in itertools.product(WEIGHTS.items(), SIZES, EPSILONS):
        found: tuple[list[float], list[float]] = ([], [])
        for seed in range(FIRST, FIRST + LAWS):
            drawn = law(seed)
            if drawn is None:
                continue
            budget = PrivacyBudget(epsilon, DELTA)
            found[0].append(right(drawn, seed, before, n, budget, True))
            found[1].append(right(drawn, seed, after, n, budget, False))
        print(name, n, epsilon, file=sys.stderr, flush=True)
        yield f"{name} | {n:,} | {epsilon:g}", *found


def lines() -> Iterator[str]:
    """Yield the table's lines."""
    yield "| weights | n | epsilon | right before | after | difference | its standard error |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for words, before, after in cells():
        gains = [b - a for a, b in zip(before, after, strict=True)]
        error = stdev(gains) / len(gains) ** 0.5
        yield f"| {words} | {fmean(before):.4f} | {fmean(after):.4f} | {fmean(gains):+.4f} | {error:.4f} |"


def main() -> None:
    """Print the page."""
    laws = sum(law(seed) is not None for seed in range(FIRST, FIRST + LAWS))
    print("# Two-stage rules: less noise\n")
    print("Printed by `python -m experiments.less_noise.two_stage_rule`. Proofs:")
    print("[weights](../../docs/guarantees/balancing_weights.md),")
    print("[Gaussian objective noise](../../docs/guarantees/objective_perturbation.md).\n")
    print(f"Share of right decisions by two-stage rules on {laws} random laws (`experiments/defaults/random_laws.py`")
    print("with 2 to 40 covariates, constant effects left out, the median effect taken off, so that the best rule")
    print(f"treats half), {RUNS} draws of noise each, the same before and after; standard errors over laws;")
    print(f"delta = {DELTA:g}. All settings are at their defaults, but that no ridge is refused. With known weights")
    print("only Gaussian noise has changed. The default takes it where it is least: with many covariates and little")
    print("epsilon. At epsilon = 1 and 40 covariates it now replaces the cube's noise, which is about as long, and")
    print("the difference is that of their draws. The default weights, `private`, have a less noisy")
    print("[propensity](../../docs/guarantees/objective_perturbation.md).\n")
    print("\n".join(lines()))


if __name__ == "__main__":
    main()
