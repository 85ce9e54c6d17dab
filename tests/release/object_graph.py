"""Every number that an object holds on to, however deep: what a debugger or a pickler could reach."""

import gc
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ATOMS = (str, bytes, bytearray, bool, int, type(None), type, types.ModuleType, types.CodeType, types.FrameType)


def reachable(start: Any) -> Iterator[tuple[str, Any]]:
    """Yield each object that can be reached from one, with its path.

    Whatever the garbage collector follows, the closures and defaults of functions, the storages, gradients and autograd
    graphs of tensors. Classes, modules and the globals of functions belong to no release and are left out.
    """
    seen: dict[int, Any] = {}  # keeps what is made on the way alive, so that no id comes twice
    queue: list[tuple[str, Any]] = [("release", start)]
    while queue:
        path, value = queue.pop()
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen[id(value)] = value
        yield path, value
        queue += [(path + name, part) for name, part in _parts(value)]


def arrays(start: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every array of numbers that can be reached, with its path; of a view also all that lies behind it."""
    for path, value in reachable(start):
        if isinstance(value, Tensor):
            dense = value.detach().coalesce().values() if value.is_sparse else value.detach()
            yield path, dense.numpy()
            yield f"{path}<storage>", torch.empty(0, dtype=dense.dtype).set_(dense.untyped_storage()).numpy()
        elif isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
            yield path, value
        elif isinstance(value, float):
            yield path, np.array([value])


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell != types.CellType():
                yield f"<closure of {value.__qualname__}: {name}>", cell.cell_contents
        yield "<defaults>", [value.__defaults__, value.__kwdefaults__, vars(value)]
    elif isinstance(value, dict):
        for key, part in value.items():
            yield f".{key!s:.40}", part
            yield "<key>", key
    else:
        for index, part in enumerate(gc.get_referents(value)):
            yield "" if isinstance(part, dict) else f"[{index}]", part
    if isinstance(value, Tensor):
        yield ".grad", value.grad if value.is_leaf else None
        yield ".grad_fn", value.grad_fn
        yield ".base", value._base
        yield "", vars(value)
    if "Backward" in type(value).__name__ or "AccumulateGrad" in type(value).__name__:
        for name in ("next_functions", "variable", *(name for name in dir(value) if name.startswith("_saved"))):
            yield f".{name}", getattr(value, name, None)
