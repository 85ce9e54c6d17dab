"""Poisson sampling: independent coins, empty batches, batches of any data set."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.fit.nuisance_cases import N, plan
from torchdpcate.data.table import Table
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.dp_sgd_plan import PoissonSampler, poisson_loader, shuffled_loader
from torchdpcate.fit.training import PoissonData
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def drawn(size, rate, steps, seed=0) -> torch.Tensor:
    """Which record was in which batch, [steps, size]."""
    table = torch.zeros(steps, size)
    for row, index in zip(table, PoissonSampler(size, rate, steps, NoiseSource.fixed(seed)), strict=True):
        row[index] = 1
    return table


def test_each_record_enters_by_its_own_coin():
    table, q = drawn(50, 0.1, 4000), 0.1
    # z-scores of 50 inclusion rates and of the batch sizes' variance; six sd alarm falsely 1e-7 of the time
    z = (table.mean(0) - q) / (q * (1 - q) / 4000) ** 0.5
    assert z.abs().max() < 6
    sizes = table.sum(1)
    variance = 50 * q * (1 - q)
    assert abs(sizes.var() / variance - 1) < 6 * (2 / 4000) ** 0.5 * 1.1
    centred = table - q
    together = (centred.T @ centred / 4000)[~torch.eye(50, dtype=bool)]
    assert together.abs().max() < 7 * q * (1 - q) / 4000**0.5
    after = (centred[:-1] * centred[1:]).mean()
    assert abs(after) < 6 * q * (1 - q) / (3999 * 50) ** 0.5


class Pairs(Dataset):
    """Records that are no tensors."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"x": torch.full((2,), float(index)), "id": index}


def test_any_dataset_is_collated_also_when_the_batch_is_empty():
    batches = list(poisson_loader(Pairs(), 0.15, 60, NoiseSource.fixed(0)))
    sizes = {len(batch["id"]) for batch in batches}
    assert {0, 1} <= sizes
    for batch in batches:
        assert batch["x"].shape == (len(batch["id"]), 2)
        assert torch.equal(batch["x"][:, 0], batch["id"].float())


def test_tensors_are_gathered_and_empty_batches_keep_their_shape():
    data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    for x, i in poisson_loader(data, 0.15, 60, NoiseSource.fixed(0)):
        assert x.shape == (len(i), 2)
        assert torch.equal(x[:, 0], 2.0 * i)


def test_shuffled_loader_gives_a_data_loaders_batches():
    data = TensorDataset(torch.arange(10))
    epochs = [[batch[0].tolist() for batch in loader] for loader in [shuffled_loader(data, 4, seed=3)] * 2]
    assert [len(batch) for batch in epochs[0]] == [4, 4, 2]
    assert sorted(i for batch in epochs[0] for i in batch) == list(range(10))
    assert epochs[0] != epochs[1]
    assert epochs[0] == [batch[0].tolist() for batch in shuffled_loader(data, 4, seed=3)]
    assert isinstance(shuffled_loader(data, 4, seed=3), DataLoader)


DOMAIN = {"treatment": "a", "outcome": {"name": "y", "low": -3, "high": 5}, "overlap": 0.1}
BOUNDS = {f"x{i}": {"low": 0, "high": high} for i, high in enumerate((1, 2, 4))}


@pytest.mark.parametrize("kind", ["records", "table", "dataset"])
def test_a_data_module_of_our_tables_trains_certified(module, records, dataset, tmp_path, kind):
    frame = pd.DataFrame(records.x.numpy(), columns=list(BOUNDS)).assign(a=records.a, y=records.y)
    frame.to_csv(tmp_path / "trial.csv", index=False)
    table = Table(tmp_path / "trial.csv", {**DOMAIN, "covariates": BOUNDS})
    data = PoissonData({"records": records, "table": table, "dataset": dataset}[kind], plan())
    ledger, noise = Ledger({"nuisance": PrivacyBudget(1000.0, 1e-5)}), NoiseSource.system()
    private, own = [DPSGD(plan(), noise, ledger)], {"accelerator": "cpu", "precision": "64-true"}
    trainer = Trainer(max_steps=20, callbacks=private, **own, **QUIET)
    trainer.fit(module, datamodule=data)
    [entry] = ledger.entries
    assert (entry.count, entry.level) == (20, "certified")
    assert (trainer.current_epoch, type(trainer.train_dataloader.batch_sampler)) == (4, PoissonSampler)
    sizes = [len(y) for x, a, y in data.train_dataloader()]
    assert len(sizes) == plan().epoch
    assert 0 < sum(sizes) < 2 * N
