"""Which processes share the steps of a private fit: a strategy of the Trainer's that the Trainer itself sees as one."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from torchdpcate.errors import InputError

_MOST = 256
"""Processes beyond which the number is taken for a mistake."""


class JointStrategy(SingleDeviceStrategy):
    """One Trainer, whose DP-SGD steps are computed by several processes of this machine.

    The Trainer, its callbacks, the optimizer and the ledger live in the process that calls `fit`. `DPSGD` starts the
    others when the fit starts and ends them when it ends, see `JointSteps`.

    Args:
        devices: where each process computes, the Trainer's own first.

    Raises:
        InputError: more than 256 devices.

    Example:
        >>> JointStrategy([torch.device("cpu")] * 2).processes
        2
    """

    def __init__(self, devices: list[torch.device]) -> None:
        if not 1 <= len(devices) <= _MOST:
            raise InputError(f"trainer.devices = {len(devices)} processes: give a number from 1 to {_MOST}")
        super().__init__(device=devices[0])
        self.devices = devices

    @property
    def processes(self) -> int:
        """How many there are."""
        return len(self.devices)


def joint_strategy(accelerator: str, devices: Any) -> JointStrategy:
    """Return the strategy of the Trainer's words `strategy=ddp`, `accelerator` and `devices`.

    Args:
        accelerator: `cpu`, `gpu` or `auto`.
        devices: how many processes; on GPUs also `auto`, which takes one a GPU, or a list of their numbers.

    Raises:
        InputError: another accelerator, no number of processes, or GPUs that are not there.
    """
    count = torch.cuda.device_count()
    if accelerator == "auto":
        accelerator = "gpu" if count else "cpu"
    if accelerator not in ("cpu", "gpu", "cuda"):
        raise InputError(f"trainer.accelerator = {accelerator!r} with strategy=ddp: give cpu or gpu")
    if accelerator != "cpu" and not count:
        raise InputError("trainer: no GPU is here; use trainer=ddp_cpu, or trainer=cpu for one process")
    if accelerator != "cpu" and devices in ("auto", -1, "-1"):
        devices = count
    if isinstance(devices, str) and devices.isdecimal():
        devices = int(devices)
    if isinstance(devices, int) and not isinstance(devices, bool) and devices >= 1:
        places = list(range(devices))
    elif (
        accelerator != "cpu" and not isinstance(devices, str | bool | int) and all(isinstance(d, int) for d in devices)
    ):
        places = list(devices)
    else:
        raise InputError(f"trainer.devices = {devices!r}: give the number of processes, such as 2")
    if accelerator == "cpu":
        return JointStrategy([torch.device("cpu")] * len(places))
    if any(not 0 <= place < count for place in places):
        raise InputError(f"trainer.devices = {devices!r}: {count} GPU(s) are here; give their number or less")
    return JointStrategy([torch.device("cuda", place) for place in places])
