import pytest

from torchdpcate.privacy.charge import DP_SGD, Charge, Purpose

MADE = {
    DP_SGD: "nuisances by dp_sgd",
    Charge(Purpose.OUTCOME, "quantile", "median"): "outcome by quantile: median",
    Charge(Purpose.WEIGHTS, "private"): "weights by private",
    Charge(Purpose.WEIGHTS, "noisy_gradient", "propensity"): "weights by noisy_gradient: propensity",
    Charge(Purpose.OUTCOME_MODEL, "objective"): "outcome model by objective",
    Charge(Purpose.RELEASE, "objective"): "release by objective",
    Charge(Purpose.RELEASE, "aipw", "score"): "release by aipw: score",
    Charge(Purpose.RELEASE, "outcome_table", "balance", "sums"): "release by outcome_table: balance (sums)",
    Charge(Purpose.OTHER, text="mine"): "mine",
}


@pytest.mark.parametrize("charge", MADE, ids=lambda charge: charge.words)
def test_charges_have_words_and_come_back(charge):
    assert charge.words == MADE[charge]
    assert Charge.from_dict(charge.to_dict()) == charge


@pytest.mark.parametrize("purpose", list(Purpose))
def test_nothing_that_a_charge_says_is_left_out_of_its_words(purpose):
    text = "T" if purpose is Purpose.OTHER else ""
    charge = Charge(purpose, "M", "P", "I", text)
    assert all(word in charge.words for word in ("M", "P", "I", text))
