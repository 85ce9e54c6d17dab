"""Steps that several processes compute: the release law, the ledger and the errors of one process."""

import math
import multiprocessing
import os
import signal
import sys
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn
from torch.utils.data import TensorDataset

from tests.nuisance.cases import Foreign, Interrupt, Recorder, Save
from torchdpcate.errors import InputError, ProcessError
from torchdpcate.nuisance import joint_steps
from torchdpcate.nuisance.dp_sgd import DPSGD
from torchdpcate.nuisance.joint_strategy import joint_strategy
from torchdpcate.nuisance.networks import mlp
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.nuisance.poisson import PoissonSampler, poisson_loader
from torchdpcate.nuisance.record_loss import RecordLossModule
from torchdpcate.nuisance.train import train
from torchdpcate.nuisance.trainer import default_trainer, quiet_lightning
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource, SystemNoise

DDP = {"strategy": "ddp", "accelerator": "cpu"}
TWO = {**DDP, "devices": 2}


class Silent(SystemNoise):
    """Coins, and no noise."""

    def fine_gaussian(self, size, scale):
        return torch.zeros(size, dtype=torch.float64)

    def __reduce__(self):
        return Silent, ()  # its base becomes the system's noise wherever it is taken


class Net(RecordLossModule):
    """Squared errors of a small network."""

    def __init__(self, inputs=3, width=4):
        super().__init__(optimizer="sgd", learning_rate=0.1)
        torch.manual_seed(0)
        self.net = mlp(inputs, width, 1)

    def record_loss(self, batch):
        x, _, y = batch
        return (self.net(x).squeeze(-1) - y) ** 2


class Seen(RecordLossModule):
    """The gradient of a record is its own row: the sum of a step shows who was in it."""

    def __init__(self, numbers, factor=1.0):
        super().__init__(optimizer="sgd", learning_rate=1e-3)
        self.layer, self.factor = nn.Linear(numbers, 1, bias=False), factor

    def record_loss(self, batch):
        return self.factor * self.layer(batch[0]).squeeze(-1)


class OnlyHere(Net):
    """Fails in every process but the one that made it."""

    def __init__(self, error):
        super().__init__()
        self.error, self.home = error, os.getpid()

    def record_loss(self, batch):
        if os.getpid() != self.home:
            raise self.error
        return super().record_loss(batch)


def noisy_sums(module, rows, plan, noise, trainer=TWO, callbacks=()):
    """Gradients of each step times the expected batch [steps, p]."""
    seen, data = Recorder(), TensorDataset(rows, rows[:, 0], rows[:, 0])
    made = default_trainer(
        max_epochs=-1, max_steps=plan.steps, callbacks=[DPSGD(plan, noise), seen, *callbacks], **trainer
    )
    with quiet_lightning():
        made.fit(module, poisson_loader(data, plan.sampling_rate, plan.steps, noise))
    return torch.stack([grads[0].flatten() for grads in seen.grads]) * plan.sampling_rate * len(rows)


def learnt(records, mode, max_physical_batch=None, **trainer):
    made = partial(default_trainer, precision="64-true", **trainer)
    plan, settings = DPSGDPlan(1.0, 0.1, 1.0, 12), {"batch_size": 8, "epochs": 1, "seed": 0, "mode": mode}
    settings["max_physical_batch"] = max_physical_batch
    module = train(Net(), records, made, plan=plan, noise=Silent(), **settings)
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize(
    ("mode", "processes", "limit"), [("chain", 2, None), ("chain", 3, 7), ("ghost", 2, None), ("hooks", 2, None)]
)
def test_without_noise_and_at_rate_one_several_processes_are_one(records, mode, processes, limit):
    odd = records.subset(torch.arange(59))
    one = learnt(odd, mode, accelerator="cpu")
    start = nn.utils.parameters_to_vector(Net().parameters()).detach()
    assert (one - start).abs().max() > 0.01
    assert (learnt(odd, mode, limit, devices=processes, **DDP) - one).abs().max() < 1e-10


@pytest.mark.slow
def test_processes_that_are_started_anew_are_one_too(records, monkeypatch):
    whole, main = learnt(records, "chain", accelerator="cpu"), vars(sys.modules["__main__"])
    before = main.get("__file__"), main.get("__spec__")  # a worker of pytest has none
    monkeypatch.setattr(joint_steps, "_way_to_start", lambda: "spawn")
    assert (learnt(records, "chain", **TWO) - whole).abs().max() < 1e-10
    assert (main.get("__file__"), main.get("__spec__")) == before


def test_a_class_of_the_script_itself_is_refused_where_processes_start_anew(records, monkeypatch):
    monkeypatch.setattr(joint_steps, "_way_to_start", lambda: "spawn")
    monkeypatch.setattr(Net, "__module__", "__main__")
    with pytest.raises(InputError, match="Net on several processes is defined in the script itself"):
        learnt(records, "chain", **TWO)


