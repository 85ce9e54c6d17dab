"""Lightning modules whose loss is a sum of one term per record, as per-record clipping needs; the networks as such."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.linear_taps import LAYERS, is_plain_layer
from torchdpcate.fit.nuisance_kinds import OPTIMIZERS, Nuisances, check_optimizer
from torchdpcate.privacy.guarantee import of_library


class RecordLossModule(LightningModule, ABC):
    r"""A module that is trained on the batch mean of `record_loss`.

    The loss of one record must depend on that record alone: no batch statistics, no contrast between records,
    no penalty on the weights inside the loss (per-record gradients would not see it).  Under that condition
    clipping each record's gradient bounds what one record can do, and `DPSGD` certifies the run.

    While a step runs, `record_losses` holds the losses `[B]` with their graph, for engines that need a second
    backward pass; afterwards it is None.

    Args:
        learning_rate: step size of the optimizer, above 0.
        optimizer: `adam`, or `sgd` (momentum 0.9).  There is no scheduler: a fixed rate is a public fact.

    Raises:
        InputError: unknown `optimizer`, or `learning_rate` not above 0.
    """

    def __init__(self, learning_rate: float = 0.003, optimizer: str = "adam") -> None:
        super().__init__()
        check_optimizer(optimizer, learning_rate)
        self.learning_rate = float(learning_rate)
        self.optimizer = optimizer
        self.record_losses: Tensor | None = None

    @abstractmethod
    def record_loss(self, batch: Any) -> Tensor:
        """Loss of each record of `batch`, shape `[B]` (never `[B, 1]`: it would broadcast)."""

    def loss_slopes(self, batch: Any) -> tuple[Tensor, list[tuple[Tensor, Tensor]]] | None:
        """`record_loss` with its derivatives at the networks' outputs, for a class that knows both; None by default.

        It saves a graph a step where every network is a chain of linear layers and activations. It must belong to the
        class that has `record_loss`: one that overrides that alone is differentiated by autograd.

        Returns:
            Losses `[B]`, and pairs of what a network returned and the losses' derivative there, in the order of calls.
        """
        return None

    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """Batch mean of `record_loss`; a zero that still carries the graph when the batch is empty.

        Raises:
            InputError: `record_loss` did not return one loss per record, shape `[B]`.
        """
        losses = self.record_loss(batch)
        check_shape(losses)
        self.record_losses = losses
        return losses.sum() / max(len(losses), 1)

    def on_after_backward(self) -> None:
        """Let go of the losses and their graph."""
        self.record_losses = None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The named optimizer over all parameters, at a fixed learning rate."""
        return OPTIMIZERS[self.optimizer](self.parameters(), lr=self.learning_rate)


def check_shape(losses: Tensor) -> None:
    """Refuse losses that are not one per record, shape `[B]`.

    Raises:
        InputError: they are not.
    """
    if losses.dim() != 1:
        shape = tuple(losses.shape)
        raise InputError(f"record_loss returned shape {shape}; return one loss per record, shape [B]")


def size_of(batch: Any) -> int | None:
    """Return the number of records of a batch, the first length of its tensors; None if it has none."""
    sizes: list[int] = []
    apply_to_collection(batch, Tensor, lambda leaf: sizes.extend(leaf.shape[:1]))
    return sizes[0] if sizes else None


def is_untouched(module: LightningModule) -> bool:
    """Return whether a module is the library's, with plain layers alone, and no method or hook of another's on any.

    Example:
        >>> module = TrainableNuisances(Domain([0], [1], 0, 1), width=4)
        >>> whole = is_untouched(module)
        >>> module.record_loss = lambda batch: batch[2]
        >>> whole, is_untouched(module)
        (True, False)
    """
    parts = list(module.modules())
    return of_library(module) and all((of_library(p) or type(p) in LAYERS) and is_plain_layer(p) for p in parts)


class TrainableNuisances(Nuisances, RecordLossModule):
    """`Nuisances` with the training step and the optimizer of a `RecordLossModule`.

    Its settings are hyperparameters of its checkpoints, in plain types: `TrainableNuisances.load_from_checkpoint(path)`
    needs nothing else.  A checkpoint is the curator's: it holds the optimizer's state beside the weights.

    Args:
        domain: public bounds, or what `Domain.to_dict` makes of them.
        settings: further arguments of `Nuisances`.

    Example:
        >>> module = TrainableNuisances(Domain([0], [1], 0, 1), width=4)
        >>> type(module.trained()).__name__, module.hparams["width"]
        ('Nuisances', 4)
    """

    def __init__(self, domain: Domain | Mapping[str, Any], **settings: Any) -> None:
        super().__init__(Domain.from_dict(domain) if isinstance(domain, Mapping) else domain, **settings)
        self.save_hyperparameters(self.config())

    def trained(self) -> Nuisances:
        """The networks without the trainer's part: a copy in float64 on the CPU, frozen."""
        with torch.random.fork_rng():  # fresh weights are drawn, and replaced
            networks = Nuisances.from_config(self.config())
        networks.load_state_dict(self.state_dict())
        return networks.double().eval().requires_grad_(False)
