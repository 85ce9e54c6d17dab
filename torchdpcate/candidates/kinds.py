"""Families of public policies by kind: constants, thresholds, linear scores; decided side by side."""

import copy
import inspect
import json
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from torchdpcate.data._arrays import listed, plural, to_float64
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import to_number
from torchdpcate.errors import InputError

MOST_ACTIONS = 127
"""Decisions are int8 positions."""

_BLOCK = 1 << 20  # decisions at a time: what they need beside the answer then stays in the tens of MiB


class PolicyFamily(ABC):
    r"""Policies :math:`\pi_1, \dots, \pi_M : x \mapsto a` of one kind, decided side by side.

    A policy is public: nothing in it comes from the records that it will be tried on. A record's action depends on its
    own covariates alone. Inside, an action is its position among the labels, 0 to K - 1.

    Attributes:
        kind: Name of the kind in files.
        each: Those of its settings that are lists of one entry a policy.
        names: A readable name for each policy.
        fitted_on: ``fingerprint`` of the records that the policies were made from; None if they were made from none.
        domain: Public bounds of the covariates, once set up.
        actions: Labels of the actions, once set up; empty before.
    """

    kind: ClassVar[str]
    each: ClassVar[tuple[str, ...]]

    def __init__(self, names: tuple[str, ...], fitted_on: str | None) -> None:
        self.names = names
        self.fitted_on = check_source(fitted_on)
        self.domain: Domain | None = None
        self.actions: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({listed(self.names, 3)})"

    def setup(self, domain: Domain, actions: Sequence[int]) -> Self:
        """Return these policies with covariates and actions looked up.

        Args:
            domain: Public bounds; covariates go by ``domain.names``.
            actions: Labels of the K actions.

        Raises:
            InputError: A covariate that the domain does not have, or an action that is none of the labels.
        """
        ready = copy.copy(self)
        ready.domain, ready.actions = domain, check_actions(actions)
        ready._look_up(domain, ready.actions)
        return ready

    def decide(self, x: Tensor) -> Tensor:
        """Return the position of each policy's action at encoded covariates x [n, q], int8 [n, M].

        Raises:
            InputError: Not set up, or x is not [n, q].
        """
        if self.domain is None:
            raise InputError(f"{type(self).__name__} knows no domain yet; call setup(domain, actions) first")
        if x.ndim != 2 or x.shape[1] != self.domain.dimension:
            raise InputError(f"x has shape {tuple(x.shape)}; it must be [records, {self.domain.dimension}]")
        parts = x.to(torch.float64).split(max(1, _BLOCK // len(self)))
        return torch.cat([self._decide(part) for part in parts])

    def one(self, index: int) -> Self:
        """Return the family of policy ``index`` alone, set up if this one is."""
        chosen = self._one(range(len(self))[index])
        return chosen if self.domain is None else chosen.setup(self.domain, self.actions)

    def config(self) -> dict[str, Any]:
        """Return the policies as plain types, fit for JSON and yaml; ``from_config`` is the inverse."""
        source = {} if self.fitted_on is None else {"fitted_on": self.fitted_on}
        return {"kind": self.kind, **self._settings(), "names": list(self.names), **source}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Rebuild a family of this kind from ``config``, not set up.

        Raises:
            InputError: An entry is missing, unknown or invalid.
        """
        parameters = inspect.signature(cls).parameters
        settings = {str(key): value for key, value in config.items() if key != "kind"}
        unknown = [key for key in settings if key not in parameters]
        if unknown:
            raise InputError(f"{cls.kind} has no setting {unknown[0]!r}; known are {listed(parameters)}")
        missing = [key for key, p in parameters.items() if p.default is p.empty and settings.get(key) is None]
        if missing:
            raise InputError(f"{cls.kind} needs {missing[0]!r}; known are {listed(parameters)}")
        return cls(**settings)

    def keys(self) -> list[Hashable]:
        """Return what distinguishes each policy from others of its kind, whatever its name."""
        return [json.dumps(self._settings_of(index), sort_keys=True) for index in range(len(self))]

    def _settings_of(self, index: int) -> dict[str, Any]:
        return {name: [value[index]] if name in self.each else value for name, value in self._settings().items()}

    @abstractmethod
    def _look_up(self, domain: Domain, actions: tuple[int, ...]) -> None:
        """Turn names of covariates into columns, and labels into positions."""

    @abstractmethod
    def _decide(self, x: Tensor) -> Tensor:
        """Return the positions at float64 x [n, q], int8 [n, M]."""

    def _one(self, index: int) -> Self:
        """Return policy ``index`` alone, not set up."""
        settings = self._settings_of(index) | {"names": [self.names[index]], "fitted_on": self.fitted_on}
        return type(self)(**settings)

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """Return the arguments but names and ``fitted_on``, as plain types."""


def check_actions(actions: Sequence[int]) -> tuple[int, ...]:
    """Return the labels of the actions.

    Raises:
        InputError: Not two or more integers in increasing order, or more than int8 counts.
    """
    labels = check_labels("actions", actions)
    if not 2 <= len(labels) <= MOST_ACTIONS or list(labels) != sorted(set(labels)):
        raise InputError(
            f"actions are {listed(labels)}; give 2 to {MOST_ACTIONS} labels, each once, in increasing order"
        )
    return labels


def check_labels(name: str, labels: Any) -> tuple[int, ...]:
    """Return labels of actions as integers; one label stands for a list of one.

    Raises:
        InputError: None at all, or one that is no integer.
    """
    try:
        listing = [labels] if _single(labels) else list(labels)
        if any(isinstance(label, bool) for label in listing):
            raise TypeError
        integers = tuple(map(operator.index, listing))
    except TypeError:
        raise InputError(f"{name} is {labels!r}; actions are integers") from None
    if not integers:
        raise InputError(f"{name} is empty; give one action at least")
    return integers


def check_numbers(name: str, values: Any) -> tuple[float, ...]:
    """Return finite numbers; one number stands for a list of one.

    Raises:
        InputError: None at all, or one that is no finite number.
    """
    listing = [values] if _single(values) else values
    if not isinstance(listing, Iterable) or isinstance(listing, Mapping):
        raise InputError(f"{name} is {values!r}; give a list of numbers")
    numbers = tuple(to_number(f"{name}[{i}]", value) + 0.0 for i, value in enumerate(listing))
    if not numbers:
        raise InputError(f"{name} is empty; give one number at least")
    return numbers


def check_names(names: Sequence[str] | None, default: Sequence[str]) -> tuple[str, ...]:
    """Return a name for each policy: one line of printable words.

    Args:
        names: The user's; None takes the default ones.
        default: A name for each policy.

    Raises:
        InputError: Too few, too many, or one that is no words.
    """
    chosen = tuple(default if names is None else [names] if isinstance(names, str) else names)
    if len(chosen) != len(default):
        raise InputError(f"names has {plural(len(chosen), 'name')} for {_policies(len(default))}; give one for each")
    for name in chosen:
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise InputError(f"names holds {name!r}; name a policy by one line of words")
    return tuple(name.strip() for name in chosen)


def check_source(fitted_on: Any) -> str | None:
    """Return the fingerprint of the records that policies were made from; None if they were made from none.

    Raises:
        InputError: It is no fingerprint.
    """
    if fitted_on is not None and not (isinstance(fitted_on, str) and re.fullmatch("[0-9a-f]{64}", fitted_on)):
        raise InputError(f"fitted_on is {fitted_on!r}; give fingerprint(X, A, Y) of those records, or leave it out")
    return fitted_on


def spread_over(name: str, values: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Return one value per policy: those given, or the only one for all.

    Raises:
        InputError: Another number of values.
    """
    if len(values) not in (1, count):
        raise InputError(f"{name} has {plural(len(values), 'value')} for {_policies(count)}; give one, or one for each")
    return values * count if len(values) == 1 else values


def column_of(covariate: str, domain: Domain, policy: str) -> int:
    """Return the covariate's column.

    Raises:
        InputError: The domain has none of that name.
    """
    if covariate not in domain.names:
        raise InputError(f"policy {policy!r}: {covariate!r} is no covariate; there are {listed(domain.names)}")
    return domain.names.index(covariate)


def position_of(label: int, actions: tuple[int, ...], policy: str) -> int:
    """Return the label's position among the actions.

    Raises:
        InputError: It is none of them.
    """
    if label not in actions:
        raise InputError(f"policy {policy!r}: the action {label} is none of {listed(actions)}")
    return actions.index(label)


def positions_of(labels: Sequence[int], actions: tuple[int, ...], policies: Sequence[str]) -> Tensor:
    """Return the position of each policy's label, int8 [M]; errors are ``position_of``'s."""
    found = [position_of(label, actions, name) for label, name in zip(labels, policies, strict=True)]
    return torch.tensor(found, dtype=torch.int8)


def shown(number: float) -> str:
    """Write a number as short as it can be read back.

    Example:
        >>> shown(40.0), shown(0.1)
        ('40', '0.1')
    """
    return repr(number).removesuffix(".0")


def _single(value: Any) -> bool:
    """Whether a value is one thing rather than a list of them."""
    return isinstance(value, str) or not hasattr(value, "__iter__")


def _policies(count: int) -> str:
    return "1 policy" if count == 1 else f"{count} policies"


_TERMS = 3  # a score of more covariates makes no readable name


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
        >>> from torchdpcate.data.domain import Domain
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
        >>> from torchdpcate.data.domain import Domain
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
        >>> from torchdpcate.data.domain import Domain
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
