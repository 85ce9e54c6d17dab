"""How per-record gradients are clipped and summed: two ways of Opacus and our own behind one contract."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from torchdpcate.errors import InputError
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan
from torchdpcate.fit.linear_taps import LinearTaps, linear_layers, sum_type
from torchdpcate.fit.trainable import RecordLossModule, check_shape
from torchdpcate.privacy.noise import NoiseSource, SystemNoise

_handlers = list(logging.getLogger().handlers)
from opacus.grad_sample import GradSampleHooks, GradSampleHooksFastGradientClipping  # noqa: E402
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping  # noqa: E402
from opacus.validators import ModuleValidator  # noqa: E402

# Opacus calls logging.basicConfig when imported; a library must leave the user's root logger alone
for _handler in set(logging.getLogger().handlers) - set(_handlers):
    logging.getLogger().removeHandler(_handler)

Guard = Callable[[], None]

_NUMBERS = 2**14
"""Noise drawn at once where a step takes less."""

_Slopes = list[tuple[Tensor, Tensor]] | None

_PIECE = 2**16
"""Numbers that get their noise at once, so that they stay in the processor's cache."""

_BATCH_NORMS = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
_INSTANCE_NORMS = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d

_UNTRAINED = "it must be in the loss of every batch, inside a layer of the module; else set requires_grad=False"


