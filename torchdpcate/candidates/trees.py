"""Decision trees, as nested entries or from scikit-learn."""

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from torchdpcate.candidates.family import PolicyFamily, check_labels, check_names, column_of, position_of
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import to_number
from torchdpcate.errors import InputError

_ENTRIES = ("covariate", "cut", "above", "below")
_DEEPEST = 100


class TreePolicies(PolicyFamily):
    """Policies by decision trees.

    A node is the label of an action, or the entries ``covariate``, ``cut``, ``above`` and ``below``: where the
    covariate is above the cut the node ``above`` goes on, otherwise the node ``below``.

    Args:
        trees: Root node of each tree; a single mapping is one tree.
        names: Names of the policies; ``tree 1`` and so on if left out.
        fitted_on: ``fingerprint`` of the records that they were made from, if any.

    Raises:
        InputError: No tree, a node that is neither, or a tree more than 100 deep; on ``setup``, an unknown covariate or
            action.

    Example:
        >>> from torchdpcate.data import Domain
        >>> old = {"covariate": "bmi", "cut": 30, "above": 0, "below": 1}
        >>> family = TreePolicies([{"covariate": "age", "cut": 60, "above": old, "below": 0}])
        >>> ready = family.setup(Domain([0, 10], [90, 50], 0.0, 1.0, names=["age", "bmi"]), (0, 1))
        >>> ready.decide(torch.tensor([[50.0, 20.0], [70.0, 20.0], [70.0, 40.0]])).flatten().tolist()
        [0, 1, 0]
    """

    kind = "trees"

    def __init__(self, trees: Any, names: Sequence[str] | None = None, fitted_on: str | None = None) -> None:
        listing = [trees] if isinstance(trees, Mapping) else trees
        if not isinstance(listing, Sequence) or isinstance(listing, str) or not listing:
            raise InputError("trees: give a list of nodes, each with covariate, cut, above and below")
        self.trees = [_plain(tree) for tree in listing]
        super().__init__(check_names(names, [f"tree {i + 1}" for i in range(len(listing))]), fitted_on)

    @classmethod
    def from_sklearn(
        cls,
        tree: Any,
        covariates: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        fitted_on: str | None = None,
    ) -> Self:
        """Read fitted scikit-learn trees, which must come from public data.

        scikit-learn compares in single precision, this class in double: they may differ where a covariate is within
        6e-8 (relative) of a cut.

        Args:
            tree: A fitted ``DecisionTreeClassifier`` whose classes are labels of actions, or a list of them.
            covariates: Names of the columns it was fitted on; those of its frame if left out, else ``x0``, ``x1``, ...
            names: Names of the policies.
            fitted_on: ``fingerprint`` of the records it was fitted on; a selector refuses its own.

        Raises:
            InputError: No fitted classifier of one output, or classes that are no integers.

        Example:
            >>> from sklearn.tree import DecisionTreeClassifier
            >>> fitted = DecisionTreeClassifier().fit([[20.0], [60.0]], [0, 1])
            >>> TreePolicies.from_sklearn(fitted, covariates=["age"]).trees
            [{'covariate': 'age', 'cut': 40.0, 'above': 1, 'below': 0}]
        """
        fitted = list(tree) if isinstance(tree, list | tuple) else [tree]
        return cls([_from_sklearn(one, covariates) for one in fitted], names, fitted_on)

    def keys(self) -> list[Hashable]:
        """Return the nodes."""
        return [json.dumps(tree, sort_keys=True) for tree in self.trees]

    def _look_up(self, domain: Domain, actions: tuple[int, ...]) -> None:
        nodes: list[_Node] = []
        # all trees in one array: a leaf leads to itself, so that walks of any length end there
        roots = [
            _flatten(tree, nodes, domain, actions, name) for tree, name in zip(self.trees, self.names, strict=True)
        ]
        column, above, below, leaf, cut = zip(*nodes, strict=True)
        self._column, self._above, self._below = map(torch.tensor, (column, above, below))
        self._leaf, self._cut = torch.tensor(leaf, dtype=torch.int8), torch.tensor(cut, dtype=torch.float64)
        self._roots, self._depth = torch.tensor(roots), max(map(_depth, self.trees))

    def _decide(self, x: Tensor) -> Tensor:
        node = self._roots.expand(len(x), -1)
        for _ in range(self._depth):
            above = x.gather(1, self._column[node]) > self._cut[node]
            node = torch.where(above, self._above[node], self._below[node])
        return self._leaf[node]

    def _one(self, index: int) -> "TreePolicies":
        return TreePolicies([self.trees[index]], [self.names[index]], self.fitted_on)

    def _settings(self) -> dict[str, Any]:
        return {"trees": self.trees}


class _Node(NamedTuple):
    """A node among all trees' nodes."""

    column: int
    above: int
    below: int
    leaf: int
    cut: float


def _plain(node: Any, depth: int = 0) -> Any:
    """Return a node as plain types, checked."""
    if depth > _DEEPEST:
        raise InputError(f"trees: a tree is more than {_DEEPEST} deep")
    if not isinstance(node, Mapping):
        return check_labels("a leaf of trees", node)[0]
    if set(node) != set(_ENTRIES) or not isinstance(node["covariate"], str):
        raise InputError(
            f"trees: a node has the entries {', '.join(map(str, node)) or 'none'}; give {', '.join(_ENTRIES)}, or the "
            "label of an action"
        )
    return {
        "covariate": node["covariate"],
        "cut": to_number("a cut of trees", node["cut"]) + 0.0,
        "above": _plain(node["above"], depth + 1),
        "below": _plain(node["below"], depth + 1),
    }


def _depth(node: Any) -> int:
    return 1 + max(_depth(node["above"]), _depth(node["below"])) if isinstance(node, Mapping) else 0


def _flatten(node: Any, nodes: list[_Node], domain: Domain, actions: tuple[int, ...], name: str) -> int:
    """Append a tree's nodes and return the position of its root."""
    if not isinstance(node, Mapping):
        here = len(nodes)
        nodes.append(_Node(0, here, here, position_of(node, actions, name), 0.0))
        return here
    above = _flatten(node["above"], nodes, domain, actions, name)
    below = _flatten(node["below"], nodes, domain, actions, name)
    nodes.append(_Node(column_of(node["covariate"], domain, name), above, below, 0, node["cut"]))
    return len(nodes) - 1


def _from_sklearn(fitted: Any, covariates: Sequence[str] | None) -> Any:
    tree = getattr(fitted, "tree_", None)
    if tree is None or not hasattr(fitted, "classes_") or tree.n_outputs != 1:
        raise InputError(f"tree is of type {type(fitted).__name__}; give a fitted DecisionTreeClassifier of one output")
    labels = check_labels("classes of the tree", fitted.classes_.tolist())
    width = int(fitted.n_features_in_)
    own = getattr(fitted, "feature_names_in_", [f"x{i}" for i in range(width)])
    columns = [str(name) for name in (own if covariates is None else covariates)]
    if len(columns) != width:
        raise InputError(f"covariates has {len(columns)} names for a tree of {width} columns")

    def node(i: int) -> Any:
        if tree.children_left[i] < 0:
            return labels[int(tree.value[i, 0].argmax())]
        return {
            "covariate": columns[tree.feature[i]],
            "cut": float(tree.threshold[i]),
            "above": node(tree.children_right[i]),
            "below": node(tree.children_left[i]),
        }

    return node(0)
