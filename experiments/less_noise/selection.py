"""A choice with delta = 0 before and after: `python -m experiments.less_noise.selection` prints selection.md."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from experiments.rules_and_selection.rule_cases import OBSERVED, RuleCase, rule_case
from experiments.rules_and_selection.selection import LAWS, linear_library, regrets
from experiments.rules_and_selection.tune import Setting
from experiments.rules_and_selection.tune import setting as usual_setting
from experiments.rules_and_selection.tune_selection import confounded
from torchdpcate.causal.score import project_to_floor
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.selection.composed import ComposedScores
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.fit.arms.base import ScoreSource, SelectionFacts
from torchdpcate.fit.arms.linear_fits import PRIVATE, ShrinkageTarget
from torchdpcate.fit.arms.stable import StableNuisances
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

HEAD = (
    "| n | epsilon | draws | before | unequal payments | composed | composed / before | difference | standard error |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)
FRESH, MANY = 700_000, 60
PARTS = (2.0, 1.0, 0.3, 0.1, 0.01)
INTRODUCTION = """\
With delta = 0 and a propensity that nobody knows, choices were made by stable nuisances: ridge fits on half of the
records, with noise for what one training record does to all scores. Two things changed.

1. *Unequal payments.* The scoring block kept the tenth of epsilon that the training block had paid for the target;
   now each block pays for what its own records move, and of two arms the target has root-polytope noise.
2. *Composed scores are the default* with delta = 0 too (two actions): the steps that find them are pure events with
   half of epsilon, and a choice at twice the clip of the scores has the other half. All records score, one record moves
   one score, and scores are clipped near the outcome's residual scale instead of at its range over a propensity.

## Noise of stable nuisances
"""
BETWEEN = f"""
Of two arms the target itself has root-polytope noise in place of Laplace noise: deviations of a sum are .816
of what they were, and of a count .577.

## Regret in five designs

Regret over that of a random policy, as in `experiments/rules_and_selection/selection.md`: {len(LAWS)} laws,
{SEEDS} seeds each, 160 linear policies, delta = 0, expected under the exact law of the choice. Noise
before the choice comes from fixed seeds, so nothing here is private.
"""
OTHERS = f"""
## Regret on fresh random laws

Laws of `experiments/rules_and_selection/tune_selection.py`, seeds {FRESH:,} to {FRESH + MANY - 1:,}: on every second
one a product of two covariates confounds. Shares of the steps were chosen on seeds 500,300 to 500,599.
"""
RIDGES = """
## The ridge of stable nuisances

Their ridge let a training record do as much as noise covers for a scoring record (a part of 1). A larger ridge lessens
that noise, too, towards that of constants. Regret at epsilon = 1 by the part, on half of these laws; today's default is
.1, about ten times the ridge:
"""
READING = """
## Reading

- Composed scores have .56, .51 and .14 of the regret before at epsilon = 1 in the five designs (n = 1,000, 4,000 and
  20,000), and .61 to .70 of it on generated data that chose nothing; at epsilon = .5 .23 to .75 in all. Every cell is
  below .8 of what it was.
- Unequal payments alone take an eighth of the noise of stable nuisances, and hardly any regret: .96 to 1.02 of it in
  the designs, .94 to 1.00 on generated data. At that ridge (1 in both columns) those fits are close to their targets
  anyway. A ridge ten times as large has .84 to .97 of the regret, and is now their default.
- What made the difference is the range of the scores: at most twice a clip near the residual scale, where stable
  nuisances answer for an outcome at the end of its range over the least propensity that they may fit.
