"""Games on effects in subgroups: neighbours that attain the sensitivity, exact evidence, honest noise."""

import pytest

from torchdpcate.data.censoring import Censoring
from torchdpcate.estimators.subgroups import learner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.cell_effects import GAUSSIAN, LAPLACE, RATE

BUDGET = PrivacyBudget(1.0, 1e-5)


@pytest.mark.parametrize(("law", "order"), [(LAPLACE, 1), (RATE, 1), (GAUSSIAN, 2)])
def test_the_pairs_attain_the_sensitivity(law, order):
    plan = learner._planned(BUDGET if law == GAUSSIAN else PrivacyBudget(1.0, 0.0), law)
    for same_cell in (False, True)[: 1 if law == RATE else 2]:
        one, other = learner.worst_sums(plan, same_cell)
        moved = float((one - other).norm(order))
        assert moved == pytest.approx(plan.sums_law.mechanism.sensitivity, rel=1e-9)


def test_the_pair_of_follow_up_attains_the_sensitivity():
    plan = learner._planned(PrivacyBudget(1.0, 0.0), LAPLACE, censoring=Censoring("t", "d", 1.0))
    one, other = learner.worst_ends(plan)
    assert float((one - other).norm(1)) == pytest.approx(plan.ends_law.mechanism.sensitivity, rel=1e-9)
