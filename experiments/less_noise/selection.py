"""A choice by stable nuisances before and after: `python -m experiments.less_noise.selection` prints selection.md."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from experiments.rules_and_selection.rule_cases import OBSERVED, rule_case
from experiments.rules_and_selection.selection import LAWS, linear_library, regrets
from torchdpcate.causal.arm_scores import project_to_floor
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.nuisance.arms.base import SelectionFacts
from torchdpcate.nuisance.arms.shrinkage import PRIVATE, ShrinkageTarget
from torchdpcate.nuisance.arms.stable import StableNuisances
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import ARMS
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

SIZES, EPSILONS, SEEDS = (1_000, 4_000, 20_000), (0.5, 1.0), 5
OVERLAPS, M, C = (0.05, 0.1, 0.25), 2_000, 0.9
TARGETS = {
    "equal shares, middle": ShrinkageTarget(),
    "shares .7 and .3, means .3 and .4": ShrinkageTarget(0.3, (0.3, 0.4)),
}

INTRODUCTION = """\
With delta = 0 and a propensity that nobody knows these are the default. Before, the scoring block kept the tenth
of epsilon that the training block had paid for the target; now each block pays for what its own records move."""
BETWEEN = f"""
Of two arms the target itself has root-polytope noise in place of Laplace noise: deviations of a sum are .816
of what they were, and of a count .577.

Regret over that of a random policy, as in `experiments/rules_and_selection/selection.md`: {len(LAWS)} laws,
{SEEDS} seeds each, 160 linear policies, delta = 0, expected under the exact law of the choice. The target's
noise comes from fixed seeds, so nothing here is private.
"""
READING = """
Reading: the noise of the choice falls by an eighth, and regret hardly changes: .96 to 1.02 of what it was, apart by
less than half a standard error up to n = 4,000. The ridge falls with the noise, which is what the rule for it asks."""


def first_target(train: CausalData, facts: SelectionFacts, epsilon: float, session: FitSession) -> ShrinkageTarget:
    """Return the target of two arms with the Laplace noise of earlier versions."""
    m, domain, treated = facts.training, facts.domain, train.a.bool()
    z = (train.y - domain.outcome_middle) / domain.outcome_range
    value = torch.stack([treated.double().sum() / 2, z[~treated].sum(), z[treated].sum()])
    mechanism = LaplaceMechanism(epsilon, 1.5)
    scale = mechanism.released_scale(3)
    session.pay(mechanism.event, charge=ARMS)
    half, *rest = mechanism.release(value, session.noise)
    sums, k2, l2 = torch.stack(rest), 24 * scale**2, 200 * scale**2
    counts = torch.stack([m - 2 * half, 2 * half])
    shares = project_to_floor((m * counts + 2 * k2) / (m * m + 4 * k2), 0.0)
    overall, counts = m * sums.sum() / (m * m + 2 * k2), m * shares
    means = domain.outcome_middle + domain.outcome_range * ((counts * sums + l2 * overall) / (counts**2 + l2)).clamp(
        -0.5, 0.5
    )
    return ShrinkageTarget(project_to_floor(shares, facts.overlap).tolist(), domain.clip_outcome(means).tolist())


@dataclass(frozen=True)
class FirstStable(StableNuisances):
    """Stable nuisances whose blocks paid alike."""

    @property
    def choice_share(self) -> float:
        """One: the scoring block kept what the target had cost the other."""
        return 1.0

    def settle(self, train: CausalData, facts: SelectionFacts, session: FitSession | None = None) -> StableNuisances:
        """Return them with the earlier target."""
        assert session is not None
        assert session.budget is not None
        assert self.target == PRIVATE
        return self._towards(first_target(train, facts, self.budget_fraction * session.budget.epsilon, session), facts)


def scales() -> Iterator[str]:
    """Yield lines of the table of the choice's noise, times epsilon."""
    yield "| overlap | target | ridge before | after | noise scale x epsilon before | after | change |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for overlap in OVERLAPS:
        for name, target in TARGETS.items():
            facts = SelectionFacts(Domain([0.0], [1.0], 0.0, 1.0, overlap=overlap), (0, 1), overlap, M, M)
            stable = StableNuisances(target=target)
            first, now = stable.ridges(facts)[0], stable.ridges(facts, C)
            before = stable.range_sensitivity(facts) / C
            after = replace(stable, ridge=now[0], propensity_ridge=now[1]).range_sensitivity(facts, C)
            numbers = f"{first:.3f} | {now[0]:.3f} | {before:.2f} | {after:.2f} | {100 * (after / before - 1):.0f} %"
            yield f"| {overlap:g} | {name} | {numbers} |"


def regret(law: str, n: int, epsilon: float, seed: int, nuisance: StableNuisances) -> float:
    """Return the expected regret of the choice over that of a policy drawn at random."""
    case = rule_case(law, OBSERVED, n, seed)
    policies, noise = linear_library(case.schema), NoiseSource.fixed(seed)
    lost = regrets(policies, case.schema, case.queries, case.truth)
    selector = PolicySelector(
        case.schema, PrivacyBudget(epsilon, 0.0), policies=policies, nuisance=nuisance, seed=seed, noise=noise
    )
    selector.fit(case.records.x, case.records.a, case.records.y)
    assert selector.mechanism_ is not None
    return float(selector.mechanism_.probabilities(selector.utilities_) @ lost / lost.mean())


def choices() -> Iterator[str]:
    """Yield lines of the table of regrets, on the same records and the same seeds of noise."""
    yield "| n | epsilon | regret before | after | after / before | difference | its standard error |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for n in SIZES:
        for epsilon in EPSILONS:
            pairs = torch.tensor(
                [
                    [regret(law, n, epsilon, seed, kind()) for kind in (FirstStable, StableNuisances)]
                    for law in LAWS
                    for seed in range(SEEDS)
                ]
            )
            (old, new), gain = pairs.mean(0), pairs[:, 1] - pairs[:, 0]
            numbers = (
                f"{old:.3f} | {new:.3f} | {new / old:.2f} | {gain.mean():+.3f} | {gain.std() / len(gain) ** 0.5:.3f}"
            )
            yield f"| {n:,} | {epsilon:g} | {numbers} |"


def main() -> None:
    """Print both tables."""
    print("# Choice of a policy by stable nuisances: less noise\n")
    print("Written by `python -m experiments.less_noise.selection`. Proofs: docs/guarantees/stable_nuisances.md.\n")
    print(INTRODUCTION)
    print(f"Noise scale of the choice for a unit outcome range and m = n = {M:,}, by the target:\n")
    print("\n".join(scales()))
    print(BETWEEN)
    print("\n".join(choices()))
    print(READING)


if __name__ == "__main__":
    main()
