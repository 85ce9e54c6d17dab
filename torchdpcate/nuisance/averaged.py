"""Several trained nuisances as one: the mean of their predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchdpcate.errors import InputError
from torchdpcate.nuisance.convex import ConvexNuisances
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


def nuisances_from_config(config: Mapping[str, Any]) -> NuisanceModel:
    """Nuisances of the kind and shape that `config` describes, with fresh weights.

    Raises:
        InputError: a kind that there is not.
    """
    kinds: dict[str, type[NuisanceModel]] = {cls.kind: cls for cls in (Nuisances, ConvexNuisances, AveragedNuisances)}
    settings = dict(config)
    kind = settings.pop("kind", Nuisances.kind)
    if kind not in kinds:
        raise InputError(f"nuisances of kind {kind!r}: this version knows {', '.join(kinds)}")
    return kinds[kind].from_config(settings)
