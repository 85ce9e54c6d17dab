"""DP-SGD steps that several processes compute together, by the release law of one process."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from typing import Any

import torch
import torch.multiprocessing
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import DoublePrecision, Precision
from torch import Tensor
from torch.distributed import FileStore, ProcessGroupGloo

from torchdpcate.errors import InputError, ProcessError, TorchDPCateError
from torchdpcate.nuisance.direct_steps import own_hooks
from torchdpcate.nuisance.joint_strategy import JointStrategy
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.nuisance.poisson import PoissonLoader, PoissonSampler
from torchdpcate.nuisance.record_loss import RecordLossModule
from torchdpcate.privacy.noise import NoiseSource

_PATIENCE = timedelta(minutes=30)
"""How long a process waits for another that lives."""

_START, _PERMIT = 1, 2
"""What process 0 announces: a step begins, or the ledger has paid for it."""


class _Lost(RuntimeError):
    """Another process does not answer any more."""


@contextmanager
def _heard() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise _Lost(str(error)) from None


class Group:
    """The processes of one fit, as one of them sees the others: gloo over the loopback interface.

    It is a group of its own, not torch's default one: no metric or callback of the Trainer's takes part in it.

    Args:
        folder: where they find each other, open to their user alone.
        rank: number of this process; 0 has the Trainer, the optimizer and the ledger.
        size: number of all.
    """

    def __init__(self, folder: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        # summed gradients without noise pass here: nobody outside the machine can connect
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = _PATIENCE
        with _heard():
            self._gloo: Any = ProcessGroupGloo(FileStore(os.path.join(folder, "store"), size), rank, size, options)

    def announce(self, what: int, number: int = 0) -> int:
        """Say what comes, in process 0; in another wait for just that, and return the number with it."""
        said = torch.tensor([what, number])
        self.share(said)
        if int(said[0]) != what:
            raise _Lost("the processes are out of step")
        return int(said[1])

    def share(self, numbers: Tensor) -> None:
        """Overwrite `numbers` by those of process 0."""
        with _heard():
            self._gloo.broadcast(numbers, 0).wait()

    def summed(self, total: Tensor) -> Tensor:
        """Return this process's part of the sum, in float64, of every process's `total` [p]."""
        parts = list(total.detach().cpu().contiguous().tensor_split(self.size))
        mine = parts[self.rank]
        arriving = [torch.empty_like(mine) for _ in range(self.size)]
        others = [rank for rank in range(self.size) if rank != self.rank]
        with _heard():
            works = [self._gloo.recv([arriving[rank]], rank, self.rank) for rank in others]
            works += [self._gloo.send([parts[rank]], rank, rank) for rank in others]
            for work in works:
                work.wait()
        arriving[self.rank] = mine
        result = torch.zeros(mine.shape, dtype=torch.float64)
        for part in arriving:  # in the order of ranks
            result += part
        return result

    def gathered(self, mine: Tensor, size: int) -> Tensor:
        """In process 0 return all [size] numbers, of which each process has its part; in another, send it."""
        if self.rank:
            with _heard():
                self._gloo.send([mine.contiguous()], 0, self.rank).wait()
            return mine
        everything = mine.new_empty(size)
        parts = everything.tensor_split(self.size)
        with _heard():
            for work in [self._gloo.recv([parts[rank]], rank, rank) for rank in range(1, self.size)]:
                work.wait()
        parts[0].copy_(mine)
        return everything


@dataclass
class _Job:
    """What a process needs to compute its part of every step; nothing of it is a ledger, an optimizer or an account."""

    module: RecordLossModule
    loader: PoissonLoader
    part: slice
    plan: DPSGDPlan
    mode: str
    limit: int | None
    noise: NoiseSource
    precision: Precision
    device: torch.device
    folder: str
    rank: int
    size: int
    seed: int


class JointSteps:
    r"""Other processes that compute each step of one fit together with this one.

    The records are cut into as many parts as there are processes. In each step each process samples its part at the
    plan's rate q, by coins of its own, at the weights that process 0 has: all records together are one Poisson sample
    of rate q. It clips the gradients of its sample and sums them. The sums of all processes are added in float64, and
    each of the p numbers gets its noise once, in the one process whose part of the p numbers it lies in, after process
    0 has counted the step on the ledger. Process 0 gathers the noisy sum and takes the step.

    So the released sum has the law of one process. That noise is drawn by all processes at once, each for its own
    part, is a matter of time: it takes more than half of a wide step. Opacus's distributed optimizer would draw it in
    one, in float32, and average sums whose noise is in already; its distributed sampler drops empty samples, and a
    process without a batch would wait for ever.

    Args:
        trainer: has a `JointStrategy`.
        module: is trained; its hooks are not on it yet.
        plan: of the fit.
        mode: how gradients are clipped.
        limit: most records that pass at once.
        noise: where coins and noise come from, in every process anew.
        sampler: of the Trainer's loader; while the fit lasts it samples this process's part alone.

    Raises:
        InputError: something that would be computed otherwise by several processes.
        ProcessError: a process could not start.
    """

    def __init__(
        self,
        trainer: Trainer,
        module: LightningModule,
        plan: DPSGDPlan,
        mode: str,
        limit: int | None,
        noise: NoiseSource,
        sampler: PoissonSampler,
    ) -> None:
        strategy: Any = trainer.strategy
        loader: Any = trainer.train_dataloader
        _check(trainer, module, noise, sampler, loader)
        self._size, self._step = strategy.processes, 0
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection] = []
        self._undo = ExitStack()
        self._group: Group | None = None
        start = _way_to_start()
        context: Any = torch.multiprocessing.get_context(start)
        if start == "spawn":
            _check_importable(module)
            module = copy.deepcopy(module).cpu()
        cuts = [rank * sampler.size // self._size for rank in range(self._size + 1)]
        whole = sampler.part
        try:
            folder = self._undo.enter_context(tempfile.TemporaryDirectory(prefix="torchdpcate"))
            self._undo.callback(self._stop)
            for rank in range(1, self._size):
                job = _Job(
                    module, loader, slice(cuts[rank], cuts[rank + 1]), plan, mode, limit, noise,  # type: ignore[arg-type]
                    trainer.precision_plugin, strategy.devices[rank], folder, rank, self._size, torch.initial_seed(),
                )  # fmt: skip
                mine, theirs = context.Pipe()
                process = context.Process(target=_work, args=(job, theirs), daemon=True)
                with _held_signals(), _without_main():
                    process.start()
                    self._processes.append(process)
                self._pipes.append(mine)
                theirs.close()
            self._undo.enter_context(_one_thread(strategy.root_device))
            self._undo.callback(setattr, sampler, "part", whole)
            sampler.part = slice(0, cuts[1])
            for pipe in self._pipes:
                pipe.recv()  # it is there
            with self._together():
                self._group = Group(folder, 0, self._size)
        except EOFError:
            error = self._ended()
            self.close()
            raise error from None
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Begin a step: the other processes take their samples, at the present weights."""
        assert self._group is not None, "it is open"
        self._step += 1
        with self._together():
            self._group.announce(_START, self._step)
            self._group.share(_flat(self._parameters))

    def noisy(self, total: Tensor, ahead: int, noisy: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Return the noisy sum [p] of all processes' clipped sums; the ledger has the step already.

        Args:
            total: this process's clipped sums [p].
            ahead: steps that are paid for, with this one.
            noisy: adds noise to some of the numbers.
        """
        assert self._group is not None, "it is open"
        with self._together():
            self._group.announce(_PERMIT, ahead)
            part = noisy(self._group.summed(total), ahead)
            return self._group.gathered(part.to(total.dtype), len(total)).to(total.device)

    def close(self) -> None:
        """End the other processes; this one samples all records again."""
        self._undo.close()

    def _stop(self) -> None:
        # they hold nothing that could be lost, and may wait for what will not come
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._group = None

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except _Lost as error:
            raise self._ended(error) from None

    def _ended(self, cause: _Lost | None = None) -> TorchDPCateError:
        """The error that tells which process ended, and why."""
        connection.wait([process.sentinel for process in self._processes], timeout=10)
        for process in self._processes:
            process.join(1)  # so that who ended first is known from who then lost it
        kept = "the others were stopped and the ledger keeps the steps that were paid; fit again, or use trainer=cpu"
        for rank, (process, pipe) in enumerate(zip(self._processes, self._pipes, strict=True), 1):
            said: Any = None
            with suppress(EOFError, OSError):
                while pipe.poll():
                    said = pipe.recv()
            if isinstance(said, tuple):
                kind, message = said
                if kind:
                    return InputError(f"{message} (process {rank} of {self._size})")
                return ProcessError(
                    f"trainer: process {rank} of {self._size} failed at step {self._step} ({message}); {kept}"
                )
            if process.exitcode:
                how = f"signal {-process.exitcode}" if process.exitcode < 0 else f"code {process.exitcode}"
                return ProcessError(
                    f"trainer: process {rank} of {self._size} ended at step {self._step} ({how}); {kept}"
                )
        return ProcessError(
            f"trainer: the {self._size} processes lost each other at step {self._step} ({_one_line(cause)}); {kept}"
        )


def _check(
    trainer: Trainer, module: LightningModule, noise: NoiseSource, sampler: PoissonSampler, loader: PoissonLoader
) -> None:
    """Refuse what would not be the same step in several processes."""
    strategy: Any = trainer.strategy
    if not noise.private:
        raise InputError("noise: a fixed source gives each process the same numbers; use NoiseSource.system()")
    if not isinstance(module, RecordLossModule):
        raise InputError(f"{type(module).__name__} on several processes: give a RecordLossModule, or use trainer=cpu")
    if own := own_hooks(module):
        raise InputError(f"{type(module).__name__}.{own[0]} on several processes is called in one; use trainer=cpu")
    if type(trainer.precision_plugin) not in (Precision, DoublePrecision):
        raise InputError(f"precision={trainer.precision!r} on several processes; use '32-true' or '64-true'")
    if sampler.size < strategy.processes:
        raise InputError(f"trainer.devices = {strategy.processes} processes for {sampler.size} records; give fewer")
    if not isinstance(loader, PoissonLoader) or loader.num_workers or loader.pin_memory:
        raise InputError("train_dataloaders: on several processes use poisson_loader with num_workers=0, unpinned")
    if torch.multiprocessing.current_process().daemon:
        raise InputError("trainer: several processes inside a daemon process, which may start none; use trainer=cpu")


def _way_to_start() -> str:
    """How a process is started: by a fork, where it may be, for then nothing is imported or pickled anew."""
    # autograd and GPUs do not work after the fork of a process that has used them
    return "fork" if sys.platform == "linux" and not torch.accelerator.is_available() else "spawn"


def _check_importable(module: LightningModule) -> None:
    """Refuse a class that another process could learn of only by running the user's script again."""
    for part in module.modules():
        if type(part).__module__ == "__main__":
            raise InputError(
                f"{type(part).__name__} on several processes is defined in the script itself; put it in a file that "
                "the script imports, or use one process"
            )


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the program's own file, which a new process would run again, from the first line on."""
    main = vars(sys.modules["__main__"])
    hidden = {name: main.get(name) for name in ("__spec__", "__file__")}
    main["__spec__"] = None
    main.pop("__file__", None)
    try:
        yield
    finally:
        main.update(hidden)
        if hidden["__file__"] is None:
            del main["__file__"]


def _work(job: _Job, pipe: connection.Connection) -> None:
    """Compute a part of every step, until the process is ended or process 0 is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for process 0, which ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        # after a fork OpenMP's threads are not there
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("highest")  # as process 0, where it is started anew
        pipe.send("here")
        group = Group(job.folder, job.rank, job.size)
        _steps(job, group)
    except _Lost:
        os._exit(0)  # process 0 knows more
    except BaseException as error:
        # process 0 may be gone itself
        with suppress(OSError):
            pipe.send((isinstance(error, InputError), _one_line(error)))
    os._exit(1)


def _steps(job: _Job, group: Group) -> None:
    from torchdpcate.nuisance.engines import ENGINES, trainable

    module = job.module
    module.to(job.device)
    torch.manual_seed((job.seed + job.rank) % 2**63)  # whatever the module draws, each part its own
    vars(module).update(log=_nothing, log_dict=_nothing)
    parameters = [p for _, p in trainable(module)]
    engine = ENGINES[job.mode](module, job.plan, job.limit)
    sampler: Any = job.loader.batch_sampler
    sampler.part = job.part
    records = 0
    optimizer = engine.optimizer(
        torch.optim.SGD(parameters, lr=0.0),  # which takes no step
        expected_batch=job.plan.sampling_rate * sampler.size,
        noise=job.noise,
        guard=lambda: engine.check_step(records),
    )
    optimizer.joint = _Part(group)
    # sampling has no memory, so that a pass may end where it likes
    for batch in itertools.chain.from_iterable(itertools.repeat(job.loader)):
        group.announce(_START)
        _receive(group, parameters)
        batch = move_data_to_device(job.precision.convert_input(batch), job.device)
        records = len(batch[0]) if isinstance(batch, list) else _records(batch)
        with job.precision.train_step_context():
            loss = module.training_step(batch)
        optimizer.zero_grad()
        module.backward(loss)
        module.on_after_backward()
        optimizer.pre_step()


class _Part:
    """What an optimizer asks for the noisy sum, in a process other than 0."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def noisy(self, total: Tensor, ahead: int, noisy: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Send what process 0 gathers, once it says that the step is paid for; see `JointSteps.noisy`."""
        ahead = self._group.announce(_PERMIT)
        part = noisy(self._group.summed(total), ahead)
        self._group.gathered(part.to(total.dtype), len(total))
        return total.double().clone()  # nobody takes a step by it, but it is written to, and the sums may be float64


def _flat(parameters: list[torch.nn.Parameter]) -> Tensor:
    return torch.cat([p.detach().flatten() for p in parameters]).cpu()


def _receive(group: Group, parameters: list[torch.nn.Parameter]) -> None:
    weights = _flat(parameters)
    group.share(weights)
    with torch.no_grad():
        for p, part in zip(parameters, weights.split([p.numel() for p in parameters]), strict=True):
            p.copy_(part.view(p.shape))


def _records(batch: Any) -> int:
    return next(leaf.shape[0] for leaf in torch.utils._pytree.tree_leaves(batch) if isinstance(leaf, Tensor))


def _nothing(*_: Any, **__: Any) -> None:
    """What is logged is process 0's."""


def _one_line(error: BaseException | None) -> str:
    return " ".join(f"{type(error).__name__ if not isinstance(error, InputError) else ''} {error}".split())[:200]


_SIGNALS = {signal.SIGINT, signal.SIGTERM}


@contextmanager
def _held_signals() -> Iterator[None]:
    """Let Ctrl-C wait until a process that was started is known, and can be ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On CPUs each process computes on one thread: there are as many as the user wants cores."""
    before = torch.get_num_threads()
    try:
        if device.type == "cpu":
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def joint(trainer: Trainer) -> bool:
    """Whether a Trainer's private steps are computed by several processes."""
    strategy = trainer.strategy
    return isinstance(strategy, JointStrategy) and strategy.processes > 1
