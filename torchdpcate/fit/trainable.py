"""Lightning modules whose loss is a sum of one term per record, as per-record clipping needs; the networks as such."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from lightning.pytorch import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.linear_taps import LAYERS, is_plain_layer
from torchdpcate.fit.nuisance_kinds import OPTIMIZERS, Nuisances, check_optimizer
from torchdpcate.privacy.guarantee import of_library

STATE = "DPSGD"
"""Where a checkpoint has the state of `DPSGD` among those of callbacks."""


@contextmanager
def root_logger_kept() -> Iterator[None]:
    """Leave the user's root logger alone while Opacus is imported, which calls logging.basicConfig."""
    before = list(logging.getLogger().handlers)
    yield
    for handler in set(logging.getLogger().handlers) - set(before):
        logging.getLogger().removeHandler(handler)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return what a checkpoint holds, on the CPU; no code in it runs.

    Raises:
        InputError: It cannot be read, or holds more than plain types and tensors.
    """
    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return found
    except Exception as error:  # zip, pickle and torch each have their own
        why = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: not a checkpoint, or damaged ({why}); train anew") from None


def stated_privacy(path: str | Path) -> dict[str, Any]:
    """Return what a checkpoint says of the privacy of its weights: budget, ledger and its entry, plan and steps.

    Any module's checkpoint that was written beside `DPSGD` says it. The budget is that of the ledger's block, by
    record, which its later charges do not exceed.

    Args:
        path: The file.

    Returns:
        Plain types: `budget` (epsilon, delta), `level` of the claim, `ledger` (its path, None in memory), `entry`,
        `block`, `plan`, `steps` behind the weights, `spent`.

    Raises:
        InputError: It is no checkpoint; or its weights are not private, because no `DPSGD` trained them, no ledger
            counted the steps, or noise or ledger were not private.
    """
    state = read_checkpoint(path).get("callbacks", {}).get(STATE)
    if (why := why_not_private(state)) is None:
        return dict(state)
    raise InputError(f"{path}: is not private, for {why}; it is the curator's alone, and private=False loads it")


def why_not_private(state: Mapping[str, Any] | None) -> str | None:
    """Return why weights with this state of `DPSGD` beside them are not private; None if they are."""
    if state is None:
        return "no steps of DPSGD are stated in it"
    if not state["private"]:
        return "its noise or its ledger is of a test"
    return "no ledger counted its steps" if state["budget"] is None else None


class StatedModule(LightningModule):
    """A module whose checkpoints load as private only if they say what their training cost."""

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: str | Path, *, private: bool = True, **settings: Any
    ) -> Self:
        """Return the module of a checkpoint.

        Args:
            checkpoint_path: The file.
            private: Whether its training must be accounted for, see `stated_privacy`.
            settings: Further arguments of Lightning's, and hyperparameters in place of the checkpoint's.

        Raises:
            InputError: See `stated_privacy`, or with `private=False` `read_checkpoint`.
        """
        weights = read_checkpoint(checkpoint_path)["state_dict"]
        if private:
            stated_privacy(checkpoint_path)
        module = super().load_from_checkpoint(checkpoint_path, **{"weights_only": True, **settings})
        if any(weight.dtype == torch.float64 for weight in weights.values()):
            module.double().load_state_dict(weights)  # Lightning rounds them to the type of a new module
        return module


class RecordLossModule(StatedModule, ABC):
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
        if losses.dim() != 1:
            shape = tuple(losses.shape)
            raise InputError(f"record_loss returned shape {shape}; return one loss per record, shape [B]")
        self.record_losses = losses
        return losses.sum() / max(len(losses), 1)

    def on_after_backward(self) -> None:
        """Let go of the losses and their graph."""
        self.record_losses = None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The named optimizer over all parameters, at a fixed learning rate."""
        return OPTIMIZERS[self.optimizer](self.parameters(), lr=self.learning_rate)


def size_of(batch: Any) -> int | None:
    """Return the number of records of a batch, the first length of its tensors; None if it has none."""
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], Tensor) and batch[0].dim():
        return len(batch[0])  # without a walk, which takes a tenth of a short step
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

    def known(part: torch.nn.Module) -> bool:
        # of an LSTM that takes hours first, records would be hours
        recurrent = type(part).__module__ == "opacus.layers.dp_rnn" and getattr(part, "batch_first", True)
        return (of_library(part) or type(part) in LAYERS or recurrent) and is_plain_layer(part)

    parts = list(module.modules())
    compiled = any("_compiled_call_impl" in vars(part) for part in parts)  # its rounding is not that which was bounded
    return of_library(module) and all(known(part) for part in parts) and not compiled


class TrainableNuisances(Nuisances, RecordLossModule):
    """`Nuisances` with the training step and the optimizer of a `RecordLossModule`.

    Its settings are hyperparameters of its checkpoints, in plain types: `TrainableNuisances.load_from_checkpoint(path)`
    needs nothing else, and refuses a file that does not say what its training cost.  A checkpoint is the curator's: it
    holds the optimizer's state beside the weights.

    Args:
        domain: public bounds, or what `Domain.to_dict` makes of them.
        privacy: of a checkpoint, what `stated_privacy` returns of it.
        settings: further arguments of `Nuisances`.

    Example:
        >>> module = TrainableNuisances(Domain([0], [1], 0, 1), width=4)
        >>> type(module.trained()).__name__, module.hparams["width"]
        ('Nuisances', 4)
    """

    def __init__(
        self, domain: Domain | Mapping[str, Any], privacy: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        super().__init__(Domain.from_dict(domain) if isinstance(domain, Mapping) else domain, **settings)
        if self.hours:
            with root_logger_kept():
                from opacus.validators import ModuleValidator
            for network in (self.propensity, self.outcome):
                layer = network.net[0]
                layer.lstm = ModuleValidator.fix(layer.lstm)  # DPLSTM of the same weights, which Opacus's hooks hear
        self.save_hyperparameters(self.config() | ({} if privacy is None else {"privacy": dict(privacy)}))

    def on_fit_start(self) -> None:
        """Forget what a checkpoint said of its training: this one is another."""
        self.hparams.pop("privacy", None)

    def trained(self) -> Nuisances:
        """The networks without the trainer's part: a copy in float64 on the CPU, frozen."""
        with torch.random.fork_rng():  # fresh weights are drawn, and replaced
            networks = Nuisances.from_config(self.config()).double()
        own = self.state_dict()  # where DPLSTM names each weight twice
        networks.load_state_dict({name: own[name] for name in networks.state_dict()})
        return networks.eval().requires_grad_(False)
