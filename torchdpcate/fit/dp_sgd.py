"""DP-SGD inside `Trainer.fit`: a callback that any LightningModule with automatic optimization can use."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from torch import Tensor

from torchdpcate._process import HeldSignals
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.dp_sgd_plan import ENGINES, DPSGDPlan, PoissonLoader, PoissonSampler, StepAccount
from torchdpcate.fit.trainable import STATE, RecordLossModule, is_untouched, size_of
from torchdpcate.fit.trainer import check_one_process, is_known
from torchdpcate.privacy.charge import DP_SGD, Charge
from torchdpcate.privacy.guarantee import Level, of_library, own_methods
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.registry import refuse_strings

if TYPE_CHECKING:
    from torchdpcate.fit.engines import Engine
    from torchdpcate.fit.loss_check import State

__all__ = ["DPSGD", "DPSGDPlan"]

_BURST = 64
"""Steps in one turn of the Trainer's loop, which needs longer for a turn than a short step takes."""

_INSIDE = ("on_before_zero_grad", "on_before_backward", "on_after_backward")
"""Hooks within a step that a burst does not call."""

_OWN = (
    *_INSIDE,
    "training_step",
    "backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
)
"""What a module may do in a step, and a burst does not ask it for."""

_LOADER_REMEDY = (
    "train on poisson_loader(dataset, plan.sampling_rate, ...), with Trainer(use_distributed_sampler=False)"
)


