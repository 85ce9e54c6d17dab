"""What is to be known of a GPU, in one call: wide DP-SGD steps, Hessian products, a factor, a run, the GPU's tests.

Figures are ratios to baselines of the same call, on the same GPU: rates to that of one large product of the same type,
Hessian products to gradients of the same objective, the kernel's factor to `torch.linalg.cholesky` of the same matrix.
Then the tests that need a GPU run. `gpu.csv` beside this script names the GPU.

    python experiments/benchmarks/gpu.py
    python experiments/benchmarks/gpu.py --device cpu --small --folder FOLDER    tries the script out; says nothing
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

import torch
from lightning.pytorch import Callback
from torch import Tensor
from torch.utils.data import TensorDataset

from torchdpcate.data.domain import Domain
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan, poisson_loader
from torchdpcate.fit.nuisance_kinds import mlp
from torchdpcate.fit.trainable import RecordLossModule
from torchdpcate.fit.trainer import default_trainer, quiet_lightning
from torchdpcate.heads.influence import HessianVectorProduct
from torchdpcate.heads.kernel_system import DenseSystem
from torchdpcate.heads.neural import NeuralHead
from torchdpcate.privacy.noise import NoiseSource

ROOT = Path(__file__).parents[2]
HVP_LIMIT = 2.5
_REPEATS, _FIRST = 5, 10  # of each measurement; steps that are not timed


@dataclass(frozen=True)
class Sizes:
    """How large everything is.

    Attributes:
        records: Of the wide step.
        inputs: Covariates of the wide step.
        width: Hidden units of the wide step.
        batch: Expected batch size.
        steps: Steps, the first ten untimed.
        product: Rows of the square product that stands for the peak.
        head_records: Records of the Hessian products.
        head_width: Hidden units of the head, on 30 covariates.
        kernel: Records of the kernel matrix.
        run: Words of the whole run beside the trainer.
    """

    records: int = 9_659
    inputs: int = 4_000
    width: int = 512
    batch: int = 512
    steps: int = 110
    product: int = 16_384
    head_records: int = 100_000
    head_width: int = 993
    kernel: int = 40_000
    run: tuple[str, ...] = ()


SMALL = Sizes(200, 20, 8, 50, 14, 64, 100, 4, 60, ("data=dataset1", "data.n=900", "force=true"))


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        what: What was measured.
        seconds: Of one of them.
        ratio: To the baseline; empty where there is none.
        baseline: What the ratio is to.
        wanted: Of the ratio.
    """

    what: str
    seconds: float | str
    ratio: float | str = ""
    baseline: str = ""
    wanted: str = ""


class Wide(RecordLossModule):
    """One hidden layer, squared error."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(optimizer="sgd")
        self.net = mlp(sizes.inputs, sizes.width, 1)

    def record_loss(self, batch: list[Tensor]) -> Tensor:
        """Squared error [B]."""
        x, y = batch
        return (self.net(x).squeeze(-1) - y) ** 2


class Clock(Callback):
    """Seconds of a step after the first ones, all of its work done."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self.wait, self.count, self.start = wait, 0, 0.0

    def on_train_batch_end(
        self, trainer: object, pl_module: object, outputs: object, batch: object, index: int
    ) -> None:
        """Start after the first steps."""
        self.count += 1
        if self.count == _FIRST:
            self.wait()
            self.start = time.perf_counter()

    def on_train_end(self, trainer: object, pl_module: object) -> None:
        """Stop."""
        self.wait()
        self.seconds = (time.perf_counter() - self.start) / (self.count - _FIRST)