def test_all_records_together_are_one_poisson_sample():
    n, steps, q = 30, 200, 0.25
    # rows are a little shorter than the clip norm
    inside = noisy_sums(Seen(n), torch.eye(n), DPSGDPlan(1.0, 1.01, q, steps), Silent())
    assert ((inside - inside.round()).abs() < 1e-3).all()
    inside = inside.round()
    assert set(inside.unique().tolist()) == {0.0, 1.0}
    spread = math.sqrt(q * (1 - q) / steps)
    assert (inside.mean(0) - q).abs().max() < 6 * spread
    pairs = torch.corrcoef(inside.T.double()) - torch.eye(n)
    assert pairs.abs().max() < 6.5 / math.sqrt(steps)  # also of records of different processes


def test_noise_is_added_once_and_nobody_draws_the_same():
    p = 20_000
    sums = noisy_sums(Seen(p, factor=0.0), torch.ones(6, p), DPSGDPlan(2.0, 0.5, 0.5, 2), NoiseSource.system())
    for part in (sums[0, : p // 2], sums[0, p // 2 :], sums[1, : p // 2], sums[1, p // 2 :]):
        # scale 2 x 0.5; twice the noise would be a variance of 2
        assert abs(part.var().item() - 1) < 6 * math.sqrt(2 / len(part))
        assert abs(part.mean().item()) < 6 / math.sqrt(len(part))
    parts = sums.view(4, p // 2)
    assert (torch.corrcoef(parts) - torch.eye(4)).abs().max() < 6 / math.sqrt(p // 2)


@pytest.mark.first(1)
@pytest.mark.parametrize("numbers", [3, 1, 2])
def test_noise_drawn_ahead_is_each_process_own_and_each_fit_own(numbers):
    steps, rows = 250, torch.ones(6, numbers)
    made = [
        noisy_sums(Seen(numbers, factor=0.0), rows, DPSGDPlan(2.0, 0.5, 0.5, steps), NoiseSource.system())
        for _ in range(2)
    ]
    sums = torch.cat(made, 1).double()
    # a replay repeats hundreds; by chance two of 1,500 float32 draws are one in 2 % of the runs, six pairs never
    assert sums.numel() - len(sums.unique()) <= 5
    bound = 6.5 / math.sqrt(steps)
    assert (torch.corrcoef(sums.T) - torch.eye(2 * numbers)).abs().max() < bound
    assert (sums.square().mean(0) - 1).abs().max() < bound * math.sqrt(2) * 1.2


def test_the_ledger_is_that_of_one_process(records, tmp_path):
    found = []
    for name, trainer in (("one", {"accelerator": "cpu"}), ("two", TWO)):
        for path in (None, tmp_path / name):
            ledger = Ledger({"nuisance": PrivacyBudget(3.0, 1e-5)}, path)
            settings = {"batch_size": 10, "epochs": 1, "seed": 0, "ledger": ledger}
            plan = DPSGDPlan(1.5, 0.5, 10 / records.n, 9)
            train(
                Net(), records, partial(default_trainer, **trainer), plan=plan, noise=NoiseSource.system(), **settings
            )
            found.append((ledger.entry(0), ledger.spent("nuisance")))
    assert found[0][0].count == 9
    assert all(each == found[0] for each in found)
    assert multiprocessing.active_children() == []


def test_weights_are_averaged_and_a_fit_goes_on_from_a_checkpoint(records, tmp_path):
    ledger = Ledger({"nuisance": PrivacyBudget(3.0, 1e-5)}, tmp_path / "ledger.json")
    settings = {"batch_size": 10, "epochs": 1, "seed": 0, "ledger": ledger, "noise": NoiseSource.system()}
    plan, path = DPSGDPlan(1.5, 0.5, 10 / records.n, 9), tmp_path / "half.ckpt"

    def interrupted(callbacks, **limits):
        return default_trainer(callbacks=[*callbacks, Save(4, path), Interrupt(4)], **limits, **TWO)

    with pytest.raises(KeyboardInterrupt):
        train(Net(), records, interrupted, plan=plan, **settings)
    assert ledger.entry(0).count == 4
    assert multiprocessing.active_children() == []
    train(Net(), records, partial(default_trainer, **TWO), plan=plan, ckpt_path=path, **settings)
    assert ledger.entry(0).count == 9


def test_a_mistake_that_only_another_process_sees_is_one_line(records):
    settings = {"batch_size": 10, "epochs": 1, "seed": 0, "noise": NoiseSource.system()}
    plan = DPSGDPlan(1.5, 0.5, 10 / records.n, 9)
    for error, kind, message in (
        (InputError("x = 3: give 2"), InputError, r"^x = 3: give 2 \(process 1 of 2\)$"),
        (MemoryError("no\nroom"), ProcessError, "process 1 of 2 failed at step 1 .MemoryError no room.*ledger keeps"),
    ):
        with pytest.raises(kind, match=message):
            train(OnlyHere(error), records, partial(default_trainer, **TWO), plan=plan, **settings)
        assert multiprocessing.active_children() == []


class Kill(Callback):
    """Ends another process by SIGKILL after the third step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 2:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)


@pytest.mark.parametrize("processes", [2, 3])
def test_a_process_that_is_killed_ends_the_fit_and_the_ledger_keeps_its_steps(records, tmp_path, processes):
    ledger = Ledger({"nuisance": PrivacyBudget(3.0, 1e-5)}, tmp_path / "ledger.json")
    settings = {"batch_size": 10, "epochs": 1, "seed": 0, "ledger": ledger, "noise": NoiseSource.system()}

    def trainer(callbacks, **limits):
        return default_trainer(callbacks=[*callbacks, Kill()], devices=processes, **limits, **DDP)

    with pytest.raises(ProcessError, match=r"ended at step 4 \(signal 9\); the others were stopped and the ledger"):
        train(Net(), records, trainer, plan=DPSGDPlan(1.5, 0.5, 10 / records.n, 9), **settings)
    assert 3 <= Ledger({"nuisance": PrivacyBudget(3.0, 1e-5)}, tmp_path / "ledger.json").entry(0).count <= 4
    assert multiprocessing.active_children() == []


class Hooked(Net):
    """Changes batches, which would happen in one process alone."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch


@pytest.mark.parametrize(
    ("module", "noise", "settings", "message"),
    [
        (Net, NoiseSource.fixed(0), TWO, "noise: a fixed source gives each process the same"),
        (Hooked, NoiseSource.system(), TWO, "Hooked.on_after_batch_transfer on several processes"),
        (Foreign, NoiseSource.system(), TWO, "Foreign on several processes"),
        (Net, NoiseSource.system(), {**DDP, "devices": 61}, "trainer.devices = 61 processes for 60 records"),
        (Net, NoiseSource.system(), {**DDP, "devices": 0}, "trainer.devices = 0: give the number of processes"),
        (Net, NoiseSource.system(), {**DDP, "devices": "auto"}, "trainer.devices = 'auto'"),
        (Net, NoiseSource.system(), {"strategy": "ddp", "accelerator": "tpu"}, "trainer.accelerator = 'tpu'"),
    ],
)
def test_refusals_start_no_process(records, module, noise, settings, message):
    plan = DPSGDPlan(1.5, 0.5, 10 / records.n, 9)
    with pytest.raises(InputError, match=message):
        train(
            module(),
            records,
            partial(default_trainer, **settings),
            batch_size=1,
            epochs=1,
            seed=0,
            plan=plan,
            noise=noise,
        )
    assert multiprocessing.active_children() == []


def test_lightnings_own_processes_are_refused_before_they_start(records):
    def trainer(**settings):
        return Trainer(accelerator="cpu", strategy="ddp_spawn", devices=2, logger=False, **settings)

    settings = {"batch_size": 10, "epochs": 1, "seed": 0, "noise": NoiseSource.system()}
    with pytest.raises(InputError, match="devices: 2 processes of Lightning's own; use default_trainer"):
        train(Net(), records, trainer, plan=DPSGDPlan(1.5, 0.5, 10 / records.n, 9), **settings)


def test_torchrun_is_refused(records, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    settings = {"batch_size": 10, "epochs": 1, "seed": 0, "noise": NoiseSource.system()}
    with pytest.raises(InputError, match=r"torchrun: each of its 2 processes .* trainer.devices=2"):
        train(Net(), records, default_trainer, plan=DPSGDPlan(1.5, 0.5, 10 / records.n, 9), **settings)


def test_a_part_of_a_sampler_is_sampled_at_the_same_rate():
    sampler = PoissonSampler(1000, 0.5, 40, NoiseSource.fixed(0))
    sampler.part = slice(300, 500)
    batches = list(sampler)
    assert min(int(b.min()) for b in batches) >= 300
    assert max(int(b.max()) for b in batches) < 500
    assert abs(sum(len(b) for b in batches) - 4000) < 6 * math.sqrt(2000)
    whole = PoissonSampler(10, 1.0, 2, NoiseSource.fixed(0))
    whole.part = slice(5, 10)
    assert list(whole) == [slice(5, 10)] * 2


def test_devices_are_numbers_of_processes():
    assert joint_strategy("cpu", "3").processes == 3
    assert default_trainer(**TWO).strategy.processes == 2
    assert default_trainer(**TWO).world_size == 1