class DPSGD(Callback):
    r"""Trains a LightningModule by DP-SGD, with Opacus, and charges every step before it is taken.

    Each step adds :math:`\sigma C` Gaussian noise to the sum of the clipped gradients of a Poisson sample and
    divides by the expected batch size :math:`q n`.  The fit is refused unless its steps are those of the plan:
    see `check_trainer`.  It ends after the plan's steps, whatever the Trainer allows, and the module is then an
    ordinary one again, also after an exception.

    The module may be the user's own: automatic optimization, one optimizer, a scheduler that goes by steps alone if
    any, and a `training_step` that returns a mean of one term a record and changes no parameter, buffer or attribute
    by records. It is tried at the first batch, see `loss_check.Trial`; parameters and buffers are compared at each.

    A record whose gradient is not finite counts as zero, in every mode; how many did is said nowhere.

    A checkpoint holds the budget, the ledger's path and entry, and the steps, see `trainable.stated_privacy`. A fit
    that is resumed from it continues both; the noise and the sampling are never saved.

    Ctrl-C and SIGTERM wait for the beginning of the next step; pressed again they are handled at once.

    Guarantee:
        (epsilon, delta) of `plan.steps` Poisson-sampled Gaussian steps under replace-one adjacency
        (`privacy.accounting.dp_sgd_epsilon`), in real arithmetic, if the loss of one record depends on that
        record alone, and nothing else about the fit was chosen by looking at the records.  Of a module that is not
        the library's, or has a method or a layer replaced, nobody can check that, nor of a callback, logger or data
        module of the user's: the ledger's entry is then conditional.

    Args:
        plan: noise, clip norm, rate and number of steps.
        noise: where the noise comes from; the loader's coins come from a source of its own.
        ledger: where the steps are charged; None counts without charging.
        block: the ledger's block whose records are sampled.
        mode: `opacus`, or `chain`, the fast engine of plain networks (see `engines.engine_of`).
        charge: what the ledger's entry says that it is for.

    Attributes:
        steps: steps behind the present weights.
        spent: steps the budget was charged for, never fewer than `steps`.
        conditional: whether something else about the fit is the user's, so that its entry is conditional.

    Raises:
        InputError: `mode` is unknown, or a private ledger is paired with a fixed noise source.
    """

    state_key = STATE  # type: ignore[assignment]

    def __init__(
        self,
        plan: DPSGDPlan,
        noise: NoiseSource,
        ledger: Ledger | None = None,
        block: str = "nuisance",
        mode: str = "opacus",
        charge: Charge | str = DP_SGD,
    ) -> None:
        refuse_strings(DPSGD, {"plan": plan, "noise": noise, "ledger": ledger})
        if mode not in ENGINES:
            raise InputError(f"mode={mode!r} is unknown; choose one of {', '.join(ENGINES)}")
        if ledger is not None and ledger.private and not noise.private:
            raise InputError("noise is a fixed source, for tests only; use NoiseSource.system() with this ledger")
        self.plan = plan
        self.noise = noise
        self.mode = mode
        self._account = StepAccount(plan, ledger, block, charge)
        self._engine: Engine | None = None
        self._signals: HeldSignals | None = None
        self._records: int | None = None
        self._own = self._tried = self._sampled = self._resumed = False
        self._state: State | None = None
        self._rates: list[dict[str, Any]] = []
        self.conditional = False
        self._undo = ExitStack()
        _check_before_launch()

    @property
    def steps(self) -> int:
        """Steps behind the present weights."""
        return self._account.steps

    @property
    def spent(self) -> int:
        """Steps the budget was charged for."""
        return self._account.spent

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse callbacks that train beside this one, before Lightning does anything."""
        if stage == "fit":
            check_callbacks(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the fit, wrap module and optimizer, charge the first steps."""
        from torchdpcate.fit.engines import HooksEngine, engine_of

        if trainer.ckpt_path is not None and not self._resumed:
            raise InputError(
                f"ckpt_path={trainer.ckpt_path}: is of no training by DPSGD, so that nobody counted its steps; resume "
                "one of this training, or begin with public weights in the module itself"
            )
        if sum(isinstance(callback, DPSGD) for callback in callbacks_of(trainer)) > 1:
            raise InputError("callbacks hold more than one DPSGD; one run is charged once")
        sampler = check_trainer(trainer, pl_module, self.plan)
        if self.noise.private and not sampler.private:
            raise InputError("train_dataloaders: the sampler's noise source is fixed; use NoiseSource.system()")
        self._own = not is_untouched(pl_module)
        self._rates = settings_of(trainer.optimizers[0])
        replaced = set(vars(pl_module))
        self.plan.check_precision(sum(p.numel() for p in pl_module.parameters() if p.requires_grad))
        self._undo.enter_context(_exact_products())
        self._signals = HeldSignals()
        self._undo.enter_context(self._signals)
        self._engine = engine_of(pl_module, self.plan, self.mode)
        self._undo.callback(self._engine.detach)
        plain = trainer.optimizers[0]
        self._undo.callback(setattr, trainer, "optimizers", [plain])
        trainer.optimizers = [
            self._engine.optimizer(
                plain,
                expected_batch=self.plan.sampling_rate * sampler.size,
                noise=self.noise,
                guard=lambda: self._before_step(trainer),
                ahead=lambda: self._account.ahead,
            )
        ]
        if not isinstance(self._engine, HooksEngine) and bursts(trainer, pl_module, replaced):
            self._undo.enter_context(_Bursts(trainer, pl_module, self._engine, self._account).attached())
        # in float32 a sum rounds by 6e-8 of its length, and how it does depends on each record
        double = all(p.dtype == torch.float64 for p in pl_module.parameters() if p.requires_grad)
        certified = double and not (self._own or self.conditional) and is_plain(trainer)
        self._account.open(Level.CERTIFIED if certified else Level.CONDITIONAL)
        if self._account.exhausted:
            trainer.should_stop = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the loader again: Lightning may have made a new one."""
        check_sampler(trainer, self.plan)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note that records were sampled, and how many; try the step of a module that is the user's.

        A Ctrl-C or SIGTERM that came since the last step is handled first: inside a step it might be dropped.
        """
        if self._signals is not None:
            self._signals.deliver()
        if self._own:
            self._watch(trainer, pl_module)
        self._records, self._sampled = size_of(batch), True

    def _watch(self, trainer: Trainer, module: LightningModule) -> None:
        """Try the step of a module that is not the library's, and note what it may not change."""
        from torchdpcate.fit.loss_check import State, Trial

        assert self._engine is not None
        if not self._tried:
            self._tried = True
            expected = self.plan.sampling_rate * check_sampler(trainer, self.plan).size
            Trial(trainer, module, self._engine, expected).run()
        self._state = State(module)

    def _before_step(self, trainer: Trainer) -> None:
        assert self._engine is not None
        if not self._sampled:
            raise InputError("optimizer_step takes two steps on one batch, but each is paid as one on a new sample")
        self._sampled = False
        check_optimizer(trainer.optimizers[0], [p for _, p in self._engine.trainable])
        check_settings(trainer, self._rates)
        self._engine.check_step(self._records)
        if self._state is not None:
            self._state.check()
        self._account.count()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop after the last planned step."""
        if self._account.exhausted:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Settle the ledger and unwrap; refuse weights that are not finite."""
        signals = self._signals
        self._finish()
        if signals is not None:
            signals.deliver()  # the ledger is settled
        check_weights(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Settle the ledger to the steps really taken and unwrap, also on Ctrl-C."""
        self._finish()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave nothing wrapped."""
        self._finish()

    def _finish(self) -> None:
        self._undo.close()
        self._engine = self._signals = self._state = None
        self._tried = False
        self._account.close()

    def state_dict(self) -> dict[str, Any]:
        """Budget, ledger, its entry, plan and steps, in plain types."""
        ledger = self._account.ledger
        return {**self._account.state_dict(), "private": self.noise.private and (ledger is None or ledger.private)}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Say it in the hyperparameters too, of a module of the library."""
        if of_library(pl_module):
            checkpoint.setdefault(pl_module.CHECKPOINT_HYPER_PARAMS_KEY, {})["privacy"] = self.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a checkpoint's run.

        Raises:
            InputError: the checkpoint is of another plan or block, its ledger is not given, or its noise was fixed.
        """
        if state_dict["private"] != self.state_dict()["private"]:
            raise InputError("noise is the system's, but that of the checkpoint's steps was fixed, or conversely")
        self._account.load_state_dict(state_dict)
        self._resumed = True


@cache
def _check_before_launch() -> None:
    """Check Trainers with a `DPSGD` before `fit` starts further processes, where Lightning calls no callback yet."""
    fit = Trainer.fit

    @wraps(fit)
    def checked(self: Trainer, *given: Any, **named: Any) -> None:
        if any(isinstance(callback, DPSGD) for callback in callbacks_of(self)):
            check_one_process(self)
        fit(self, *given, **named)

    Trainer.fit = checked  # type: ignore[method-assign]


@contextmanager
def _exact_products() -> Iterator[None]:
    """Full float32 products, and none of torch's warnings about hooks on a first layer.

    Reduced precision (TF32, bfloat16) would round clipped gradients apart from the norms that clipped them.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """The Trainer's callbacks."""
    return list(trainer.callbacks)  # type: ignore[attr-defined]


# ---- several steps in one turn of the Trainer's loop


def bursts(trainer: Any, module: LightningModule, replaced: Collection[str]) -> bool:
    """Whether nobody would miss what the Trainer does around a step: no hook inside it, no logger, no validation.

    Callbacks are called before and after each step as ever. `replaced` are names of what stood on the module itself
    before the engine put its own there.
    """
    if not isinstance(module, RecordLossModule):
        return False
    own = any(getattr(type(module), name) is not getattr(RecordLossModule, name) or name in replaced for name in _OWN)
    heard = any(_overridden(callback, name) for callback in callbacks_of(trainer) for name in _INSIDE)
    # of manual optimization, which a burst is, the Trainer steps no scheduler
    watched = trainer.loggers or trainer.enable_validation or trainer.datamodule or trainer.lr_scheduler_configs
    return not (own or heard or watched) and isinstance(trainer.train_dataloader, PoissonLoader)


class _Bursts:
    """The training step of a module that takes several steps, by Lightning's manual optimization.

    Between them it does what the Trainer does between two turns, as far as it is seen: it calls the callbacks, fetches
    and places a batch, and counts the step. What a callback requests by `should_stop` waits for one more step; the
    index of a batch counts steps in the calls made here, and turns in those of the Trainer.

    Args:
        trainer: Its loop.
        module: What trains.
        engine: Clips, see `engines.Engine`.
        account: Counts the steps.
    """

    def __init__(self, trainer: Trainer, module: LightningModule, engine: Engine, account: StepAccount) -> None:
        self.trainer, self.module, self.engine, self.account = trainer, module, engine, account
        self.loader: Any = trainer.train_dataloader
        self.starts, self.ends = (
            [getattr(callback, name) for callback in callbacks_of(trainer) if _overridden(callback, name)]
            for name in ("on_train_batch_start", "on_train_batch_end")
        )
        self.steps = 0
        records = getattr(trainer.train_dataloader, "dataset", None)
        tensors = getattr(getattr(records, "dataset", None), "tensors", ())
        devices = {trainer.strategy.root_device.type, *(tensor.device.type for tensor in tensors)}
        self.placed = devices == {"cpu"} and trainer.precision == "32-true"

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Stand in the place of the module's training step."""
        own = vars(self.module).get("training_step")
        self.module.automatic_optimization = False
        vars(self.module)["training_step"] = self.training_step
        try:
            yield
        finally:
            self.module.automatic_optimization = True
            vars(self.module).pop("training_step", None)
            if own is not None:
                vars(self.module)["training_step"] = own

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Take some steps, the first one on `batch`; the Trainer calls what comes before it and after the last."""
        trainer, module, optimizer = self.trainer, self.module, self.module.optimizers()
        left = min(_BURST, trainer.max_steps - trainer.global_step if trainer.max_steps >= 0 else _BURST)
        while True:
            loss = self.engine.train(batch).detach()
            optimizer.step()  # type: ignore[union-attr]
            left, self.steps = left - 1, self.steps + 1
            ends = left <= 0 or self.account.exhausted or trainer.should_stop or trainer.received_sigterm
            following = None if ends else next(self.loader.batches, None)
            if following is None:
                return {"loss": loss}
            for hook in self.ends:
                hook(trainer, module, {"loss": loss}, batch, self.steps - 1)
            batch = self._placed(following)
            for hook in self.starts:
                hook(trainer, module, batch, self.steps)

    def _placed(self, batch: Any) -> Any:
        """The batch where the module trains, in its precision."""
        if self.placed:
            return batch
        return self.trainer.strategy.batch_to_device(self.trainer.precision_plugin.convert_input(batch))


def _overridden(callback: Callback, name: str) -> bool:
    return getattr(type(callback), name) is not getattr(Callback, name) or name in vars(callback)


# ---- what a Trainer may not do while DP-SGD runs; each refusal says why and what to do instead


def check_trainer(trainer: Trainer, module: LightningModule, plan: DPSGDPlan) -> PoissonSampler:
    """Refuse a fit whose steps would not be those of `plan`; return the sampler that feeds it.

    Raises:
        InputError: naming the first setting that breaks the analysis, and the remedy.
    """
    check_one_process(trainer)
    for broken in _settings(trainer, module):
        raise InputError(broken)
    check_callbacks(trainer)
    check_optimizer(trainer.optimizers[0], [p for p in module.parameters() if p.requires_grad])
    return check_sampler(trainer, plan)


def check_callbacks(trainer: Trainer) -> None:
    """Refuse callbacks that choose by a private figure, or train beside `DPSGD`; Lightning's `Tuner` puts one there.

    Raises:
        InputError: names it and the reason.
    """
    for callback in callbacks_of(trainer):
        if reason := _callback(callback):
            raise InputError(f"callback {type(callback).__name__} {reason}")


def is_plain(trainer: Any) -> bool:
    """Return whether nothing in a Trainer is the user's code: callbacks, loggers, data module, loader and sampler."""
    loader, data, kind = trainer.train_dataloader, trainer.datamodule, type(trainer)
    own = kind is not Trainer or own_methods(trainer) or not (data is None or of_library(data))
    known = all(map(is_known, [*callbacks_of(trainer), *trainer.loggers]))
    return not own and known and of_library(loader) and of_library(loader.batch_sampler)


_SETTINGS = ("lr", "momentum", "betas", "weight_decay")


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return what an optimizer's groups of parameters train by, as far as no optimizer changes it by itself."""
    groups = [{name: group[name] for name in _SETTINGS if name in group} for group in optimizer.param_groups]
    for group in groups:
        group.update({name: value.tolist() for name, value in group.items() if isinstance(value, Tensor)})
    return groups


def check_settings(trainer: Trainer, first: list[dict[str, Any]]) -> None:
    """Refuse an optimizer's settings that were set by hand, in a hook or a callback: by what, nobody can tell.

    Args:
        trainer: its schedulers may change them.
        first: the settings at the beginning.

    Raises:
        InputError: they were.
    """
    now = settings_of(trainer.optimizers[0])
    rates = [group["lr"] for group in now if "lr" in group]
    scheduled = [getattr(config.scheduler, "_last_lr", rates) for config in trainer.lr_scheduler_configs]
    if rates not in map(list, scheduled) if scheduled else now != first:
        raise InputError(
            "the optimizer's settings were set by hand, and a rate by a loss would be a private figure; "
            "give a scheduler that goes by steps alone, from configure_optimizers"
        )


def _settings(trainer: Trainer, module: LightningModule) -> Iterator[str]:
    if not module.automatic_optimization:
        yield "automatic_optimization=False: DPSGD counts the Trainer's own steps; use automatic optimization"
    if trainer.gradient_clip_val:
        yield "gradient_clip_val clips batches, not records; leave it None and set plan.max_grad_norm"
    if trainer.accumulate_grad_batches != 1:
        yield f"accumulate_grad_batches={trainer.accumulate_grad_batches}: a step is one batch; set it to 1"
    if trainer.precision not in ("32-true", "64-true"):
        # a record's gradient would depend on the others: bfloat16 rounds by 4e-3, differently by the batch's size
        yield f"precision={trainer.precision!r} rounds gradients; set Trainer(precision='32-true')"
    if any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs):
        yield "configure_optimizers gave a scheduler that goes by a private figure; give one that goes by steps alone"


