"""Optimizers by name: public settings of the nuisances, which a release keeps as well."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from torchdpcate.errors import InputError

MOMENTUM = 0.9
"""Momentum of `sgd`."""

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, fused=True),
    "sgd": partial(torch.optim.SGD, momentum=MOMENTUM, fused=True),
}
"""Optimizers by name: Adam with PyTorch's settings, SGD with momentum 0.9; each step one call, not one a weight."""


def check_optimizer(name: str, learning_rate: float) -> None:
    """Refuse an unknown optimizer, or a learning rate that is not above 0.

    Raises:
        InputError: either of them.
    """
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer={name!r} is unknown; choose one of {sorted(OPTIMIZERS)}")
    if not learning_rate > 0:
        raise InputError(f"learning_rate={learning_rate!r} must be above 0")
