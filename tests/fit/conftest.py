"""Records and a module that the nuisance tests share."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from tests.fit.nuisance_cases import N, Q
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.fit.trainable import TrainableNuisances


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def domain() -> Domain:
    return Domain([0.0] * Q, [1.0, 2.0, 4.0], outcome_low=-3.0, outcome_high=5.0)


@pytest.fixture
def records() -> CausalData:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, Q, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 2.0, 4.0])
    a = (torch.rand(N, generator=generator) < 0.5).double()
    y = x[:, 0] + a * x[:, 1] + torch.rand(N, generator=generator).double()
    return CausalData(x, a, y)


@pytest.fixture
def dataset(records: CausalData) -> TensorDataset:
    return TensorDataset(records.x.float(), records.a.float(), records.y.float())


@pytest.fixture
def module(domain: Domain) -> TrainableNuisances:
    torch.manual_seed(1)
    return TrainableNuisances(domain, width=8, learning_rate=0.01)
