"""The base of families of public policies: set-up on a domain, decisions side by side, settings in plain types."""

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

from torchdpcate.data._arrays import listed, plural
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
