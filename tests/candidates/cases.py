"""A public domain, and functions that tests find by their import path."""

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data.domain import Domain

DOMAIN = Domain([0.0, 10.0, -1.0], [90.0, 50.0, 1.0], 0.0, 1.0, overlap=0.2, names=["age", "bmi", "dose"])
BINARY, THREE = (0, 1), (1, 2, 3)


def points(n: int = 500, seed: int = 0) -> Tensor:
    width = DOMAIN.covariate_high - DOMAIN.covariate_low
    return DOMAIN.covariate_low + width * torch.rand(
        n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def older(x: np.ndarray) -> np.ndarray:
    return x[:, 0] > 40


def third(x: np.ndarray) -> np.ndarray:
    return np.full(len(x), 3)


not_a_function = 7
