"""The ledger's reader: any damage is refused in a line, or the file still says all that was charged."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.faults.guards import answered
from tests.faults.mutations import NASTY_TEXTS, byte_faults, examples, json_faults, paths, replaced, twice, without
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, GaussianEvent, PureEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.ledger_file import parse

pytestmark = pytest.mark.usefixtures("no_pickle")

BLOCKS = {"nuisance": PrivacyBudget(1.0, 1e-5), "second_stage": PrivacyBudget(2.0, 1e-5)}


def written() -> str:
    ledger = Ledger(BLOCKS)
    ledger.charge("nuisance", "DP-SGD", DPSGDEvent(10.3, 0.1), count=3, planned=20)
    ledger.charge("nuisance", "threshold", PureEvent(0.1))
    ledger.charge("second_stage", "release", GaussianEvent(10.0))
    ledger.charge("second_stage", "another", ApproximateEvent(0.1, 1e-6))
    return ledger.to_json()


TEXT = written()
DOCUMENT = json.loads(TEXT)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("ledger") / "ledger.json"


def read(path) -> None:
    """Load a ledger, and show that what was loaded is whole: its entries are written as they were read."""
    ledger = Ledger.load(path)
    assert len(ledger.entries) == len(json.loads(path.read_text())["entries"])
    assert json.loads(ledger.to_json())["entries"] == [entry.to_dict() for entry in ledger.entries]


@examples(300)
@given(json_faults(DOCUMENT))
def test_replaced_values_are_refused_or_read(path, text):
    path.write_text(text, encoding="utf-8")
    answered(lambda: read(path))


@examples(300)
@given(byte_faults(TEXT.encode()))
def test_damaged_bytes_are_refused_or_read(path, data):
    path.write_bytes(data)
    answered(lambda: read(path))


@examples(100)
@given(st.binary(max_size=400))
@example(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
def test_any_bytes_are_refused(path, data):
    path.write_bytes(data)
    assert not answered(lambda: read(path))


@pytest.mark.parametrize("text", [t for t in NASTY_TEXTS if t.startswith(("[[[", '{"a":{"a"'))])
def test_deep_nesting_is_refused(path, text):
    for where in paths(DOCUMENT):
        path.write_text(replaced(DOCUMENT, where, text))
        assert not answered(lambda: read(path))


def test_every_number_must_be_one(path):
    """No entry is read with a count, an epsilon or an id that is not a finite number."""
    numbers = [p for p in paths(DOCUMENT["entries"]) if p and p[-1] in ("id", "count", "planned", "epsilon", "delta")]
    for where in numbers:
        for text in ("NaN", "Infinity", "-Infinity", "1e999", "-1", "null", '"x"', "[]", "{}", "9" * 5000):
            path.write_text(replaced(DOCUMENT, ("entries", *where), text))
            assert not answered(lambda: read(path)), (where, text)


def test_every_entry_must_be_there_once(path):
    named = [where for where in paths(DOCUMENT) if where and isinstance(where[-1], str)]
    for where in named:
        path.write_text(twice(DOCUMENT, where, "[]"))
        with pytest.raises(InputError, match="twice"):
            parse(path)
        path.write_text(without(DOCUMENT, where))
        assert not answered(lambda: read(path)), where


def test_an_entry_said_twice_hides_no_charge(path):
    """Of two lists of entries a JSON reader keeps the last: an empty one would hide all that was spent."""
    path.write_text(twice(DOCUMENT, ("entries",), "[]"))
    assert json.loads(path.read_text())["entries"] == []
    with pytest.raises(InputError, match="twice"):
        Ledger.load(path)


def test_a_message_is_short_and_in_one_line(path):
    for where in paths(DOCUMENT):
        path.write_text(replaced(DOCUMENT, where, json.dumps("x\n" * 50_000)))
        if where[-1:] == ("text",):
            continue  # any text may be one
        with pytest.raises(InputError) as caught:
            Ledger.load(path)
        assert len(str(caught.value)) < 400 + len(str(path))
        assert "\n" not in str(caught.value)
