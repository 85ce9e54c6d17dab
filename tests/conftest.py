"""Runs of the command line that more than one test reads."""

import hashlib
import io
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from filelock import FileLock

from torchdpcate.cli.main import main

pytest.register_assert_rewrite("tests.contract")


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test know no runs but its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / f"state-{secrets.token_hex(8)}"))


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Another device than the CPU: one that computes there and refuses what CUDA does, and a GPU where there is one."""
    import torch  # and Lightning, which few tests need

    from tests.device import emulated

    if request.param == "emulated":
        with emulated():
            yield request.param
    elif torch.cuda.is_available():
        yield request.param
    else:
        pytest.skip("no CUDA GPU on this machine")


@pytest.fixture
def listening() -> Iterator[None]:
    """Python's own handler of Ctrl-C, and the system's in processes started meanwhile.

    A process that is started in the background, as a test run of some CI systems is, ignores Ctrl-C, and so do its own.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return the folder of a finished run by its words; it is trained once, for all workers.

    The files that the words name are written beside it. Tests read the folder; one that writes takes a copy.
    """
    root = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        root = root.parent
    root = root / "finished"
    root.mkdir(exist_ok=True)

    def folder(*words: str, files: Mapping[str, str] | None = None) -> Path:
        files = files or {}
        here = root / hashlib.sha256(repr((words, sorted(files.items()))).encode()).hexdigest()[:16]
        with FileLock(f"{here}.lock"):
            if not (done := here / "done").exists():
                here.mkdir()
                for name, text in files.items():
                    (here / name).write_text(text)
                with chdir(here), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as complaint:
                    assert main(["train", *words, "run_dir=run"]) == 0, complaint.getvalue()
                done.touch()
        return here / "run"

    return folder
