"""How per-record gradients are clipped and summed: of linear layers at once, else of each record, by Opacus."""

from __future__ import annotations

import logging
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
from torchdpcate.fit.linear_taps import LinearTaps, linear_layers, sum_type
from torchdpcate.fit.trainable import RecordLossModule, check_shape, size_of
from torchdpcate.privacy.noise import NoiseSource, SystemNoise

_handlers = list(logging.getLogger().handlers)
from opacus.grad_sample import GradSampleHooks  # noqa: E402
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
                vars(p)["summed_grad"] = None  # another step needs another batch
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


class _GuardedOptimizer(_Guarded, DPOptimizerFastGradientClipping):
    def accumulate(self) -> None:
        """The engine's backward pass has left the clipped sums in `summed_grad`."""


class _GuardedChainOptimizer(_GuardedOptimizer):
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

    The module must not have a backward pass of its own: the engine's leaves the clipped sums in each parameter's
    `summed_grad`.

    Attributes:
        left_out: which records of the last batch, `[B]`, had no finite gradient; None where it does not say.

    Args:
        module: the module that trains; its state-dict names stay as they are.
        plan: the clip norm and the noise.

    Raises:
        InputError: a layer that has no per-record gradient, such as batch normalisation, or a backward pass of its own.
    """

    optimizer_class: type[DPOptimizer] = _GuardedOptimizer
    left_out: Tensor | None = None

    def __init__(self, module: LightningModule, plan: DPSGDPlan) -> None:
        check_layers(module)
        if _owner(module, "backward") is not LightningModule:
            raise InputError("backward: the module has one of its own, but DPSGD makes the backward pass; remove it")
        self.module = module
        self.plan = plan
        self.clip_norm = plan.clip_norm
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
        """Leave the sum of the clipped per-record gradients in every parameter's `summed_grad`.

        Raises:
            InputError: a parameter has no gradient of each record.
        """

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
        before, self.clip_norm = self.clip_norm, clip_norm
        try:
            self.backward(self.step(batch))
            return torch.cat([vars(p)["summed_grad"].detach().double().flatten() for _, p in self.trainable])
        finally:
            self.clip_norm = before
            for _, p in self.trainable:
                vars(p)["summed_grad"] = None

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
        wrapped = self.optimizer_class(
            optimizer,
            noise_multiplier=self.plan.noise_multiplier,
            max_grad_norm=self.clip_norm,
            expected_batch_size=expected_batch,
        )
        wrapped.guard, wrapped.ahead, wrapped.noise = guard, ahead, noise
        wrapped.noise_scale = self.plan.noise_multiplier * self.plan.max_grad_norm
        wrapped.grid = noise.fine_grid(wrapped.noise_scale)
        wrapped.thread = ThreadPoolExecutor(1)  # begins with the first draw that it is given
        return wrapped

    def check_step(self, records: int | None) -> None:
        """Refuse the step unless every parameter has the clipped gradients of exactly `records` records."""
        for name, p in self.trainable:
            if getattr(p, "summed_grad", None) is None:
                raise InputError(f"parameter {name} has no clipped gradient; {_UNTRAINED}")

    def detach(self) -> None:
        """Make the module an ordinary one again: no hook, no activation, no private gradient left on it."""
        self._undo.close()
        self.hooks.cleanup()
        for part in self.module.modules():
            for leftover in ("activations", "max_batch_len"):
                if hasattr(part, leftover):
                    delattr(part, leftover)
        for p in self.module.parameters():
            p.grad = None
            if hasattr(p, "summed_grad"):
                del p.summed_grad


class Unheard(InputError):
    """A parameter of whose gradient the hooks on the layers hear nothing."""


class HooksEngine(Engine):
    """Per-record gradients of every parameter: for any module.

    They come from hooks on the layers, by the layers' formulas, or of a module that uses a parameter outside its layer
    from `torch.func`, which differentiates the training step of each record.

    Attributes:
        by_func: Which of both; a trial decides, see `loss_check`.
    """

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
        gradients = self._by_func() if self.by_func else self._by_hooks(loss)
        self._counts = {self.trainable[i][0]: len(gradient) for i, gradient in enumerate(gradients)}
        if len(set(self._counts.values())) > 1:
            self._check_counts(max(self._counts.values()))
        norms = torch.stack([(g.flatten(1) if g.dim() > 1 else g[:, None]).norm(dim=1) for g in gradients]).norm(dim=0)
        factors, finite = clip_factors(norms, self.clip_norm), norms.isfinite()
        self.left_out = ~finite
        if not bool(finite.all()):
            gradients = [torch.where(finite.view(-1, *[1] * (g.dim() - 1)), g, 0) for g in gradients]
        parameters = [p for _, p in self.trainable]
        for p, gradient in zip(parameters, gradients, strict=True):
            vars(p)["summed_grad"] = torch.einsum("i,i...", factors.to(gradient), gradient)

    def _by_hooks(self, loss: Tensor) -> list[Tensor]:
        loss.backward()  # a hook waits for the gradient at its layer's input, whoever wants that
        gradients: list[Tensor] = []
        for name, p in self.trainable:
            heard = getattr(p, "grad_sample", None)
            if not isinstance(heard, Tensor):
                raise Unheard(f"parameter {name} has no per-record gradients; {_UNTRAINED}")
            gradients.append(heard)
        for p in self.module.parameters():
            vars(p)["grad_sample"] = p.grad = None
        return gradients

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
        """See `Engine`."""
        super().check_step(records)
        self._check_counts(records)

    def _check_counts(self, records: int | None) -> None:
        for name, count in self._counts.items():
            if records is not None and count != records:
                raise InputError(
                    f"parameter {name} has gradients of {count} records in a batch of {records}; "
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


class ChainEngine(Engine):
    r"""One backward pass, to the outputs of linear layers alone: fastest, where they hold all that is trained.

    The gradient of record i at the weight of a layer is :math:`\delta_i a_i^\top`, with its input a_i and the gradient
    :math:`\delta_i` at its output, so that its norm is the product of theirs, and the clipped sum of all records one
    product of matrices.  What lies between the layers is the module's own, if it holds nothing that is trained.

    The clipped sum is made of the numbers whose norms were taken, in float64 (`sum_type`), so that a record adds at
    most the clip norm to a sum of any length.

    The module must keep `record_losses` `[B]` in `training_step`, as `RecordLossModule` does; a batch of that class's
    own step passes in parts of at most `AT_ONCE` records.
    """

    optimizer_class = _GuardedChainOptimizer
    _records: int | None = None

    def attach(self) -> LinearTaps:
        """Listen to the trained layers."""
        if not hasattr(self.module, "record_losses"):
            raise InputError("mode='chain' needs record_losses [B]; use a RecordLossModule, or mode='hooks'")
        listened = any(part._forward_hooks or part._forward_pre_hooks for part in self.module.modules())
        taps = LinearTaps(self.module)
        self._in_parts = _owner(self.module, "training_step") is RecordLossModule
        if self._in_parts:
            self._step = self.train
            self._put("training_step", self.train)
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
        """See `Engine`."""
        if not self._in_parts:
            losses: Any = self.module.record_losses
            if not (isinstance(losses, Tensor) and losses.dim() == 1):
                # a [B, 1] loss would broadcast against [B] clip factors and undo the clipping
                shape = tuple(losses.shape) if isinstance(losses, Tensor) else losses
                raise InputError(f"record_losses has shape {shape}; keep one loss per record, shape [B]")
            self.clip(losses)
            return
        if not self._passed:
            raise InputError("a backward pass without the training_step before it")
        self._passed = False
        self._publish()  # gradients were set to zero in between

    def train(self, batch: Any, *_: Any) -> Tensor:
        """Pass and clip `batch`, `AT_ONCE` records at a time; return the mean loss.

        Raises:
            InputError: as `backward`.
        """
        total: Tensor | None = None
        records = 0
        for part in self._parts(batch, AT_ONCE):
            losses, slopes = self._losses(part)
            check_shape(losses)
            self.clip(losses, add=total is not None, slopes=slopes)
            summed = losses.detach().sum()
            total, records = summed if total is None else total + summed, records + losses.shape[0]
        assert total is not None, "a batch has a part, if an empty one"
        return (total / max(records, 1)).requires_grad_()

    def check_step(self, records: int | None) -> None:
        """See `Engine`."""
        super().check_step(records)
        if records is not None and records != self._records:
            raise InputError(f"record_losses has {self._records} losses in a batch of {records}; keep one per record")

    def detach(self) -> None:
        """See `Engine`."""
        vars(self.module)["record_losses"] = None
        super().detach()

    def plain_sum(self, batch: Any) -> None:
        """None: a loss that depends on a weight outside its layer is refused."""

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
        size = size_of(batch) or 0
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
            norms = total.sqrt_()
            factors, finite = clip_factors(norms, self.clip_norm)[:, None], norms.isfinite()
            for use in uses if bool(finite.all()) else [use.of(finite) for use in uses]:
                use.weighted_sums(factors, self._sums, add=add)
        self._records = records + (self._records or 0) if add else records
        self._passed = True
        self._publish()

    def _publish(self) -> None:
        for p, summed in self._sums.items():
            vars(p)["summed_grad"] = summed


def _rows(leaf: Tensor, size: int, rows: slice | Tensor) -> Tensor:
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


def engine_of(module: LightningModule, plan: DPSGDPlan, mode: str = "auto") -> Engine:
    """Attach an engine to a module.

    Args:
        module: see `Engine`.
        plan: see `Engine`.
        mode: `chain`, `hooks`, or `auto`: chain where it can, which is the fastest on every network. It needs
            `record_losses`, and all that is trained in plain linear layers (see `linear_layers`), each used once in the
            loss by no other's parameters.

    Raises:
        InputError: see `Engine`.
    """
    if mode == "auto":
        owners = [p for _, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]
        chained = hasattr(module, "record_losses") and len(set(owners)) == len(owners) and linear_layers(module)
        mode = "chain" if chained else "hooks"
    return (ChainEngine if mode == "chain" else HooksEngine)(module, plan)
