"""DP-SGD on modules as users write them: what works, and what is refused in one line."""

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryAccuracy

from tests.fit.nuisance_cases import Foreign, Q, fit, plan
from torchdpcate.errors import InputError
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.trainable import RecordLossModule, is_untouched
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.fit.training import PoissonData
from torchdpcate.privacy.noise import NoiseSource


class Classifier(LightningModule):
    """What a tutorial of Lightning shows: logs, a metric, validation, dropout, a scheduler in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(Q, 4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 1))
        self.accuracy = BinaryAccuracy()
        self.rates, self.counted = [], []

    def training_step(self, batch, batch_idx):
        x, a, _ = batch
        logits = self.net(x).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, a)
        self.accuracy(logits.sigmoid(), a.int())
        self.log("loss", loss, prog_bar=True, on_step=True, batch_size=len(x))
        self.log_dict({"accuracy": self.accuracy}, batch_size=len(x))
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        return {"loss": loss, "logits": logits.detach()}

    def on_train_batch_start(self, batch, batch_idx):
        self.counted.append(int(self.accuracy.tp + self.accuracy.fp + self.accuracy.tn + self.accuracy.fn))

    def validation_step(self, batch):
        self.log("validation", nn.functional.binary_cross_entropy_with_logits(self.net(batch[0])[:, 0], batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Records(PoissonData):
    def val_dataloader(self):
        return DataLoader(self.records, batch_size=20)


def trained(dataset, module, folder):
    private = DPSGD(plan(), NoiseSource.fixed(1))
    kept = ModelCheckpoint(folder / "weights", every_n_train_steps=5, save_top_k=-1)
    trainer = default_trainer(
        callbacks=[private, kept, LearningRateMonitor()],
        max_epochs=-1,
        max_steps=20,
        logger=CSVLogger(folder),
        enable_checkpointing=True,
        num_sanity_val_steps=1,
        log_every_n_steps=1,
    )
    trainer.fit(module, datamodule=Records(dataset, plan(), NoiseSource.fixed(0)))
    return private, trainer


def test_a_tutorial_s_module_trains_with_logs_validation_and_a_scheduler(dataset, tmp_path):
    module = Classifier()
    private, trainer = trained(dataset, module, tmp_path)
    assert private.steps == private.spent == trainer.global_step == 20
    assert module.rates == pytest.approx([0.1 * 0.5**step for step in range(20)])
    assert module.counted[0] == 0  # the trial of the loss left the metric alone
    log = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert set(log.splitlines()[0].split(",")) >= {"loss", "accuracy", "validation", "lr-AdamW"}
    assert len(list((tmp_path / "weights").glob("*.ckpt"))) == 4
    assert not any(part._forward_hooks for part in module.modules())


def test_a_scheduler_takes_its_steps_where_steps_come_in_bursts(dataset):
    class Falling(RecordLossModule):
        def __init__(self):
            super().__init__(0.1, "sgd")
            self.net = nn.Linear(Q, 1)

        def record_loss(self, batch):
            return (self.net(batch[0])[:, 0] - batch[2]) ** 2

        def configure_optimizers(self):
            self.plain = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.ExponentialLR(self.plain, 0.5)
            return [self.plain], [{"scheduler": scheduler, "interval": "step"}]

    module = Falling()
    fit(module, dataset, plan())
    assert module.plain.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**20)


class Plateau(Foreign):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss"}}


def test_a_scheduler_by_a_private_figure_is_refused(dataset):
    with pytest.raises(InputError, match="scheduler that goes by a private figure"):
        fit(Plateau(), dataset, plan())


def test_a_compiled_module_takes_the_same_steps_and_is_no_longer_certified(module, dataset):
    plain, compiled = Foreign(), Foreign()
    compiled.net.compile(backend="aot_eager")
    for each in (plain, compiled):
        fit(each, dataset, plan())
    assert torch.equal(*(torch.cat([p.flatten() for p in each.parameters()]) for each in (plain, compiled)))
    assert is_untouched(module)
    module.outcome.net.compile(backend="aot_eager")
    assert not is_untouched(module)
