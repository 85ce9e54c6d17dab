"""Trees against a walk by hand, and against scikit-learn."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from tests.candidates.cases import BINARY, DOMAIN, THREE, points
from torchdpcate.candidates.kinds import TreePolicies
from torchdpcate.errors import InputError


def random_tree(rng: np.random.Generator, depth: int):
    if depth == 0 or rng.random() < 0.2:
        return int(rng.integers(1, 4))
    j = int(rng.integers(3))
    low, high = DOMAIN.covariate_low[j].item(), DOMAIN.covariate_high[j].item()
    above, below = random_tree(rng, depth - 1), random_tree(rng, depth - 1)
    return {"covariate": DOMAIN.names[j], "cut": float(rng.uniform(low, high)), "above": above, "below": below}


def walk(node, row) -> int:
    while isinstance(node, dict):
        node = node["above" if row[DOMAIN.names.index(node["covariate"])] > node["cut"] else "below"]
    return node


def test_trees_of_all_shapes_against_a_walk():
    rng = np.random.default_rng(0)
    trees, x = [random_tree(rng, depth) for depth in (0, 1, 2, 5, 8) for _ in range(4)], points(200)
    for row, tree in enumerate(trees):
        if isinstance(tree, dict):  # a point on the cut is not above it
            x[row, DOMAIN.names.index(tree["covariate"])] = tree["cut"]
    decided = TreePolicies(trees).setup(DOMAIN, THREE).decide(x)
    expected = [[walk(tree, row) - 1 for tree in trees] for row in x.tolist()]
    assert decided.tolist() == expected


@pytest.mark.parametrize("classes", [BINARY, THREE])
def test_trees_of_scikit_learn_decide_alike(classes):
    rng, x = np.random.default_rng(1), points(400, 1)
    fits = [
        DecisionTreeClassifier(max_depth=depth, random_state=depth).fit(x, rng.choice(classes, 400))
        for depth in (1, 3, 6, None)
    ]
    fits.append(DecisionTreeClassifier().fit(x, np.full(400, classes[1])))  # a stump without a cut
    new = points(3000, 2)
    family = TreePolicies.from_sklearn(fits, DOMAIN.names).setup(DOMAIN, classes)
    decided = torch.tensor(classes)[family.decide(new).long()]
    assert np.array_equal(decided.numpy(), np.stack([fit.predict(new.numpy()) for fit in fits], 1))


def test_columns_are_named_by_the_frame_or_as_domains_do():
    x, y = points(50).numpy(), [0, 1] * 25
    framed = DecisionTreeClassifier(max_depth=1).fit(pd.DataFrame(x, columns=["a", "b", "c"]), y)
    bare = DecisionTreeClassifier(max_depth=1).fit(x, y)
    assert TreePolicies.from_sklearn(framed).trees[0]["covariate"] in "abc"
    assert TreePolicies.from_sklearn(bare, fitted_on="0" * 64).trees[0]["covariate"] in ("x0", "x1", "x2")
    assert TreePolicies.from_sklearn(bare, fitted_on="0" * 64).fitted_on == "0" * 64


def deep(levels: int):
    node = 1
    for _ in range(levels):
        node = {"covariate": "age", "cut": 1, "above": 0, "below": node}
    return node


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TreePolicies([]), "trees: give a list of nodes"),
        (lambda: TreePolicies("age"), "trees: give a list of nodes"),
        (lambda: TreePolicies([0.5]), "a leaf of trees is 0.5; actions are integers"),
        (lambda: TreePolicies([None]), "a leaf of trees is None"),
        (lambda: TreePolicies([{"covariate": "age", "cut": 1, "above": 1}]), "the entries covariate, cut, above; give"),
        (lambda: TreePolicies([{**deep(1), "else": 1}]), "give covariate, cut, above, below, or the label"),
        (lambda: TreePolicies([{**deep(1), "cut": "x"}]), "a cut of trees is 'x'; give a number"),
        (lambda: TreePolicies([deep(101)]), "more than 100 deep"),
        (lambda: TreePolicies([deep(2)]).setup(DOMAIN, THREE), "policy 'tree 1': the action 0 is none of 1, 2, 3"),
        (lambda: TreePolicies.from_sklearn(DecisionTreeClassifier()), "give a fitted DecisionTreeClassifier"),
        (lambda: TreePolicies.from_sklearn(DecisionTreeRegressor().fit([[0], [1]], [0, 1])), "DecisionTreeRegressor"),
        (lambda: TreePolicies.from_sklearn(DecisionTreeClassifier().fit([[0], [1]], ["a", "b"])), "integers"),
        (
            lambda: TreePolicies.from_sklearn(DecisionTreeClassifier().fit([[0], [1]], [0, 1]), ["a", "b"]),
            "covariates has 2 names for a tree of 1 columns",
        ),
    ],
)
def test_what_is_no_tree_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
    assert TreePolicies(deep(100)).setup(DOMAIN, BINARY).decide(points(2)).tolist() == [[0], [0]]
