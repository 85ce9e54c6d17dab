"""``torchdpcate sites``: the coordinator of hospitals that run one composition, on Flower."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from torchdpcate._files import atomic_path, refuse_existing
from torchdpcate.data._frames import about
from torchdpcate.data._yaml import read_yaml
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import positive

_APP = """\
[project]
name = "torchdpcate-sites"
version = "1.0.0"
description = "Carries noisy sums; all code is of the installed torchdpcate"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "torchdpcate"

[tool.flwr.app.components]
serverapp = "torchdpcate.cli.flower_apps:server"
clientapp = "torchdpcate.cli.flower_apps:client"

[tool.flwr.app.config]
folder = ""
sizes = ""
wait = 0.0
"""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_START = 60.0  # seconds that the SuperLink may take to start
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
}
"""What Flower's programs are told: nothing of them goes to its makers, and they look for work 20 times a second."""


def read_sizes(path: str | Path) -> dict[str, int]:
    """Return the number of records of each site by name, of a yaml file.

    Raises:
        InputError: No such file, or something else.
    """
    with about(f"sites = {path}"):
        found = read_yaml(Path(path))
    named = isinstance(found, Mapping) and len(found) > 1 and all(isinstance(name, str) for name in found)
    if not named or not all(type(size) is int and size > 0 for size in found.values()):
        raise InputError(f"sites = {path}: give lines such as north: 1200, two or more names with a number of records")
    return dict(found)


def sites(
    sizes: str,
    output: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    certfile: str | None = None,
    keyfile: str | None = None,
    cafile: str | None = None,
    insecure: bool = False,
    wait: float = 600.0,
) -> None:
    """Add up the noisy sums of several sites until all have the release, and write that with all messages.

    Args:
        sizes: Yaml file with the number of records of each site by name.
        output: Folder to write, not there yet: the release, and every message that was seen.
        host: Where Flower's SuperLink listens.
        port: As ``host``.
        certfile: Its TLS certificate.
        keyfile: Key of that.
        cafile: Certificate of who signed it.
        insecure: Whether to do without TLS beyond the loopback interface.
        wait: Seconds to wait for sites at each message.

    Raises:
        InputError: Flower is not installed, no TLS, a site that does not answer, plans that differ.
    """
    counted, tls = read_sizes(sizes), (certfile, keyfile, cafile)
    positive("wait", wait)
    refuse_existing(output, "output", "remove it")
    if any(tls) and not all(tls):
        raise InputError("sites: TLS needs all of --certfile, --keyfile and --cafile")
    if not any(tls) and not insecure and host not in _LOOPBACK:
        raise InputError(f"host = {host}: give --certfile, --keyfile and --cafile for TLS, or say --insecure")
    if find_spec("flwr") is None:
        raise InputError("sites: needs Flower (extra flower); pip install flwr")
    with tempfile.TemporaryDirectory(prefix="torchdpcate-sites-") as place:
        folder, environment = Path(place), {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(Path(place) / "flower")}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
        address, security = f"{host}:{port}", [] if any(tls) else ["--insecure"]
        if all(tls):
            names = ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile")
            security = [word for pair in zip(names, map(str, tls), strict=True) for word in pair]
        _write_app(folder, address, cafile)
        words = ["flower-superlink", *security, "--host", host, "--port", str(port)]
        words += ["--disable-runtime-dependency-installation"]
        with _running(words, folder / "superlink.log", environment) as link:
            _submit(folder, counted, wait, environment, link)
            print(f"sites: waiting for {', '.join(counted)} at {address}", flush=True)
            while not (folder / "outcome").exists():
                _check_alive(link, folder)
                time.sleep(0.2)
        _conclude(folder, Path(output))


def _write_app(folder: Path, address: str, cafile: str | None) -> None:
    """Write the app, which is a name of the library's own code, and Flower's configuration."""
    for name in ("app", "flower"):
        (folder / name).mkdir()
    (folder / "app" / "pyproject.toml").write_text(_APP, encoding="utf-8")
    secured = "insecure = true" if cafile is None else f"root-certificates = {json.dumps(str(Path(cafile).absolute()))}"
    text = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = {json.dumps(address)}\n{secured}\n'
    (folder / "flower" / "config.toml").write_text(text, encoding="utf-8")


@contextmanager
def _running(words: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen]:
    """Run one of Flower's programs while the block does."""
    with log.open("w", encoding="utf-8") as lines:
        process = subprocess.Popen(words, stdout=lines, stderr=lines, env=environment)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _submit(
    folder: Path, sizes: Mapping[str, int], wait: float, environment: Mapping[str, str], link: subprocess.Popen
) -> None:
    """Start the app, as soon as the SuperLink listens."""
    config = {"folder": str(folder), "sizes": json.dumps(sizes), "wait": float(wait)}
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items())
    (folder / "run.toml").write_text(text, encoding="utf-8")
    words = ["flwr", "run", str(folder / "app"), "here", "--run-config", str(folder / "run.toml")]
    end = time.monotonic() + _START
    while True:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        _check_alive(link, folder)
        if time.monotonic() > end:
            raise InputError(f"sites: Flower did not start: {_last(done.stderr or done.stdout)}")
        time.sleep(0.5)


def _check_alive(link: subprocess.Popen, folder: Path) -> None:
    if link.poll() is not None:
        said = _last((folder / "superlink.log").read_text(encoding="utf-8"))
        raise InputError(f"sites: Flower's SuperLink ended: {said}; choose another --port where it is taken")


def _last(text: str) -> str:
    """Return the last line that tells of an error, or the last one."""
    lines = [re.sub(r"\x1b\[\d*m", "", line).strip() for line in text.splitlines() if line.strip()] or ["no word"]
    return next((line for line in reversed(lines) if re.search("ERROR|Errno|Error", line)), lines[-1])


def _conclude(folder: Path, output: Path) -> None:
    """Write the release and the messages, or say why there is none."""
    from torchdpcate.cli.coordinator import MESSAGES
    from torchdpcate.release.file import RELEASE_FILE
    from torchdpcate.verify.file import verify_release

    why = (folder / "outcome").read_text(encoding="utf-8")
    if why:
        raise InputError(why)
    verify_release(folder / RELEASE_FILE)
    output.mkdir(parents=True)
    for name in (MESSAGES, RELEASE_FILE):
        with atomic_path(output / name) as temporary:
            shutil.copyfile(folder / name, temporary)
    print(f"written: {output / RELEASE_FILE}\nwritten: {output / MESSAGES} (all that the coordinator saw)")
