"""What charges are for: in types, in words, and as older files said it."""

import pytest

from torchdpcate.errors import InputError
from torchdpcate.privacy import charge as module
from torchdpcate.privacy.charge import Charge, Purpose, charge_of_label

OLD = [
    *module._OLD_FIXED,
    "candidate 3: weights, outcome and rule",
    "weights: private",
    "weights: propensity by noisy_gradient",
    "outcome model: by objective",
    "release by objective",
    "release by aipw: score",
    "release by outcome_table: balance (sums)",
]


@pytest.mark.parametrize("label", OLD)
def test_old_labels_have_types_whose_words_they_are(label):
    charge = charge_of_label(label)
    assert charge.purpose is not Purpose.OTHER
    assert charge.words == label
    assert Charge.from_dict(charge.to_dict()) == charge


@pytest.mark.parametrize("label", ["", "mine", "release", "release by a\nb", "candidate x: weights, outcome and rule"])
def test_other_labels_stay_words(label):
    assert charge_of_label(label) == Charge(Purpose.OTHER, text=label)
    assert charge_of_label(label).words == label


def test_old_labels_are_read_whatever_the_words_are_now(monkeypatch):
    monkeypatch.setattr(module, "words_of", lambda charge: "other words")
    assert charge_of_label("DP-SGD") == module.DP_SGD
    assert module.DP_SGD.words == "other words"


@pytest.mark.parametrize(
    "fields",
    [
        {"purpose": "none"},
        {"purpose": "release", "mechanism": 3},
        {"purpose": "release", "mechanism": "a\nb"},
        {"purpose": "release", "text": "my words"},
        {"purpose": ["release"]},
    ],
)
def test_what_is_no_charge_is_refused(fields):
    with pytest.raises(InputError, match="charge"):
        Charge.from_dict(fields)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_nothing_that_a_charge_says_is_left_out_of_its_words(purpose):
    text = "T" if purpose is Purpose.OTHER else ""
    charge = Charge(purpose, "M", "P", "I", text)
    assert all(word in charge.words for word in ("M", "P", "I", text))