- More than two actions have no pure steps for an effect: stable nuisances remain their default with delta = 0.
"""


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
class OtherRidge(StableNuisances):
    """Stable nuisances whose training records may do another part of what noise covers at no cost."""

    part: float = 1.0

    def _towards(self, target: ShrinkageTarget, facts: SelectionFacts) -> StableNuisances:
        settled = replace(self, target=target)
        ridges = settled.ridges(facts, self.choice_share, self.part)
        return replace(settled, ridge=ridges[0], propensity_ridge=ridges[1])


@dataclass(frozen=True)
class FirstStable(OtherRidge):
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
            first, now = stable.ridges(facts, part=1.0), stable.ridges(facts, C, 1.0)
            before = replace(stable, ridge=first[0], propensity_ridge=first[1]).range_sensitivity(facts) / C
            after = replace(stable, ridge=now[0], propensity_ridge=now[1]).range_sensitivity(facts, C)
            numbers = f"{first[0]:.3f} | {now[0]:.3f} | {before:.2f} | {after:.2f} | {100 * (after / before - 1):.0f} %"
            yield f"| {overlap:g} | {name} | {numbers} |"


def regrets_of(case: RuleCase, epsilon: float, seed: int, kinds: Iterable[ScoreSource]) -> list[float]:
    """Return the expected regrets of choices over that of a policy drawn at random, on the same records.

    Args:
        case: Records, and queries whose effects are known.
        epsilon: Of the choice, with delta = 0.
        seed: Of the split, and of the noise.
        kinds: What the scores are.
    """
    policies = linear_library(case.schema)
    lost, found = regrets(policies, case.schema, case.queries, case.truth), []
    for nuisance in kinds:
        noise, budget = NoiseSource.fixed(seed), PrivacyBudget(epsilon, 0.0)
        selector = PolicySelector(case.schema, budget, policies=policies, nuisance=nuisance, seed=seed, noise=noise)
        selector.fit(case.records.x, case.records.a, case.records.y)
        assert selector.mechanism_ is not None
        found.append(float(selector.mechanism_.probabilities(selector.utilities_) @ lost / lost.mean()))
    return found


def kinds() -> tuple[ScoreSource, ...]:
    """Return the scores that are compared: of earlier versions, with unequal payments, and today's default."""
    return FirstStable(), OtherRidge(), ComposedScores()


def line(n: int, epsilon: float, found: list[list[float]]) -> str:
    """Return a line of a table of regrets."""
    values = torch.tensor(found)
    first, shares, now = values.mean(0)
    gain = values[:, 2] - values[:, 0]
    ends = f"{now / first:.2f} | {gain.mean():+.3f} | {gain.std() / len(gain) ** 0.5:.3f}"
    return f"| {n:,} | {epsilon:g} | {len(found)} | {first:.3f} | {shares:.3f} | {now:.3f} | {ends} |"


def choices() -> Iterator[str]:
    """Yield lines of the table of regrets in five designs."""
    yield from HEAD
    for n in SIZES:
        for epsilon in EPSILONS:
            cases = [(rule_case(law, OBSERVED, n, seed), seed) for law in LAWS for seed in range(SEEDS)]
            yield line(n, epsilon, [regrets_of(case, epsilon, seed, kinds()) for case, seed in cases])


def fresh() -> Iterator[str]:
    """Yield lines of the table of regrets on generated data of which none chose a constant."""
    yield from HEAD
    for n in SIZES:
        drawn = ((law(seed, n), seed) for seed in range(FRESH, FRESH + MANY))
        cases = [(found.case, seed) for found, seed in drawn if found is not None]
        cases = [pair for pair in cases if pair[0].schema.domain.known_propensity is None]
        for epsilon in EPSILONS:
            yield line(n, epsilon, [regrets_of(case, epsilon, seed, kinds()) for case, seed in cases])


def other_ridges() -> Iterator[str]:
    """Yield lines of the table of regrets by ridges that allow training records other parts of the noise."""
    yield "| n | laws | " + " | ".join(f"{part:g}" for part in PARTS) + " |"
    yield "| --- " * (2 + len(PARTS)) + "|"
    for n in SIZES:
        drawn = ((law(seed, n), seed) for seed in range(FRESH, FRESH + MANY // 2))
        cases = [(found.case, seed) for found, seed in drawn if found is not None]
        cases = [pair for pair in cases if pair[0].schema.domain.known_propensity is None]
        compared = [OtherRidge(part=part) for part in PARTS]
        found = torch.tensor([regrets_of(case, 1.0, seed, compared) for case, seed in cases]).mean(0)
        yield f"| {n:,} | {len(cases)} | " + " | ".join(f"{value:.3f}" for value in found.tolist()) + " |"


def law(seed: int, n: int) -> Setting | None:
    """Return a law of ``tune_selection`` with n records: on every second one a product of two covariates confounds."""
    return confounded(seed, n) if seed % 2 else usual_setting(seed, n)


def main() -> None:
    """Print both tables."""
    print("# Choice of a policy with delta = 0: less noise\n")
    print("Written by `python -m experiments.less_noise.selection`. Proofs: docs/guarantees/policy_selection.md and")
    print("docs/guarantees/policy_selection.md.\n")
    print(INTRODUCTION)
    print(f"Noise scale of the choice for a unit outcome range and m = n = {M:,}, by the target:\n")
    print("\n".join(scales()))
    print(BETWEEN)
    print("\n".join(choices()))
    print(OTHERS)
    print("\n".join(fresh()))
    print(RIDGES)
    print("\n".join(other_ridges()))
    print(READING)


if __name__ == "__main__":
    main()
