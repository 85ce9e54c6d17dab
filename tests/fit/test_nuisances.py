"""The networks and the joint nuisances: losses by hand, clipping to the domain, differentiation."""

from __future__ import annotations

import torch

from torchdpcate.fit.nuisance_kinds import Nuisances, OutcomeNetwork, PropensityNetwork
from torchdpcate.fit.trainable import TrainableNuisances


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
