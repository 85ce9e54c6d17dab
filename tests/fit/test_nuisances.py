"""The networks and the joint nuisances: losses by hand, clipping to the domain, differentiation."""

from __future__ import annotations

import pytest
import torch

from tests.fit.nuisance_cases import plan
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.engines import HooksEngine, engine_of
from torchdpcate.fit.nuisance_config import RecurrentConfig
from torchdpcate.fit.nuisance_kinds import Nuisances, OutcomeNetwork, PropensityNetwork
from torchdpcate.fit.trainable import TrainableNuisances
from torchdpcate.privacy.noise import NoiseSource


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


def test_config_makes_the_same_shape(domain, records):
    module = Nuisances(domain, width=4, learning_rate=0.02, optimizer="sgd", outcome_share=0.3)
    twin = Nuisances.from_config(module.config())
    twin.load_state_dict(module.state_dict())
    assert twin.config() == module.config()
    assert all(torch.equal(a, b) for a, b in zip(twin.predict(records.x), module.predict(records.x), strict=True))
    assert not any("centre" in name for name in module.state_dict())


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


# ---- columns of hours


FACTS = {
    "treatment": "vent",
    "outcome": {"name": "y", "low": 0, "high": 1},
    "covariates": {
        "pulse": {"low": 0, "high": 1, "hours": 5},
        "age": {"low": 0, "high": 1},
        "sodium": {"low": 0, "high": 1, "hours": 5},
    },
}


def recurrent():
    torch.manual_seed(0)
    return RecurrentConfig(width=4).module(TableSchema.from_dict(FACTS).domain).double()


def test_hours_of_a_domain_file_are_columns():
    schema = TableSchema.from_dict(FACTS)
    pulse, sodium = ([f"{name}_h{hour}" for hour in range(5)] for name in ("pulse", "sodium"))
    assert schema.columns == (*pulse, "age", *sodium)
    assert TableSchema.from_dict(schema.to_dict()) == schema
    for hours in (0, 2.5, True):
        with pytest.raises(InputError, match="hours of covariate 'pulse'"):
            TableSchema.from_dict({**FACTS, "covariates": {"pulse": {"low": 0, "high": 1, "hours": hours}}})


@pytest.mark.parametrize("names", [["a", "b"], ["a_h0", "b_h0", "b_h1"], ["a_h1", "a_h2"]])
def test_columns_without_the_same_hours_are_refused(names):
    domain = Domain([0.0] * len(names), [1.0] * len(names), 0.0, 1.0, names=names)
    with pytest.raises(InputError, match="same hours from 0 on"):
        RecurrentConfig().module(domain)


def test_recurrent_networks_are_of_linear_width_and_take_opacus_alone():
    with pytest.raises(InputError, match="takes engine=opacus"):
        RecurrentConfig(engine="chain")
    with pytest.raises(InputError, match="at least one hidden unit"):
        RecurrentConfig(width=0).module(TableSchema.from_dict(FACTS).domain)


def test_the_last_state_goes_on_and_order_counts():
    module, x = recurrent(), torch.rand(6, 11).double()
    plain = module.trained()
    assert type(plain.outcome.net[0].lstm) is torch.nn.LSTM
    assert Nuisances.shapes(plain.config()) == {name: tuple(value.shape) for name, value in plain.state_dict().items()}
    torch.testing.assert_close(plain.predict(x), module.predict(x), rtol=0, atol=1e-12)
    turned = torch.cat([x[:, :5].flip(1), x[:, 5:]], 1)
    assert (plain.effect(turned) - plain.effect(x)).abs().max() > 1e-4
    states, _ = plain.outcome.net[0].lstm(plain.scaled(x)[:, [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10]]])
    torch.testing.assert_close(plain.representation(x), torch.cat([states[:, -1], plain.scaled(x)[:, 5:6]], 1))


@pytest.mark.parametrize("clip", [1e-3, 1e6])
@pytest.mark.parametrize("size", [0, 1, 7])
def test_opacus_clips_the_gradients_that_autograd_has_of_pytorch_s_own_lstm(size, clip):
    module = recurrent()
    plain = module.trained().requires_grad_(True)
    batch = torch.rand(size, 11).double(), (torch.rand(size) < 0.5).double(), torch.rand(size).double()
    engine = engine_of(module, plan(max_grad_norm=clip))
    assert type(engine) is HooksEngine
    engine.optimizer(module.configure_optimizers(), 1.0, NoiseSource.fixed(0), lambda: None)
    found = engine.clipped_sum(batch, clip)
    weights = [plain.get_parameter(name) for name, _ in engine.trainable]
    engine.detach()
    expected = torch.zeros_like(found)
    for loss in plain.record_loss(batch):
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, weights, retain_graph=True)])
        expected += gradient * (clip / (gradient.norm() + 1e-6)).clamp(max=1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert found.norm() <= clip * size
