"""The progress bar of a training run."""

from lightning.pytorch.callbacks import RichProgressBar


class TrainingBar(RichProgressBar):
    """Lightning's rich progress bar with a line that says what trains.

    Example:
        >>> TrainingBar(refresh_rate=20).refresh_rate
        20
    """

    def _get_train_description(self, current_epoch: int) -> str:
        # Lightning names the epoch alone, and a run that counts steps has none.
        name = type(self.trainer.lightning_module).__name__.removeprefix("Trainable")
        private = self.trainer.max_steps > 0
        return f"{name}, DP-SGD" if private else f"{name}, epoch {current_epoch + 1}/{self.trainer.max_epochs}"
