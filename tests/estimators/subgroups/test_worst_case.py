"""Games on effects in subgroups: neighbours that attain the sensitivity, exact evidence, honest noise."""

import pytest
import torch

from torchdpcate.audit.attack import audit
from torchdpcate.audit.registry import find
from torchdpcate.estimators.subgroups import worst_case
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.cell_effects import GAUSSIAN, LAPLACE

BUDGET = PrivacyBudget(1.0, 1e-5)


@pytest.mark.parametrize(("law", "order"), [(LAPLACE, 1), (GAUSSIAN, 2)])
def test_the_pairs_attain_the_sensitivity(law, order):
    plan = worst_case._planned(BUDGET if law == GAUSSIAN else PrivacyBudget(1.0, 0.0), law)
    for same_cell in (False, True):
        one, other = worst_case.worst_sums(plan, same_cell)
        moved = float((one - other).norm(order))
        assert moved == pytest.approx(plan.sums_law.mechanism.sensitivity, rel=1e-9)


def test_the_evidence_never_passes_the_pure_claim():
    game = find("subgroups").make(BUDGET)
    evidence = torch.cat([game.evidence(game.draw(world, 500, NoiseSource.fixed(1))) for world in (0, 1)])
    assert evidence.abs().max().item() <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("subgroups", 0.3), ("subgroups_gaussian", 0.2)])
def test_the_claim_holds_and_the_attack_finds_much_of_it(name, least):
    """Fixed draws: a pilot may choose a threshold that finds nothing, more often than once in 10^6 runs."""
    result = audit(find(name), BUDGET, confidence=1 - 1e-7, trials=8_000, noise=NoiseSource.fixed(0))
    assert least < result.bound <= 1.0
