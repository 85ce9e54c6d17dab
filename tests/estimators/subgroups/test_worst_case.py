"""Games on effects in subgroups: neighbours that attain the sensitivity, exact evidence, honest noise."""

import pytest
import torch

from torchdpcate.data.censoring import Censoring
from torchdpcate.estimators.subgroups import learner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.cell_effects import GAUSSIAN, LAPLACE, RATE, rate_numbers

BUDGET = PrivacyBudget(1.0, 1e-5)


@pytest.mark.parametrize(("law", "order"), [(LAPLACE, 1), (RATE, 1), (GAUSSIAN, 2)])
def test_the_pairs_attain_the_sensitivity(law, order):
    plan = learner._planned(BUDGET if law == GAUSSIAN else PrivacyBudget(1.0, 0.0), law)
    for same_cell in (False, True)[: 1 if law == RATE else 2]:
        one, other = learner.worst_sums(plan, same_cell)
        moved = float((one - other).norm(order))
        assert moved == pytest.approx(plan.sums_law.mechanism.sensitivity, rel=1e-9)


def test_no_record_moves_the_numbers_of_a_rate_further():
    """Numbers of any record are not negative, and sum to one: two are at most two apart, in any cells and arms."""
    y, t = torch.rand(2, 10_000, generator=torch.Generator().manual_seed(0)).double().mul(1.2).sub(0.1).clamp(0, 1)
    found = rate_numbers(y, t)
    assert float(found.min()) >= 0
    assert found.sum(1).tolist() == pytest.approx([1.0] * len(y))


def test_the_pair_of_follow_up_attains_the_sensitivity():
    plan = learner._planned(PrivacyBudget(1.0, 0.0), LAPLACE, Censoring("t", "d", 1.0))
    one, other = learner.worst_ends(plan)
    assert float((one - other).norm(1)) == pytest.approx(plan.ends_law.mechanism.sensitivity, rel=1e-9)
