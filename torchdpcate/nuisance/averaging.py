"""The mean of the last weights of a run: free under privacy, and steadier than the last weights alone."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging

from torchdpcate.errors import InputError


class TailAverage(WeightAveraging):
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
        super().__init__()
        self.first = min(round(steps * (1 - share)), steps - 1)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep the mean where the module will train."""
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether the weights after step `step_idx` (from 0) belong to the tail."""
        return step_idx is not None and step_idx >= self.first

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the mean in place, unless the run ended before its tail began."""
        average: Any = self._average_model
        if average is not None and int(average.n_averaged) > 0:
            super().on_train_end(trainer, pl_module)
