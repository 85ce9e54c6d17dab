from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level

BUDGET = PrivacyBudget(1.0, 1e-5)
MET = Condition("C1", "the bound holds", True)
OPEN = Condition("C2", "the bound is smooth", None)
FAILED = Condition("C3", "n is large", False)


def test_certified_claims_its_budget():
    guarantee = Guarantee(Level.CERTIFIED, BUDGET)
    assert guarantee.holds_claim
    assert "epsilon" in guarantee.claim
    assert "(1, 1e-05)" in guarantee.claim
    assert "replace-one" in guarantee.claim


def test_heuristic_never_speaks_of_epsilon_and_keeps_no_budget():
    guarantee = Guarantee(Level.HEURISTIC, BUDGET)
    assert not guarantee.holds_claim
    assert "epsilon" not in guarantee.claim
    assert guarantee.budget is None


def test_conditional_says_what_was_checked():
    guarantee = Guarantee(Level.CONDITIONAL, BUDGET, (MET, OPEN))
    assert guarantee.holds_claim
    assert "C1 (the bound holds) [checked]" in guarantee.claim
    assert "C2 (the bound is smooth) [not checked]" in guarantee.claim


def test_a_failed_condition_ends_the_claim_and_is_named():
    guarantee = Guarantee(Level.CONDITIONAL, BUDGET, (MET, FAILED))
    assert not guarantee.holds_claim
    assert "epsilon" not in guarantee.claim
    assert "C3 (n is large)" in guarantee.claim


def test_fixed_noise_stamps_any_guarantee_not_private():
    guarantee = Guarantee(Level.CERTIFIED, BUDGET, source="theorem")
    assert guarantee.marked(private=True) is guarantee
    stamped = guarantee.marked(private=False)
    assert stamped.level is Level.HEURISTIC
    assert "NOT PRIVATE" in stamped.claim
    assert "epsilon" not in stamped.claim
