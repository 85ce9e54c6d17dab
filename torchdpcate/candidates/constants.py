"""The same action for everybody."""

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from torchdpcate.candidates.family import PolicyFamily, check_labels, check_names, positions_of
from torchdpcate.data.domain import Domain


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

    kind = "constants"

    def __init__(
        self, actions: Sequence[int], names: Sequence[str] | None = None, fitted_on: str | None = None
    ) -> None:
        self.labels = check_labels("actions", actions)
        super().__init__(check_names(names, [f"always {label}" for label in self.labels]), fitted_on)

    def keys(self) -> list[Hashable]:
        """Return the labels."""
        return list(self.labels)

    def _look_up(self, domain: Domain, actions: tuple[int, ...]) -> None:
        self._positions = positions_of(self.labels, actions, self.names)

    def _decide(self, x: Tensor) -> Tensor:
        return self._positions.expand(len(x), -1)

    def _one(self, index: int) -> "Constants":
        return Constants([self.labels[index]], [self.names[index]], self.fitted_on)

    def _settings(self) -> dict[str, Any]:
        return {"actions": list(self.labels)}
