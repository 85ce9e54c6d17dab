"""Metrics against NumPy, over several updates."""

import numpy as np
import pytest
import torch

from torchdpcate.evaluation.comparison import pehe
from torchdpcate.evaluation.metrics import PEHE


@pytest.fixture
def effects():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 30, dtype=torch.float64, generator=generator)


def updated(metric, estimate, truth):
    for part in (slice(0, 7), slice(7, 30)):
        metric.update(estimate[part], truth[part])
    return metric.compute().item()


def test_pehe_is_the_root_mean_squared_error(effects):
    estimate, truth = effects
    expected = np.sqrt(np.mean((estimate - truth).numpy() ** 2))
    assert updated(PEHE(), estimate, truth) == pytest.approx(expected, rel=1e-12)
    assert pehe(estimate.numpy(), truth) == pytest.approx(expected, rel=1e-12)
