"""Privately tuned rules judged by what their candidates paid for: `python -m experiments.less_noise.rule_tuning`.

The selection part is weighed by a propensity and outcome constants fitted to it, as the package does, or by the means
of what the candidates released, which leaves more of epsilon to the choice.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from copy import copy
from statistics import fmean, stdev
from typing import Any
from unittest.mock import patch

import torch

from experiments.less_noise.two_stage_rule import FIRST, Law, law
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.rules import tuning
from torchdpcate.estimators.rules.learner import RuleLearner, TwoStageRule
from torchdpcate.estimators.rules.outcome import SignedResidual
from torchdpcate.estimators.rules.tuning import PrivatelyTunedRule
from torchdpcate.fit.feature_maps import FeatureMap, Identity, Legendre
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.fit.weights.private import PrivatePropensity, largest_weight
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

SIZES, EPSILONS, CHOICES, REPEATS, LAWS = (2_000, 8_000), (0.5, 1.0, 4.0), 60, 4, 50
RIDGES = (30.0, 300.0)
MAPS: dict[int, tuple[FeatureMap, ...]] = {2: (Identity(),), 4: (Identity(), Legendre(2))}
WAYS = ("anew", "propensity reused", "all reused")


class Compared(PrivatelyTunedRule):
    """Chooses among one set of candidates in every way."""

    def _chosen_release(self, blocks: Any) -> Any:
        self.fitted: list[RuleLearner] = []
        return super()._chosen_release(blocks)

    def _trained(self, records: CausalData, **settings: Any) -> RuleLearner:
        self.fitted.append(super()._trained(records, **settings))
        return self.fitted[-1]

    def _best(self, judge: RuleLearner, records: CausalData, rules: Sequence[Any]) -> int:
        candidates = self.fitted[:-1]
        propensity, both = copy(judge), copy(judge)
        propensity.weights_ = both.weights_ = pooled([candidate.weights_ for candidate in candidates])
        constants = [(residual.centre, residual.clip) for residual in (candidate.outcome_ for candidate in candidates)]
        both.outcome_ = SignedResidual(*torch.tensor(constants, dtype=torch.float64).mean(0).tolist())
        spent = judge.scheme().budget_fraction
        self.rules, self.chosen = rules, {}
        for way, own, saved in zip(WAYS, (judge, propensity, both), (0.0, spent, judge._first_fraction()), strict=True):
            seen: list[tuple[Any, ...]] = []
            with patch.object(tuning, "choose", lambda *facts, seen=seen: seen.append(facts) or 0):
                super()._best(own, records, rules)
            utilities, half, epsilon, noise = seen[0]
            assert judge.budget is not None
            epsilon += saved * judge.budget.epsilon
            self.chosen[way] = [tuning.choose(utilities, half, epsilon, noise) for _ in range(CHOICES)]
        return 0


def pooled(fits: Sequence[Any]) -> PrivatePropensity:
    """Return the propensity of the mean of the coefficients."""
    theta, features = torch.stack([fit.theta for fit in fits]).mean(0), fits[0].features
    most = min(max(fit.bounds.most for fit in fits), largest_weight(theta, features))
    return PrivatePropensity(WeightBounds.per_record(most), {}, theta, features)


def right(drawn: Law, seed: int, n: int, epsilon: float, candidates: int) -> list[float]:
    """Return the expected share of right decisions of the chosen rule in each way, of any candidate and of the best."""
    records, found = drawn.records.subset(torch.arange(n)), []
    for repeat in range(REPEATS):
        noise = NoiseSource.fixed(1_000 * repeat + seed)
        learner = TwoStageRule(drawn.schema, PrivacyBudget(epsilon, 0.0), ridge_bound=1e12, noise=noise, seed=repeat)
        tuned = Compared(learner, RIDGES, features=MAPS[candidates]).fit(records.x, records.a, records.y)
        shares = [float(((rule.score(drawn.queries) > 0) == (drawn.effect > 0).numpy()).mean()) for rule in tuned.rules]
        ways = (fmean(shares[k] for k in tuned.chosen[way]) for way in WAYS)
        found.append([*ways, fmean(shares), max(shares)])
    return [fmean(column) for column in zip(*found, strict=True)]


def lines() -> Iterator[str]:
    """Yield the table's lines."""
    ways = " | ".join(f"{way} | less anew" if at else way for at, way in enumerate(WAYS))
    yield f"| candidates | n | epsilon | {ways} | any candidate | the best |"
    yield f"|{' --- |' * 10}"
    for candidates, n, epsilon in itertools.product(MAPS, SIZES, EPSILONS):
        found = [
            right(drawn, seed, n, epsilon, candidates)
            for seed in range(FIRST, FIRST + LAWS)
            if (drawn := law(seed)) is not None
        ]
        columns = list(zip(*found, strict=True))
        cells = [f"{fmean(columns[0]):.4f}"]
        for column in columns[1 : len(WAYS)]:
            gains = [after - before for after, before in zip(column, columns[0], strict=True)]
            cells += [f"{fmean(column):.4f}", f"{fmean(gains):+.4f} ({stdev(gains) / len(gains) ** 0.5:.4f})"]
        cells += [f"{fmean(column):.4f}" for column in columns[len(WAYS) :]]
        print(candidates, n, epsilon, file=sys.stderr, flush=True)
        yield f"| {candidates} | {n:,} | {epsilon:g} | {' | '.join(cells)} |"


def main() -> None:
    """Print the page."""
    laws = sum(law(seed) is not None for seed in range(FIRST, FIRST + LAWS))
    print("# Privately tuned rules: judged by what their candidates paid for\n")
    print("Printed by `python -m experiments.less_noise.rule_tuning`. Why it holds, and why it is not used:")
    print("[rule_tuning](../../docs/guarantees/block_learners.md).\n")
    print(f"{laws} random laws of [two_stage_rule](two_stage_rule.md), {REPEATS} fits each, two-stage rules with a")
    print(f"private propensity and private outcome constants; candidates: ridges {RIDGES[0]:g} and {RIDGES[1]:g} with")
    print("linear features, of four also with Legendre polynomials of degree two; delta = 0, other settings at their")
    print(f"defaults. Expected share of right decisions of the rule that is chosen ({CHOICES} choices among the same")
    print("candidates on the same records). *Anew*: propensity and outcome constants are fitted to the selection part,")
    print("and the choice has .65 of epsilon. *Propensity reused*: the mean of the candidates' coefficients, and .9 of")
    print("epsilon. *All reused*: means of the outcome constants too, and all of epsilon. In brackets the standard")
    print("error over laws.\n")
    print("\n".join(lines()))


if __name__ == "__main__":
    main()
