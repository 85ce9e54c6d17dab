"""Sites on one machine, by the command line and Flower: how long a message takes.

Starts a coordinator, and for each site a table, a ``flower-supernode`` and a run of ``torchdpcate train``; needs the
extra ``flower``. Prints seconds in all, messages, and seconds a message.

    python -m experiments.sites.flower --sites 5

Why sites do not share the noise: with secure aggregation each of K sites could add 1 / sqrt(K - t) of it, private
against t that collude. Flower's SecAgg+ (1.42) clips every number to a range, rounds at random after the noise, and
continues when a site drops out, whose noise is then missing: of five sites with t = 1, one dropout makes epsilon = 1
one of 1.17, two 1.47 (delta = 1e-5).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from torchdpcate.cli.coordinator import MESSAGES
from torchdpcate.cli.sites import ENVIRONMENT

DOMAIN = """\
treatment: t
outcome: {name: y, low: -2, high: 2, origin: generated}
covariates:
  x: {low: 0, high: 1, origin: generated}
  z: {low: 0, high: 1, origin: generated}
propensity: 0.5
"""
PROGRAMS = Path(sys.executable).parent


def write_table(path: Path, n: int, seed: int) -> None:
    """Write n records of a trial."""
    generator = torch.Generator().manual_seed(seed)
    x, z, t = torch.rand(3, n, generator=generator)
    t = t.round()
    y = (x - 0.5 + t * (z - 0.2) + 0.3 * torch.randn(n, generator=generator)).clamp(-2, 2)
    rows = torch.stack([x, z, t, y], 1).tolist()
    path.write_text("x,z,t,y\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows), encoding="utf-8")


@contextmanager
def running(folder: Path, name: str, *words: str) -> Iterator[subprocess.Popen]:
    """Run a program beside the environment's Python, with a log in a folder."""
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **ENVIRONMENT, "PATH": path, "FLWR_HOME": str(folder / f"flower-{name}")}
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen([str(PROGRAMS / words[0]), *words[1:]], env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def carried(folder: Path, sites: int, n: int, epsilon: float, port: int) -> float:
    """Return the seconds of one composition of that many sites with n records each."""
    names = [f"s{place}" for place in range(sites)]
    (folder / "sites.yaml").write_text("".join(f"{name}: {n}\n" for name in names))
    (folder / "domain.yaml").write_text(DOMAIN)
    words = ["torchdpcate", "sites", str(folder / "sites.yaml"), "-o", str(folder / "all"), "--port", str(port)]
    with ExitStack() as stack:
        coordinator = stack.enter_context(running(folder, "coordinator", *words))
        start = time.perf_counter()
        for place, name in enumerate(names):
            write_table(folder / f"{name}.csv", n, place)
            socket, own = str(folder / f"{name}.sock"), ["--port", str(port + 1 + place)]
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", *own]
            stack.enter_context(running(folder, f"node-{name}", *node, "--node-config", f'socket="{socket}"'))
            of_site = [f"sites.path={folder / 'sites.yaml'}", f"sites.name={name}", f"sites.socket={socket}"]
            data = ["data=table", f"data.path={folder / name}.csv", f"data.domain={folder / 'domain.yaml'}"]
            total = [f"budget.total.epsilon={epsilon}", "budget.total.delta=1e-5"]  # of all starts
            of_site += [f"budget.shared={folder / 'ledgers' / name}.json", *total]
            run = ["torchdpcate", "train", *data, *of_site, f"run_dir={folder / name}", f"privacy.epsilon={epsilon}"]
            stack.enter_context(running(folder, f"run-{name}", *run))
        if coordinator.wait():
            raise SystemExit((folder / "coordinator.log").read_text())
        return time.perf_counter() - start


def main() -> None:
    """Print how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=5, help="how many")
    parser.add_argument("--records", type=int, default=400, help="of each")
    parser.add_argument("--epsilon", type=float, default=4.0, help="of each record")
    parser.add_argument("--port", type=int, default=18_300, help="of the SuperLink; the next ones are of SuperNodes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tdp-") as place:
        seconds = carried(Path(place), given.sites, given.records, given.epsilon, given.port)
        with (Path(place) / "all" / MESSAGES).open() as lines:
            messages = sum(1 for _ in lines) // given.sites
        print(f"{given.sites} sites: {seconds:.0f} s, {messages} messages, {seconds / messages:.2f} s a message")


if __name__ == "__main__":
    main()
