"""Time of one DP-SGD step: ours inside Lightning against a bare Opacus loop, mode by mode.

Baseline of every ratio: a plain Python loop with Opacus's own low-level classes on the same module, batches,
optimizer and mode.  The two sides take turns on one thread; the median over the rounds is printed.

    python experiments/benchmarks/dp_sgd_step.py [--rounds 7] [--steps 100] [--wide] [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from lightning.pytorch import Callback
from torch.utils.data import TensorDataset

from torchdpcate.data.domain import Domain
from torchdpcate.nuisance.dp_sgd import DPSGD
from torchdpcate.nuisance.engines import GradSampleHooks, GradSampleHooksFastGradientClipping
from torchdpcate.nuisance.networks import mlp
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.nuisance.poisson import poisson_loader
from torchdpcate.nuisance.record_loss import RecordLossModule
from torchdpcate.nuisance.trainable import TrainableNuisances
from torchdpcate.nuisance.trainer import default_trainer
from torchdpcate.privacy.noise import NoiseSource

MODES = ("hooks", "functorch", "ghost")


class Wide(RecordLossModule):
    """One hidden layer of `width` on `inputs` covariates, squared error: the wide end of the comparison."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.net = mlp(inputs, width, 1)

    def record_loss(self, batch):
        """Squared error [B]."""
        x, _, y = batch
        return (self.net(x).squeeze(-1) - y) ** 2


class Clock(Callback):
    """Seconds per step after the first ten."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        """Start after the tenth step."""
        if batch_idx == 9:
            self.start = time.perf_counter()
        self.end, self.last = time.perf_counter(), batch_idx

    @property
    def seconds(self) -> float:
        """Mean seconds of a step."""
        return (self.end - self.start) / (self.last - 9)


def ours(module: RecordLossModule, data: TensorDataset, plan: DPSGDPlan, mode: str, device: str) -> float:
    """Seconds per step inside `Trainer.fit`."""
    noise, clock = NoiseSource.system(), Clock()
    callbacks = [DPSGD(plan, noise, mode=mode), clock]
    trainer = default_trainer(accelerator=device, max_epochs=-1, max_steps=plan.steps, callbacks=callbacks)
    trainer.fit(module, poisson_loader(data, plan.sampling_rate, plan.steps, noise))
    return clock.seconds


def bare(module: RecordLossModule, data: TensorDataset, plan: DPSGDPlan, mode: str, device: str) -> float:
    """Seconds per step of a loop that calls Opacus directly."""
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    noise = NoiseSource.system()
    module = module.to(device).train()
    ghost = mode == "ghost"
    if ghost:
        hooks = GradSampleHooksFastGradientClipping(module, max_grad_norm=plan.max_grad_norm)
    else:
        hooks = GradSampleHooks(module, force_functorch=mode == "functorch")
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
            start = time.perf_counter()
    seconds = (time.perf_counter() - start) / (plan.steps - 10)
    hooks.cleanup()
    return seconds


def small_case(steps: int) -> tuple[Callable, TensorDataset, DPSGDPlan]:
    """Both nuisances, 30 covariates, width 32, batch 512 of 13,500 records."""
    q, n = 30, 13_500
    domain = Domain([0.0] * q, [1.0] * q, 0.0, 1.0)
    data = TensorDataset(torch.rand(n, q), (torch.rand(n) < 0.5).float(), torch.rand(n))
    return lambda: TrainableNuisances(domain), data, DPSGDPlan(2.0, 0.3, 512 / n, steps)


def wide_case(steps: int) -> tuple[Callable, TensorDataset, DPSGDPlan]:
    """4000-512-1, batch 512 of 4,000 records."""
    q, n = 4_000, 4_000
    data = TensorDataset(torch.rand(n, q), (torch.rand(n) < 0.5).float(), torch.rand(n))
    return lambda: Wide(q, 512), data, DPSGDPlan(2.0, 0.3, 512 / n, steps)


def compare(name: str, case: tuple, modes: tuple[str, ...], rounds: int, device: str) -> None:
    """Print one table: milliseconds per step of both sides and their ratio."""
    make, data, plan = case
    print(f"\n{name}, batch 512, {device}, {torch.get_num_threads()} thread(s), median of {rounds} rounds")
    print("| mode | bare Opacus loop, ms | torchdpcate in Lightning, ms | ratio to the bare loop | samples/s |")
    print("|---|---|---|---|---|")
    for mode in modes:
        times: dict[Callable, list[float]] = {bare: [], ours: []}
        for _ in range(rounds):
            for side, seconds in times.items():
                seconds.append(side(make(), data, plan, mode, device))
        base, mine = statistics.median(times[bare]), statistics.median(times[ours])
        ratio = statistics.median(m / b for m, b in zip(times[ours], times[bare], strict=True))
        print(f"| {mode} | {base * 1e3:.2f} | {mine * 1e3:.2f} | {ratio:.2f} | {512 / mine:,.0f} |", flush=True)


def main() -> None:
    """Run the comparisons asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--wide", action="store_true", help="also 4000-512-1 (ghost; the others need gigabytes)")
    parser.add_argument("--all-wide", action="store_true", help="4000-512-1 in every mode (8 GB)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore")
    compare("30-32-(1, 2)", small_case(arguments.steps), MODES, arguments.rounds, arguments.device)
    if arguments.wide or arguments.all_wide:
        modes = MODES if arguments.all_wide else ("ghost",)
        compare("4000-512-1", wide_case(13), modes, min(3, arguments.rounds), arguments.device)


if __name__ == "__main__":
    main()
