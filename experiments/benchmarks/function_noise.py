"""Time of Gaussian-process function noise: a batch against a bare Cholesky, and queries one at a time against a batch.

The batch is `GaussianProcess` at d queries, kernel matrix and draw included, beside `torch.linalg.cholesky` of the same
matrix. Online, the same d queries go to an `OnlineService` one at a time, each on the disk before its answer leaves,
beside that batch; and to another service at once.

    python experiments/benchmarks/function_noise.py --threads 1
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from torchdpcate.causal.score import RScore
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.cate.mechanisms.base import Prepared
from torchdpcate.estimators.cate.mechanisms.perturbation import GaussianProcess
from torchdpcate.estimators.cate.online.path import JITTER
from torchdpcate.estimators.cate.online.service import OnlineService
from torchdpcate.fit.feature_maps import Fourier
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.fit.nuisance_kinds import Nuisances
from torchdpcate.heads.kernel import KernelStage
from torchdpcate.heads.kernel_system import ResidualLoss
from torchdpcate.heads.stage import LinearStage, RKHSStage, SecondStageBlock
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.statement import make_statement

BUDGET = PrivacyBudget(1.0, 1e-5)
BATCH_LIMIT, ONLINE_LIMIT = 1.5, 3.0


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def stages(q: int, records: int) -> dict[str, RKHSStage]:
    """A kernel head and one on Fourier features, on covariates uniform over the unit cube."""
    domain = Domain([0.0] * q, [1.0] * q, -1.0, 1.0, overlap=0.1)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(records, q, dtype=torch.float64, generator=generator)
    s, w = torch.rand(2, records, dtype=torch.float64, generator=generator) - 0.5
    block = SecondStageBlock(x, s, w, lambda *_: (s, w), domain, RScore().bounds(domain))
    kernel = UnitKernel(0.6 if q == 2 else math.sqrt(q), domain)
    return {
        f"kernel, q = {q}": KernelStage(block, kernel, 0.01, ResidualLoss(0.5)),
        f"256 Fourier features, q = {q}": LinearStage(block, Fourier(128).setup(domain), 0.01, 0.5),
    }


def batch(stage: RKHSStage, queries: torch.Tensor, repeats: int) -> float:
    """Print a batch release beside the bare factor of the same matrix; return its seconds."""
    covariance = stage.covariance(queries, queries)
    covariance.diagonal().add_(JITTER)
    bare, release = [], []
    for _ in range(repeats):
        bare.append(timed(lambda: torch.linalg.cholesky(covariance)))
        release.append(timed(lambda: GaussianProcess().prepare(stage, queries, BUDGET).draw(NoiseSource.system(), 1)))
    print(f"  batch release {median(release):.2f} s, bare Cholesky {median(bare):.2f} s")
    print_ratio(median(r / b for r, b in zip(release, bare, strict=True)), BATCH_LIMIT)
    return median(release)


def service(stage: RKHSStage, folder: Path) -> OnlineService:
    """A new service."""
    schema = TableSchema.from_domain(stage.block.domain)
    nuisances = Nuisances(schema.domain).double().eval().requires_grad_(False)
    ledger = Ledger({"second_stage": BUDGET})
    session = FitSession(NoiseSource.system(), BUDGET, ledger, {"second_stage": len(stage.block.s)})
    session = session.charging(["second_stage"], Charge(Purpose.RELEASE, GaussianProcess.name))

    def statement(terms: Prepared) -> object:
        words = {"mechanism": GaussianProcess.name, "formula": GaussianProcess.formula}
        return make_statement(session, terms.guarantee, own=session.entries, public=terms.public, **words)

    return OnlineService.create(
        folder,
        stage,
        nuisances,
        schema,
        budget=BUDGET,
        session=session,
        statement=statement,
    )


def online(stage: RKHSStage, queries: torch.Tensor, folder: Path, released: float) -> None:
    """Print the time of all queries one after the other, beside that of one batch; and of all at once."""
    together, single = service(stage, folder / "together"), service(stage, folder / "single")
    parts = [part.numpy() for part in queries.split(1)]
    at_once = timed(lambda: together.answer(queries))
    seconds = timed(lambda: [single.answer(part) for part in parts])
    print(f"one at a time {seconds:.2f} s, at once {at_once:.2f} s, {single._function.path.rows:,} rows")
    print_ratio(seconds / released, ONLINE_LIMIT)


def main() -> None:
    """Run the benchmark and print one figure a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=5_000)
    parser.add_argument("--records", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the services write; None takes the system's own")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.queries:,} queries, {options.records:,} records, {options.threads} thread(s)")
    for q in (2, 30):
        for name, stage in stages(q, options.records).items():
            print(name)
            queries = stage.block.domain.grid(options.queries)
            stage.correction(queries[:2])  # the fit is not timed
            released = batch(stage, queries, options.repeats)
            print("  online: ", end="")
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                online(stage, queries, Path(folder), released)


def print_ratio(ratio: float, limit: float) -> None:
    """Print a ratio beside what is wanted."""
    print(f"    ratio {ratio:.2f} (limit {limit:g}){'' if ratio <= limit else ': missed'}", flush=True)


if __name__ == "__main__":
    main()
