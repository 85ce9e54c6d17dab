"""Time and memory of conjugate gradients: a head of about a million parameters, 8,000 records.

Float32 products do most of the work, float64 residuals correct them; records are streamed, so that memory does not grow
with them (a product's time does, linearly).

The targets are what the head predicts plus a little noise, so that its Hessian is positive definite without a
training run; a solve does not ask how theta was found.

    python experiments/benchmarks/large_head.py --queries 2 --ridge 0.1
"""

import argparse
import resource
import time
from dataclasses import dataclass
from typing import Any

import torch

from torchdpcate.data.domain import Domain
from torchdpcate.heads import influence
from torchdpcate.heads.influence import InfluenceFunction, StreamedHessian
from torchdpcate.heads.neural import NeuralHead

LIMIT_GIB = 3.0


@dataclass
class Counts:
    """How many products with the Hessian the solve took, and the true residual that it reached."""

    products: int = 0
    quick: int = 0
    residual: float = float("nan")

    def watch(self) -> None:
        """Count from now on."""
        matmat, solve = StreamedHessian.matmat, influence.conjugate_gradients

        def counted(hessian: StreamedHessian, V: torch.Tensor) -> torch.Tensor:
            if V.dtype == torch.float32:
                self.quick += V.shape[1]
            else:
                self.products += V.shape[1]
            return matmat(hessian, V)

        def noted(*args: Any, **named: Any) -> tuple[torch.Tensor, float]:
            found, self.residual = solve(*args, **named)
            return found, self.residual

        StreamedHessian.matmat = counted  # type: ignore[method-assign]
        influence.conjugate_gradients = noted


def peak_gib() -> float:
    """Largest resident set of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Run the benchmark and print one figure a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=8_000)
    parser.add_argument("--covariates", type=int, default=30)
    parser.add_argument("--width", type=int, default=993)
    parser.add_argument("--queries", type=int, default=2)
    parser.add_argument("--ridge", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    generator = torch.Generator().manual_seed(0)
    n, q = options.records, options.covariates
    box = Domain([-1.0] * q, [1.0] * q, 0, 1)
    head = NeuralHead(box, width=options.width, ridge=options.ridge, generator=generator)
    theta = head.theta.detach()
    x = torch.rand(n + options.queries, q, dtype=torch.float64, generator=generator) * 2 - 1
    w = torch.rand(n, dtype=torch.float64, generator=generator) - 0.5
    noise = 0.1 * torch.randn(n, dtype=torch.float64, generator=generator)
    s = w * head(x[:n]).detach() + noise
    print(f"parameters {theta.numel():,}, records {n:,}, queries {options.queries}, ridge {options.ridge}")
    print(f"peak memory before the solve: {peak_gib():.2f} GiB")

    counts = Counts()
    counts.watch()
    start = time.process_time()
    of_queries = InfluenceFunction(head.functional, theta, x[:n], s, w, options.ridge, x[n:])
    seconds = time.process_time() - start
    print(f"solve: {seconds:.1f} s of CPU, {counts.quick} products in float32 and {counts.products} in float64")
    print(f"true relative residual {counts.residual:.1e}")
    start = time.perf_counter()
    norms = of_queries.norm(x[:1_000], s[:1_000], w[:1_000])
    print(f"influence of 1,000 records: {time.perf_counter() - start:.1f} s, largest {float(norms.max()):.4g}")
    print(f"peak memory: {peak_gib():.2f} GiB (limit {LIMIT_GIB})")
    if peak_gib() >= LIMIT_GIB:
        raise SystemExit("the memory limit is missed")


if __name__ == "__main__":
    main()
