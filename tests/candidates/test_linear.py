import numpy as np
import pytest

from tests.candidates.cases import BINARY, DOMAIN, THREE, points
from torchdpcate.candidates.kinds import LinearPolicies
from torchdpcate.errors import InputError


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def test_two_actions_by_the_sign():
    weights, constants, x = random(40, 3), 10 * random(40), points()
    decided = LinearPolicies(weights, constants).setup(DOMAIN, BINARY).decide(x)
    assert np.array_equal(decided.numpy(), (x.numpy() @ weights.T + constants > 0).astype(np.int8))
    assert 0.1 < decided.double().mean() < 0.9


def test_more_actions_by_the_largest_score():
    weights, constants, x = random(40, 3, 2), 10 * random(40, 3), points()
    decided = LinearPolicies(weights, constants, ["dose", "age"]).setup(DOMAIN, THREE).decide(x)
    scores = np.einsum("mkj,nj->nmk", weights, x.numpy()[:, [2, 0]]) + constants
    assert np.array_equal(decided.numpy(), scores.argmax(2).astype(np.int8))
    assert set(decided.unique().tolist()) == {0, 1, 2}


def test_ties_go_to_the_first_action():
    x = points(3)
    assert LinearPolicies([0.0, 0.0, 0.0]).setup(DOMAIN, BINARY).decide(x).tolist() == [[0]] * 3
    assert LinearPolicies([[[0.0] * 3] * 3]).setup(DOMAIN, THREE).decide(x).tolist() == [[0]] * 3
    two = LinearPolicies([[[0.0] * 3] * 2], [[0.0, 1e-9]]).setup(DOMAIN, BINARY)
    assert two.decide(x).tolist() == [[1]] * 3


def test_names_are_scores_where_these_are_short():
    family = LinearPolicies([[1.0, -2.5], [-1.0, 0.0], [0.0, 0.0]], [0, 3, -4], ["age", "bmi"])
    assert family.names == ("age - 2.5 bmi > 0", "-age + 3 > 0", "-4 > 0")
    assert LinearPolicies(random(2, 3)).names == ("linear 1", "linear 2")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LinearPolicies(3.0), r"coefficients have shape \(\); give \[policies, covariates\]"),
        (lambda: LinearPolicies([[1, float("inf")]]), "coefficients hold what is no finite number"),
        (lambda: LinearPolicies([[1], [2]], [1]), r"intercepts have shape \(1,\); coefficients \(2, 1\) need \(2,\)"),
        (lambda: LinearPolicies([[1, 2]], covariates=["age"]), "covariates has 1 names for 2 coefficients"),
        (lambda: LinearPolicies([[1, 2]]).setup(DOMAIN, BINARY), "2 coefficients for the 3 covariates of the domain"),
        (lambda: LinearPolicies([[1, 2, 3]]).setup(DOMAIN, THREE), r"with 3 actions give coefficients \[policies, 3"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