def _callback(callback: Callback) -> str | None:
    if isinstance(callback, EarlyStopping):
        return "stops by a private figure; fix the number of steps beforehand"
    if isinstance(callback, ModelCheckpoint) and callback.monitor is not None:
        return f"chooses by the private figure {callback.monitor!r}; set monitor=None"
    if isinstance(callback, StochasticWeightAveraging | LearningRateFinder | BatchSizeFinder):
        return "reads the records in passes that nobody counts; remove it"
    if isinstance(callback, GradientAccumulationScheduler) and callback.going_to_accumulate_grad_batches():
        return "accumulates batches, but a step is one Poisson sample; remove it"
    return None


def check_optimizer(optimizer: torch.optim.Optimizer, trainable: Sequence[torch.nn.Parameter]) -> None:
    """Refuse an optimizer that does not train exactly the module's `trainable` parameters.

    Raises:
        InputError: some parameter is in one and not in the other.
    """
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if held != {id(p) for p in trainable}:
        raise InputError(
            "configure_optimizers: the optimizer's parameters are not the module's trainable ones; what is "
            "clipped is not what trains; pass self.parameters(), or freeze the rest by requires_grad=False"
        )


def check_weights(module: torch.nn.Module) -> None:
    """Refuse a module whose training diverged.

    Raises:
        NumericalError: a weight is not finite.
    """
    if not all(bool(p.isfinite().all()) for p in module.parameters()):
        raise NumericalError(
            "training left weights that are not finite; lower learning_rate, and look for numbers that are not finite "
            "in the initial weights, without privacy also in the records"
        )


def check_sampler(trainer: Trainer, plan: DPSGDPlan) -> PoissonSampler:
    """The Poisson sampler of the loader the Trainer really uses, after whatever Lightning did to it.

    Raises:
        InputError: it is not our sampler, or not at the plan's rate.
    """
    loader = trainer.train_dataloader
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(sampler, PoissonSampler):
        found = type(sampler if sampler is not None else loader).__name__
        raise InputError(f"train_dataloaders: batches come from a {found}, not a PoissonSampler; {_LOADER_REMEDY}")
    if sampler.sampling_rate != plan.sampling_rate:
        raise InputError(
            f"train_dataloaders: sampling_rate={sampler.sampling_rate} but plan.sampling_rate="
            f"{plan.sampling_rate}; {_LOADER_REMEDY}"
        )
    return sampler
