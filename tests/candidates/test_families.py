import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.candidates.cases import BINARY, DOMAIN, THREE, points
from torchdpcate.candidates.kinds import Constants, LinearPolicies, PolicyFamily, Thresholds, check_actions
from torchdpcate.candidates.library import FunctionPolicies, policy_family
from torchdpcate.errors import InputError

NUMBER = st.floats(-100, 100, allow_nan=False)
COVARIATE = st.sampled_from(DOMAIN.names)
LABEL = st.sampled_from(THREE)


@st.composite
def families(draw) -> PolicyFamily:
    """Any family of policies with three actions that a file can hold."""
    count = draw(st.integers(1, 5))

    def each(of):
        return draw(st.lists(of, min_size=count, max_size=count))

    kind = draw(st.sampled_from(["constants", "thresholds", "linear", "functions"]))
    if kind == "constants":
        return Constants(each(LABEL), fitted_on=draw(st.sampled_from([None, "ab" * 32])))
    if kind == "thresholds":
        return Thresholds(each(COVARIATE), each(NUMBER), each(LABEL), each(LABEL))
    if kind == "linear":
        shape = st.lists(st.lists(NUMBER, min_size=2, max_size=2), min_size=3, max_size=3)
        names = draw(st.sampled_from([["age", "bmi"], ["dose", "age"]]))
        return LinearPolicies(each(shape), each(st.lists(NUMBER, min_size=3, max_size=3)), names)
    return FunctionPolicies(["tests.candidates.cases:third"] * count)


@pytest.mark.slow
@given(families())
@settings(max_examples=150, deadline=None)
def test_plain_types_give_the_same_family_back(family):
    back = policy_family(json.loads(json.dumps(family.config())))
    assert type(back) is type(family)
    assert back.config() == family.config()
    assert (back.names, back.fitted_on, back.keys()) == (family.names, family.fitted_on, family.keys())
    ready, x = family.setup(DOMAIN, THREE), points(50)
    decided = ready.decide(x)
    assert decided.dtype == torch.int8
    assert decided.shape == (50, len(family))
    assert 0 <= int(decided.min()) <= int(decided.max()) < 3
    if isinstance(back, FunctionPolicies):
        back = back.allowing(["tests.candidates.cases"])
    assert torch.equal(back.setup(DOMAIN, THREE).decide(x), decided)
    last = ready.one(-1)
    assert (last.names, last.fitted_on) == (family.names[-1:], family.fitted_on)
    assert torch.equal(last.decide(x), decided[:, -1:])
    assert family.one(0).domain is None
    assert not family.actions  # setup leaves the family as it was


@given(st.lists(st.tuples(COVARIATE, NUMBER, LABEL, LABEL), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_thresholds_are_a_comparison_per_policy(rows):
    covariates, cuts, above, below = zip(*rows, strict=True)
    x = points(80)
    x[0, 0], x[1, 1] = cuts[0], cuts[0]  # a point on the cut is not above it
    decided = Thresholds(covariates, cuts, above, below).setup(DOMAIN, THREE).decide(x).numpy()
    for m, (name, cut, high, low) in enumerate(rows):
        column = x[:, DOMAIN.names.index(name)].numpy()
        assert np.array_equal(decided[:, m] + 1, np.where(column > cut, high, low))


def test_two_actions_need_no_choice_and_names_are_readable():
    family = Thresholds("age", [40, 41.5]).setup(DOMAIN, (5, 9))
    assert family.names == ("age > 40", "age > 41.5")
    x = torch.tensor([[40.0, 20.0, 0.0], [41.0, 20.0, 0.0]])
    assert family.decide(x).tolist() == [[0, 0], [1, 0]]
    assert Thresholds("age", 40, 2, 1).names == ("age > 40: 2, else 1",)
    assert Constants([0, 1]).names == ("always 0", "always 1")
    assert Thresholds("age", [40], names="old").names == ("old",)


def test_records_in_many_blocks_and_none_at_all(monkeypatch):
    family, x = Thresholds("age", [20, 40, 60]).setup(DOMAIN, BINARY), points(100)
    together = family.decide(x)
    monkeypatch.setattr("torchdpcate.candidates.kinds._BLOCK", 21)
    assert torch.equal(family.decide(x), together)
    assert family.decide(x[:0]).shape == (0, 3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Thresholds("age", []), "cuts is empty; give one number at least"),
        (lambda: Thresholds("age", [float("nan")]), r"cuts\[0\] is nan; give a finite number"),
        (lambda: Thresholds(["age", "bmi"], [1, 2, 3]), "covariate has 2 values for 3 policies; give one, or one for"),
        (lambda: Thresholds("age", [1], above=1), "above and below: give both"),
        (lambda: Thresholds("age", [1], above=True, below=0), "above is True; actions are integers"),
        (lambda: Thresholds("age", [1, 2], names=["one"]), "names has 1 name for 2 policies; give one for each"),
        (lambda: Thresholds("age", [1], names=["a\nb"]), "names holds 'a\\\\nb'; name a policy by one line"),
        (lambda: Thresholds("age", [1], fitted_on="my trial"), r"fitted_on is 'my trial'; give fingerprint\(X, A, Y\)"),
        (lambda: Constants([]), "actions is empty"),
        (
            lambda: policy_family({"kind": "oracle"}),
            "kind is 'oracle'; choose one of constants, functions, linear",
        ),
        (lambda: policy_family({"kind": "thresholds", "cuts": [1]}), "thresholds needs 'covariate'; known are"),
    ],
)
def test_what_is_no_family_is_refused_in_one_line(make, words):
    with pytest.raises(InputError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "actions", "words"),
    [
        (Thresholds("height", [1]), BINARY, "policy 'height > 1': 'height' is no covariate; there are age, bmi, dose"),
        (Thresholds("age", [1], 2, 0), BINARY, "policy 'age > 1: 2, else 0': the action 2 is none of 0, 1"),
        (Thresholds("age", [1]), THREE, "with 3 actions say which to take: give above and below"),
    ],
)
def test_what_does_not_fit_domain_or_actions_is_refused(family, actions, words):
    with pytest.raises(InputError, match=words):
        family.setup(DOMAIN, actions)


@pytest.mark.parametrize("actions", [(), (1,), (1, 1), (2, 1), range(128)])
def test_actions_are_labels_in_order(actions):
    with pytest.raises(InputError, match=r"^actions "):
        check_actions(actions)
    assert check_actions(np.array([0, 1])) == (0, 1)
    assert len(check_actions(range(127))) == 127
