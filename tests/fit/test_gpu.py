"""DP-SGD on another device against the CPU, in float64: on an emulated one, and on a GPU where there is one."""

import threading

import pytest
import torch
from torch.utils.data import TensorDataset

from tests.device import trainer_on
from torchdpcate.data.domain import Domain
from torchdpcate.fit import engines
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan, poisson_loader
from torchdpcate.fit.trainable import TrainableNuisances
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import FixedNoise, NoiseSource, SystemNoise

N, Q, STEPS = 200, 5, 8


def network():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return TrainableNuisances(Domain([0.0] * Q, [1.0] * Q, -1.0, 4.0), width=7).double()


class Watched(FixedNoise):
    """Fixed noise that says where its numbers were made."""

    def __init__(self, seed):
        super().__init__(seed)
        self.made = []

    def fine_gaussian_rows(self, rows, size, scale):
        for row in super().fine_gaussian_rows(rows, size, scale):
            self.made.append(row.device.type)
            yield row


def dataset(device="cpu"):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, Q, dtype=torch.float64, generator=generator)
    return TensorDataset(x.to(device), (x[:, 1] < 0.5).double().to(device), (4 * x[:, 0] - 1).to(device))


def weights(device, mode, sigma=1e-13, rate=0.3, on="cpu"):
    """Weights after some steps, and where the noise was made; every source of chance is fixed."""
    noise, module = Watched(1), network()
    plan = DPSGDPlan(sigma, 0.3, rate, STEPS)
    callback = DPSGD(plan, noise, mode=mode)
    settings = {"max_epochs": 1, "max_steps": STEPS, "precision": "64-true", "callbacks": [callback]}
    made = trainer_on(device)(**settings)
    assert made.strategy.root_device.type == device
    made.fit(module, poisson_loader(dataset(on), rate, STEPS, NoiseSource.fixed(2)))
    return torch.cat([p.detach().cpu().flatten() for p in module.parameters()]), noise.made


@pytest.mark.parametrize(("mode", "limit"), [("chain", 16), ("chain", 10**6), ("opacus", 10**6)])
@pytest.mark.first(1)
@pytest.mark.parametrize("moved", [False, True])
def test_steps_on_a_device_are_those_on_the_cpu(mode, limit, moved, device, monkeypatch):
    on = device if moved else "cpu"
    monkeypatch.setattr(engines, "AT_ONCE", limit)
    here, there = weights("cpu", mode)[0], weights(device, mode, on=on)[0]
    torch.testing.assert_close(there, here, rtol=0, atol=1e-10)


@pytest.mark.first(1)
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_noise_is_made_on_the_cpu_and_is_the_same(rate, device):
    (here, _), (there, made) = weights("cpu", "chain", 1.0, rate), weights(device, "chain", 1.0, rate)
    assert len(made) == STEPS
    assert set(made) == {"cpu"}
    torch.testing.assert_close(there, here, rtol=0, atol=1e-10)
    assert (here - weights("cpu", "chain", rate=rate)[0]).abs().max() > 1e-6  # there is noise


class Drawn(SystemNoise):
    """Numbers of a fixed source in the system's place; notes on which thread, and for how many steps was paid."""

    private = False

    def __init__(self, ledger):
        self.inner, self.ledger, self.seen = NoiseSource.fixed(1), ledger, []

    def fine_gaussian_rows(self, rows, size, scale):
        ahead = threading.current_thread() is not threading.main_thread()
        self.seen.append((ahead, self.ledger.entries[0].count))
        return self.inner.fine_gaussian_rows(rows, size, scale)


def test_noise_of_a_large_layer_is_drawn_in_a_thread_and_is_the_same(device, monkeypatch):
    monkeypatch.setattr(engines, "_NUMBERS", 40)  # fewer than there are weights

    def trained(place):
        ledger = Ledger({"nuisance": PrivacyBudget(500.0, 1e-5)}, private=False)
        noise, module, plan = Drawn(ledger), network(), DPSGDPlan(4.0, 0.3, 0.25, STEPS)
        callbacks = [DPSGD(plan, noise, ledger)]
        fit = trainer_on(place)(max_steps=STEPS, precision="64-true", callbacks=callbacks).fit
        fit(module, poisson_loader(dataset(), 0.25, STEPS, NoiseSource.fixed(2)))
        return module.outcome.net[0].weight.detach().cpu(), noise.seen

    (here, _), (there, seen) = trained("cpu"), trained(device)
    torch.testing.assert_close(there, here, rtol=0, atol=1e-10)
    # the ledger pays for the four steps of an epoch at once, and no noise is drawn before
    assert [ahead for ahead, _ in seen] == [step % 4 > 0 for step in range(STEPS)]
    assert all(paid > step for step, (_, paid) in enumerate(seen))


def test_records_of_a_device_train_on_the_cpu(device):
    def trained(on):
        module, plan = network().float(), DPSGDPlan(1.0, 0.3, 0.3, STEPS)
        fit = default_trainer(accelerator="cpu", max_steps=STEPS, callbacks=[DPSGD(plan, NoiseSource.fixed(1))]).fit
        records = TensorDataset(*(tensor.float() for tensor in dataset(on).tensors))
        fit(module, poisson_loader(records, 0.3, STEPS, NoiseSource.fixed(2)))
        return module.outcome.net[0].weight

    assert torch.equal(trained(device), trained("cpu"))
