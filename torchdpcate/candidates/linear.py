"""Policies that compare linear scores of the covariates."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdpcate.candidates.family import PolicyFamily, check_names, column_of, shown
from torchdpcate.data._arrays import to_float64
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError

_TERMS = 3  # a score of more covariates makes no readable name


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

    kind = "linear"

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

    def keys(self) -> list[Hashable]:
        """Return coefficients and intercepts, with the covariates."""
        pairs = zip(self.coefficients.tolist(), self.intercepts.tolist(), strict=True)
        return [f"{self.covariates}{pair}" for pair in pairs]

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

    def _one(self, index: int) -> "LinearPolicies":
        chosen = slice(index, index + 1)
        return LinearPolicies(
            self.coefficients[chosen], self.intercepts[chosen], self.covariates, [self.names[index]], self.fitted_on
        )

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
