"""DP-SGD inside `Trainer.fit`: a callback that any LightningModule with automatic optimization can use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchdpcate._process import HeldSignals
from torchdpcate.errors import InputError
from torchdpcate.nuisance.checks import callbacks, check_optimizer, check_sampler, check_trainer, check_weights
from torchdpcate.nuisance.plan import DPSGDPlan, check_limit
from torchdpcate.nuisance.step_account import StepAccount
from torchdpcate.privacy.charge import DP_SGD, Charge
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

if TYPE_CHECKING:
    from torchdpcate.nuisance.engines import Engine
    from torchdpcate.nuisance.joint_steps import JointSteps

__all__ = ["DPSGD", "DPSGDPlan"]

_MODES = ("auto", "chain", "ghost", "hooks", "functorch")


class DPSGD(Callback):
    r"""Trains a LightningModule by DP-SGD, with Opacus, and charges every step before it is taken.

    Each step adds :math:`\sigma C` Gaussian noise to the sum of the clipped gradients of a Poisson sample and
    divides by the expected batch size :math:`q n`.  The fit is refused unless its steps are those of the plan:
    see `checks`.  It ends after the plan's steps, whatever the Trainer allows, and the module is then an
    ordinary one again, also after an exception.

    A checkpoint holds the steps and the ledger entry, and a resumed fit continues both; the noise and the
    sampling are never saved.

    Ctrl-C and SIGTERM wait for the beginning of the next step; pressed again they are handled at once.

    Guarantee:
        (epsilon, delta) of `plan.steps` Poisson-sampled Gaussian steps under replace-one adjacency
        (`privacy.accounting.dp_sgd_epsilon`), in real arithmetic, if the loss of one record depends on that
        record alone, and nothing else about the fit was chosen by looking at the records.

    Args:
        plan: noise, clip norm, rate and number of steps.
        noise: where the noise comes from; the loader's coins come from a source of its own.
        ledger: where the steps are charged; None counts without charging.
        block: the ledger's block whose records are sampled.
        mode: `chain`, `ghost`, `hooks`, `functorch`, or `auto` (see `engines.choose_mode`).
        charge: what the ledger's entry says that it is for.
        max_physical_batch: most records that pass at once, which bounds memory; a step is the same in parts. For
            `chain`; None passes a batch at once.

    Attributes:
        steps: steps behind the present weights.
        spent: steps the budget was charged for, never fewer than `steps`.

    Raises:
        InputError: `mode` is unknown, `max_physical_batch` is no such number, or a private ledger is paired with a
            fixed noise source.
    """

    def __init__(
        self,
        plan: DPSGDPlan,
        noise: NoiseSource,
        ledger: Ledger | None = None,
        block: str = "nuisance",
        mode: str = "auto",
        charge: Charge | str = DP_SGD,
        max_physical_batch: int | None = None,
    ) -> None:
        if mode not in _MODES:
            raise InputError(f"mode={mode!r} is unknown; choose one of {', '.join(_MODES)}")
        if ledger is not None and ledger.private and not noise.private:
            raise InputError("noise is a fixed source, for tests only; use NoiseSource.system() with this ledger")
        self.plan = plan
        self.noise = noise
        check_limit(max_physical_batch)
        self.mode = mode
        self.max_physical_batch = max_physical_batch
        self._account = StepAccount(plan, ledger, block, charge)
        self._engine: Engine | None = None
        self._joint: JointSteps | None = None
        self._signals: HeldSignals | None = None
        self._records: int | None = None
        self._undo = ExitStack()

    @property
    def steps(self) -> int:
        """Steps behind the present weights."""
        return self._account.steps

    @property
    def spent(self) -> int:
        """Steps the budget was charged for."""
        return self._account.spent

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the fit, wrap module and optimizer, charge the first steps."""
        from torchdpcate.nuisance.direct_steps import DirectSteps, direct
        from torchdpcate.nuisance.engines import ENGINES, ChainEngine, choose_mode
        from torchdpcate.nuisance.joint_steps import JointSteps, joint

        if sum(isinstance(callback, DPSGD) for callback in callbacks(trainer)) > 1:
            raise InputError("callbacks hold more than one DPSGD; one run is charged once")
        mode = choose_mode(pl_module) if self.mode == "auto" else self.mode
        sampler = check_trainer(trainer, pl_module, self.plan)
        if self.noise.private and not sampler.private:
            raise InputError("train_dataloaders: the sampler's noise source is fixed; use NoiseSource.system()")
        self.plan.check_precision(sum(p.numel() for p in pl_module.parameters() if p.requires_grad))
        self._undo.enter_context(_exact_products())
        if joint(trainer):
            # before the module has hooks, which the other processes put on theirs
            arguments = pl_module, self.plan, mode, self.max_physical_batch, self.noise, sampler
            self._joint = JointSteps(trainer, *arguments)
            self._undo.callback(self._joint.close)
        self._signals = HeldSignals()
        self._undo.enter_context(self._signals)
        self._engine = ENGINES[mode](pl_module, self.plan, self.max_physical_batch)
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
        trainer.optimizers[0].joint = self._joint  # type: ignore[attr-defined]
        if isinstance(self._engine, ChainEngine) and direct(trainer, pl_module):
            steps = DirectSteps(trainer, pl_module, self._engine)
            self._undo.callback(steps.detach)
            steps.attach()
        self._account.open()
        if self._account.exhausted:
            trainer.should_stop = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the loader again: Lightning may have made a new one."""
        check_sampler(trainer, self.plan)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note how many records were sampled; other processes of the step, if there are any, sample theirs.

        A Ctrl-C or SIGTERM that came since the last step is handled first: inside a step it might be dropped.
        """
        if self._signals is not None:
            self._signals.deliver()
        leaves = batch if isinstance(batch, list) else tree_leaves(batch)
        if not (leaves and isinstance(leaves[0], Tensor)):
            leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        self._records = leaves[0].shape[0] if leaves else None
        if self._joint is not None:
            self._joint.begin()

    def _before_step(self, trainer: Trainer) -> None:
        assert self._engine is not None
        check_optimizer(trainer.optimizers[0], [p for _, p in self._engine.trainable])
        self._engine.check_step(self._records)
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
        self._engine = self._joint = self._signals = None
        self._account.close()

    def state_dict(self) -> dict[str, Any]:
        """Steps, ledger entry and plan, in plain types."""
        return self._account.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a checkpoint's run.

        Raises:
            InputError: the checkpoint is of another plan or block, or its ledger is not given.
        """
        self._account.load_state_dict(state_dict)


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