class Bench:
    """The measurements on one device.

    Args:
        device: ``cuda`` or ``cpu``.
        sizes: How large.
    """

    def __init__(self, device: str, sizes: Sizes) -> None:
        self.device, self.sizes = torch.device(device), sizes
        self.accelerator = "gpu" if device == "cuda" else "cpu"

    def wait(self) -> None:
        """Return once all is done that was requested of the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def timed(self, work: Callable[[], object]) -> float:
        """Median seconds of a call."""
        work()
        taken = []
        for _ in range(_REPEATS):
            self.wait()
            start = time.perf_counter()
            work()
            self.wait()
            taken.append(time.perf_counter() - start)
        return median(taken)

    def random(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform numbers on the device."""
        return torch.rand(*shape, dtype=dtype, device=self.device)

    def peak(self, dtype: torch.dtype) -> float:
        """Operations a second of a large square product."""
        size = self.sizes.product
        one = self.random(size, size).to(dtype)
        return 2 * size**3 / self.timed(lambda: one @ one)

    def steps(self) -> Iterator[Figure]:
        """The wide step by its share of the peak: plain and private, in float32."""
        s = self.sizes
        data = TensorDataset(self.random(s.records, s.inputs), self.random(s.records))
        # pass, and gradients in both layers' weights and the hidden units; of one record each a product and a sum
        operations = s.batch * (4 * s.inputs * s.width + 6 * s.width)
        peak, plain, rate = self.peak(torch.float32), self.plain_step(data), "rate of float32 products"
        yield Figure("plain step, float32", plain, operations / plain / peak, rate, "")
        private = self.private_step(data)
        yield Figure("DP-SGD step, float32", private, operations / private / peak, rate, "")
        yield Figure("DP-SGD step, float32", private, private / plain, "plain step, float32", "1.3")
        count = sum(p.numel() for p in Wide(s).parameters())
        noise = NoiseSource.system()
        drawn = self.timed(lambda: noise.fine_gaussian(count, 1.0).to(self.device))
        yield Figure("noise of one DP-SGD step, drawn on the CPU", drawn, drawn / private, "DP-SGD step, float32", "")

    def plain_step(self, data: TensorDataset) -> float:
        """Seconds of a step without privacy."""
        module = Wide(self.sizes).to(self.device).train()
        optimizer = module.configure_optimizers()
        index = torch.randint(self.sizes.records, (self.sizes.batch,), device=self.device)

        def step() -> None:
            loss = module.record_loss([part[index] for part in data.tensors]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return self.timed(lambda: [step() for _ in range(_FIRST)]) / _FIRST

    def private_step(self, data: TensorDataset) -> float:
        """Seconds of a step in Lightning, with its noise."""
        s, noise, clock = self.sizes, NoiseSource.system(), Clock(self.wait)
        plan = DPSGDPlan(2.0, 0.3, s.batch / s.records, s.steps)
        limits = {"max_epochs": 1, "max_steps": s.steps}
        trainer = default_trainer(accelerator=self.accelerator, callbacks=[DPSGD(plan, noise), clock], **limits)
        trainer.fit(Wide(s), poisson_loader(data, plan.sampling_rate, plan.steps, noise))
        return clock.seconds

    def products(self) -> Iterator[Figure]:
        """A Hessian product of the neural head in gradients of its objective."""
        s, q = self.sizes, 30
        head = NeuralHead(Domain([-1.0] * q, [1.0] * q, 0, 1), width=s.head_width, ridge=0.1)
        for dtype in (torch.float32, torch.float64):
            on = head.to(self.device, dtype)
            x = self.random(s.head_records, q, dtype=dtype) * 2 - 1
            target, theta = self.random(s.head_records, dtype=dtype), on.theta.detach().to(self.device, dtype)

            def objective(t: Tensor, on: NeuralHead = on, x: Tensor = x, target: Tensor = target) -> Tensor:
                return (target - on.functional(t, x)).square().mean() + 0.1 * t.square().sum()

            def gradient(theta: Tensor = theta) -> Tensor:
                at = theta.clone().requires_grad_()
                return torch.autograd.grad(objective(at), at)[0]

            one, hessian = self.timed(gradient), HessianVectorProduct(objective, theta)
            v = torch.ones_like(theta)
            product = self.timed(lambda hessian=hessian, v=v: hessian.matmat(v[:, None]))
            name = f"Hessian product, p = {theta.numel():,}, {str(dtype).removeprefix('torch.')}"
            yield Figure(name, product, product / one, "gradient", f"{HVP_LIMIT:g}")
            del hessian

    def factor(self) -> Iterator[Figure]:
        """The factor of a kernel system over the bare one of the same matrix."""
        n = self.sizes.kernel
        z, w = self.random(n, 5, dtype=torch.float64), self.random(n, dtype=torch.float64)
        system = DenseSystem(lambda a, b: torch.exp(-torch.cdist(a, b)), z, w, 1.0)
        every = torch.ones(n, dtype=torch.bool, device=self.device)

        def factored() -> None:
            system._factored = None
            system._factor(every)

        ours = self.timed(factored)
        system._factored = None
        bare = self.timed(lambda: torch.linalg.cholesky(system._matrix))
        yield Figure(f"kernel system's Cholesky factor, n = {n:,}, float64", ours, ours / bare, "torch.linalg.cholesky")

    def run(self) -> Iterator[Figure]:
        """The whole default run, imports included, and the same on the CPU."""
        seconds = {}
        for trainer in dict.fromkeys((self.accelerator, "cpu")):
            with tempfile.TemporaryDirectory() as folder:
                words = [
                    f"trainer.accelerator={trainer}",
                    "trainer.progress=false",
                    *self.sizes.run,
                    f"run_dir={folder}/run",
                ]
                start = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-m", "torchdpcate", "train", *words, *self.sizes.run],
                    cwd=ROOT,
                    check=True,
                )
                seconds[trainer] = time.perf_counter() - start
        yield Figure(
            "torchdpcate train",
            seconds[self.accelerator],
            seconds[self.accelerator] / seconds["cpu"],
            "trainer.accelerator=cpu",
        )


