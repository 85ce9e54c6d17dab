"""A device for tests that computes on the CPU and refuses what CUDA refuses: operations on tensors of two devices.

A tensor of ``emulated:0`` is a hull around one of the CPU. Numbers (no dimension) of the CPU may meet the device's, and
indices of the CPU may index its tensors, as on CUDA. Modules, ``torch.func``, Opacus and Lightning work on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from torchdpcate.fit.trainer import default_trainer

EMULATED = "emulated"

_MOVES = {"aten::_to_copy", "aten::copy_"}
_INDEXING = {"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_JOINS = {"aten::cat", "aten::stack"}
"""Operations that refuse even a number of the CPU."""

_swap = torch.utils.swap_tensors


class OnDevice(Tensor):
    """A tensor of the device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        hull = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(EMULATED, 0),
            requires_grad=inner.requires_grad,
        )
        hull.inner = inner
        return hull

    # with these two, modules keep their parameters, as objects, when they go to the device
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> OnDevice:
        return OnDevice(inner["inner"])

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.inner!r})"


class _Factories(TorchDispatchMode):
    """Hears what is made on the device out of no tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operation gives, on the device where it was requested or where its tensors lie."""
    name, tensors = func._schema.name, [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = any(isinstance(tensor, OnDevice) for tensor in tensors)
    to = there if kwargs.get("device") is None else torch.device(kwargs["device"]).type == EMULATED
    if not (to or there):
        return func(*args, **kwargs)
    if there and name not in _MOVES:
        _refuse_mixed(name, args, tensors)
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a '{EMULATED}' device type for generator but found 'cpu'")
    if name == "aten::_efficientzerotensor":  # has no memory, which its hull could not say
        func = torch.ops.aten.zeros.default
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():
            func(*args, **kwargs)  # the hull's own shape
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    hulls = {id(tensor.inner): tensor for tensor in tensors if isinstance(tensor, OnDevice)}
    args, kwargs = tree_map_only(OnDevice, lambda hull: hull.inner, (args, kwargs))
    found = func(*args, **kwargs)
    if not to or (name == "aten::copy_" and not isinstance(tensors[0], OnDevice)):
        return found
    # what an operation changed in place is the hull that it was given
    return tree_map_only(Tensor, lambda part: hulls[id(part)] if id(part) in hulls else OnDevice(part), found)


def _refuse_mixed(name: str, args: Any, tensors: list[Tensor]) -> None:
    if name in _INDEXING and isinstance(args[0], OnDevice):
        tensors = [args[0], *(value for value in args[2:] if isinstance(value, Tensor))]
    least = 0 if name in _JOINS else 1
    for tensor in tensors:
        if not isinstance(tensor, OnDevice) and tensor.dim() >= least:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {EMULATED}:0 and cpu! "
                f"({name}, {tuple(tensor.shape)} of the CPU)"
            )


class _Module:
    """What torch requests of a device's module; the device has no chance of its own."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.empty(0)

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False


@cache
def _registered() -> None:
    _setup_privateuseone_for_python_backend(EMULATED, _Module())
    # torch.tensor moves what it made by these two, which no mode hears
    for operation, kernel in (("empty_strided", _empty_strided), ("_copy_from", _copy_from)):
        torch.library.impl(f"aten::{operation}", "PrivateUse1", kernel)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> OnDevice:
    return OnDevice(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: OnDevice, non_blocking: bool = False) -> OnDevice:
    target.inner.copy_(source)
    return target


def _swapped(first: Tensor, second: Tensor) -> None:
    """As torch's, of modules that go to the device; one that is there is left, as it would be on CUDA."""
    there = isinstance(first, OnDevice) and isinstance(second, OnDevice)
    if not (there and first.inner.data_ptr() == second.inner.data_ptr()):
        _swap(first, second)


_IN_PLACE = mock.patch.object(torch.utils, "swap_tensors", _swapped)


@contextmanager
def emulated() -> Iterator[torch.device]:
    """Make the device known, and put Trainers there that the package makes where tensors lie."""
    _registered()
    # a partial, so that the package does not take a maker of Trainers that a test gives for its own
    own = mock.patch("torchdpcate.fit.trainer.default_trainer", partial(_emulated_trainer))
    # autograd starts the threads of all devices at its first pass, which may have been before this one was known
    with torch.autograd.set_multithreading_enabled(False), _Factories(), own, _IN_PLACE:
        yield torch.device(EMULATED, 0)


class _Accelerator(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        """Take any device."""


def trainer_on(device: str) -> Callable[..., Trainer]:
    """Return what makes Trainers of a device: ``cpu``, ``cuda`` or the emulated one."""
    return _emulated_trainer if device == EMULATED else partial(default_trainer, accelerator=device)


def _emulated_trainer(**settings: Any) -> Trainer:
    place = {"accelerator": _Accelerator(), "devices": 1, "strategy": SingleDeviceStrategy(torch.device(EMULATED, 0))}
    return default_trainer(**{**settings, **place})
