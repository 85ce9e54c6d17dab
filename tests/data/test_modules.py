import pytest
import torch

from torchdpcate.data.generators import Dataset1
from torchdpcate.data.modules import RecordsModule
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError


@pytest.fixture
def records() -> CausalData:
    return Dataset1(n=100).load().records


def test_an_epoch_holds_every_record_once(records: CausalData) -> None:
    batches = list(RecordsModule(records, batch_size=32).train_dataloader())
    assert [len(batch[0]) for batch in batches] == [32, 32, 26]
    x, a, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert x.dtype == a.dtype == y.dtype == torch.float32
    order = y.argsort()
    assert torch.equal(y[order], records.y.float().sort().values)
    assert torch.equal(x[order], records.x.float()[records.y.float().argsort()])


def test_the_seed_fixes_the_order_and_epochs_differ(records: CausalData) -> None:
    loaders = [RecordsModule(records, 90, seed).train_dataloader() for seed in (0, 0, 1)]
    first, again, other = (next(iter(loader))[2] for loader in loaders)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, next(iter(loaders[0]))[2])


def test_full_batch(records: CausalData) -> None:
    x, a, y = RecordsModule(records).full_batch()
    assert x.shape == (90, 2)
    assert a.dtype == y.dtype == torch.float32


@pytest.mark.parametrize("batch_size", [0, -1, 2.5])
def test_batch_size_must_be_positive(records: CausalData, batch_size) -> None:
    with pytest.raises(InputError, match="batch_size is"):
        RecordsModule(records, batch_size)
