"""The confounded design of the theory note's section 6, many data sets side by side."""

import torch

from torchdpcate import Domain, TableSchema
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.stacked_records import Batch, StackedRecords

DOMAIN = Domain([-1.0] * 4, [1.0] * 4, 0.0, 1.0, overlap=0.1)
SCHEMA = TableSchema.of(DOMAIN)
FEATURES = on_domain(None, DOMAIN)
EFFECT = 0.16964


def data_sets(runs: int, n: int, seed: int) -> StackedRecords:
    """Return ``runs`` data sets of n records."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(runs, n, 4, generator=generator, dtype=torch.float64) - 1
    e = torch.sigmoid(0.1 + x @ torch.tensor([0.8, 0.8, -0.5, -0.6], dtype=torch.float64))
    z = (torch.rand(runs, n, generator=generator) < e).double()
    p = torch.sigmoid(-0.3 + x @ torch.tensor([1.0, 0.8, -0.6, 0.5], dtype=torch.float64) + 0.8 * z)
    y = (torch.rand(runs, n, generator=generator) < p).double()
    psi = FEATURES(x.reshape(-1, 4)).reshape(runs, n, -1)
    return StackedRecords(Batch(x, psi, z, y))


def arrays(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return covariates, treatment and outcome of one data set."""
    batch = data_sets(1, n, seed).batch
    return batch.x[0], batch.z[0], batch.y[0]