def measured(bench: Bench) -> Iterator[Figure]:
    """All figures; what the GPU has too little memory for says so, and the rest goes on."""
    for part in (bench.steps, bench.products, bench.factor, bench.run):
        try:
            yield from part()
        except torch.OutOfMemoryError:
            yield Figure(part.__doc__.splitlines()[0], "out of memory")
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def tests() -> str:
    """Run the tests that need a GPU; return pytest's last line."""
    files = sorted(str(path) for path in (ROOT / "tests").glob("**/test_gpu.py"))
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", "-rs", *files]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    last = [line for line in done.stdout.splitlines() if line.strip()][-1:]
    return f"exit status {done.returncode}: {last[0].strip('= ') if last else done.stderr.strip()[-200:]}"


def name_of(device: str) -> str:
    """What it ran on."""
    card = torch.cuda.get_device_name() if device == "cuda" else "a CPU, small sizes: says nothing of a GPU"
    return f"{card}, torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"


def write(folder: Path, name: str, figures: list[Figure]) -> None:
    """Write the file."""
    columns = [field.name for field in fields(Figure)]
    with open(folder / "gpu.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["device", *columns])
        rows.writerows([name, *astuple(figure)] for figure in figures)


def shown(value: float | str) -> str:
    """A number in three digits."""
    return value if isinstance(value, str) else f"{value:.3g}"


def main(words: list[str] | None = None) -> int:
    """Measure, test, write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes that only show that the script runs")
    parser.add_argument("--folder", type=Path, help="where gpu.csv goes; beside this script if left out")
    options = parser.parse_args(words)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu.py: no CUDA GPU here; --device cpu --small --folder FOLDER tries the script out", file=sys.stderr)
        return 2
    if (options.device == "cpu" or options.small) and (not options.small or options.folder is None):
        print("gpu.py: --device cpu needs --small, and --small a --folder of its own", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore")
    torch.set_float32_matmul_precision("highest")  # as DP-SGD takes products
    name, figures = name_of(options.device), []
    print(name)
    with quiet_lightning():
        for figure in measured(Bench(options.device, SMALL if options.small else Sizes())):
            figures.append(figure)
            print(*(shown(value) for value in astuple(figure)), sep="  ", flush=True)
    tested = tests()
    print(tested)
    write(options.folder or Path(__file__).parent, name, figures)
    return 0 if tested.startswith("exit status 0") else 1


if __name__ == "__main__":
    sys.exit(main())
