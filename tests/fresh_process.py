"""Fresh processes, and what they import."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# What trains, draws noise, makes figures or composes a configuration, and what only a table of that kind needs.
TRAINING = ("lightning", "opacus", "torchmetrics", "matplotlib", "gpytorch", "linear_operator", "sklearn")
CURATOR = ("hydra", "omegaconf", "dp_accounting", "opendp", "scipy.stats", "scipy.optimize")
TABLES = ("pandas", "pyarrow", "rich", "scipy.special")
ROOMS = ("heads", "estimators", "papers", "verify", "audit", "evaluation", "pages")

# One process has torch alone; each job is a copy of it, which costs less than a start of its own.
SERVER = """
import contextlib, io, json, os, sys
import torch
sys.path.insert(0, os.getcwd())
for line in sys.stdin:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        before = set(sys.modules)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                exec(json.loads(line))
                found = sorted(set(sys.modules) - before)
            except BaseException as error:
                found = repr(error)
        with os.fdopen(writing, "w") as pipe:
            print(json.dumps(found), file=pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        print(pipe.readline(), end="", flush=True)
    os.waitpid(child, 0)
"""


@contextmanager
def fresh_process() -> Iterator[Callable[[str], list[str]]]:
    """Yield what runs code in a process that has imported torch alone, and returns the modules that it imports."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:

        def run(code: str) -> list[str]:
            server.stdin.write(json.dumps(code).encode() + b"\n")
            server.stdin.flush()
            found = json.loads(server.stdout.readline())
            assert isinstance(found, list), found
            return found

        yield run
        server.stdin.close()


def of(modules: list[str], packages: tuple[str, ...]) -> list[str]:
    return [name for name in modules if any(name == p or name.startswith(f"{p}.") for p in packages)]
