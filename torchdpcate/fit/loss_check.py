"""Whether a user's training step is what DP-SGD can clip: a mean of one term a record, as far as a trial tells."""

from __future__ import annotations

import hashlib
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torchmetrics import Metric

from torchdpcate.errors import InputError
from torchdpcate.fit.engines import Engine, HooksEngine, Unheard, silent

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_LEAST = 32  # records of a trial, where there are as many; else as many as a step expects
_ALONE = 8  # records tried one by one
_TOLERANCE = 1e-3  # of sums; float32 rounds by 1e-6, and a sum in place of a mean is off by its number of terms
_SHORT, _LONG = 1e-6, 1e30  # clip norms: of a sum of directions, and of no clipping

_MEAN = (
    "DPSGD needs a mean of one term a record: reduction='mean', no class weights in it, no sum, no contrast and no "
    "statistics of the batch, and predictions and targets of one shape"
)


class Trial:
    r"""A trial of a module's training step, before its first batch, in training mode and by the engine that will clip.

    With S the sum of clipped gradients of a batch, K and R halves of it and K', R' other records in their places,

    .. math:: S(K, R) - S(K, R') - S(K', R) + S(K', R') = 0

    if a record's part depends on that record alone, whatever is random, for all four draw the same numbers.  Batch
    statistics, contrasts, mixed records, and records that change places within the network fail.  So does a second
    :math:`S(K, R)` that differs from the first, of a module that remembers; and a step that changes a parameter or a
    buffer, or leaves in an attribute something that differs with the records.  Then the gradients that the hooks on the
    layers hear are compared with autograd's, and the mean of losses one by one with the loss of all, with dropout off.

    It is a trial and no proof.  Nothing is logged, and what the steps leave in the module is taken back.

    Args:
        trainer: at its first batch.
        module: in training mode.
        engine: attached to it; it turns to `torch.func` where hooks do not hear all.
        expected: records that a step expects.
    """

    def __init__(self, trainer: Trainer, module: LightningModule, engine: Engine, expected: float) -> None:
        self.trainer, self.module, self.engine = trainer, module, engine
        loader: Any = trainer.train_dataloader
        self.loader, n = loader, len(loader.dataset)
        count = min(n, max(_LEAST, round(expected)))
        # far apart, for tables are often sorted by class
        self.records = [round(i * (n - 1) / max(count - 1, 1)) for i in range(count)]

    def run(self) -> None:
        """Refuse a step that fails.

        Raises:
            InputError: it does; without numbers, for nothing pays for them, and a message goes farther than the
                curator's folder.
        """
        hears_all = self._without_trace(self._hears_all)
        if not hears_all:
            assert isinstance(self.engine, HooksEngine)
            self.engine.differentiate()
            hears_all = self._without_trace(self._hears_all)
        if not hears_all:
            raise InputError(f"training_step: its gradient is not the mean of its records' own; {_MEAN}")
        self.records = self._without_trace(self._finite)
        if len(self.records) > 1:
            self._without_trace(self._alike)
        self._without_trace(self._one_by_one)

    def _without_trace(self, tried: Callable[[], Any]) -> Any:
        with isolate_rng(), silent(self.module), _aside(list(self.module.modules())):
            return tried()

    def _finite(self) -> list[int]:
        """The records of the trial but for those that count as zero, which must do so beside all others."""
        out = self._out(self.records)
        return [r for r in self.records if r not in out]

    def _out(self, records: Sequence[int]) -> set[int]:
        self._sum(records)
        if self.engine.left_out is None:
            return set()
        out = {r for r, left_out in zip(records, self.engine.left_out.tolist(), strict=True) if left_out}
        half = len(records) // 2
        if out and half > 1 and out != self._out(records[:half]) | self._out(records[half:]):
            raise InputError(f"training_step: what a record adds to the gradient depends on the others; {_MEAN}")
        return out

    def _hears_all(self) -> bool:
        """Whether the engine's gradients, not clipped, add up to autograd's."""
        for first in range(0, len(self.records), _ALONE):
            part = self.records[first : first + _ALONE]
            with self._prepared(part, dropout=False) as batch:
                plain = self.engine.plain_sum(batch)
            if plain is None:
                return True
            with self._prepared(part, dropout=False) as batch:
                try:
                    heard = self.engine.clipped_sum(batch, _LONG)
                except Unheard:
                    return False
            if self.engine.left_out is not None and bool(self.engine.left_out.any()):
                continue  # the sums are not of the same records
            if not _close(heard - plain, heard.norm() + plain.norm()):
                assert isinstance(self.engine, HooksEngine)
                return self.engine.by_func and self._is_random(part)
            return True
        return True

    def _alike(self) -> None:
        """Whether a record's part of the sum of clipped gradients is the same beside all others."""
        kept, size = self.records, len(self.records)
        even, odd = ([kept[o] if i % 2 == half else r for i, r in enumerate(kept)] for half, o in enumerate((-1, 0)))
        both = [even[i] if i % 2 == 0 else odd[i] for i in range(size)]
        left, other = (self._left(records) for records in (kept, both))
        for name in left.keys() | other.keys():
            if left.get(name) != other.get(name):
                raise InputError(
                    f"training_step leaves something of the records in {name}, which nothing pays for; keep nothing of "
                    "a batch beyond its step, log by self.log, and count by a metric of torchmetrics"
                )
        for clip_norm in (_SHORT, _LONG):  # directions alone, and lengths
            first, second, third, fourth, again = (
                self._sum(records, clip_norm) for records in (kept, odd, even, both, kept)
            )
            scale = _SHORT * size**0.5 if clip_norm == _SHORT else first.norm() + fourth.norm()
            if not _close(again - first, scale):
                raise InputError(
                    "training_step: the same records have another gradient the second time; it must remember nothing "
                    "of the records, and draw random numbers by torch, numpy or random, without a generator outside "
                    "the module"
                )
            if not _close(first - second - third + fourth, scale):
                raise InputError(f"training_step: what a record adds to the gradient depends on the others; {_MEAN}")

    def _one_by_one(self) -> None:
        """Whether the loss is the mean of those of its records alone."""
        records = self.records[:: max(1, len(self.records) // _ALONE)][:_ALONE]
        if not records or self._is_random(records):
            return
        alone = [self._value([record]) for record in records]
        for some in (slice(None), slice(3), slice(-3, None)):
            together, terms = self._value(records[some]), alone[some]
            size = max(abs(together), *map(abs, terms))  # terms may cancel in a mean
            if math.isfinite(size) and abs(together - sum(terms) / len(terms)) > _TOLERANCE * size:
                raise InputError(f"training_step: its loss is not the mean of its records' losses one by one; {_MEAN}")

    def _is_random(self, records: Sequence[int]) -> bool:
        """Whether the loss of the same records differs with the random numbers, with dropout off."""
        first, second = self._value(records), self._value(records, skipped=1)
        return first != second and not math.isnan(first)

    def _sum(self, records: Sequence[int], clip_norm: float = _SHORT) -> Tensor:
        """The sum of clipped gradients.

        Raises:
            InputError: the step changed a parameter or a buffer.
        """
        before = State(self.module)
        with self._prepared(records) as batch:
            total = self.engine.clipped_sum(batch, clip_norm)
            before.check()
        return total

    def _left(self, records: Sequence[int]) -> dict[str, str]:
        """What a step leaves in the module."""
        with self._prepared(records) as batch:
            self.engine.clipped_sum(batch, _SHORT)
            return _left(self.module)

    @torch.no_grad()
    def _value(self, records: Sequence[int], skipped: int = 0) -> float:
        with self._prepared(records, dropout=False, skipped=skipped) as batch:
            return float(self.engine.value(batch))

    @contextmanager
    def _prepared(self, records: Sequence[int], dropout: bool = True, skipped: int = 0) -> Iterator[Any]:
        """The batch of some records, for a step that leaves no trace but in metrics; the same numbers are drawn."""
        parts = [part for part in self.module.modules() if not isinstance(part, Metric)]
        off = [] if dropout else [part for part in parts if isinstance(part, _DROPOUT) and part.training]
        with isolate_rng(), _aside(parts), self.trainer.precision_plugin.train_step_context():
            for part in off:
                part.training = False
            for _ in range(skipped):
                torch.rand(1)
                np.random.rand()  # noqa: NPY002  # the module may draw from numpy's global generator
                random.random()
            yield self._batch(records)

    def _batch(self, records: Sequence[int]) -> Any:
        """As the Trainer fetches it."""
        dataset, plugin = self.loader.dataset, self.trainer.precision_plugin
        fetch = getattr(dataset, "__getitems__", None) or (lambda indices: [dataset[i] for i in indices])
        batch = plugin.convert_input(self.loader.collate_fn(fetch(list(records))))
        data = getattr(self.trainer, "datamodule", None)
        hooked = data if data is not None and is_overridden("on_before_batch_transfer", data) else self.module
        batch = hooked.on_before_batch_transfer(batch, dataloader_idx=0)
        return self.trainer.strategy.batch_to_device(batch, dataloader_idx=0)


class State:
    """Parameters and buffers of a module, which no training step may change; those of metrics are their own.

    Args:
        module: as it stands now.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.before = {name: tensor.detach().clone() for name, tensor in _tensors(module)}

    def check(self) -> None:
        """Refuse a change.

        Raises:
            InputError: names what was changed.
        """
        now = dict(_tensors(self.module))
        for name in now.keys() | self.before.keys():
            old, new = self.before.get(name), now.get(name)
            if old is None or new is None or not _equal(old, new):
                raise InputError(
                    f"training_step changes {name}, a parameter or buffer, without noise: a record would show in it; "
                    "leave running statistics, baselines and max_norm out, and change weights by the optimizer alone"
                )


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, part in module.named_modules():
        if not isinstance(part, Metric):
            for own, tensor in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
                yield f"{name}.{own}".lstrip("."), tensor


def _equal(old: Tensor, new: Tensor) -> bool:
    if old.shape != new.shape or old.dtype != new.dtype or old.device != new.device:
        return False
    return torch.equal(old, new) or torch.allclose(old, new, rtol=0, atol=0, equal_nan=True)


def _close(difference: Tensor, scale: Tensor | float) -> bool:
    return bool(difference.norm() <= _TOLERANCE * scale)


# ---- what a step leaves in a module


_OURS = ("record_losses", "activations", "max_batch_len", "training_step", "backward", "forward", "log", "log_dict")


def _left(module: nn.Module) -> dict[str, str]:
    """Digests of a module's attributes by name, but for what Lightning and the engine hold."""
    skipped = {*_OURS, *vars(nn.Module()), *vars(LightningModule())}
    found: dict[str, str] = {}
    for name, part in module.named_modules():
        if isinstance(part, Metric):
            continue
        for own, value in vars(part).items():
            if own not in skipped:
                digest = hashlib.blake2b()
                _digest(value, digest, set())
                found[f"{name}.{own}".lstrip(".")] = digest.hexdigest()
    return found


_FOREIGN = ("torch.", "lightning.", "lightning_", "torchmetrics.", "opacus.", "torchdpcate.")


def _digest(value: Any, digest: Any, seen: set[int]) -> None:
    """Take the numbers and words of a value into a digest."""
    digest.update(type(value).__name__.encode())
    if isinstance(value, Tensor):
        plain = value.detach().cpu().to_dense().contiguous().flatten()
        digest.update(plain.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        digest.update(value.tobytes())
    elif isinstance(value, int | float | complex | str | bytes | None):
        digest.update(repr(value).encode())
    elif id(value) not in seen:
        seen.add(id(value))
        for part in _parts_of(value):
            _digest(part, digest, seen)


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, list | tuple | deque):
        return list(value)
    foreign = callable(value) or f"{type(value).__module__}.".startswith(_FOREIGN)
    return [] if foreign or not hasattr(value, "__dict__") else [vars(value)]


@contextmanager
def _aside(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Put back the attributes of modules, their tensors, and what their lists, dicts and generators hold."""
    before = [(part, dict(vars(part))) for part in parts]
    values = [value for _, held in before for value in held.values()]
    holders = [v for v in values if isinstance(v, list | dict | set)]
    contents = [(holder, holder.copy()) for holder in holders]
    held_by = [content.values() if isinstance(content, dict) else content for _, content in contents]
    tensors = [*values, *(value for content in held_by for value in content)]
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors if isinstance(tensor, Tensor)]
    torches = [(v, v.get_state()) for v in values if isinstance(v, torch.Generator)]
    numpys = [(v, v.bit_generator.state) for v in values if isinstance(v, np.random.Generator)]
    try:
        yield
    finally:
        for part, held in before:
            vars(part).clear()
            vars(part).update(held)
        for holder, content in contents:
            holder.clear()
            holder.extend(content) if isinstance(holder, list) else holder.update(content)
        with torch.no_grad():
            for tensor, value in kept:
                if not _equal(tensor, value):
                    tensor.copy_(value)
        for generator, drawn in torches:
            generator.set_state(drawn)
        for source, taken in numpys:
            source.bit_generator.state = taken
