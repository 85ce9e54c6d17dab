"""Kinds of policies: constants, thresholds, linear scores."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdpcate.candidates.family import (
    PolicyFamily,
    check_labels,
    check_names,
    check_numbers,
    column_of,
    positions_of,
    shown,
    spread_over,
)
from torchdpcate.data._arrays import to_float64
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError

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
