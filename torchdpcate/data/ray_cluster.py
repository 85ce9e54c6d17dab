"""A Ray cluster, as the process that asks for sums is connected to it."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, Self

from torchdpcate._text import plain
from torchdpcate.errors import InputError

AUTO = "auto"
"""The cluster that runs on this machine."""

_PORT = 6379
_ANSWER, _CONNECT = 5.0, 60.0  # seconds
_STORE = 80 << 20  # bytes of shared memory: sums alone pass through it
_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
_PROBE = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='fatal')"


def load_ray() -> Any:
    """Return the package, with its statistics of use off.

    Raises:
        InputError: It is not installed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise InputError("data.engine = ray: needs Ray (extra ray); pip install ray") from None
    return ray


class RayCluster:
    """A connection to a cluster, closed by ``close``; a cluster of its own ends then.

    One of its own listens on the network as any does: it accepts nobody without a random token that this process and
    its workers alone know, has no dashboard, and its files are in a folder of the owner alone. A process that is
    connected to a cluster already stays so, and uses it.

    Args:
        address: ``HOST:PORT``, ``"auto"`` for a cluster that runs on this machine; None makes one of its own.
        cpus: Workers of one of its own; None for as many as the machine has processors.

    Raises:
        InputError: Ray is not installed, the cluster cannot be reached, or the process is connected to another.
    """

    def __init__(self, address: str | None = None, cpus: int | None = None) -> None:
        self._own, self._folder = False, ""
        loaded = sys.modules.get("ray")
        if loaded is not None and loaded.is_initialized():
            if address is not None:
                raise InputError(f"data.address = {address}: this process is connected to a cluster; leave it out")
            self.ray = load_ray()
            return
        host = None if address is None else _reached(address)
        if host is None and loaded is None:
            os.environ.update({name: os.environ.get(name, value) for name, value in _TOKEN.items()})
        if host is None and os.environ.get("RAY_AUTH_MODE") != "token":
            raise InputError(
                "data.address: Ray was imported without a token, and its own cluster would obey whoever reaches it; "
                "import it later, or set RAY_AUTH_MODE=token first"
            )
        self.ray, self._own = load_ray(), True
        with _signals_kept():
            if host is None:
                self._start(cpus or os.cpu_count() or 1)
            else:
                self._connect(host)

    @property
    def cpus(self) -> int:
        """How many workers it has room for."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    def close(self) -> None:
        """End the connection, and the cluster if it is one of its own."""
        if self._own:
            self._own = False
            with _signals_kept():
                self.ray.shutdown()
            if self._folder:
                rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, cpus: int) -> None:
        # Ray opens its folder to all, and the names of its sockets must be short: hence a folder in one of the owner's
        self._folder = tempfile.mkdtemp(prefix="tdp-")
        place = Path(self._folder)
        settings = {"include_dashboard": False, "object_store_memory": _STORE, "num_cpus": cpus}
        places = {"_temp_dir": str(place / "r"), "object_spilling_directory": str(place / "s")}
        try:
            self.ray.init(address="local", log_to_driver=False, logging_level="error", **settings, **places)
        except Exception as error:
            rmtree(self._folder, ignore_errors=True)
            raise InputError(f"ray: a cluster on this machine does not start: {_first(error)}") from None

    def _connect(self, address: str) -> None:
        try:  # Ray itself tries for minutes, and may end the process
            if address != AUTO:
                command = [sys.executable, "-c", _PROBE, address]
                subprocess.run(command, timeout=_CONNECT, capture_output=True, check=True)
            self.ray.init(address=address, log_to_driver=False, logging_level="error")
        except subprocess.CalledProcessError as error:
            raise _unreachable(address, error.stderr.decode(errors="replace").strip().splitlines()[-1:]) from None
        except subprocess.TimeoutExpired:
            raise _unreachable(address, [f"no answer of a cluster in {_CONNECT:g} seconds"]) from None
        except Exception as error:
            raise _unreachable(address, [_first(error)]) from None


def _reached(address: str) -> str:
    """Return an address with its port, where somebody listens."""
    if address == AUTO:
        return address
    host, _, port = address.rpartition(":") if ":" in address else (address, "", str(_PORT))
    if not host or not port.isdecimal() or "/" in host:
        raise InputError(f"data.address = {address}: give HOST:PORT of the head node, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, [str(error)]) from None
    return f"{host}:{port}"


def _unreachable(address: str, why: list[str]) -> InputError:
    words = plain(" ".join(why))[:200] or "no answer"
    return InputError(f"data.address = {address}: no cluster can be reached ({words}); check that ray status shows it")


def _first(error: Exception) -> str:
    return plain(next(iter(str(error).splitlines()), type(error).__name__))[:200]


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(TypeError):  # of a handler that was not set by Python
            signal.signal(signal.SIGTERM, before)
