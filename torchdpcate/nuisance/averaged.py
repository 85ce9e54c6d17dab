"""Several trained nuisances as one: the mean of their predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchdpcate.errors import InputError
from torchdpcate.nuisance.convex_model import ConvexNuisances
from torchdpcate.nuisance.model import NuisanceModel, NuisanceValues
from torchdpcate.nuisance.nuisances import Nuisances


class AveragedNuisances(NuisanceModel):
    """Mean of the predictions of nuisances that were trained, and paid for, apart: those of cross-fitting.

    Args:
        members: nuisances of the same domain.

    Raises:
        InputError: fewer than two.

    Example:
        >>> from torchdpcate.data import Domain
        >>> pair = AveragedNuisances([Nuisances(Domain([0], [1], 0, 1), width=4) for _ in range(2)])
        >>> pair.predict(torch.rand(5, 1)).mu1.shape
        torch.Size([5])
    """

    kind = "averaged"

    def __init__(self, members: Sequence[NuisanceModel]) -> None:
        super().__init__()
        if len(members) < 2:
            raise InputError(f"members has {len(members)}; an average needs at least two")
        self._of = tuple(members)
        self.members = nn.ModuleList(members)

    def predict(self, x: Tensor) -> NuisanceValues:
        """Mean nuisances at raw covariates `x` `[B, q]`."""
        values = [member.predict(x) for member in self._of]
        return NuisanceValues(*(torch.stack(parts).mean(0) for parts in zip(*values, strict=True)))

    def networks(self) -> tuple[Nuisances, ...]:
        """The members, if all of them are networks."""
        networks = tuple(network for member in self._of for network in member.networks())
        return networks if len(networks) == len(self._of) else ()

    def representation(self, x: Tensor) -> Tensor:
        """Hidden layers of all members side by side, over the root of their number."""
        layers = [member.representation(x) for member in self._of]
        return torch.cat(layers, 1) / math.sqrt(len(layers))

    def config(self) -> dict[str, Any]:
        """Plain types from which `from_config` makes modules of the same shapes."""
        return {"kind": self.kind, "members": [member.config() for member in self._of]}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> AveragedNuisances:
        """Modules of the shapes that `config` describes, with fresh weights."""
        return cls([nuisances_from_config(member) for member in config["members"]])

    @classmethod
    def shapes(cls, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the members' weights, by member and name.

        Raises:
            InputError: a member that is an average itself, which no fit makes.
        """
        found: dict[str, tuple[int, ...]] = {}
        for i, member in enumerate(config["members"]):
            if member.get("kind") == cls.kind:
                raise InputError("members: an average of averages; give the nuisances that were trained")
            found |= {f"members.{i}.{name}": shape for name, shape in nuisance_shapes(member).items()}
        return found


def nuisances_from_config(config: Mapping[str, Any]) -> NuisanceModel:
    """Nuisances of the kind and shape that `config` describes, with fresh weights.

    Raises:
        InputError: a kind that there is not.
    """
    return _kind(config).from_config({name: value for name, value in config.items() if name != "kind"})


def nuisance_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of the nuisances that `config` describes, by name; nothing is made.

    Raises:
        InputError: a kind that there is not.

    Example:
        >>> from torchdpcate.data import Domain
        >>> one = Nuisances(Domain([0], [1], 0, 1), width=4)
        >>> nuisance_shapes(one.config()) == {k: tuple(v.shape) for k, v in one.state_dict().items()}
        True
    """
    return _kind(config).shapes(config)


def _kind(config: Mapping[str, Any]) -> type[NuisanceModel]:
    """The class that `config` names; networks if it names none."""
    kinds: dict[str, type[NuisanceModel]] = {cls.kind: cls for cls in (Nuisances, ConvexNuisances, AveragedNuisances)}
    kind = config.get("kind", Nuisances.kind)
    if kind not in kinds:
        raise InputError(f"nuisances of kind {kind!r}: this version knows {', '.join(kinds)}")
    return kinds[kind]
