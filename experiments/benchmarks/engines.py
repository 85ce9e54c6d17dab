"""The same passes over a table in one process, on Ray and on Dask: start-up, reading, a pass, memory of a worker.

A pass sums the products of p = 1 + 3q features of q covariates, [p, p], as one for curvatures does.

    python -m experiments.benchmarks.engines TABLE.parquet DOMAIN.yaml [--parts 2] [--passes 10] [--engines one ray]

Dask needs `pip install distributed`. Seconds are of the clock: run it on an idle machine.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from torchdpcate.composition.rows import PartedRows, StreamedRows
from torchdpcate.data._csv import PLAIN
from torchdpcate.data._frames import groups_in_metadata
from torchdpcate.data.ray_table import RayTable, _copied, _read, spans
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table_stream import TableStream

Pass = Callable[[], torch.Tensor]


def products(batch: CausalData) -> torch.Tensor:
    """Return the sum of the products of all features, [p, p]."""
    psi = torch.cat([torch.ones_like(batch.x[:, :1]), batch.x, batch.x.square(), batch.x.abs()], 1)
    return psi.T @ psi


def mebibytes(*_: object) -> float:
    """Return the largest memory of this process."""
    torch.set_num_threads(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def one(path: Path, domain: Path, parts: int, folder: Path) -> Iterator[tuple[float, Pass, Callable[[], float]]]:
    """Yield seconds until something is read, what makes a pass, and what finds the memory of a worker."""
    torch.set_num_threads(1)
    with TableStream(path, domain).copied(folder) as copy:
        yield 0.0, lambda: StreamedRows(copy, copy.n).total(products), mebibytes


@contextmanager
def ray(path: Path, domain: Path, parts: int, folder: Path) -> Iterator[tuple[float, Pass, Callable[[], float]]]:
    """See ``one``."""
    from torchdpcate.data.ray_table import RayCluster

    start = time.perf_counter()
    with RayCluster(None, parts) as cluster:
        cluster.ray.get([cluster.ray.remote(mebibytes).remote() for _ in range(parts)])
        started = time.perf_counter() - start
        with RayTable(path, domain, parts=parts) as table, table.copied(folder) as copy:
            yield started, lambda: PartedRows(copy, copy.n).total(products), lambda: max(copy.ask(mebibytes))


class DaskPart:
    """A part of the table in an actor of Dask."""

    def __init__(self, made: Callable[[], object], copied: Callable[..., object]) -> None:
        torch.set_num_threads(1)
        self._contexts = [made()]
        part = self._contexts[0].__enter__()
        self._contexts.append(copied(part))
        self.copy = self._contexts[1].__enter__()

    def total(self) -> torch.Tensor:
        """Return its sum of products."""
        return StreamedRows(self.copy, self.copy.n).total(products)

    def memory(self) -> float:
        """Return the largest memory of its process."""
        return mebibytes()


@contextmanager
def dask(path: Path, domain: Path, parts: int, folder: Path) -> Iterator[tuple[float, Pass, Callable[[], float]]]:
    """See ``one``: an actor a part, as on Ray."""
    from distributed import Client, LocalCluster

    start = time.perf_counter()
    with (
        LocalCluster(n_workers=parts, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.run(mebibytes)
        started, schema = time.perf_counter() - start, TableSchema.of(domain)
        found = spans([groups_in_metadata(path)], parts)
        reads = [partial(_read, [path], span, schema, 1 << 30, PLAIN) for span in found]
        copies = [partial(_copied, folder, f"part{k}") for k in range(parts)]
        made = [client.submit(DaskPart, *pair, actor=True) for pair in zip(reads, copies, strict=True)]
        actors = [future.result() for future in made]

        def total() -> torch.Tensor:
            sums = [actor.total() for actor in actors]
            return torch.stack([part.result() for part in sums]).sum(0)

        yield started, total, lambda: max(actor.memory().result() for actor in actors)


def measured(engine: str, path: Path, domain: Path, parts: int, passes: int) -> str:
    """Return one row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        with globals()[engine](path, domain, parts, Path(folder)) as (started, total, memory):
            read = time.perf_counter() - start - started
            total()
            seconds = []
            for _ in range(passes):
                start = time.perf_counter()
                total()
                seconds.append(time.perf_counter() - start)
            least, middle = min(seconds), sorted(seconds)[passes // 2]
            return f"| {engine} | {started:.1f} | {read:.1f} | {middle:.2f} ({least:.2f}) | {memory():.0f} |"


def main() -> None:
    """Print a table of the engines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("domain", type=Path)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--engines", nargs="+", default=["one", "ray"], choices=["one", "ray", "dask"])
    given = parser.parse_args()
    print("| engine | start, s | check and copy, s | a pass, s: median (least) | MiB a worker |")
    print("| --- " * 5 + "|")
    for engine in given.engines:
        print(measured(engine, given.table.absolute(), given.domain.absolute(), given.parts, given.passes), flush=True)


if __name__ == "__main__":
    main()
