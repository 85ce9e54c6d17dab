import numpy as np
import pytest
import torch

from tests.candidates import cases
from tests.candidates.cases import BINARY, DOMAIN, THREE, older, points
from torchdpcate.candidates.library import FunctionPolicies, PolicyLibrary
from torchdpcate.errors import InputError

PATH = "tests.candidates.cases:older"


def test_a_function_is_stated_by_its_path_which_is_never_imported():
    family, x = FunctionPolicies([older]), points()
    assert family.config() == {"kind": "functions", "functions": [PATH], "names": ["older"]}
    assert torch.equal(family.setup(DOMAIN, BINARY).decide(x), (x[:, :1] > 40).to(torch.int8))
    named = FunctionPolicies.from_config(family.config())
    with pytest.raises(InputError, match="are the same policy"):
        PolicyLibrary([family, FunctionPolicies([PATH])])
    for one in (named, named.one(0), named.unbound(DOMAIN, BINARY).one(0), FunctionPolicies(["os:system"])):
        with pytest.raises(InputError, match="a file names functions and runs none"):
            one.setup(DOMAIN, BINARY)


def test_labels_become_positions_and_records_are_not_the_functions_to_change():
    def busy(x):
        x[:] = 0
        return [2] * len(x)

    x = points(5)
    before = x.clone()
    assert FunctionPolicies([busy]).setup(DOMAIN, THREE).decide(x).flatten().tolist() == [1] * 5
    assert torch.equal(x, before)


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
        (cases.third, "64 of 64 actions are none of 0, 1"),
        (lambda x: x[:, 0], "64 of 64 actions|63 of 64 actions"),
        (lambda x: x > 0, r"gives shape \(64, 3\) for 64 rows"),
        (lambda x: x["age"], "fails with IndexError; correct the function"),
        (None, r"or bind\(function\)"),
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
    assert PolicyLibrary.of(older).setup(DOMAIN, BINARY).fitted_on == {"a" * 64}
    with pytest.raises(InputError, match="made from different records"):
        FunctionPolicies([older], fitted_on="b" * 64)
    monkeypatch.setattr(cases.older, "fitted_on", "yesterday", raising=False)
    with pytest.raises(InputError, match="fitted_on is 'yesterday'"):
        FunctionPolicies([older])
