"""The reader of domain files: damage is refused in a line, no code runs, nothing grows, and nothing is looked up."""

import json

import pytest
import yaml

from tests.data.conftest import DOMAIN
from tests.faults.guards import answered
from tests.faults.mutations import NASTY_TEXTS, paths, replaced
from torchdpcate.data._yaml import read_yaml
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError

pytestmark = pytest.mark.usefixtures("no_pickle")

FACTS = yaml.safe_load(DOMAIN)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("domain") / "domain.yaml"


def facts_with(text: str) -> list[str]:
    return [replaced(FACTS, where, text) for where in paths(FACTS)]


@pytest.mark.parametrize("text", NASTY_TEXTS, ids=lambda text: text[:12])
def test_every_value_may_be_anything_in_a_release_too(text):
    """A release holds the same facts as JSON; somebody else wrote them."""
    refused = 0
    for document in facts_with(text):
        try:
            facts = json.loads(document)
        except (ValueError, RecursionError):
            refused += 1  # by the release's reader, before
        else:
            refused += not answered(lambda facts=facts: TableSchema.from_dict(facts).grid(3))
    assert refused  # of a treatment's name or an outcome's, if of nothing else


def test_a_tag_runs_no_code(path, tmp_path):
    for call in ("os.system ['touch {0}']", "subprocess.check_call [[touch, '{0}']]", "pathlib.Path.touch ['{0}']"):
        for tag in ("python/object/apply", "python/object/new"):
            path.write_text(f"treatment: !!{tag}:{call.format(tmp_path / 'made')}\n")
            assert not answered(lambda: read_yaml(path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tag", ["!!set {a, b}", "!!binary aGVsbG8=", "!!omap [a: 1]", "!mine 1", "!!str 1"])
def test_no_tag_is_taken(path, tag):
    """The order of a set's elements, which would become categories, is another in every process."""
    path.write_text(f"a: {tag}")
    with pytest.raises(InputError, match="it has a tag"):
        read_yaml(path)


@pytest.mark.parametrize(
    ("text", "value"), [("6e4", 6e4), ("-1.5E-3", -1.5e-3), (".5e+1", 5.0), ("e4", "e4"), ("2020-01-31", "2020-01-31")]
)
def test_powers_are_numbers_and_dates_are_words(path, text, value):
    path.write_text(f"a: {text}")
    assert read_yaml(path) == {"a": value}


def test_aliases_that_multiply_are_refused_before_they_do(path):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for here, there in zip("abcdefghi", "bcdefghij", strict=True):
        lines.append(f"{there}: &{there} [{', '.join([f'*{here}'] * 9)}]")
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="alias"):
        read_yaml(path)


def test_deep_or_large_files_are_refused(path):
    for text, message in (("[" * 50_000, "nested"), ("{a: " * 50_000, "nested"), ("#" * (1 << 21), "larger")):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_yaml(path)


def test_nothing_is_looked_up_in_the_environment(path, monkeypatch):
    """A domain file from elsewhere could otherwise carry a secret of this machine into the release."""
    monkeypatch.setenv("SECRET", "swordfish")
    path.write_text(DOMAIN.replace("treatment: treat", "treatment: ${oc.env:SECRET}"))
    assert "swordfish" not in json.dumps(TableSchema.from_yaml(path).to_dict())
