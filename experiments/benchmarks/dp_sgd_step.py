"""Time of one DP-SGD step: ours inside Lightning against bare loops of Opacus's modes and of plain PyTorch.

Baseline of every ratio: a plain Python loop of PyTorch without privacy on the same module and optimizer, with shuffled
batches of fixed size.  Opacus's loops use its own low-level classes.  All sides take turns on one thread; the median
over the rounds is printed.  On a busy machine `--cpu` measures processor time instead of what the clock says.

    python experiments/benchmarks/dp_sgd_step.py [--rounds 7] [--steps 100] [--wide] [--cpu]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from lightning.pytorch import Callback
from opacus.grad_sample import GradSampleHooks, GradSampleHooksFastGradientClipping
from torch.utils.data import TensorDataset

from torchdpcate.data.domain import Domain
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan, poisson_loader, shuffled_loader
from torchdpcate.fit.trainable import TrainableNuisances
from torchdpcate.fit.trainer import default_trainer, quiet_lightning
from torchdpcate.privacy.noise import NoiseSource

OPACUS = ("hooks", "ghost")
OURS = ("chain", "opacus")


class Clocks:
    """What time is measured by."""

    now = staticmethod(time.perf_counter)


class Clock(Callback):
    """Seconds per step after the first ten."""

    steps = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        """Start after the tenth step."""
        self.steps += 1
        if self.steps == 10:
            self.start = Clocks.now()
        self.end = Clocks.now()

    @property
    def seconds(self) -> float:
        """Mean seconds of a step."""
        return (self.end - self.start) / (self.steps - 10)


def ours(module: TrainableNuisances, data: TensorDataset, plan: DPSGDPlan, mode: str, device: str) -> float:
    """Seconds per step inside `Trainer.fit`."""
    noise, clock = NoiseSource.system(), Clock()
    callbacks = [DPSGD(plan, noise, mode=mode), clock]
    trainer = default_trainer(accelerator=device, max_epochs=-1, max_steps=plan.steps, callbacks=callbacks)
    trainer.fit(module, poisson_loader(data, plan.sampling_rate, plan.steps, noise))
    return clock.seconds


def plain(module: TrainableNuisances, data: TensorDataset, plan: DPSGDPlan, mode: str, device: str) -> float:
    """Seconds per step of a loop without privacy."""
    module = module.to(device).train()
    optimizer = module.configure_optimizers()
    loader = shuffled_loader(data, round(plan.sampling_rate * len(data)), seed=0)
    batches = itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), plan.steps)
    for step, batch in enumerate(batches):
        losses = module.record_loss([part.to(device) for part in batch])
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        if step == 9:
            start = Clocks.now()
    return (Clocks.now() - start) / (plan.steps - 10)


def bare(module: TrainableNuisances, data: TensorDataset, plan: DPSGDPlan, mode: str, device: str) -> float:
    """Seconds per step of a loop that calls Opacus directly."""
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    noise = NoiseSource.system()
    module = module.to(device).train()
    ghost = mode == "ghost"
    if ghost:
        hooks = GradSampleHooksFastGradientClipping(module, max_grad_norm=plan.max_grad_norm)
    else:
        hooks = GradSampleHooks(module)
    optimizer = (DPOptimizerFastGradientClipping if ghost else DPOptimizer)(
        module.configure_optimizers(),
        noise_multiplier=plan.noise_multiplier,
        max_grad_norm=plan.max_grad_norm,
        expected_batch_size=plan.sampling_rate * len(data),
        generator=noise.generator(device),
    )
    for step, batch in enumerate(poisson_loader(data, plan.sampling_rate, plan.steps, noise)):
        losses = module.record_loss([part.to(device) for part in batch])
        optimizer.zero_grad()
        if ghost:
            DPTensorFastGradientClipping(hooks, optimizer, losses).backward()
        else:
            losses.mean().backward()
        optimizer.step()
        if step == 9:
            start = Clocks.now()
    seconds = (Clocks.now() - start) / (plan.steps - 10)
    hooks.cleanup()
    return seconds


def nuisance_case(batch: int, steps: int, q: int = 30, width: int = 32, n: int = 13_500) -> tuple:
    """Both nuisances of q covariates, in float64 as `train` has them."""
    domain = Domain([0.0] * q, [1.0] * q, 0.0, 1.0)
    data = TensorDataset(torch.rand(n, q).double(), (torch.rand(n) < 0.5).double(), torch.rand(n).double())
    return lambda: TrainableNuisances(domain, width=width).double(), data, DPSGDPlan(2.0, 0.3, batch / n, steps)


def compare(name: str, case: tuple, opacus: tuple[str, ...], own: tuple[str, ...], rounds: int, device: str) -> None:
    """Print one table: milliseconds per step of every side, and their ratios to the plain loop."""
    make, data, plan = case
    print(f"\n{name}, {device}, {torch.get_num_threads()} thread(s), median of {rounds} rounds")
    print("| step | ms | over plain PyTorch | samples/s |")
    print("|---|---|---|---|")
    sides: dict[str, tuple[Callable, str]] = {"plain PyTorch, no privacy": (plain, "")}
    sides |= {f"bare Opacus loop, {mode}": (bare, mode) for mode in opacus}
    sides |= {f"torchdpcate in Lightning, {mode}": (ours, mode) for mode in own}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, (measure, mode) in sides.items():
            times[side].append(measure(make(), data, plan, mode, device))
    base = times["plain PyTorch, no privacy"]
    records = plan.sampling_rate * len(data)
    for side, seconds in times.items():
        mine = statistics.median(seconds)
        ratio = statistics.median(m / b for m, b in zip(seconds, base, strict=True))
        print(f"| {side} | {mine * 1e3:.2f} | {ratio:.2f} | {records / mine:,.0f} |", flush=True)


def main() -> None:
    """Run the comparisons requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--wide", action="store_true", help="also 4000-512-(1, 2), without hooks, which need gigabytes")
    parser.add_argument("--cpu", action="store_true", help="processor time instead of the clock's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore")
    if arguments.cpu:
        Clocks.now = staticmethod(time.process_time)
    rounds, device = arguments.rounds, arguments.device
    with quiet_lightning():
        for batch in (128, 512):
            case = nuisance_case(batch, arguments.steps)
            compare(f"30-32-(1, 2), batch {batch}", case, OPACUS, OURS, rounds, device)
        if arguments.wide:
            wide = nuisance_case(512, 16, q=4_000, width=512, n=4_000)
            compare("4000-512-(1, 2), batch 512", wide, ("ghost",), OURS, min(3, rounds), device)


if __name__ == "__main__":
    main()
