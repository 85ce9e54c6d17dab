"""The eight records of the theory note's section 7, with features (1, x_1, x_2) that are not scaled."""

import torch

from torchdpcate.fit.stacked_records import Batch, StackedRecords

X = torch.tensor(
    [[0.6, 0.2], [-0.4, 0.5], [0.1, -0.7], [0.9, -0.1], [-0.8, -0.3], [0.3, 0.4], [-0.2, -0.6], [0.5, 0.8]],
    dtype=torch.float64,
)
Z = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0], dtype=torch.float64)
Y = torch.tensor([1, 0, 0.5, 1, 0.25, 1, 0, 0.75], dtype=torch.float64)
PHI = torch.cat([torch.ones(8, 1, dtype=torch.float64), X], 1)
THETA = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
ETA = 0.1
RECORDS = StackedRecords(Batch(X, PHI, Z, Y))
