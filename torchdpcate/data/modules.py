"""Records as a LightningDataModule, for training that is not private."""

from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchdpcate.data.records import CausalData
from torchdpcate.data.split import public_generator
from torchdpcate.errors import InputError


class RecordsModule(LightningDataModule):
    """Batches (x [B, q], a [B], y [B]) in float32, shuffled anew each epoch by a seeded generator.

    Private training draws its batches by Poisson sampling instead: see ``torchdpcate.nuisance``.

    Args:
        records: The records.
        batch_size: Records a batch; the last batch of an epoch may be smaller.
        seed: Public seed of the order.

    Raises:
        InputError: ``batch_size`` is not a positive integer.
    """

    def __init__(self, records: CausalData, batch_size: int = 128, seed: int = 0) -> None:
        super().__init__()
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; give a positive integer")
        self.records = records
        self.batch_size = batch_size
        self.seed = seed
        self.dataset = TensorDataset(*self.full_batch())

    def full_batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return all records as one batch, float32."""
        return self.records.x.float(), self.records.a.float(), self.records.y.float()

    def train_dataloader(self) -> DataLoader:
        """Return a loader that shuffles by the seed."""
        generator = public_generator(self.seed, "batches")
        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True, generator=generator)
