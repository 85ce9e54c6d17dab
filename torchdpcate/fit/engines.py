"""How per-record gradients are clipped and summed: by Opacus, or faster for plain linear layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from torchdpcate.errors import InputError
from torchdpcate.fit.dp_sgd_plan import AT_ONCE, DPSGDPlan
from torchdpcate.fit.linear_taps import LinearTaps, linear_layers
from torchdpcate.fit.trainable import RecordLossModule, is_untouched, root_logger_kept, size_of
from torchdpcate.privacy.noise import NoiseSource, SystemNoise

with root_logger_kept():
    from opacus.grad_sample import GradSampleHooks, GradSampleHooksFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
    from opacus.validators import ModuleValidator

Guard = Callable[[], None]

_NUMBERS = 2**14
"""Noise drawn at once where a step takes less."""

_Slopes = list[tuple[Tensor, Tensor]] | None

_PIECE = 2**16
"""Numbers that get their noise at once, so that they stay in the processor's cache."""

_BATCH_NORMS = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
_INSTANCE_NORMS = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d

_REPLACED = {nn.LSTM: "DPLSTM", nn.GRU: "DPGRU", nn.RNN: "DPRNN", nn.MultiheadAttention: "DPMultiheadAttention"}
"""Layers of PyTorch that Opacus has of its own, with the same arguments."""

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
                vars(p).update(summed_grad=None, grad_sample=None)  # another step needs another batch
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


def _rows_of(gradients: Tensor) -> Tensor:
    """Per-record gradients as rows."""
    return gradients.flatten(1) if gradients.dim() > 1 else gradients[:, None]


class _HooksOptimizer(_Guarded, DPOptimizer):
    def clip_and_accumulate(self) -> None:
        """As Opacus; a record whose gradient is not finite is left out, by itself alone: infinity times 0 is none."""
        super().clip_and_accumulate()
        if all(bool(vars(p)["summed_grad"].isfinite().all()) for p in self.params):
            return
        finite = torch.stack([_rows_of(g).isfinite().all(1) for g in self.grad_samples]).all(0)
        for p, gradient in zip(self.params, self.grad_samples, strict=True):
            kept = torch.where(finite.view(-1, *[1] * p.dim()), gradient, 0)
            vars(p).update(summed_grad=None, grad_sample=kept)
        super().clip_and_accumulate()


class _GhostOptimizer(_Guarded, DPOptimizerFastGradientClipping):
    def accumulate(self) -> None:
        """Opacus's second backward pass has left the clipped sums in `grad`; a step is one batch."""
        for p in self.params:
            vars(p)["summed_grad"] = p.grad


class _ChainOptimizer(_Guarded, DPOptimizerFastGradientClipping):
    """All sums lie side by side in one vector, and so do the gradients, of which ``parts`` are the parameters' own."""

    sums: Tensor
    gradients: Tensor
    parts: list[Tensor]

    def add_noise(self) -> None:
        """See `_Guarded`."""
        torch.div(self.noisy(self.sums), self.expected_batch_size, out=self.gradients)  # type: ignore[call-overload]
        for p, part in zip(self.params, self.parts, strict=True):
            p.grad = part

    def accumulate(self) -> None:
        """The engine has left the clipped sums in `summed_grad`."""

    def scale_grad(self) -> None:
        """The gradients are divided already, all at once."""


