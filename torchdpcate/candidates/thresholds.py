"""One action above a cut of a covariate, another one up to it."""

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
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError


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

    kind = "thresholds"

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

    def _one(self, index: int) -> "Thresholds":
        above, below = (None, None) if self.labels is None else (labels[index] for labels in self.labels)
        return Thresholds(self.covariates[index], [self.cuts[index]], above, below, [self.names[index]], self.fitted_on)

    def _settings(self) -> dict[str, Any]:
        actions = {} if self.labels is None else dict(zip(("above", "below"), map(list, self.labels), strict=True))
        return {"covariate": list(self.covariates), "cuts": list(self.cuts), **actions}
