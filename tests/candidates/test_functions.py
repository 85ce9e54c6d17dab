import numpy as np
import pytest
import torch

from tests.candidates import cases
from tests.candidates.cases import BINARY, DOMAIN, THREE, older, points
from torchdpcate.candidates.library import FunctionPolicies, PolicyLibrary
from torchdpcate.errors import InputError

PATH = "tests.candidates.cases:older"


def test_a_path_and_the_function_itself_are_the_same_policy():
    by_path, by_object = FunctionPolicies([PATH]), FunctionPolicies([older])
    assert by_path.config()["functions"] == by_object.config()["functions"] == [PATH]
    assert (by_path.names, by_object.names) == ((PATH,), ("older",))
    x = points()
    expected = (x[:, :1] > 40).to(torch.int8)
    assert torch.equal(by_path.setup(DOMAIN, BINARY).decide(x), expected)
    assert torch.equal(by_object.setup(DOMAIN, BINARY).decide(x), expected)
    with pytest.raises(InputError, match="are the same policy"):
        PolicyLibrary([by_path, by_object])


def test_labels_become_positions_and_records_are_not_the_functions_to_change():
    def busy(x):
        x[:] = 0
        return [2] * len(x)

    x = points(5)
    before = x.clone()
    assert FunctionPolicies([busy]).setup(DOMAIN, THREE).decide(x).flatten().tolist() == [1] * 5
    assert torch.equal(x, before)


def test_a_path_is_imported_by_setup_and_not_before(tmp_path, monkeypatch):
    (tmp_path / "late_policy.py").write_text("def f(x):\n    return x[:, 0] > 40\n")
    monkeypatch.syspath_prepend(tmp_path)
    import sys

    family = FunctionPolicies.from_config({"functions": ["late_policy:f"]})
    family.config(), family.keys(), family.one(0), family.unbound(DOMAIN, BINARY).one(0)
    assert "late_policy" not in sys.modules
    with pytest.raises(InputError, match="code of the module 'late_policy', named by a file"):
        family.setup(DOMAIN, BINARY)
    assert "late_policy" not in sys.modules
    family = family.allowing(["late_policy"])
    assert family.setup(DOMAIN, BINARY).decide(points(3)).shape == (3, 1)
    assert "late_policy" in sys.modules


def test_a_policy_that_looks_at_other_rows_is_refused():
    generator = np.random.default_rng(0)
    for function in (
        lambda x: x[:, 0] > x[:, 0].mean(),
        lambda x: np.arange(len(x)) % 2,
        lambda x: np.arange(len(x)) > 20,
        lambda x: generator.integers(0, 2, len(x)),
        lambda x: np.full(len(x), len(x) > 1),
    ):
        with pytest.raises(InputError, match="decides otherwise when it sees other rows"):
            FunctionPolicies([older, function], names=["fine", "not"]).setup(DOMAIN, BINARY)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("tests.candidates.cases:younger", "cannot be imported .AttributeError"),
        ("tests.candidates.cases:not_a_function", "is no function"),
        ("tests.candidates.cases:third", "64 of 64 actions are none of 0, 1"),
        (lambda x: x[:, 0], "64 of 64 actions|63 of 64 actions"),
        (lambda x: x > 0, r"gives shape \(64, 3\) for 64 rows"),
        (lambda x: x["age"], "fails with IndexError; correct the function"),
        (None, "without an import path; give it by bind"),
    ],
)
def test_functions_that_are_none_are_refused(function, words):
    with pytest.raises(InputError, match=words):
        FunctionPolicies([function], names=["it"]).setup(DOMAIN, BINARY)


def test_bind_gives_the_function_that_a_name_stands_for():
    named = FunctionPolicies([lambda x: x[:, 0] > 40], names=["old"]).unbound(DOMAIN, BINARY)
    assert named.config()["functions"] == [None]
    with pytest.raises(InputError, match=r"give it by bind\(function\)"):
        named.decide(points())
    bound = named.bind(older)
    assert bound.names == ("old",)
    assert torch.equal(bound.decide(points()), FunctionPolicies([older]).setup(DOMAIN, BINARY).decide(points()))
    assert bound.config() == named.config()
    for family, function in ((named, "os:system"), (FunctionPolicies([older]), older)):
        with pytest.raises(InputError, match="bind: give one function, not"):
            family.bind(function)


def test_a_function_says_what_it_was_made_from(monkeypatch):
    monkeypatch.setattr(cases.older, "fitted_on", "a" * 64, raising=False)
    assert FunctionPolicies([older]).fitted_on == "a" * 64
    assert FunctionPolicies([PATH]).fitted_on is None
    assert PolicyLibrary.of(PATH).setup(DOMAIN, BINARY).fitted_on == {"a" * 64}
    with pytest.raises(InputError, match="made from different records"):
        FunctionPolicies([older], fitted_on="b" * 64)
    monkeypatch.setattr(cases.older, "fitted_on", "yesterday", raising=False)
    with pytest.raises(InputError, match="fitted_on is 'yesterday'"):
        FunctionPolicies([older])


@pytest.mark.parametrize(
    ("path", "allow", "words"),
    [
        ("pickle:loads", ["pick", "pickle.loads", "*"], r"policies\.allow=\[pickle\]"),
        ("tests.candidates.cases:older", ["tests", "tests.candidates"], "module 'tests.candidates.cases'"),
        ("tests.candidates.cases:np.load", ["tests.candidates.cases"], "'np.load' is no name of a function"),
        ("tests.candidates.cases:Domain", ["tests.candidates.cases"], "defined in torchdpcate.data.domain, not in"),
    ],
)
def test_a_file_names_no_code_but_functions_of_modules_that_are_allowed(path, allow, words):
    entries = [{"kind": "functions", "functions": [path]}]
    with pytest.raises(InputError, match=words):
        PolicyLibrary.of(entries, allow).setup(DOMAIN, BINARY)
    with pytest.raises(InputError, match=words):
        FunctionPolicies.from_config(entries[0]).allowing(allow).one(0).setup(DOMAIN, BINARY)


def test_one_policy_of_a_family_may_do_no_more_than_the_family():
    family = FunctionPolicies.from_config({"functions": [PATH, "os:system"]})
    for part in (family.one(1), family.allowing([cases.__name__]).one(1), family.unbound(DOMAIN, BINARY).one(1)):
        with pytest.raises(InputError, match="module 'os'"):
            part.setup(DOMAIN, BINARY)