def views(numbers: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return views of a vector that have the parameters' shapes, one behind the other."""
    return [
        part.view(p.shape) for p, part in zip(parameters, numbers.split([p.numel() for p in parameters]), strict=True)
    ]


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    r"""Factors `[B]` of per-record gradients by their norms, :math:`\min\{1, C / (\|g_i\| + 10^{-6})\}`.

    A gradient whose norm is not finite has the factor 0, by itself alone; infinity times 0 is none, so it must also be
    left out of the sum.

    Example:
        >>> clip_factors(torch.tensor([0.5, 2.0, float("inf"), float("nan")]), clip_norm=1.0)
        tensor([1.0000, 0.5000, 0.0000, 0.0000])
    """
    factors = (norms + 1e-6).reciprocal_().mul_(clip_norm).clamp_(max=1.0)
    return torch.where(norms.isfinite(), factors, 0.0)


def loss_of(found: Any) -> Tensor | None:
    """Return the loss of what a training step returned."""
    loss = found.get("loss") if isinstance(found, Mapping) else found
    return loss if isinstance(loss, Tensor) else None


class Engine(ABC):
    """Per-record clipping of one module for the length of one fit.

    The module must not have a backward pass of its own.

    Attributes:
        wrapped: the optimizer of `optimizer`, whose clip norm is that of the engine.
        left_out: which records `[B]` of the last `clipped_sum` had no finite gradient; None where it does not say.

    Args:
        module: the module that trains; its state-dict names stay as they are.
        plan: the clip norm and the noise.

    Raises:
        InputError: a layer that has no per-record gradient, such as batch normalisation, or a backward pass of its own.
    """

    optimizer_class: type[DPOptimizer]
    wrapped: DPOptimizer
    left_out: Tensor | None = None
    _records: int | None = None

    def __init__(self, module: LightningModule, plan: DPSGDPlan) -> None:
        check_layers(module)
        if _owner(module, "backward") is not LightningModule:
            raise InputError("backward: the module has one of its own, but DPSGD makes the backward pass; remove it")
        self.module = module
        self.plan = plan
        self.trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.own_step: Callable[..., Any] = module.training_step
        self._step: Callable[..., Any] = self.own_step
        self._undo = ExitStack()
        self.hooks = self.attach()
        self._put("backward", self.backward)

    @abstractmethod
    def attach(self) -> Any:
        """Put the hooks on the module; return what takes them off by `cleanup`."""

    @abstractmethod
    def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """Leave with every parameter what the optimizer's `clip_and_accumulate` and `accumulate` sum.

        Raises:
            InputError: a parameter has no gradient of each record.
        """

    def train(self, batch: Any, *_: Any) -> Tensor:
        """Pass a batch forward and backward; return its mean loss."""
        loss = self.step(batch)
        self.backward(loss)
        return loss

    def step(self, batch: Any) -> Tensor:
        """The loss of a batch by the training step as the engine lets it pass.

        Raises:
            InputError: there is none.
        """
        return self._loss(self._step, batch)

    def _loss(self, step: Callable[..., Any], batch: Any) -> Tensor:
        indexed = is_param_in_hook_signature(self.own_step, "batch_idx", min_args=2)
        loss = loss_of(step(batch, 0) if indexed else step(batch))
        if loss is None:
            raise InputError("training_step returned no loss; every batch is a step, so it must return one")
        return loss

    def value(self, batch: Any) -> Tensor:
        """The loss of a batch by the module's own training step; for a trial."""
        return self._loss(self.own_step, batch)

    def clipped_sum(self, batch: Any, clip_norm: float) -> Tensor:
        """The sum `[p]` of a batch's clipped gradients, as a step makes it, in float64; for a trial."""
        before, self.wrapped.max_grad_norm = self.wrapped.max_grad_norm, clip_norm
        try:
            self.train(batch)
            self.left_out = self.not_finite()
            self.wrapped.clip_and_accumulate()
            return torch.cat([vars(p)["summed_grad"].detach().double().flatten() for _, p in self.trainable])
        finally:
            self.wrapped.max_grad_norm = before
            for _, p in self.trainable:
                vars(p).update(summed_grad=None, grad_sample=None)

    def not_finite(self) -> Tensor | None:
        """Which records `[B]` of the last backward pass have no finite gradient; None where it does not say."""
        return None

    def plain_sum(self, batch: Any) -> Tensor | None:
        """The sum `[p]` of a batch's gradients by autograd alone, in float64; None where the engine's cannot differ.

        Raises:
            InputError: a parameter is not in the loss.
        """
        parameters, heard = [p for _, p in self.trainable], self.hooks.hooks_enabled
        self.hooks.disable_hooks()
        try:
            found = torch.autograd.grad(self._loss(self.own_step, batch), parameters, allow_unused=True)
        finally:
            self.hooks.hooks_enabled = heard
        for (name, _), gradient in zip(self.trainable, found, strict=True):
            if gradient is None:
                raise InputError(f"parameter {name} has no gradient; {_UNTRAINED}")
        return (size_of(batch) or 0) * torch.cat([gradient.double().flatten() for gradient in found])

    def _put(self, name: str, method: Callable[..., Any]) -> None:
        """Let a method stand on the module itself until `detach`, in place of what stood there."""
        held = vars(self.module)
        undo = partial(held.__setitem__, name, held[name]) if name in held else partial(held.pop, name, None)
        self._undo.callback(undo)
        held[name] = method

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
        self.wrapped = wrapped = self.optimizer_class(
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

    def check_step(self, records: int | None) -> None:
        """Refuse the step unless every parameter has gradients of exactly `records` records.

        Raises:
            InputError: some has not.
        """
        if self._records is None or records not in (None, self._records):
            raise InputError(f"record_loss gave {self._records} losses in a batch of {records}; return one per record")
        self._records = None

    def detach(self) -> None:
        """Make the module an ordinary one again: no hook, no activation, no private gradient left on it."""
        if isinstance(self.module, RecordLossModule):
            self.module.record_losses = None
        self._undo.close()
        self.hooks.cleanup()
        for part in self.module.modules():
            for leftover in ("activations", "max_batch_len"):
                if hasattr(part, leftover):
                    delattr(part, leftover)
        for p in self.module.parameters():
            p.grad = None
            for leftover in ("summed_grad", "grad_sample"):
                vars(p).pop(leftover, None)


class Unheard(InputError):
    """A parameter of whose gradient the hooks on the layers hear nothing."""


class HooksEngine(Engine):
    """Per-record gradients of every parameter, which Opacus's `DPOptimizer` clips and sums: for any module.

    They come from Opacus's hooks on the layers, or of a module that uses a parameter outside its layer from
    `torch.func`, which differentiates the training step of each record.

    Attributes:
        by_func: Which of both; a trial decides, see `loss_check`.
    """

    optimizer_class = _HooksOptimizer
    by_func = False

    def attach(self) -> GradSampleHooks:
        """Put Opacus's hooks on every layer."""
        hooks = GradSampleHooks(self.module, loss_reduction="mean")
        hooks.forbid_grad_accumulation()
        return hooks

    def differentiate(self) -> None:
        """Take the gradients from `torch.func` from now on."""
        self.hooks.cleanup()  # torch.func passes no full backward hook, not even one that is off
        self.by_func = True

        @wraps(self.own_step)
        def noting(batch: Any, *rest: Any) -> Any:
            self._batch = batch  # which passes again, record by record
            return self.own_step(batch, *rest)

        self._step = noting
        self._put("training_step", noting)

    def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """See `Engine`."""
        if self.by_func:
            parameters = [p for _, p in self.trainable]
            for p, gradient in zip(parameters, self._by_func(), strict=True):
                vars(p)["grad_sample"] = gradient
        else:
            loss.backward()  # a hook waits for the gradient at its layer's input, whoever wants that
            for p in self.module.parameters():
                p.grad = None
        self.check_step(None)

    def not_finite(self) -> Tensor:
        """See `Engine`."""
        return ~torch.stack([_rows_of(vars(p)["grad_sample"]).norm(dim=1) for _, p in self.trainable]).isfinite().all(0)

    def _by_func(self) -> list[Tensor]:
        leaves: list[Any] = []  # tensors of the batch, in its own order
        apply_to_collection(self._batch, Tensor, leaves.append)
        size = size_of(self._batch) or 0
        dims = [0 if isinstance(leaf, Tensor) and leaf.shape[:1] == (size,) else None for leaf in leaves]
        names = [f"module.{name}" for name, _ in self.trainable]
        step = _Step(self.module, lambda batch: self._loss(self.own_step, batch))

        def loss(parameters: dict[str, Tensor], *record: Any) -> Tensor:
            single = iter([leaf if dim is None else leaf[None] for leaf, dim in zip(record, dims, strict=True)])
            batch = apply_to_collection(self._batch, Tensor, lambda _: next(single))
            return functional_call(step, parameters, (batch,))

        parameters = {name: p.detach() for name, (_, p) in zip(names, self.trainable, strict=True)}
        if not size:
            return [p.new_zeros(0, *p.shape) for p in parameters.values()]
        try:
            with silent(self.module):
                found = vmap(grad(loss), in_dims=(None, *dims), randomness="different")(parameters, *leaves)
        except InputError:
            raise
        except Exception as error:  # torch.func has many, and some show what records hold
            raise InputError(
                "training_step: a parameter is used outside its layer, and torch.func cannot differentiate the step of "
                f"each record ({type(error).__name__}); use it in a layer alone, or leave out .item(), metrics and "
                "branches by values"
            ) from None
        return [found[name].detach() for name in names]

    def check_step(self, records: int | None) -> None:
        """See `Engine`; without a number all parameters must agree."""
        for name, p in self.trainable:
            gradient = getattr(p, "grad_sample", None)
            if not isinstance(gradient, Tensor):
                raise Unheard(f"parameter {name} has no per-record gradients; {_UNTRAINED}")
            records = len(gradient) if records is None else records
            if len(gradient) != records:
                raise InputError(
                    f"parameter {name} has gradients of {len(gradient)} records in a batch of {records}; "
                    "keep the records in the first dimension of every layer"
                )


class _Step(nn.Module):
    """A module's training step in the place of its forward pass, for `functional_call`."""

    def __init__(self, module: LightningModule, step: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.module, self.step = module, step

    def forward(self, batch: Any) -> Tensor:
        """See the step."""
        return self.step(batch)


@contextmanager
def silent(module: LightningModule) -> Iterator[None]:
    """Let a module log nothing meanwhile."""
    held = vars(module)
    before: dict[str, Any] = {name: held[name] for name in ("log", "log_dict") if name in held}
    held.update(log=_nothing, log_dict=_nothing)
    try:
        yield
    finally:
        for name in ("log", "log_dict"):
            held.pop(name, None)
        held.update(before)


def _nothing(*_: Any, **__: Any) -> None:
    """Log nothing."""


class GhostEngine(Engine):
    """Norms of per-record gradients by Opacus's ghost clipping, and the clipped sum by its second backward pass.

    For untouched networks of the library whose trained parameters lie in plain linear layers, each used once: of a use
    that its hooks do not hear the norms would know nothing, and those of several rows of a record may cancel.
    """

    optimizer_class = _GhostOptimizer

    def attach(self) -> GradSampleHooksFastGradientClipping:
        """Put Opacus's hooks on every layer."""
        self._step = self._noting
        self._put("training_step", self._noting)
        return GradSampleHooksFastGradientClipping(self.module, max_grad_norm=self.plan.clip_norm, loss_reduction="sum")

    def _noting(self, batch: Any, *rest: Any) -> Any:
        self._batch = batch
        return self.own_step(batch, *rest)

    def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """See `Engine`."""
        losses: Any = self.module.record_losses
        self._records = len(losses)
        while not bool((finite := self._clipped(losses)).all()):
            # infinity times 0 is none: the others pass without it
            self._batch = [leaf[finite] for leaf in self._batch]
            losses = self.module.record_loss(self._batch)  # type: ignore[operator]

    def _clipped(self, losses: Tensor) -> Tensor:
        """Leave the clipped sums in `grad`; return which records have finite gradients."""
        DPTensorFastGradientClipping(self.hooks, self.wrapped, losses, loss_reduction="sum").backward()
        return self.hooks.per_sample_gradient_norms.isfinite()


class ChainEngine(Engine):
    r"""The fast engine of the library's own plain networks: one backward pass, to the outputs of linear layers alone.

    The gradient of record i at the weight of a layer is :math:`\delta_i a_i^\top`, with its input a_i and the gradient
    :math:`\delta_i` at its output, so that its norm is the product of theirs, and the clipped sum of all records one
    product of matrices.  What lies between the layers is the module's own, if it holds nothing that is trained.

    The clipped sum is made of the numbers whose norms were taken, so that a record adds at most the clip norm. A batch
    passes in parts of at most `AT_ONCE` records.
    """

    optimizer_class = _ChainOptimizer

    def attach(self) -> LinearTaps:
        """Listen to the trained layers."""
        if not (isinstance(self.module, RecordLossModule) and is_untouched(self.module)):
            raise InputError("mode='chain' is for the library's own networks, as they are; use mode='opacus'")
        self._put("training_step", self.train)
        return LinearTaps(self.module)

    def optimizer(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> DPOptimizer:
        """See `Engine`; the sums lie in the optimizer's order."""
        wrapped = super().optimizer(optimizer, *args, **kwargs)
        weights = nn.utils.parameters_to_vector(wrapped.params).detach()
        wrapped.sums, wrapped.gradients = torch.zeros_like(weights), torch.zeros_like(weights)
        wrapped.parts = views(wrapped.gradients, wrapped.params)
        self._sums: dict[Tensor, Tensor] = dict(zip(wrapped.params, views(wrapped.sums, wrapped.params), strict=True))
        return wrapped

    def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """See `Engine`."""
        self._publish()  # gradients were set to zero since the training step

    def train(self, batch: Any, *_: Any) -> Tensor:
        """Pass and clip a batch, `AT_ONCE` records at a time; return the mean loss."""
        module: Any = self.module
        total, self._records = torch.zeros(()), 0
        for part in zip(*(leaf.split(AT_ONCE) for leaf in batch), strict=True):
            losses, slopes = module.loss_slopes(part) or (module.record_loss(part), None)
            self.clip(losses, add=self._records > 0, slopes=slopes)
            total, self._records = losses.detach().sum() + total, self._records + len(losses)
        return (total / max(self._records, 1)).requires_grad_()

    @torch.no_grad()
    def clip(self, losses: Tensor, *, add: bool, slopes: _Slopes) -> None:
        """As `backward`, of losses `[B]`; `add` adds to the sums of earlier records of the same step."""
        uses = self.hooks.uses(losses, slopes)
        # Opacus adds 1e-6 to the norm, too
        norms = torch.stack([use.squared_norms() for use in uses]).sum(0).sqrt_()
        factors, finite = clip_factors(norms, self.wrapped.max_grad_norm)[:, None], norms.isfinite()
        for use in uses if bool(finite.all()) else [use.of(finite) for use in uses]:
            use.weighted_sums(factors, self._sums, add=add)
        self._publish()

    def _publish(self) -> None:
        for p, summed in self._sums.items():
            vars(p)["summed_grad"] = summed


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
        if (own := _REPLACED.get(type(layer))) is not None:
            raise InputError(
                f"layer {name} is nn.{type(layer).__name__}, of which no gradient of one record is heard; put "
                f"opacus.layers.{own} of the same arguments in its place"
            )
    errors = ModuleValidator.validate(module, strict=False) + GradSampleHooks.validate(module, strict=False)
    if errors:
        raise InputError(f"module cannot be trained with per-record clipping: {errors[0]}")


def engine_of(module: LightningModule, plan: DPSGDPlan, mode: str = "opacus") -> Engine:
    """Attach an engine to a module.

    Args:
        module: see `Engine`.
        plan: see `Engine`.
        mode: `opacus`, by ghost clipping where `GhostEngine` may, else by its hooks and `DPOptimizer`; or `chain`.

    Raises:
        InputError: see `Engine`.
    """
    if mode == "chain":
        return ChainEngine(module, plan)
    ghost = isinstance(module, RecordLossModule) and is_untouched(module) and linear_layers(module)
    return (GhostEngine if ghost else HooksEngine)(module, plan)
