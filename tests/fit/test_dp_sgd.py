"""DP-SGD seen on the gradients it used: clipping, noise, sampling, and what it refuses."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging
from opacus.grad_sample import GradSampleHooks, GradSampleHooksFastGradientClipping
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

from tests.fit.nuisance_cases import Foreign, Interrupt, N, Q, Recorder, fit, plan
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.dp_sgd_plan import poisson_loader
from torchdpcate.fit.trainable import RecordLossModule, TrainableNuisances
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.fit.training import train
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

MODES = ["opacus", "chain"]
CLIP = 0.3
SILENT = 1e-12  # a noise multiplier that is noise in name only


class Wrapped(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.m = module

    def forward(self, batch):
        return self.m.record_loss(batch).sum()


def clipped_sum(module, weights, batch, clip):
    """Sum of clipped per-record gradients, by torch.func on a copy of the module."""
    wrapped = Wrapped(copy.deepcopy(module))

    def loss(parameters, *record):
        single = [part.unsqueeze(0) for part in record]
        return functional_call(wrapped, {f"m.{name}": value for name, value in parameters.items()}, (single,))

    parameters = dict(zip([name for name, _ in module.named_parameters()], weights, strict=True))
    grads = vmap(grad(loss), in_dims=(None, *[0] * len(batch)))(parameters, *batch)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factors = (clip / norms).clamp(max=1)
    return [torch.einsum("b,b...->...", factors, g) for g in grads.values()], norms


@pytest.mark.parametrize("mode", MODES)
def test_clipped_sums_equal_torch_func(module, dataset, mode):
    recorder, run = Recorder(), plan(noise_multiplier=SILENT, max_grad_norm=CLIP, steps=8)
    fit(module, dataset, run, mode=mode, callbacks=[recorder], trainer={"precision": "64-true"})
    clipped = kept = 0
    for weights, batch, used in zip(recorder.weights, recorder.batches, recorder.grads, strict=True):
        expected, norms = clipped_sum(module, weights, batch, run.clip_norm)
        clipped, kept = clipped + int((norms > CLIP).sum()), kept + int((norms < CLIP).sum())
        for e, g in zip(expected, used, strict=True):
            # Opacus divides by norm + 1e-6, so its factors are smaller by up to 2.5e-6
            torch.testing.assert_close(g * run.sampling_rate * N, e, rtol=1e-5, atol=1e-6)
    assert clipped > 10
    assert kept > 10


def test_opacus_computes_and_clips_gradients(module, dataset, monkeypatch):
    """Of the library's networks by ghost clipping, of people's own modules by its hooks and optimizer."""
    calls = Counter()

    def counted(name, function):
        def call(*given):
            calls[name] += 1
            return function(*given)

        return call

    for kind, samplers, clipping in (
        (
            GradSampleHooksFastGradientClipping,
            "NORM_SAMPLERS",
            (GradSampleHooksFastGradientClipping, "get_norm_sample"),
        ),
        (GradSampleHooks, "GRAD_SAMPLERS", (DPOptimizer, "clip_and_accumulate")),
    ):
        named = getattr(kind, samplers)
        monkeypatch.setitem(named, nn.Linear, counted(samplers, named[nn.Linear]))
        monkeypatch.setattr(*clipping, counted(clipping[1], getattr(*clipping)))
    fit(module, dataset, plan(steps=3))
    assert calls == {"NORM_SAMPLERS": 3 * 4, "get_norm_sample": 3}
    fit(Foreign(), dataset, plan(steps=3))
    assert calls["GRAD_SAMPLERS"] > 3 * 2  # a trial before
    assert calls["clip_and_accumulate"] > 3


class Flat(RecordLossModule):
    """No record has a gradient: what moves the weights is noise."""

    def __init__(self):
        super().__init__(optimizer="sgd")
        self.net = nn.Linear(Q, 40)

    def record_loss(self, batch):
        return 0 * self.net(batch[0]).sum(1)


@pytest.mark.parametrize("mode", MODES)
def test_noise_has_the_planned_scale_in_every_step(domain, dataset, mode):
    """Of records that count as zero, so that what moves the weights is noise."""
    recorder, run = Recorder(), plan(noise_multiplier=3.0, max_grad_norm=0.2, steps=60)
    nothing = TensorDataset(*(part * float("nan") for part in dataset.tensors))
    fit(TrainableNuisances(domain, width=17), nothing, run, mode=mode, callbacks=[recorder])
    noise = torch.cat([g.flatten() for used in recorder.grads for g in used]).double() * 10
    assert len(noise) == 60 * 190
    # sd of a mean is 1/sqrt(m), of a variance sqrt(2/m): six of them alarm falsely 2e-9 of the time each
    assert abs(noise.mean()) < 6 * 0.6 / len(noise) ** 0.5
    assert abs(noise.var() / 0.36 - 1) < 6 * (2 / len(noise)) ** 0.5
    steps = noise.view(60, 190)
    assert abs((steps[:-1] * steps[1:]).mean()) < 6 * 0.36 / (59 * 190) ** 0.5


@pytest.mark.parametrize("mode", MODES)
def test_empty_batches_happen_and_take_a_noisy_step(module, dataset, mode):
    recorder, run = Recorder(), plan(sampling_rate=1 / N, steps=40)
    private = fit(module, dataset, run, mode=mode, callbacks=[recorder])
    sizes = [len(batch[0]) for batch in recorder.batches]
    # P(no empty batch in 40 at e^-1 each) = 1e-8, and the source is fixed
    assert 0 in sizes
    assert private.steps == private.spent == 40
    empty = recorder.grads[sizes.index(0)]
    assert all(bool((g != 0).all()) and bool(g.isfinite().all()) for g in empty)


def test_any_lightning_module_trains_and_is_ordinary_again(dataset):
    module = Foreign(nn.GroupNorm(2, 4))
    before, names = copy.deepcopy(module.state_dict()), set(vars(module))
    private = fit(module, dataset, plan(sampling_rate=2 / N))
    assert private.steps == 20
    assert module.state_dict().keys() == before.keys()
    assert any(not torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert_ordinary(module)
    assert {name for name in vars(module) if "grad_sample" in name} <= names


def assert_ordinary(module):
    for part in module.modules():
        assert not part._forward_hooks
        assert not part._backward_hooks
        assert not hasattr(part, "activations")
        assert not hasattr(part, "ft_compute_sample_grad")
    assert "backward" not in vars(module)
    for p in module.parameters():
        assert p.grad is None
        assert not {"grad_sample", "summed_grad", "_norm_sample", "_forward_counter"} & set(vars(p))
    copy.deepcopy(module)


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_leaves_no_private_gradient_behind(module, dataset, mode):
    precision = torch.get_float32_matmul_precision()
    with pytest.raises(RuntimeError):
        fit(module, dataset, plan(), mode=mode, callbacks=[Interrupt(3, RuntimeError)])
    assert_ordinary(module)
    assert module.record_losses is None
    assert torch.get_float32_matmul_precision() == precision


def test_reduced_precision_products_are_off_during_the_fit(module, dataset):
    seen = []

    class Look(Recorder):
        def on_train_batch_end(self, *args):
            seen.append(torch.get_float32_matmul_precision())

    torch.set_float32_matmul_precision("medium")
    try:
        fit(module, dataset, plan(steps=2), callbacks=[Look()])
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == ["highest", "highest"]


# ---- refusals


class NoOptimizer(Foreign):
    def configure_optimizers(self):
        return None


class Manual(Foreign):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class HalfOptimizer(Foreign):
    def configure_optimizers(self):
        return torch.optim.SGD(self.net[0].parameters(), lr=0.1)


class Waking(Foreign):
    """A frozen parameter wakes up."""

    def __init__(self):
        super().__init__()
        self.net[0].requires_grad_(False)

    def on_train_batch_start(self, batch, batch_idx):
        self.net[0].requires_grad_(batch_idx >= 3)


class Idle(Foreign):
    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(2, 2)  # outside the loss


class Wrong(Flat):
    def record_loss(self, batch):
        return self.net(batch[0])[:, :1]


AVERAGING = StochasticWeightAveraging(0.1, swa_epoch_start=1)
REFUSED = {
    "by hand": (Manual, {}, "automatic"),
    "no optimizer": (NoOptimizer, {}, "optimizer's parameters"),
    "half of the parameters": (HalfOptimizer, {}, "optimizer's parameters"),
    "a parameter that wakes up": (Waking, {}, "optimizer's parameters"),
    "a parameter outside the loss": (Idle, {}, "idle"),
    "batch norm": (lambda: Foreign(nn.BatchNorm1d(4)), {}, "BatchNorm1d.*use GroupNorm"),
    "batch norm without weights": (lambda: Foreign(nn.BatchNorm1d(4, affine=False)), {}, "BatchNorm1d"),
    "early stopping": (Foreign, {"callbacks": [EarlyStopping("loss")]}, "EarlyStopping"),
    "averaging": (Foreign, {"callbacks": [AVERAGING]}, "StochasticWeightAveraging"),
    "clipping": (Foreign, {"trainer": {"gradient_clip_val": 1.0}}, "gradient_clip_val"),
    "accumulation": (Foreign, {"trainer": {"accumulate_grad_batches": 2}}, "accumulate_grad_batches"),
    "precision": (Foreign, {"trainer": {"precision": "bf16-mixed"}}, "precision"),
    "losses that broadcast": (Wrong, {}, r"shape \[B\]"),
    "a monitored checkpoint": (
        Foreign,
        {"callbacks": [ModelCheckpoint(monitor="loss")], "trainer": {"enable_checkpointing": True}},
        "'loss'",
    ),
    "ordinary batches": (
        Foreign,
        {"loader": lambda dataset: DataLoader(dataset, batch_size=10, shuffle=True)},
        "poisson_loader",
    ),
    "another rate": (
        Foreign,
        {"loader": lambda dataset: poisson_loader(dataset, 0.5, 20, NoiseSource.fixed(1))},
        r"sampling_rate=0\.5",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_what_breaks_the_analysis(dataset, case):
    make, settings, message = REFUSED[case]
    if "loader" in settings:
        settings = {"loader": settings["loader"](dataset)}
    ledger = Ledger({"nuisance": PrivacyBudget(1000.0, 1e-5)}, private=False)
    with pytest.raises(InputError, match=message):
        fit(make(), dataset, **{"plan": plan(), "ledger": ledger, **settings})
    assert sum(entry.count for entry in ledger.entries) <= LATE.get(case, 0)


LATE = {"a parameter that wakes up": 3}
"""Steps before the refusal of what cannot be seen earlier."""


TRAINING = {"batch_size": 10, "epochs": 1, "seed": 0, "noise": NoiseSource.system(), "plan": plan()}


@pytest.mark.parametrize("several", [{"strategy": "ddp"}, {"strategy": "ddp_spawn", "devices": 2}, {"devices": 2}])
def test_refuses_several_processes_before_they_start(dataset, several, monkeypatch):
    for start in ("subprocess.Popen", "torch.multiprocessing.start_processes"):
        monkeypatch.setattr(start, lambda *_, **__: pytest.fail("a process was started"))
    private = DPSGD(plan(), NoiseSource.system())
    alone = r"^trainer: DDPStrategy of . device.s.: training takes one process on one"
    with pytest.raises(InputError, match=alone):
        default_trainer(accelerator="cpu", **several)
    with pytest.raises(InputError, match=alone):  # Lightning's own calls no callback before it starts processes
        Trainer(accelerator="cpu", logger=False, callbacks=[private], **several).fit(Foreign(), DataLoader(dataset))


def test_refuses_torchrun(records, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"torchrun: each of its 2 processes .* start one process"):
        train(Flat(), records, default_trainer, **TRAINING)


def test_refuses_a_sampler_that_lightning_replaced_between_epochs(dataset):
    class Reloading(Foreign):
        def train_dataloader(self):
            if self.trainer.current_epoch:
                return DataLoader(dataset, batch_size=10)
            return poisson_loader(dataset, plan().sampling_rate, 6, NoiseSource.fixed(0))

    private = DPSGD(plan(), NoiseSource.fixed(0))
    trainer = default_trainer(callbacks=[private], max_epochs=3, max_steps=20, reload_dataloaders_every_n_epochs=1)
    with pytest.raises(InputError, match="PoissonSampler"):
        trainer.fit(Reloading())
    assert private.spent == 6


def test_refuses_a_test_source_on_a_private_ledger():
    ledger = Ledger({"nuisance": PrivacyBudget(1.0, 1e-5)})
    with pytest.raises(InputError, match="fixed"):
        DPSGD(plan(), NoiseSource.fixed(0), ledger)


def test_refuses_a_test_sampler_under_private_noise(dataset):
    loader = poisson_loader(dataset, plan().sampling_rate, 20, NoiseSource.fixed(0))
    trainer = default_trainer(max_steps=20, max_epochs=-1, callbacks=[DPSGD(plan(), NoiseSource.system())])
    with pytest.raises(InputError, match="sampler"):
        trainer.fit(Foreign(), loader)


def test_refuses_an_unknown_mode_and_two_callbacks(dataset):
    with pytest.raises(InputError, match="mode="):
        DPSGD(plan(), NoiseSource.fixed(0), mode="ghost")
    second = DPSGD(plan(), NoiseSource.fixed(1))
    with pytest.raises((InputError, RuntimeError)):
        fit(Foreign(), dataset, plan(), callbacks=[second])


def test_weights_that_are_not_finite_are_an_error(dataset):
    class Wild(Foreign):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e38)

    with pytest.raises(NumericalError, match="learning_rate"):
        fit(Wild(), dataset, plan(max_grad_norm=1e3))


@pytest.mark.slow
def test_no_step_beyond_the_plan_however_the_trainer_is_set(dataset):
    private = fit(Foreign(), dataset, plan(), trainer={"max_steps": 500})
    assert private.spent == 20


@pytest.mark.parametrize("kind", [Foreign, Flat])
def test_one_batch_serves_one_step(dataset, kind):
    class Twice(kind):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            optimizer.step(closure=optimizer_closure)
            optimizer.step(closure=optimizer_closure)

    ledger = Ledger({"nuisance": PrivacyBudget(1000.0, 1e-5)}, private=False)
    with pytest.raises(InputError, match="two steps on one batch"):
        fit(Twice(), dataset, plan(steps=5), ledger=ledger)
    assert ledger.entry(0).count == 1


# ---- precision of noise and clipping


@pytest.mark.parametrize("mode", MODES)
def test_the_sum_and_its_noise_lie_on_a_grid_that_owes_nothing_to_the_records(module, dataset, mode):
    recorder, run = Recorder(), plan(noise_multiplier=0.5, max_grad_norm=0.25, sampling_rate=1.0, steps=2)
    some = torch.utils.data.Subset(dataset, range(32))  # an expected batch by which division is exact
    fit(module, some, run, mode=mode, callbacks=[recorder], trainer={"precision": "64-true"})
    step = 2.0**-3 * 2.0**-40
    for used in recorder.grads:
        halves = torch.cat([g.flatten() for g in used]) * 32 / step * 2
        assert bool((halves % 2 == 1).all())


@pytest.mark.first(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("width", "q"), [(8, Q), (64, 40)])
def test_no_clipped_gradient_is_longer_than_the_clip_norm(mode, width, q):
    """Of one record far above the clip norm, its length in float64: without room for rounding some are longer."""
    wide, norms = Domain([0.0] * q, [1.0] * q, -5.0, 5.0), []
    run = plan(noise_multiplier=SILENT, max_grad_norm=1.0, sampling_rate=1.0, steps=4)
    for seed in range(4):
        torch.manual_seed(seed)
        module, recorder = TrainableNuisances(wide, width=width), Recorder()
        # far out of its bounds: a gradient so long that Opacus' own 1e-6 in the divisor is nothing
        data = TensorDataset(torch.rand(1, q), torch.ones(1), torch.full((1,), 1e6))
        fit(module, data, run, mode=mode, callbacks=[recorder])
        norms += [torch.cat([g.flatten() for g in used]).double().norm().item() for used in recorder.grads]
    assert max(norms) <= 1.0
    # what rounding does is a small part of the room left for it
    assert max(norms) <= run.clip_norm * (1 + 2.0**-19)
    assert min(norms) > run.clip_norm * (1 - 2.0**-19)


def test_refuses_runs_beyond_the_precision_of_the_noise(dataset):
    with pytest.raises(InputError, match="noise_multiplier"):
        fit(Foreign(), dataset, plan(noise_multiplier=1e9))
    plan(steps=4000).check_precision(2_000_000)
