"""Kinds of policies: constants, thresholds, linear scores, decision trees."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from torchdpcate.candidates.family import (
    PolicyFamily,
    check_labels,
    check_names,
    check_numbers,
    column_of,
    position_of,
    positions_of,
    shown,
    spread_over,
)
from torchdpcate.data._arrays import to_float64
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import to_number
from torchdpcate.errors import InputError

_TERMS = 3  # a score of more covariates makes no readable name
_ENTRIES = ("covariate", "cut", "above", "below")
_DEEPEST = 100


class Constants(PolicyFamily):
    r"""Policies :math:`\pi_m(x) = a_m`.

    Args:
        actions: Label of each policy's action.
        names: Names of the policies; ``always 1`` and so on if left out.
        fitted_on: ``fingerprint`` of the records that they were made from, if any.

    Raises:
        InputError: No action, one that is no integer, or names that do not fit.

    Example:
        >>> import torch
        >>> from torchdpcate.data import Domain
        >>> family = Constants([0, 1]).setup(Domain([0.0], [1.0], 0.0, 1.0), (0, 1))
        >>> family.names, family.decide(torch.zeros(1, 1)).tolist()
        (('always 0', 'always 1'), [[0, 1]])
    """

    kind, each = "constants", ("actions",)

    def __init__(
        self, actions: Sequence[int], names: Sequence[str] | None = None, fitted_on: str | None = None
    ) -> None:
        self.labels = check_labels("actions", actions)
        super().__init__(check_names(names, [f"always {label}" for label in self.labels]), fitted_on)

    def _look_up(self, domain: Domain, actions: tuple[int, ...]) -> None:
        self._positions = positions_of(self.labels, actions, self.names)

    def _decide(self, x: Tensor) -> Tensor:
        return self._positions.expand(len(x), -1)

    def _settings(self) -> dict[str, Any]:
        return {"actions": list(self.labels)}


class Thresholds(PolicyFamily):
    r"""Policies :math:`\pi_m(x) = above_m` where :math:`x_{j_m} > c_m`, else :math:`below_m`.

    Args:
        covariate: Name of the (encoded) covariate, or one for each cut.
        cuts: The cuts c, in the covariate's units.
        above: Label of the action above the cut, or one for each; with two actions the second one if left out.
        below: Label of the action up to the cut, or one for each; with two actions the first one if left out.
        names: Names of the policies; ``age > 40`` and so on if left out.
        fitted_on: ``fingerprint`` of the records that they were made from, if any.

    Raises:
        InputError: No cut, lists of other lengths, one of above and below alone; on ``setup``, an unknown covariate or
            action, or more than two actions and none chosen.

    Example:
        >>> from torchdpcate.data import Domain
        >>> family = Thresholds("age", [20, 40]).setup(Domain([0.0], [90.0], 0.0, 1.0, names=["age"]), (0, 1))
        >>> family.names, family.decide(torch.tensor([[20.0], [41.0]])).tolist()
        (('age > 20', 'age > 40'), [[0, 0], [1, 1]])
    """

    kind, each = "thresholds", ("covariate", "cuts", "above", "below")

    def __init__(
        self,
        covariate: str | Sequence[str],
        cuts: Sequence[float],
        above: int | Sequence[int] | None = None,
        below: int | Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        fitted_on: str | None = None,
    ) -> None:
        self.cuts = check_numbers("cuts", cuts)
        named = (covariate,) if isinstance(covariate, str) else tuple(map(str, covariate))
        self.covariates: tuple[str, ...] = spread_over("covariate", named, len(self))
        if (above is None) != (below is None):
            raise InputError("above and below: give both, or neither where there are two actions")
        self.labels = None if above is None else (self._each("above", above), self._each("below", below))
        ends = [""] * len(self)
        if self.labels is not None:
            ends = [f": {a}, else {b}" for a, b in zip(*self.labels, strict=True)]
        default = [f"{c} > {shown(cut)}{end}" for c, cut, end in zip(self.covariates, self.cuts, ends, strict=True)]
        super().__init__(check_names(names, default), fitted_on)

    def __len__(self) -> int:
        return len(self.cuts)

    def keys(self) -> list[Hashable]:
        """Return covariate, cut and both actions."""
        labels = self._resolved(self.actions) if self.actions else self.labels
        pairs = [None] * len(self) if labels is None else list(zip(*labels, strict=True))
        return list(zip(self.covariates, self.cuts, pairs, strict=True))

    def _resolved(self, actions: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the labels above and below every cut."""
        return self.labels or ((actions[1],) * len(self), (actions[0],) * len(self))

    def _each(self, name: str, labels: Any) -> tuple[int, ...]:
        return spread_over(name, check_labels(name, labels), len(self))

    def _look_up(self, domain: Domain, actions: tuple[int, ...]) -> None:
        if self.labels is None and len(actions) > 2:
            raise InputError(
                f"policy {self.names[0]!r}: with {len(actions)} actions say which to take: give above and below"
            )
        self._columns = [column_of(c, domain, name) for c, name in zip(self.covariates, self.names, strict=True)]
        self._cuts = torch.tensor(self.cuts, dtype=torch.float64)
        self._above, self._below = (positions_of(each, actions, self.names) for each in self._resolved(actions))

    def _decide(self, x: Tensor) -> Tensor:
        columns = self._columns
        values = x[:, columns[:1]] if len(set(columns)) == 1 else x[:, columns]
        return torch.where(values > self._cuts, self._above, self._below)

    def _settings(self) -> dict[str, Any]:
        actions = {} if self.labels is None else dict(zip(("above", "below"), map(list, self.labels), strict=True))
        return {"covariate": list(self.covariates), "cuts": list(self.cuts), **actions}


