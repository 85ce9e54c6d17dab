"""The ledger's reader: any damage is refused in a line, or the file still says all that was charged."""

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.faults.guards import answered
from tests.faults.mutations import json_faults, met_both, paths, replaced, twice, without
from torchdpcate._chain import Chain
from torchdpcate.errors import InputError
from torchdpcate.privacy import ledger_file
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, GaussianEvent, PureEvent
from torchdpcate.privacy.ledger import Ledger

pytestmark = pytest.mark.usefixtures("no_pickle")

TABLE = Chain(Path(), "ledger", "").table
BLOCKS = {"nuisance": PrivacyBudget(1.0, 1e-5), "second_stage": PrivacyBudget(2.0, 1e-5)}


def lines_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [line for (line,) in database.execute("SELECT line FROM ledger ORDER BY revision")]


def write(path: Path) -> None:
    """Write a ledger with a line of every kind."""
    ledger = Ledger(BLOCKS, path)
    run = ledger.charge("nuisance", "DP-SGD", DPSGDEvent(10.3, 0.1), count=3, planned=20)
    ledger.charge("nuisance", "threshold", PureEvent(0.1))
    ledger.advance(run, 5)
    ledger.charge("second_stage", "release", GaussianEvent(10.0))
    ledger.charge("second_stage", "another", ApproximateEvent(0.1, 1e-6))


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    write(path)
    return lines_of(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forged") / "ledger.sqlite"


def forge(path: Path, lines: Iterable[str]) -> None:
    """Write these lines as a ledger writes its own, with their digests."""
    path.unlink(missing_ok=True)
    ledger_file._known.clear()
    digest = ""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(f"PRAGMA synchronous = OFF; {TABLE}; BEGIN")
        for revision, line in enumerate(lines):
            digest = hashlib.sha256(f"{digest}{line}".encode(errors="replace")).hexdigest()
            database.execute("INSERT INTO ledger VALUES (?, ?, ?)", (revision, line, digest))
        database.execute("COMMIT")


def one_changed(lines: list[str], place: int, line: str) -> list[str]:
    return [*lines[:place], line, *lines[place + 1 :]]


def read(path: Path) -> None:
    """Load a ledger, and show that what was loaded is whole: its lines are what was read."""
    ledger_file._known.clear()
    ledger = Ledger.load(path)
    states: dict[int, dict] = {}
    for line in lines_of(path)[1:]:
        states[json.loads(line)["id"]] = json.loads(line)
    assert [entry.to_dict() for entry in ledger.entries] == [states[i] for i in range(len(states))]


def test_replaced_values_are_refused_or_read(path, lines):
    def reads(lines):
        forge(path, lines)
        return answered(lambda: read(path))

    assert reads(lines)

    faults = [json_faults(json.loads(line)).map(partial(one_changed, lines, place)) for place, line in enumerate(lines)]
    met_both(st.one_of(faults), 300, reads)


def test_every_number_must_be_one(path, lines):
    """No entry is read with a count, an epsilon or an id that is not a finite number."""
    names = ("id", "count", "planned", "epsilon", "delta")
    for place, line in enumerate(lines[1:], 1):
        for where in [p for p in paths(json.loads(line)) if p and p[-1] in names]:
            for text in ("NaN", "Infinity", "-Infinity", "1e999", "-1", "null", '"x"', "[]", "{}", "9" * 5000):
                forge(path, one_changed(lines, place, replaced(json.loads(line), where, text)))
                assert not answered(lambda: read(path)), (where, text)


def test_every_name_must_be_there_once(path, lines):
    """Of a name that is there twice a JSON reader keeps the last: it would hide the first."""
    for place in (0, 1):
        document = json.loads(lines[place])
        named = [where for where in paths(document) if where and isinstance(where[-1], str)]
        for where in [where for where in named if where != ("charge", "text")]:  # which a charge need not have
            for text in (twice(document, where, "[]"), without(document, where)):
                forge(path, one_changed(lines, place, text))
                assert not answered(lambda: read(path)), where


def test_a_message_is_short_and_in_one_line(path, lines):
    for place, line in enumerate(lines):
        for where in paths(json.loads(line)):
            forge(path, one_changed(lines, place, replaced(json.loads(line), where, json.dumps("x\n" * 50_000))))
            if where[-1:] == ("text",):
                continue  # any text may be one
            with pytest.raises(InputError) as caught:
                Ledger.load(path)
            assert len(str(caught.value)) < 400 + len(str(path))
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE VIEW ledger AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT i AS revision, "
        "'' AS line, '' AS digest FROM n",
        f"{TABLE}; CREATE TRIGGER forget AFTER INSERT ON ledger BEGIN DELETE FROM ledger; END",
    ],
    ids=["a view without end", "a trigger that forgets"],
)
def test_a_file_that_would_run_something_is_refused(path, schema):
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(schema)
    for call in (lambda: Ledger.load(path), lambda: Ledger(BLOCKS, path)):
        assert not answered(call)
