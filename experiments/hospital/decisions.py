"""Regrets of the default rule and of the private choice, where a treatment costs what it gains on average."""

from collections.abc import Iterator

import torch
from torch import Tensor

from experiments.defaults.hospital_laws import HospitalCase
from experiments.frame.study import seed_of
from experiments.hospital.measured import CERTIFIED, DELTA, ERROR, NOT_PRIVATE, Measured
from torchdpcate.candidates.kinds import Constants, PolicyFamily, Thresholds
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

RULE, CHOICE = "EffectRule", "PolicySelector"
FREE_RULE, FREE_CHOICE = "EffectRule, no budget", "PolicySelector, no budget"
ASKED = ("age", "lab1")
"""Covariates of the public policies by a threshold."""


def private(case: HospitalCase, epsilon: float, seed: int) -> Iterator[Measured]:
    """Yield regrets of the default rule and of the private choice.

    Args:
        case: Records and truth.
        epsilon: Of each.
        seed: Public, of the noise.
    """
    rule, chance = _learners(case, PrivacyBudget(epsilon, DELTA), seed)
    decision = rule.release().answer(case.queries) > 0
    yield Measured(RULE, CERTIFIED, ERROR, _rule_regret(decision, case))
    assert chance.mechanism_ is not None
    lost = _policy_regrets(case)
    regret = chance.mechanism_.probabilities(chance.utilities_) @ lost
    yield Measured(CHOICE, CERTIFIED, ERROR, (regret / lost.mean()).item())


def nonprivate(case: HospitalCase, epsilon: float, seed: int) -> Iterator[Measured]:
    """Yield regrets of the same without a budget."""
    rule, chance = _learners(case, None, seed)
    decision = torch.from_numpy(rule.nonprivate_effect(case.queries)) > case.average
    yield Measured(FREE_RULE, NOT_PRIVATE, ERROR, _rule_regret(decision, case))
    lost = _policy_regrets(case)
    yield Measured(FREE_CHOICE, NOT_PRIVATE, ERROR, (lost[chance.utilities_.argmax()] / lost.mean()).item())


def policies(case: HospitalCase) -> list[PolicyFamily]:
    """Return everybody, nobody, and those above the median age or laboratory value of patients held out."""
    names = case.schema.domain.names
    cuts = {name: case.queries[:, names.index(name)].median().item() for name in ASKED}
    return [Constants([0, 1]), *(Thresholds(name, [cut]) for name, cut in cuts.items())]


def _learners(case: HospitalCase, budget: PrivacyBudget | None, seed: int) -> tuple[EffectRule, PolicySelector]:
    """Return both, fitted; the choice is by outcomes from which the cost of the treated is taken."""
    x, a, y = case.records.x, case.records.a, case.records.y
    facts, cost = case.schema.to_dict(), case.average
    facts["outcome"]["better"] = "higher"  # of deaths and costs too: regrets take an effect for a gain
    rule = EffectRule(
        TableSchema.from_dict(facts), budget, cost=case.average, noise=NoiseSource.fixed(seed_of(RULE, seed))
    )
    domain = case.schema.domain
    ends = {"low": domain.outcome_low - max(cost, 0.0), "high": domain.outcome_high - min(cost, 0.0)}
    priced = TableSchema.from_dict(facts | {"outcome": {"name": facts["outcome"]["name"], **ends, "better": "higher"}})
    noise = NoiseSource.fixed(seed_of(CHOICE, seed))
    chance = PolicySelector(priced, budget, policies=policies(case), noise=noise)
    return rule.fit(x, a, y), chance.fit(x, a, y - cost * a)


def _rule_regret(decision: Tensor, case: HospitalCase) -> float:
    """Return the regret against the best rule over that of a coin."""
    gain = case.truth - case.average
    lost = gain.abs() * ((gain > 0) != decision)
    return (lost.mean() / (gain.abs().mean() / 2)).item()


def _policy_regrets(case: HospitalCase) -> Tensor:
    """Return the regret of each policy against the best of them, [m]."""
    library = PolicyLibrary.of(policies(case)).setup(case.schema.domain, (0, 1))
    gains = ((case.truth - case.average)[:, None] * library.decide(case.queries)).mean(0)
    return gains.max() - gains
