"""Training nuisances with a Lightning Trainer, privately or not, by the same code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from torchdpcate._process import gpu_memory, terminable, threads_for
from torchdpcate.data.records import CausalData
from torchdpcate.data.study import StudySource
from torchdpcate.errors import InputError
from torchdpcate.fit.dp_sgd import DPSGD, check_weights
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan, PoissonLoader, poisson_loader, shuffled_loader
from torchdpcate.fit.trainable import read_checkpoint
from torchdpcate.fit.trainer import interruptible, made, quiet_lightning, user_trainer
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.registry import refuse_strings

Module = TypeVar("Module", bound=LightningModule)
TrainerFactory = Callable[..., Trainer]

_LESS = "lower batch_size"


def train(
    module: Module,
    records: CausalData,
    trainer_factory: TrainerFactory,
    *,
    batch_size: int,
    epochs: int,
    seed: int,
    plan: DPSGDPlan | None = None,
    noise: NoiseSource | None = None,
    ledger: Ledger | None = None,
    block: str = "nuisance",
    average: float = 0.5,
    engine: str = "opacus",
    conditional: bool = False,
    ckpt_path: str | Path | None = None,
) -> Module:
    """Train `module` on `records`: by DP-SGD with a plan, by ordinary shuffled batches without one.

    Args:
        module: takes batches (x `[B, q]`, a `[B]`, y `[B]`) in float64, and is turned to it, so that no sum of clipped
            gradients depends on how others round; the caller has seeded its weights.
        records: the block that trains.
        trainer_factory: makes a Trainer from `max_epochs`, `max_steps` and `callbacks`, as `default_trainer`.
        batch_size: records in a batch (not private; the plan's rate rules otherwise).
        epochs: passes over the records (not private; the plan's steps rule otherwise).
        seed: order of the batches, and whatever the module draws; never the noise.
        plan: the DP-SGD run; None trains without privacy.
        noise: source of noise and sampling; needed with a plan.
        ledger: where a private run is charged.
        block: the ledger's block.
        average: share of the last steps whose weights are averaged, see `TailAverage`; 0 keeps the last.
        engine: what clips, see `DPSGD`'s mode.
        conditional: whether something about the fit is the user's, so that its entry is conditional.
        ckpt_path: checkpoint to resume from, with its ledger entry.

    Returns:
        The module itself, trained, in eval mode, on the device of the records; it keeps no hold of them.

    Raises:
        InputError: `batch_size` exceeds the records, a plan comes without a noise source, the checkpoint is damaged
            or holds more than plain types and tensors, or a GPU has too little memory.
        BudgetError: the ledger cannot pay the plan.
        NumericalError: training diverged.
        KeyboardInterrupt: on Ctrl-C; the ledger then counts the steps taken.
        SystemExit: on SIGTERM, likewise, with code 143.

    Guarantee:
        That of `DPSGD`, if `records` are the ledger's block.
    """
    dataset, private = dataset_of(records, torch.float64), list[Callback]()
    if ckpt_path is not None:
        read_checkpoint(ckpt_path)
    if plan is None:
        loader: DataLoader = shuffled_loader(dataset, _checked(batch_size, records.n), seed)
        steps, limits = epochs * len(loader), {"max_epochs": epochs, "max_steps": -1}
    else:
        if noise is None:
            raise InputError("noise=None with a plan; pass NoiseSource.system()")
        loader = poisson_loader(dataset, plan.sampling_rate, plan.steps, noise)
        # one pass holds all steps; a second is there for a resumed run whose pass ends early
        steps, limits = plan.steps, {"max_epochs": 2, "max_steps": plan.steps}
        private = [DPSGD(plan, noise, ledger, block, mode=engine)]
        private[0].conditional = conditional or bool(user_trainer(trainer_factory))  # type: ignore[attr-defined]
    callbacks = [*private, *([TailAverage(steps, average)] if average else [])]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        run(module, loader, trainer_factory, callbacks, _LESS, ckpt_path, precision="64-true", **limits)
    return module.to(records.x.device).eval()


def run(
    module: LightningModule,
    loader: DataLoader,
    trainer: TrainerFactory,
    callbacks: Sequence[Callback],
    remedy: str,
    ckpt_path: str | Path | None = None,
    **limits: Any,
) -> None:
    """Fit a module quietly; Ctrl-C and SIGTERM end it as they end any function, and it keeps no hold of the records.

    Args:
        module: What trains.
        loader: Its batches.
        trainer: Makes a Trainer from keyword arguments.
        callbacks: The fit's own.
        remedy: What to do where a GPU has too little memory.
        ckpt_path: Checkpoint to resume from.
        limits: Further arguments of the Trainer.

    Raises:
        InputError: Settings of the Trainer that are not allowed, or a GPU with too little memory.
        NumericalError: Training diverged.
    """
    size = sum(parameter.numel() for parameter in module.parameters())
    with quiet_lightning(), interruptible(), terminable(), threads_for(size), gpu_memory("training", remedy):
        try:
            # Weights alone, whatever the environment says: a checkpoint is a pickle, and could hold code.
            made(trainer, callbacks, **limits).fit(module, loader, ckpt_path=ckpt_path, weights_only=True)
        finally:
            module.trainer = None  # its loaders hold the records
            for parameter in module.parameters():
                parameter.grad = None
    check_weights(module)


def dataset_of(records: CausalData, dtype: torch.dtype) -> TensorDataset:
    """Covariates [n, q], treatments [n] and outcomes [n], as modules of nuisances take them."""
    return TensorDataset(*(part.to(dtype) for part in (records.x, records.a, records.y)))


class PoissonData(LightningDataModule):
    """Poisson batches of a table of records, as `DPSGD` takes them: `Trainer(...).fit(module, datamodule=data)`.

    Each record is in each batch with the plan's sampling rate, by the system's entropy; an epoch is `plan.epoch`
    batches. Of `CausalData` and `Table` a batch is x `[B, q]`, a `[B]`, y `[B]` in float32, in the domain's units.

    Args:
        records: `CausalData`; a source of records such as `Table`, which is read when the fit begins; or a dataset of
            PyTorch's, whose batches are what `default_collate` makes of them.
        plan: the DP-SGD run.
        noise: where the coins come from; None is the system's entropy.

    Raises:
        InputError: on `fit`, whatever in the table is not as declared.

    Example:
        >>> records = CausalData.from_arrays(torch.rand(50, 2), [0, 1] * 25, torch.rand(50))
        >>> data = PoissonData(records, DPSGDPlan(2.0, 0.3, sampling_rate=1.0, steps=20))
        >>> data.setup("fit")
        >>> [part.shape for part in next(iter(data.train_dataloader()))]
        [torch.Size([50, 2]), torch.Size([50]), torch.Size([50])]
    """

    def __init__(
        self, records: CausalData | StudySource | Dataset, plan: DPSGDPlan, noise: NoiseSource | None = None
    ) -> None:
        super().__init__()
        refuse_strings(PoissonData, {"records": records, "plan": plan})
        self.records, self.plan, self.noise = records, plan, noise or NoiseSource.system()

    def setup(self, stage: str) -> None:
        """Read a table that is not read yet."""
        if isinstance(self.records, StudySource):
            self.records = self.records.load().records
        if isinstance(self.records, CausalData):
            self.records = dataset_of(self.records, torch.float32)

    def train_dataloader(self) -> PoissonLoader:
        """Return the loader."""
        return poisson_loader(self.records, self.plan.sampling_rate, self.plan.epoch, self.noise)  # type: ignore[arg-type]


def _checked(batch_size: int, n: int) -> int:
    if not 1 <= batch_size <= n:
        raise InputError(f"batch_size={batch_size} must be between 1 and the block's n={n} records")
    return batch_size


class TailAverage(Callback):
    """Leaves the module with the mean of its weights over the last steps of the fit.

    A function of weights that DP-SGD has already paid for costs no privacy (post-processing), and averaging
    removes much of the noise of single steps (Polyak and Juditsky 1992; De et al. 2022 for DP-SGD).

    Args:
        steps: steps of the fit.
        share: part of them to average, in (0, 1]; 0.5 is the later half.

    Raises:
        InputError: `share` outside (0, 1].
    """

    def __init__(self, steps: int, share: float = 0.5) -> None:
        if not 0 < share <= 1:
            raise InputError(f"average={share!r} must be in (0, 1], the share of the steps to average")
        self.first = min(round(steps * (1 - share)), steps - 1)
        self._steps, self._mean = 0, list[Tensor]()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Take the weights after a step of the tail into the mean."""
        self._steps += 1
        taken = self._steps - self.first
        if taken < 1:
            return
        weights = [p.detach() for p in pl_module.parameters()]
        if taken == 1:
            self._mean = [weight.clone() for weight in weights]
        else:
            pairs = zip(self._mean, weights, strict=True)
            self._mean = [mean.to(weight) + (weight - mean.to(weight)) / taken for mean, weight in pairs]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the mean in place, unless the run ended before its tail began."""
        if self._mean:
            with torch.no_grad():
                for mean, weight in zip(self._mean, pl_module.parameters(), strict=True):
                    weight.copy_(mean)

    def state_dict(self) -> dict[str, Any]:
        """The mean so far and the steps behind it, for a checkpoint."""
        return {"steps": self._steps, "mean": self._mean}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a checkpoint's mean."""
        self._steps, self._mean = state_dict["steps"], state_dict["mean"]
