"""Training with and without privacy by the same code, and the public settings behind it."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch

from tests.fit.nuisance_cases import Interrupt, Save, plan
from torchdpcate.errors import InputError
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.trainable import TrainableNuisances
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.fit.training import train
from torchdpcate.papers.oprescu import Dataset1
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import DPSGDEvent, GaussianEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

RUN = {"batch_size": 10, "epochs": 1, "seed": 0, "plan": plan()}


def cpu(**settings):
    return default_trainer(accelerator="cpu", **settings)


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def fresh(domain, **settings):
    torch.manual_seed(5)
    return TrainableNuisances(domain, width=8, learning_rate=0.01, **settings)


@pytest.mark.slow
def test_training_without_privacy_learns():
    study = Dataset1(n=2000, seed=0).load()
    torch.manual_seed(0)
    module = NuisanceConfig(learning_rate=0.5).module(study.domain)
    train(module, study.records, cpu, batch_size=128, epochs=20, seed=0)
    values = module.double().predict(study.queries)
    error = (values.mu1 - values.mu0 - study.effect).square().mean().sqrt()
    assert error < 0.25 * study.effect.std()
    assert not module.training


def test_a_seed_repeats_training_without_privacy(domain, records):
    runs = [train(fresh(domain), records, cpu, batch_size=16, epochs=3, seed=s) for s in (0, 0, 1)]
    assert torch.equal(weights(runs[0]), weights(runs[1]))
    assert not torch.equal(weights(runs[0]), weights(runs[2]))


def test_training_leaves_the_global_generator_alone(domain, records):
    module = fresh(domain)
    before = torch.random.get_rng_state()
    train(module, records, cpu, batch_size=16, epochs=1, seed=0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_nothing_is_printed(domain, records, capfd, recwarn):
    levels = [logging.getLogger(name).level for name in ("lightning.pytorch", "lightning.fabric")]
    train(fresh(domain), records, cpu, batch_size=16, epochs=1, seed=0)
    train(fresh(domain), records, cpu, noise=NoiseSource.fixed(0), average=0.5, **RUN)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == ""
    assert not [w for w in recwarn if not issubclass(w.category, (DeprecationWarning, FutureWarning))]
    assert levels == [logging.getLogger(name).level for name in ("lightning.pytorch", "lightning.fabric")]


def test_train_refuses_bad_calls(domain, records):
    with pytest.raises(InputError, match="noise=None"):
        train(fresh(domain), records, cpu, batch_size=10, epochs=1, seed=0, plan=plan())
    with pytest.raises(InputError, match="batch_size=61"):
        train(fresh(domain), records, cpu, batch_size=61, epochs=1, seed=0)


# ---- averaging


def test_the_tail_average_is_the_mean_of_the_last_weights(domain, records):
    trace = []

    class Tracing(TrainableNuisances):
        def on_train_batch_start(self, batch, batch_idx):
            trace.append(weights(self))

    torch.manual_seed(5)
    module = Tracing(domain, width=8)
    train(module, records, cpu, noise=NoiseSource.fixed(0), average=0.0, **RUN)
    trace.append(weights(module))
    torch.manual_seed(5)
    averaged = TrainableNuisances(domain, width=8)
    train(averaged, records, cpu, noise=NoiseSource.fixed(0), average=0.5, **RUN)
    # weights after steps 11 to 20
    torch.testing.assert_close(weights(averaged), torch.stack(trace[11:]).mean(0), rtol=1e-5, atol=1e-6)


def test_what_is_kept_is_the_network_as_it_ended(domain, records, tmp_path):
    keeps = partial(cpu, enable_checkpointing=True, log_folder=str(tmp_path / "logs"))
    trained = train(fresh(domain), records, keeps, noise=NoiseSource.fixed(0), **RUN)
    kept = tmp_path / "logs" / "unreleased-TrainableNuisances-20.ckpt"  # its noise is of a test
    assert torch.equal(weights(TrainableNuisances.load_from_checkpoint(kept, private=False)), weights(trained))
    with pytest.raises(InputError, match="give log_folder"):
        partial(cpu, enable_checkpointing=True)()


def test_an_interrupted_training_resumes_with_its_average_and_its_ledger(domain, records, tmp_path):
    checkpoint, path = tmp_path / "run.ckpt", tmp_path / "ledger.sqlite"
    blocks = {"nuisance": PrivacyBudget(1000.0, 1e-5)}

    def run(*extra, **settings):
        def factory(callbacks=(), **limits):
            return cpu(callbacks=[*callbacks, *extra], **limits)

        ledger = Ledger(blocks, path, private=False)
        return train(fresh(domain), records, factory, noise=NoiseSource.fixed(0), ledger=ledger, **RUN, **settings)

    with pytest.raises(KeyboardInterrupt):
        run(Save(15, checkpoint), Interrupt(15))
    assert Ledger.load(path).entry(0).count == 15
    trained = run(ckpt_path=checkpoint)
    assert Ledger.load(path).entry(0).count == 20
    assert len(Ledger.load(path).entries) == 1
    # the checkpoint's mean over steps 11 to 15 has a say in the mean over 11 to 20
    kept = torch.load(checkpoint, weights_only=True)["callbacks"]["TailAverage"]
    mean = torch.cat([part.flatten() for part in kept["mean"]])
    assert kept["steps"] == 15
    assert not torch.equal(weights(trained), mean)
    assert (weights(trained) - mean).norm() < 0.5 * (mean - weights(fresh(domain))).norm()


# ---- settings


def test_the_plan_spends_the_budget_and_no_more():
    config, budget = NuisanceConfig(batch_size=128, epochs=20, max_grad_norm=0.7), PrivacyBudget(1.0, 1e-5)
    made = config.plan(1350, budget)
    assert made.steps == 20 * 11
    assert made.sampling_rate == 128 / 1350
    assert made.max_grad_norm == 0.7
    event = DPSGDEvent(made.noise_multiplier, made.sampling_rate)
    assert 0.995 < compose([(event, made.steps)], 1e-5) <= 1.0
    ledger = Ledger({"nuisance": budget}, private=False)
    ledger.charge("nuisance", "DP-SGD", made.event, count=made.steps)


def test_other_charges_on_the_block_are_composed():
    config, budget, other = NuisanceConfig(), PrivacyBudget(1.0, 1e-5), (GaussianEvent(8.0), 1)
    alone, shared = config.plan(1350, budget), config.plan(1350, budget, also=[other])
    assert shared.noise_multiplier > alone.noise_multiplier
    assert compose([(shared.event, shared.steps), other], 1e-5) <= 1.0