class _Guarded:
    """Mixin: a step is checked and counted before its noise is drawn, by whatever road `step` is reached.

    The inner optimizer gets the noisy gradients from the noise source's `released`, as it hands them out.
    """

    guard: Guard
    ahead: Callable[[], int]
    noise: NoiseSource
    noise_scale: float
    grid: float
    params: list[nn.Parameter]
    thread: ThreadPoolExecutor
    _rows: Iterator[Tensor] = iter(())
    _next: Future[Tensor] | None = None

    def pre_step(self, closure: Callable[[], float] | None = None) -> Any:
        self.guard()
        ready = super().pre_step(closure)  # type: ignore[misc]
        if ready:
            parameters = self.params
            for p, grad in zip(parameters, self.noise.released([p.grad for p in parameters]), strict=True):
                p.grad = grad
        return ready

    def add_noise(self) -> None:
        """Leave the clipped sums plus noise in `grad`: on a grid, in float64, then rounded to the weights' type.

        Torch's own float32 normals lie on 2^24 circles, which would give the sums away.
        """
        parameters = self.params
        noisy = self.noisy(torch.cat([p.summed_grad.detach().flatten() for p in parameters]))  # type: ignore[attr-defined]
        for p, part in zip(parameters, noisy.split([p.numel() for p in parameters]), strict=True):
            p.grad = part.reshape(p.shape).to(p.dtype)

    def noisy(self, total: Tensor) -> Tensor:
        """Return the clipped sums [p] with noise, in float64."""
        step, drawn = self.grid, self._drawn(len(total), total.device)
        # a new vector, for the sums may be float64 themselves; the step is a power of two, so dividing is exact
        if len(total) <= _PIECE or total.device.type != "cpu":
            return total.double().div(step).round_().mul_(step).add_(drawn)
        noisy = torch.empty_like(drawn)
        for part, own, noise in zip(noisy.split(_PIECE), total.split(_PIECE), drawn.split(_PIECE), strict=True):
            torch.div(own.double(), step, out=part).round_().mul_(step).add_(noise)
        return noisy

    def _drawn(self, size: int, device: torch.device) -> Tensor:
        # the operating system's entropy has no order that a thread could change
        if size > _NUMBERS and device.type != "cpu" and isinstance(self.noise, SystemNoise):
            return self._drawn_before(size, device)
        drawn = next(self._rows, None)
        if drawn is None:
            # of steps that the ledger has paid for already, as many as are drawn fast together
            rows = max(1, min(self.ahead(), _NUMBERS // size))
            self._rows = self.noise.fine_gaussian_rows(rows, size, self.noise_scale)
            drawn = next(self._rows)
        return drawn.to(device)

    def _drawn_before(self, size: int, device: torch.device) -> Tensor:
        """Noise that was drawn while the device took the step before, if the ledger had paid for this one then."""

        def draw() -> Tensor:
            drawn = next(self.noise.fine_gaussian_rows(1, size, self.noise_scale))
            return drawn.pin_memory() if device.type == "cuda" else drawn

        drawn = draw() if self._next is None else self._next.result()
        self._next = self.thread.submit(draw) if self.ahead() > 1 else None
        return drawn.to(device, non_blocking=True)


class _GuardedOptimizer(_Guarded, DPOptimizer):
    pass


class _GuardedGhostOptimizer(_Guarded, DPOptimizerFastGradientClipping):
    def accumulate(self) -> None:
        """The engine's backward pass has left the clipped sums in `summed_grad`."""


class _GuardedChainOptimizer(_GuardedGhostOptimizer):
    """As its base, but all sums lie side by side in one vector, and so do the gradients."""

    sums: Tensor

    def add_noise(self) -> None:
        """See `_Guarded`."""
        gradients = self.noisy(self.sums).to(self.params[0].dtype)
        gradients /= self.expected_batch_size  # type: ignore[operator]
        for p, part in zip(self.params, views(gradients, self.params), strict=True):
            p.grad = part

    def scale_grad(self) -> None:
        """The gradients are divided already, all at once."""


def views(numbers: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return views of a vector that have the parameters' shapes, one behind the other."""
    return [
        part.view(p.shape) for p, part in zip(parameters, numbers.split([p.numel() for p in parameters]), strict=True)
    ]


class Engine(ABC):
    """Per-record clipping of one module for the length of one fit.

    Args:
        module: the module that trains; its state-dict names stay as they are.
        plan: the clip norm and the noise.
        limit: most records that pass at once, for an engine that can take a step in parts; None takes all.

    Raises:
        InputError: a layer that has no per-record gradient, such as batch normalisation.
    """

    optimizer_class: type[DPOptimizer]

    def __init__(self, module: LightningModule, plan: DPSGDPlan, limit: int | None = None) -> None:
        check_layers(module)
        if limit is not None and not isinstance(self, ChainEngine):
            raise InputError("max_physical_batch: only mode='chain' takes a step in parts; leave it None")
        self.limit = limit
        self.module = module
        self.plan = plan
        self.trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.hooks = self.attach()

    @abstractmethod
    def attach(self) -> Any:
        """Put the hooks on the module; return what takes them off by `cleanup`."""

    def optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        expected_batch: float,
        noise: NoiseSource,
        guard: Guard,
        ahead: Callable[[], int] = lambda: 1,
    ) -> DPOptimizer:
        """Wrap `optimizer`: sum of clipped gradients plus noise, over the expected batch size q n.

        `guard` is called before each step, `ahead` then says how many steps are paid for, with this one.
        """
        wrapped = self.optimizer_class(
            optimizer,
            noise_multiplier=self.plan.noise_multiplier,
            max_grad_norm=self.plan.clip_norm,
            expected_batch_size=expected_batch,
        )
        wrapped.guard, wrapped.ahead, wrapped.noise = guard, ahead, noise
        wrapped.noise_scale = self.plan.noise_multiplier * self.plan.max_grad_norm
        wrapped.grid = noise.fine_grid(wrapped.noise_scale)
        wrapped.thread = ThreadPoolExecutor(1)  # begins with the first draw that it is given
        return wrapped

    @abstractmethod
    def check_step(self, records: int | None) -> None:
        """Refuse the step unless every parameter has the clipped gradients of exactly `records` records."""

    def detach(self) -> None:
        """Make the module an ordinary one again: no hook, no activation, no private gradient left on it."""
        self.hooks.cleanup()
        for part in self.module.modules():
            for leftover in ("activations", "max_batch_len"):
                if hasattr(part, leftover):
                    delattr(part, leftover)
        for p in self.module.parameters():
            p.grad = None
            if hasattr(p, "summed_grad"):
                del p.summed_grad


class HooksEngine(Engine):
    """Per-record gradients of every parameter, by the layers' formulas: for any module."""

    optimizer_class = _GuardedOptimizer

    def attach(self) -> GradSampleHooks:
        """Put Opacus's hooks on every layer."""
        hooks = GradSampleHooks(self.module, loss_reduction="mean")
        hooks.forbid_grad_accumulation()
        return hooks

    def check_step(self, records: int | None) -> None:
        """See `Engine`."""
        for name, p in self.trainable:
            grads = getattr(p, "grad_sample", None)
            if not isinstance(grads, Tensor):
                raise InputError(f"parameter {name} has no per-record gradients; {_UNTRAINED}")
            if records is not None and len(grads) != records:
                raise InputError(
                    f"parameter {name} has gradients of {len(grads)} records in a batch of {records}; "
                    "keep the records in the first dimension of every layer"
                )


class _LossesEngine(Engine):
    """An engine that has a backward pass of its own, from the losses of records to clipped sums.

    The module must keep `record_losses` `[B]` in `training_step`, as `RecordLossModule` does.
    """

    mode: str

    def attach(self) -> Any:
        """Put our backward pass in place of the module's."""
        if not hasattr(self.module, "record_losses"):
            raise InputError(f"mode={self.mode!r} needs record_losses [B]; use a RecordLossModule, or mode='hooks'")
        hooks = self.listen()
        vars(self.module)["backward"] = self.backward
        self._records: int | None = None
        return hooks

    @abstractmethod
    def listen(self) -> Any:
        """Put the hooks on the layers."""

    @abstractmethod
    def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """Leave the sum of the clipped per-record gradients in every parameter's `summed_grad`.

        Raises:
            InputError: the losses are not `[B]`, or do not reach a parameter in a way that is heard.
        """

    def losses(self) -> Tensor:
        """Return the losses of a pass, one per record."""
        losses: Any = self.module.record_losses
        if not (isinstance(losses, Tensor) and losses.dim() == 1):
            # a [B, 1] loss would broadcast against [B] clip factors and undo the clipping
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else losses
            raise InputError(f"record_losses has shape {shape}; keep one loss per record, shape [B]")
        return losses

    def check_step(self, records: int | None) -> None:
        """See `Engine`."""
        for name, p in self.trainable:
            if getattr(p, "summed_grad", None) is None:
                raise InputError(f"parameter {name} has no clipped gradient; {_UNTRAINED}")
        if records is not None and records != self._records:
            raise InputError(f"record_losses has {self._records} losses in a batch of {records}; keep one per record")

    def detach(self) -> None:
        """See `Engine`."""
        vars(self.module).pop("backward", None)
        vars(self.module)["record_losses"] = None
        super().detach()


class GhostEngine(_LossesEngine):
    """Two backward passes, one for the norms and one for the clipped sum: fastest, most of all when wide.

    Per-record gradients are never stored.
    """

    optimizer_class = _GuardedGhostOptimizer
    mode = "ghost"

    def listen(self) -> GradSampleHooks:
        """Put Opacus's norm hooks on every layer."""
        return GradSampleHooksFastGradientClipping(self.module, loss_reduction="sum", max_grad_norm=self.plan.clip_norm)

    def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """See `_LossesEngine`."""
        losses = self.losses()
        names, parameters = zip(*self.trainable, strict=True)
        torch.autograd.grad(losses.sum(), parameters, retain_graph=True, allow_unused=True)
        factors = self._clip_factors(names, parameters)
        if factors.shape != losses.shape:
            raise InputError(
                f"record_losses has {len(losses)} losses but the layers saw {len(factors)} records; "
                "keep the records in the first dimension of every layer"
            )
        self.hooks.disable_hooks()
        sums = torch.autograd.grad((factors * losses).sum(), parameters)
        self.hooks.enable_hooks()
        for p, total in zip(parameters, sums, strict=True):
            p.summed_grad = total
        self._records = len(losses)

    def _clip_factors(self, names: tuple[str, ...], parameters: tuple[nn.Parameter, ...]) -> Tensor:
        for name, p in zip(names, parameters, strict=True):
            if getattr(p, "_norm_sample", None) is None:
                raise InputError(f"parameter {name} has no per-record norm; {_UNTRAINED}")
        factors = self.hooks.get_clipping_coef()
        for p in parameters:
            vars(p)["_norm_sample"] = None
        return factors


class ChainEngine(_LossesEngine):
    r"""One backward pass, to the outputs of linear layers alone: fastest, where they hold all that is trained.

    The gradient of record i at the weight of a layer is :math:`\delta_i a_i^\top`, with its input a_i and the gradient
    :math:`\delta_i` at its output, so that its norm is the product of theirs, and the clipped sum of all records one
    product of matrices.  What lies between the layers is the module's own, if it holds nothing that is trained.

    The clipped sum is made of the numbers whose norms were taken, in float64 (`sum_type`), so that a record adds at
    most the clip norm to a sum of any length.
    """

    optimizer_class = _GuardedChainOptimizer
    mode = "chain"

    def listen(self) -> LinearTaps:
        """Listen to the trained layers."""
        listened = any(part._forward_hooks or part._forward_pre_hooks for part in self.module.modules())
        taps = LinearTaps(self.module)
        if self.limit is not None:
            own = getattr(type(self.module), "training_step", None) is RecordLossModule.training_step
            if not own:
                raise InputError("max_physical_batch needs RecordLossModule's own training_step")
            vars(self.module)["training_step"] = self.train
        self._passed = False
        owners = [_owner(self.module, name) for name in ("loss_slopes", "record_loss")]
        self._explicit = owners[0] is owners[1] and not listened
        return taps

    def optimizer(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> DPOptimizer:
        """See `Engine`; the sums lie in the optimizer's order."""
        wrapped = super().optimizer(optimizer, *args, **kwargs)
        weights = nn.utils.parameters_to_vector(wrapped.params).detach()
        wrapped.sums = torch.zeros_like(weights, dtype=sum_type(weights))
        self._sums: dict[Tensor, Tensor] = dict(zip(wrapped.params, views(wrapped.sums, wrapped.params), strict=True))
        return wrapped

    def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """See `_LossesEngine`."""
        if self.limit is None:
            self.clip(self.losses())
            return
        if not self._passed:
            raise InputError("max_physical_batch: a backward pass without the training_step before it")
        self._passed = False
        self._publish()  # gradients were set to zero in between

    def train(self, batch: Any, *_: Any) -> Tensor:
        """Pass and clip `batch`, `limit` records at a time; return the mean loss.

        Raises:
            InputError: as `backward`.
        """
        total: Tensor | None = None
        records = 0
        for part in [batch] if self.limit is None else self._parts(batch, self.limit):
            losses, slopes = self._losses(part)
            check_shape(losses)
            self.clip(losses, add=total is not None, slopes=slopes)
            summed = losses.detach().sum()
            total, records = summed if total is None else total + summed, records + losses.shape[0]
        assert total is not None, "a batch has a part, if an empty one"
        return (total / max(records, 1)).requires_grad_()

    def _losses(self, batch: Any) -> tuple[Tensor, _Slopes]:
        """Losses of records, and their slopes if the module knows these and nothing else was heard."""
        module: Any = self.module
        if self._explicit:
            found = module.loss_slopes(batch)
            if found is not None and self.hooks.covered(found[1]):
                return found
            self._explicit = False
        return module.record_loss(batch), None

    @staticmethod
    def _parts(batch: Any, limit: int) -> Iterator[Any]:
        sizes: list[int] = []
        apply_to_collection(batch, Tensor, lambda leaf: sizes.extend(leaf.shape[:1]))
        size = sizes[0] if sizes else 0
        if size <= limit:
            yield batch
            return
        for first in range(0, size, limit):
            yield apply_to_collection(batch, Tensor, _rows, size, slice(first, first + limit))

    def clip(self, losses: Tensor, *, add: bool = False, slopes: _Slopes = None) -> None:
        """As `backward`, of losses `[B]`; `add` adds to the sums of earlier records of the same step."""
        uses = self.hooks.uses(losses, slopes)
        records = losses.shape[0]
        reached = {p for use in uses for p in use.layer.parameters}
        if len(reached) < len(self.trainable):
            missing = next(name for name, p in self.trainable if p not in reached)
            raise InputError(f"parameter {missing} has no clipped gradient; {_UNTRAINED}")
        with torch.no_grad():
            total: Tensor | None = None
            for use in uses:
                if not (use.inputs.dim() > 1 and use.inputs.shape[0] == records):
                    raise InputError(
                        f"record_losses has {records} losses but a layer saw {use.inputs.shape[0]} records; "
                        "keep the records in the first dimension of every layer"
                    )
                squares = use.squared_norms()
                total = squares if total is None else total.add_(squares)
            assert total is not None, "something is trained"
            # Opacus adds 1e-6 to the norm, too
            factors = total.sqrt_().add_(1e-6).reciprocal_().mul_(self.plan.clip_norm).clamp_(max=1.0)[:, None]
            for use in uses:
                use.weighted_sums(factors, self._sums, add=add)
        self._records = records + (self._records or 0) if add else records
        self._passed = True
        self._publish()

    def _publish(self) -> None:
        for p, summed in self._sums.items():
            vars(p)["summed_grad"] = summed

    def detach(self) -> None:
        """See `Engine`."""
        vars(self.module).pop("training_step", None)
        super().detach()


def _rows(leaf: Tensor, size: int, rows: slice) -> Tensor:
    """Some rows of a tensor that has one a record; else the tensor."""
    return leaf[rows] if leaf.shape[:1] == (size,) else leaf


def _owner(module: nn.Module, name: str) -> Any:
    """What a method of a module belongs to: its class, a base, or the module itself."""
    return module if name in vars(module) else next((c for c in type(module).__mro__ if name in vars(c)), None)


def check_layers(module: nn.Module) -> None:
    """Refuse layers that mix records or learn from them outside the gradient.

    Raises:
        InputError: the module is in eval mode, or has batch statistics or a layer Opacus knows to be unfit.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BATCH_NORMS) or (isinstance(layer, _INSTANCE_NORMS) and layer.track_running_stats):
            kind = type(layer).__name__
            raise InputError(f"layer {name} is a {kind}, whose statistics mix records; use GroupNorm or LayerNorm")
    errors = ModuleValidator.validate(module, strict=False) + GradSampleHooks.validate(module, strict=False)
    if errors:
        raise InputError(f"module cannot be trained with per-record clipping: {errors[0]}")


ENGINES: dict[str, type[Engine]] = {
    "chain": ChainEngine,
    "ghost": GhostEngine,
    "hooks": HooksEngine,
}
"""Engines by the name of their mode."""


def choose_mode(module: nn.Module) -> str:
    """Chain or ghost where it can, else hooks: the measured rule behind `mode='auto'`.

    Chain is the fastest on every network, and needs all that is trained in plain linear layers, see `linear_layers`.
    Ghost is never much slower than hooks (1.1 times on the smallest networks) and some 60 times faster on wide ones
    (4000-512-1). It needs a norm formula for every trained layer. Both need `record_losses`, and each layer used once
    in the loss, by no other's parameters. Hooks differentiate a layer without a formula by torch.func.
    """
    owners = [p for _, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]
    if not hasattr(module, "record_losses") or len(set(owners)) < len(owners):
        return "hooks"
    if linear_layers(module):
        return "chain"
    layers = {type(m) for m in module.modules() if any(p.requires_grad for p in m.parameters(recurse=False))}
    return "ghost" if layers <= set(GradSampleHooksFastGradientClipping.NORM_SAMPLERS) else "hooks"
