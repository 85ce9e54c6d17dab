"""What trained nuisances offer, whatever made them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from torchdpcate.errors import InputError

if TYPE_CHECKING:
    from torchdpcate.data.records import CausalData
    from torchdpcate.nuisance.nuisances import Nuisances


class NuisanceValues(NamedTuple):
    """Nuisances at covariates `[B, q]`, clipped to the domain.

    Attributes:
        pi: propensity `[B]` in [overlap, 1 - overlap].
        mu0: mean outcome of the untreated `[B]`, in the outcome's units and bounds.
        mu1: mean outcome of the treated `[B]`, likewise.
    """

    pi: Tensor
    mu0: Tensor
    mu1: Tensor


class NuisanceModel(nn.Module, ABC):
    r"""The nuisances :math:`\eta = (\pi, \mu_0, \mu_1)` of one domain, as a module.

    Attributes:
        kind: the name under which a release file knows the class.
    """

    kind: str

    @abstractmethod
    def predict(self, x: Tensor) -> NuisanceValues:
        """Nuisances at raw covariates `x` `[B, q]`, clipped to the domain; differentiable.

        A propensity that the domain knows takes the place of a fitted one; of one that only records carry, which are
        asked for by `values`, the middle of its bounds.
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Plain types from which `from_config` makes a module of the same shape (weights not included)."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> NuisanceModel:
        """Module of the shape that `config` describes, with fresh weights."""

    @classmethod
    @abstractmethod
    def shapes(cls, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights of the module that `config` describes, without making it."""

    def values(self, records: CausalData) -> NuisanceValues:
        """Nuisances at records: as `predict`, with the propensity that the records carry where it is known."""
        found = self.predict(records.x)
        return found if records.propensity is None else found._replace(pi=records.propensity.to(found.pi))

    def effect(self, x: Tensor) -> Tensor:
        """The plug-in effect mu1 - mu0 `[B]` at raw covariates `x` `[B, q]`."""
        values = self.predict(x)
        return values.mu1 - values.mu0

    def networks(self) -> tuple[Nuisances, ...]:
        """The networks whose mean prediction this is; none if other models have a part in it."""
        return ()

    def representation(self, x: Tensor) -> Tensor:
        """Hidden layer of the outcome model `[B, width]` at raw covariates.

        Raises:
            InputError: the model has none.
        """
        raise InputError(
            f"features = representation: the nuisances ({self.kind}) have no hidden layer; use nuisance=mlp, or "
            "other features"
        )
