"""Names of columns, categories and origins: none reaches a terminal, a page or a release that would obey it."""

import json

import pytest

from tests.release.helpers import SCHEMA
from tests.verify.forgery import release, rewritten, statement
from torchdpcate.cli.main import main
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError

HOSTILE = {
    "a colour": "\x1b[31mage",
    "a window's title": "\x1b]0;age\x07",
    "a NUL": "a\x00ge",
    "a line end": "age\nlevel",
    "a carriage return": "age\rlevel",
    "writing turned round": "\u202eega",
    "a line separator": "age\u2028level",
    "nothing to see": "\u200bage",
    "half a letter": "\ud800",
}
PLACES = {
    "treatment": lambda name: FACTS | {"treatment": name},
    "outcome": lambda name: FACTS | {"outcome": FACTS["outcome"] | {"name": name}},
    "covariate": lambda name: FACTS | {"covariates": {name: {"low": 0, "high": 1}}},
    "category": lambda name: FACTS | {"covariates": {"x": {"categories": ["a", name]}}},
    "arm": lambda name: FACTS | {"treatment": {"name": "a", "categories": ["b", name]}},
    "origin": lambda name: FACTS | {"origin": f"a {name} b"},
    "origin of a column": lambda name: FACTS | {"covariates": {"x": {"low": 0, "high": 1, "origin": f"a {name} b"}}},
}
FACTS = {"treatment": "a", "outcome": {"name": "y", "low": 0, "high": 1}, "covariates": {"x": {"low": 0, "high": 1}}}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("place", PLACES)
def test_a_name_that_a_terminal_would_obey_is_refused(place, kind, tmp_path):
    facts = PLACES[place](HOSTILE[kind])
    if place.startswith("origin") and set("\n\r\u2028") & set(HOSTILE[kind]):
        origins = TableSchema.from_dict(facts).origins.values()
        assert all(origin.isprintable() for origin in origins)  # put into one line
        return
    with pytest.raises(InputError, match="shown") as caught:
        TableSchema.from_dict(facts)
    assert HOSTILE[kind] not in str(caught.value)
    if kind != "half a letter":
        path = tmp_path / "d.yaml"
        path.write_text(json.dumps(facts))  # which is yaml, with escapes
        with pytest.raises(InputError, match=r"d\.yaml") as caught:
            TableSchema.from_yaml(path)
        assert HOSTILE[kind] not in str(caught.value)


def test_a_domain_in_code_refuses_them_too():
    for name in HOSTILE.values():
        with pytest.raises(InputError, match="shown"):
            Domain([0.0], [1.0], 0.0, 1.0, names=[name])


def test_a_release_that_holds_such_a_name_is_refused(tmp_path, capsys):
    path = release(statement()).save(tmp_path / "r.safetensors")
    rewritten(path, schema=json.dumps(SCHEMA.to_dict() | {"treatment": "\x1b[31ma"}))
    for words in (["verify", str(path)], ["verify", str(path), "--json"]):
        assert main(words) in (1, 2)
        shown = capsys.readouterr()
        assert "\x1b" not in shown.out + shown.err
        assert "rename it" in shown.err


def test_a_mistake_is_told_in_letters(capsys, tmp_path):
    assert main(["verify", str(tmp_path / "\x1b[31mred\u202e.safetensors")]) == 2
    shown = capsys.readouterr().err
    assert "?[31mred?.safetensors: no such file" in shown
    assert "\x1b" not in shown
