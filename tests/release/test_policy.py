import json
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from safetensors import safe_open

from tests.candidates.cases import BINARY, DOMAIN, THREE, older, points
from tests.candidates.test_families import families
from tests.verify.forgery import card_html, rewritten, statement
from torchdpcate import load_release
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.candidates.library import FunctionPolicies
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError, ReleaseFileError
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.file import read_release_file, save_release
from torchdpcate.release.rule import PolicyRelease

SCHEMA = TableSchema.from_domain(DOMAIN)
ARMS = TableSchema.from_dict(SCHEMA.to_dict() | {"treatment": {"name": "mail", "categories": ["none", "men", "women"]}})


def released(policy, actions=BINARY, schema=SCHEMA) -> PolicyRelease:
    return PolicyRelease(policy.setup(DOMAIN, actions), actions, schema, statement(Level.CERTIFIED))


def test_a_policy_gives_labels():
    release, x = released(Thresholds("age", [40], 3, 1), THREE, ARMS), points()
    expected = np.where(x[:, 0] > 40, 3, 1)
    assert release.decide(x).dtype == np.int64
    assert np.array_equal(release.decide(x), expected)
    assert np.array_equal(release.answer(x).numpy(), expected)
    assert (release.name, release.kind, release.column) == ("age > 40: 3, else 1", "decision", "decision")
    frame = pd.DataFrame(x.numpy(), columns=list(DOMAIN.names))[["dose", "bmi", "age"]]
    assert np.array_equal(release.decide(frame), expected)
    with pytest.raises(InputError, match="query 'age' has 1 value outside"):
        release.decide([[91.0, 20.0, 0.0]])


@given(families())
@settings(max_examples=20, deadline=None)
def test_a_file_gives_the_same_policy_back(tmp_path_factory, family):
    release, x = released(family.one(0), THREE, ARMS), points(50)
    path = save_release(release, tmp_path_factory.mktemp("r") / "policy.safetensors")
    back = load_release(path)
    assert isinstance(back, PolicyRelease)
    assert (back.name, back.actions, back.schema, back.privacy) == (release.name, THREE, ARMS, release.privacy)
    if isinstance(family, FunctionPolicies):
        with pytest.raises(InputError, match=r"give it by bind\(function\)"):
            back.decide(x)
        back = back.bind(lambda x: np.full(len(x), 3))
    assert np.array_equal(back.decide(x), release.decide(x))
    again = save_release(back, path.with_name("again.safetensors"))
    assert read_release_file(again).metadata == read_release_file(path).metadata


def test_loading_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = save_release(released(FunctionPolicies([older])), tmp_path / "policy.safetensors")
    facts = {"policy": {"kind": "functions", "functions": ["planted:f"], "names": ["f"]}, "actions": [0, 1]}
    release = load_release(rewritten(path, facts=json.dumps(facts)))
    with pytest.raises(InputError, match="policy 'f' is a function, of which a release holds the name alone"):
        release.decide(points(3))
    assert "<p>decision by " in card_html(release)
    assert "planted" not in sys.modules


def test_bind_is_for_functions_that_decide_row_by_row():
    with pytest.raises(InputError, match="bind: policy 'always 0' is no function"):
        released(Constants([0])).bind(older)
    release = released(FunctionPolicies([older]))
    with pytest.raises(InputError, match="other rows"):
        release.bind(lambda x: x[:, 0] > x[:, 0].mean())
    assert np.array_equal(release.bind(older).decide(points()), release.decide(points()))


def test_a_fingerprint_stays_with_the_curator(tmp_path):
    policy = Thresholds("age", [40], fitted_on="ab" * 32)
    path = save_release(released(policy), tmp_path / "policy.safetensors")
    assert b"abababab" not in path.read_bytes()
    assert load_release(path).policy.fitted_on is None
    with safe_open(path, "pt") as file:
        assert not list(file.keys())


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"policy": {"kind": "constants", "actions": [0], "names": ["a"]}, "actions": []},
        {"policy": {"kind": "constants", "actions": [0], "names": ["a"]}, "actions": [0, 1.5]},
        {"policy": {"kind": "constants", "actions": [2], "names": ["a"]}, "actions": [0, 1]},
        {"policy": {"kind": "os.system", "actions": [0]}, "actions": [0, 1]},
        {"policy": {"kind": "thresholds", "covariate": ["height"], "cuts": [1]}, "actions": [0, 1]},
        {"policy": {"kind": "linear", "coefficients": [[1.0]]}, "actions": [0, 1]},
        {"policy": {"kind": "functions", "functions": [3]}, "actions": [0, 1]},
        {"policy": ["constants"], "actions": [0, 1]},
    ],
)
def test_made_up_files_are_no_policies(tmp_path, facts):
    path = save_release(released(Constants([0])), tmp_path / "policy.safetensors")
    with pytest.raises(ReleaseFileError):
        load_release(rewritten(path, facts=json.dumps(facts)))
