import pytest

from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level

BUDGET = PrivacyBudget(1.0, 1e-5)
MET = Condition("C1", "the bound holds", True)
OPEN = Condition("C2", "the bound is smooth", None)
FAILED = Condition("C3", "n is large", False)
CHECKED = "C1 (the bound holds) [checked]; C2 (the bound is smooth) [not checked]"


@pytest.mark.parametrize(
    ("guarantee", "holds", "said"),
    [
        (Guarantee(Level.CERTIFIED, BUDGET), True, ["(1, 1e-05)", "replace-one"]),
        (Guarantee(Level.CONDITIONAL, BUDGET, (MET, OPEN)), True, [CHECKED]),
        (Guarantee(Level.CONDITIONAL, BUDGET, (MET, FAILED)), False, ["C3 (n is large)"]),
        (Guarantee(Level.HEURISTIC, BUDGET), False, []),
    ],
)
def test_a_claim_speaks_of_epsilon_where_it_holds_and_says_what_was_checked(guarantee, holds, said):
    assert guarantee.holds_claim is holds
    assert ("epsilon" in guarantee.claim) is holds
    assert all(words in guarantee.claim for words in said)
    assert (guarantee.budget is None) is (guarantee.level is Level.HEURISTIC)


def test_fixed_noise_stamps_any_guarantee_not_private():
    guarantee = Guarantee(Level.CERTIFIED, BUDGET, source="theorem")
    assert guarantee.marked(private=True) is guarantee
    stamped = guarantee.marked(private=False)
    assert stamped.level is Level.HEURISTIC
    assert "NOT PRIVATE" in stamped.claim
    assert "epsilon" not in stamped.claim
