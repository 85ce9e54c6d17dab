"""Processes that share the steps of a fit, of which one is killed: no other is left, and the ledger keeps the steps."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.faults.guards import SECONDS

SCRIPT = """
import multiprocessing, os, signal, sys
from functools import partial
import torch
from lightning.pytorch import Callback
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.nuisance.train import train
from torchdpcate.nuisance.trainable import TrainableNuisances
from torchdpcate.nuisance.trainer import default_trainer
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

print("start", flush=True)

class PressedWhereItIsDropped:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

class Tell(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 3:
            print("processes", *(p.pid for p in multiprocessing.active_children()), flush=True)
            if sys.argv[2] == "destructor":
                PressedWhereItIsDropped()

torch.manual_seed(0)
n = 60
records = CausalData(torch.rand(n, 2).double(), (torch.rand(n) < 0.5).double(), torch.rand(n).double())
module = TrainableNuisances(Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0), width=4)
ledger = Ledger({"nuisance": PrivacyBudget(3.0, 1e-5)}, sys.argv[1])
def trainer(callbacks, **limits):
    settings = dict(accelerator="cpu", strategy="ddp", devices=3)
    return default_trainer(callbacks=[*callbacks, Tell()], **limits, **settings)
train(module, records, trainer, batch_size=10, epochs=1, seed=0, plan=DPSGDPlan(400.0, 0.5, 10 / n, 100_000),
      noise=NoiseSource.system(), ledger=ledger)
"""


def alive(pid: int) -> bool:
    """Whether a process runs: one that nobody has waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.usefixtures("listening")
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize(
    ("whom", "how"),
    [("other", "SIGKILL"), ("main", "SIGKILL"), ("main", "SIGTERM"), ("all", "SIGINT"), ("destructor", "SIGINT")],
)
def test_nobody_is_left_and_the_ledger_counts_the_steps(tmp_path, whom, how):
    (tmp_path / "script.py").write_text(SCRIPT)
    ledger = tmp_path / "ledger.json"
    main = subprocess.Popen(
        [sys.executable, "script.py", str(ledger), whom],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert main.stdout is not None
        assert main.stdout.readline() == "start\n"
        others = [int(word) for word in main.stdout.readline().split()[1:]]
        assert len(others) == 2
        assert whom == "destructor" or all(alive(pid) for pid in others)
        number = getattr(signal, how)
        if whom == "all":
            os.killpg(main.pid, number)
        elif whom != "destructor":
            os.kill(others[0] if whom == "other" else main.pid, number)
        printed, said = main.communicate(timeout=SECONDS)
        end = time.monotonic() + SECONDS
        while any(alive(pid) for pid in others) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(alive(pid) for pid in others)
    finally:
        main.kill()
    entry = json.loads(ledger.read_text())["entries"][0]
    assert 4 <= entry["count"] < 100_000
    assert printed == "", "the script ran once"
    if whom == "other":
        # The children stand in no order.
        assert re.search(r"ProcessError: trainer: process [12] of 3 ended at step", said)
        assert "(signal 9); the others were stopped and the ledger keeps the steps that were paid" in said
    if how == "SIGTERM":
        assert main.returncode == 143
    if how == "SIGINT":
        assert "KeyboardInterrupt" in said.splitlines()[-1]
