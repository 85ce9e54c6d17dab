"""The networks and the joint nuisances: losses by hand, clipping to the domain, differentiation."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.func import grad, vmap
from torch.utils.data import DataLoader, TensorDataset

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.nuisance_kinds import Nuisances, OutcomeNetwork, PropensityNetwork
from torchdpcate.fit.trainable import TrainableNuisances
from torchdpcate.fit.trainer import default_trainer


def test_losses_equal_the_formulas():
    x, a, y = torch.rand(7, 3), torch.tensor([0.0, 1, 1, 0, 1, 0, 1]), torch.rand(7)
    propensity, outcome = PropensityNetwork(3, 5), OutcomeNetwork(3, 5)
    pi = torch.sigmoid(propensity(x))
    torch.testing.assert_close(
        propensity.record_loss((x, a, y)), -torch.where(a == 1, pi, 1 - pi).log(), rtol=1e-5, atol=1e-6
    )
    mu = outcome(x)[range(7), a.long()]
    torch.testing.assert_close(outcome.record_loss((x, a, y)), (y - mu) ** 2)


def test_the_joint_loss_is_on_the_public_scale(domain, records):
    module = Nuisances(domain, width=4, outcome_share=0.7).double()
    batch = (records.x, records.a, records.y)
    scaled = (domain.scale(records.x), records.a, (records.y + 3) / 8)
    expected = 0.3 * module.propensity.record_loss(scaled) + 0.7 * module.outcome.record_loss(scaled)
    torch.testing.assert_close(module.record_loss(batch), expected, rtol=1e-12, atol=0)


def test_training_step_is_the_mean_and_copes_with_nothing(module, records):
    batch = [records.x.float(), records.a.float(), records.y.float()]
    loss = module.training_step(batch, 0)
    torch.testing.assert_close(loss, module.record_loss(batch).mean())
    assert module.record_losses.shape == (60,)
    module.on_after_backward()
    assert module.record_losses is None
    empty = module.training_step([part[:0] for part in batch], 0)
    empty.backward()
    assert empty == 0
    assert all(p.grad is not None and not p.grad.any() for p in module.parameters())


def test_values_are_clipped_to_the_domain(module, domain, records):
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(100)
    values = module.double().predict(records.x)
    assert values.pi.min() >= domain.overlap
    assert values.pi.max() <= 1 - domain.overlap
    for mean in (values.mu0, values.mu1):
        assert mean.min() >= domain.outcome_low
        assert mean.max() <= domain.outcome_high
    assert {domain.overlap, 1 - domain.overlap} & {round(p, 12) for p in values.pi.tolist()}


def test_outcomes_start_in_the_middle_of_the_range(domain):
    module = Nuisances(domain, width=0)
    values = module.predict(domain.covariate_low + module.half_width)
    torch.testing.assert_close(values.mu0, torch.tensor(1.0))
    torch.testing.assert_close(values.mu1, torch.tensor(1.0))


def test_values_in_the_middle_are_not_touched(module, domain, records):
    module, x = module.double(), domain.scale(records.x)
    values, mean = module.predict(records.x), module.outcome(x)
    assert 0 < mean.min() < mean.max() < 1
    torch.testing.assert_close(values.mu1, mean[:, 1] * 8 - 3, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(values.pi, torch.sigmoid(module.propensity(x)), rtol=1e-12, atol=0)


def test_usable_under_torch_func(module, records):
    module = module.double()

    def effect(x):
        values = module.predict(x)
        return values.mu1 - values.mu0

    slopes = vmap(grad(effect))(records.x)
    x = records.x.clone().requires_grad_()
    effect(x).sum().backward()
    torch.testing.assert_close(slopes, x.grad, rtol=1e-12, atol=1e-14)


def test_representation_is_the_hidden_layer(module, domain, records):
    hidden = module.representation(records.x)
    assert hidden.shape == (60, 8)
    torch.testing.assert_close(module.outcome.net[2](hidden), module.outcome(domain.scale(records.x).float()))
    assert Nuisances(domain, width=0).representation(records.x).shape == (60, 3)


def test_config_makes_the_same_shape(domain, records):
    module = Nuisances(domain, width=4, learning_rate=0.02, optimizer="sgd", outcome_share=0.3)
    twin = Nuisances.from_config(module.config())
    twin.load_state_dict(module.state_dict())
    assert twin.config() == module.config()
    assert all(torch.equal(a, b) for a, b in zip(twin.predict(records.x), module.predict(records.x), strict=True))
    assert not any("centre" in name for name in module.state_dict())


LOADS = """
import sys, torch
from torchdpcate.fit.trainable import TrainableNuisances
loaded = TrainableNuisances.load_from_checkpoint(sys.argv[1], weights_only=True)
x, expected = torch.load(sys.argv[2], weights_only=True)
assert loaded.learning_rate == 0.02 and loaded.domain.names == ("age", "dose", "x")
assert torch.equal(loaded.predict(x).mu1, expected)
"""


@pytest.mark.slow
def test_a_checkpoint_is_loaded_in_another_process_from_its_path_alone(records, tmp_path):
    facts = {"names": ["age", "dose", "x"], "scales": ["linear", "log", "linear"], "propensity": 0.3}
    domain = Domain([-1.0, 1.0, -1.0], [1.0, 9.0, 1.0], -3.0, 5.0, origin="protocol", **facts)
    module = TrainableNuisances(domain, width=4, learning_rate=0.02)
    trainer = default_trainer(max_steps=1)
    x = domain.clip_covariates(records.x).float()
    dataset = TensorDataset(x, records.a.float(), records.y.float())
    trainer.fit(module, DataLoader(dataset, batch_size=len(x)))
    trainer.save_checkpoint(tmp_path / "curator.ckpt")
    torch.save((x, module.predict(x).mu1.detach()), tmp_path / "expected.pt")
    words = [sys.executable, "-c", LOADS, str(tmp_path / "curator.ckpt"), str(tmp_path / "expected.pt")]
    subprocess.run(words, check=True)
    assert TrainableNuisances(**module.hparams).config() == module.config()


def test_released_networks_know_nothing_of_training(domain, records):
    module = TrainableNuisances(domain, width=4)
    before = torch.random.get_rng_state()
    networks = module.trained()
    assert torch.equal(before, torch.random.get_rng_state())
    assert type(networks) is Nuisances
    assert networks.state_dict().keys() == module.state_dict().keys()
    assert not any(p.requires_grad for p in networks.parameters())
    assert all(
        torch.equal(a, b) for a, b in zip(networks.predict(records.x), module.double().predict(records.x), strict=True)
    )


@pytest.mark.parametrize(
    "settings", [{"width": -1}, {"learning_rate": 0.0}, {"optimizer": "lion"}, {"outcome_share": 1.0}]
)
def test_bad_values_are_refused(domain, settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        Nuisances(domain, **settings)
