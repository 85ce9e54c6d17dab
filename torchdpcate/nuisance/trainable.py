"""The nuisance networks as a Lightning module: what is trained, before the bare networks are released."""

from __future__ import annotations

import torch

from torchdpcate.nuisance.nuisances import Nuisances
from torchdpcate.nuisance.record_loss import RecordLossModule


class TrainableNuisances(Nuisances, RecordLossModule):
    """`Nuisances` with the training step and the optimizer of a `RecordLossModule`; arguments are those of `Nuisances`.

    Example:
        >>> from torchdpcate.data import Domain
        >>> module = TrainableNuisances(Domain([0], [1], 0, 1), width=4)
        >>> type(module.trained()).__name__
        'Nuisances'
    """

    def trained(self) -> Nuisances:
        """The networks without the trainer's part: a copy in float64 on the CPU, frozen."""
        with torch.random.fork_rng():  # fresh weights are drawn, and replaced
            networks = Nuisances.from_config(self.config())
        networks.load_state_dict(self.state_dict())
        return networks.double().eval().requires_grad_(False)
