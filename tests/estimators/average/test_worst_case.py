"""Games on stage two and on the complete effect: neighbours, exact evidence, honest noise that is not refuted."""

import pytest
import torch

from torchdpcate.audit.attack import audit
from torchdpcate.audit.registry import find
from torchdpcate.estimators.average import worst_case
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

BUDGET = PrivacyBudget(1.0, 0.0)
# at epsilon = 1: the bound that the attack's exact likelihood ratio can reach, most of it found with few runs
NAMES = {"balanced_difference": 0.6, "outcome_table": 0.6, "balance_statistics": 0.6, "covariate_balancing_effect": 0.6}


@pytest.mark.parametrize("treated", [0.0, 1.0])
def test_the_worlds_differ_in_one_record(treated):
    one, other = worst_case._weighted(1.0), worst_case._weighted(0.0, treated)
    differ = torch.stack([(a != b)[0] for a, b in zip(one, other, strict=True)]).any(0)
    assert differ.nonzero().flatten().tolist() == [0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_claim_holds_and_the_attack_finds_much_of_it(name):
    """Bounds at confidence 1 - 10^-7: a false alarm less than once in 10^6 runs."""
    result = audit(find(name), BUDGET, confidence=1 - 1e-7, trials=40_000)  # its deviation is a sixth of the margin
    assert NAMES[name] < result.bound <= 1.0


@pytest.mark.parametrize("name", ["balanced_difference", "outcome_table"])
def test_the_pair_costs_all_that_is_claimed(name):
    """What the sums' exact likelihood ratio tends to, of the table at 99 % of epsilon; grids take a millionth."""
    game = find(name).make(BUDGET)
    evidence = torch.cat([game.evidence(game.draw(world, 500, NoiseSource.fixed(1))) for world in (0, 1)])
    assert evidence.abs().max().item() > {"balanced_difference": 0.99999, "outcome_table": 0.98999}[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_evidence_never_passes_the_claim(name):
    """An exact log-likelihood ratio is at most epsilon, but for rounding and, of fits, the solver's stop."""
    game = find(name).make(BUDGET)
    evidence = torch.cat([game.evidence(game.draw(world, 500, NoiseSource.fixed(1))) for world in (0, 1)])
    assert evidence.abs().max().item() <= 1.0