class LinearPolicies(PolicyFamily):
    r"""Policies by linear scores; the first of two actions where the score is at most zero.

    .. math::
        s_m(x) = b_m + w_m^\top x, \quad \pi_m(x) = 1\{s_m(x) > 0\}
        \qquad\text{or}\qquad \pi_m(x) = \arg\max_a \, b_{ma} + w_{ma}^\top x

    in positions; of equal scores the first action's wins.

    Args:
        coefficients: w in units of the encoded covariates: [k] for one policy of two actions, [M, k], or [M, K, k] for
            one score per action.
        intercepts: b, of the coefficients' shape without k; zero if left out.
        covariates: Names of the k (encoded) covariates; None takes all, in the domain's order.
        names: Names of the policies; the score if it is short, otherwise ``linear 1`` and so on.
        fitted_on: ``fingerprint`` of the records that they were made from, if any.

    Raises:
        InputError: Shapes that do not fit, or what is no finite number; on ``setup``, an unknown covariate, or another
            number of scores than of actions.

    Example:
        >>> from torchdpcate.data import Domain
        >>> family = LinearPolicies([[1.0, -1.0]], covariates=["x0", "x1"])
        >>> ready = family.setup(Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0), (0, 1))
        >>> family.names, ready.decide(torch.tensor([[0.5, 0.2], [0.2, 0.2]])).tolist()
        (('x0 - x1 > 0',), [[1], [0]])
    """

    kind, each = "linear", ("coefficients", "intercepts")

    def __init__(
        self,
        coefficients: Any,
        intercepts: Any = None,
        covariates: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        fitted_on: str | None = None,
    ) -> None:
        weights = _numbers("coefficients", coefficients)
        weights = weights[None] if weights.ndim == 1 else weights
        if weights.ndim not in (2, 3) or 0 in weights.shape:
            raise InputError(f"coefficients have shape {tuple(weights.shape)}; give [policies, covariates] or one more")
        shape = weights.shape[:-1]
        constants = torch.zeros(shape) if intercepts is None else _numbers("intercepts", intercepts)
        if constants.numel() != shape.numel():
            found = tuple(constants.shape)
            raise InputError(f"intercepts have shape {found}; coefficients {tuple(weights.shape)} need {tuple(shape)}")
        self.coefficients, self.intercepts = weights, constants.to(torch.float64).reshape(shape)
        self.covariates = None if covariates is None else tuple(map(str, covariates))
        if self.covariates is not None and len(set(self.covariates)) != weights.shape[-1]:
            raise InputError(f"covariates has {len(set(self.covariates))} names for {weights.shape[-1]} coefficients")
        super().__init__(check_names(names, self._default_names()), fitted_on)

    def _default_names(self) -> list[str]:
        count, width = self.coefficients.shape[0], self.coefficients.shape[-1]
        if self.coefficients.ndim == 3 or self.covariates is None or width > _TERMS:
            return [f"linear {i + 1}" for i in range(count)]
        pairs = zip(self.coefficients.tolist(), self.intercepts.tolist(), strict=True)
        return [f"{_score(weights, intercept, self.covariates)} > 0" for weights, intercept in pairs]

    def _look_up(self, domain: Domain, actions: tuple[int, ...]) -> None:
        names, width = self.covariates or domain.names, self.coefficients.shape[-1]
        if len(names) != width:
            raise InputError(
                f"policy {self.names[0]!r}: {width} coefficients for the {len(names)} covariates of the domain; name "
                "those meant by covariates"
            )
        scores = self.coefficients.shape[1] if self.coefficients.ndim == 3 else 2
        if scores != len(actions):
            raise InputError(
                f"policy {self.names[0]!r}: with {len(actions)} actions give coefficients [policies, {len(actions)}, "
                "covariates], one score per action"
            )
        self._columns = [column_of(name, domain, self.names[0]) for name in names]
        self._weights, self._constant = self.coefficients.flatten(0, -2).T.contiguous(), self.intercepts.flatten()

    def _decide(self, x: Tensor) -> Tensor:
        scores = torch.addmm(self._constant, x[:, self._columns], self._weights)
        if self.coefficients.ndim == 2:
            return (scores > 0).to(torch.int8)
        return scores.view(len(x), len(self), -1).argmax(2).to(torch.int8)

    def _settings(self) -> dict[str, Any]:
        return {
            "coefficients": self.coefficients.tolist(),
            "intercepts": self.intercepts.tolist(),
            **({} if self.covariates is None else {"covariates": list(self.covariates)}),
        }


def _numbers(name: str, values: Any) -> Tensor:
    tensor = to_float64(values, name).cpu() + 0.0  # -0.0 and 0.0 are the same policy
    if not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{name} hold what is no finite number")
    return tensor


def _score(weights: list[float], intercept: float, covariates: tuple[str, ...]) -> str:
    """Write a score: ``2 age - bmi + 1``."""
    terms = [(w, name) for w, name in zip(weights, covariates, strict=True) if w] + [(intercept, "")] * bool(intercept)
    text = ""
    for weight, name in terms:
        size = "" if abs(weight) == 1 and name else shown(abs(weight))
        sign = ("-" if weight < 0 else "") if not text else (" - " if weight < 0 else " + ")
        text += sign + " ".join(filter(None, (size, name)))
    return text or "0"


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

    kind, each = "trees", ("trees",)

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
