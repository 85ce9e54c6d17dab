"""The fast engine: its clipped sums and steps are those of Opacus, and what it cannot hear it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.fit.nuisance_cases import Foreign, N, Q, fit, plan
from torchdpcate.composition.linear_fit import HuberFit
from torchdpcate.composition.networks import EffectNetwork, LinearLayer, Network
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit import engines
from torchdpcate.fit.engines import ChainEngine, GhostEngine, HooksEngine, engine_of
from torchdpcate.fit.trainable import TrainableNuisances
from torchdpcate.privacy.noise import NoiseSource

DOUBLE = {"precision": "64-true"}


def of_domain(width, **settings):
    domain = Domain([0.0] * Q, [1.0, 2.0, 4.0], -3.0, 5.0, **settings)
    return TrainableNuisances(domain, width=width, outcome_share=0.3).double()


def of_fit(kind):
    fitted = HuberFit(torch.zeros(N, Q).double(), torch.ones(N).double(), torch.zeros(N).double(), 1.0)
    return kind(fitted, k=2, width=5, share=0.3, features=Q).double()


NETWORKS = {
    "both": lambda: of_domain(8),
    "linear": lambda: of_domain(0),
    "known": lambda: of_domain(4, propensity=0.3),
    "features": lambda: LinearLayer(of_fit(Network).fit, None),
    "beside": lambda: of_fit(Network),
    "effect": lambda: of_fit(EffectNetwork),
}


def batch_of(name, size):
    """What a batch of a network is made of."""
    x, a, y = 4 * torch.rand(size, Q), (torch.rand(size) < 0.5) * 1.0, 6 * torch.randn(size)
    parts = {
        "features": (x, a + 1, y),
        "beside": (x, torch.randn(size, 2), y),
        "effect": (x, torch.randn(size, 2), y, a - 0.5, torch.full((size,), 0.5)),
    }
    return [part.double() for part in parts.get(name, (x, a, y))]


def clipped_sums(module, batch, kind, clip):
    """What an engine leaves in `summed_grad` after one batch."""
    engine = kind(module, plan(max_grad_norm=clip))
    sgd = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=1.0)
    optimizer = engine.optimizer(sgd, 1.0, NoiseSource.fixed(0), lambda: None)
    loss = module.training_step(batch, 0)
    vars(module).get("backward", lambda loss: loss.backward())(loss)
    getattr(optimizer, "accumulate", optimizer.clip_and_accumulate)()
    engine.check_step(len(batch[0]))
    sums = [p.summed_grad.clone() for _, p in engine.trainable]
    engine.detach()
    return sums


@pytest.mark.first(9)
@pytest.mark.parametrize("limit", [7, 10**6])
@pytest.mark.parametrize("clip", [1e-4, 0.7, 1e6])
@pytest.mark.parametrize("name", NETWORKS)
def test_clipped_sums_are_those_of_opacus_by_ghost_clipping_and_by_hooks(name, clip, limit, monkeypatch):
    monkeypatch.setattr(engines, "AT_ONCE", limit)
    for seed, size in enumerate((0, 1, 2, 40)):
        torch.manual_seed(seed)
        module = NETWORKS[name]()
        for p in module.parameters():
            nn.init.normal_(p)
        batch = batch_of(name, size)
        found = [clipped_sums(copy.deepcopy(module), batch, kind, clip) for kind in (ChainEngine, GhostEngine)]
        expected = clipped_sums(module, batch, HooksEngine, clip)
        for sums in found:
            for e, f in zip(expected, sums, strict=True):
                torch.testing.assert_close(f, e, rtol=1e-10, atol=1e-10 * min(clip, 1.0))


def test_steps_are_those_of_opacus(dataset):
    """With the same noise and batches, weights after twenty steps."""
    weights = []
    for mode, kind in (("opacus", GhostEngine), ("chain", ChainEngine)):
        torch.manual_seed(0)
        module = of_domain(8)
        engine = engine_of(module, plan(), mode)
        assert type(engine) is kind
        engine.detach()
        fit(module, dataset, plan(), mode=mode, trainer=DOUBLE)
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [ChainEngine, GhostEngine, HooksEngine])
@pytest.mark.parametrize("others", [0, 1, 127, 4_095])
def test_a_record_moves_the_sum_by_its_own_gradient_whatever_the_batch(others, kind):
    """A quarter of the margin 2^-16 of the clip norm is for that; float64 takes next to nothing of it."""
    torch.manual_seed(others)
    module, clip = of_domain(16), 0.7
    x = torch.rand(1, Q) + 0.01 * torch.randn(others + 1, Q)  # gradients of nearly one direction: the longest sum
    batch = [part.double() for part in (x, torch.zeros(others + 1), torch.full((others + 1,), 500.0))]

    def total(rows):
        found = clipped_sums(copy.deepcopy(module), [part[rows] for part in batch], kind, clip)
        return torch.cat([part.flatten() for part in found])

    moved = total(slice(None)) - total(slice(1, None))
    assert (moved - total(slice(1))).norm() <= 2.0**-36 * clip
    assert clip * (1 - 2.0**-15) < moved.norm() <= clip * (1 - 2.0**-17)


def frozen():
    module = of_domain(8)
    module.propensity.requires_grad_(False)
    return module


def hooked():
    module = of_domain(8)
    module.outcome.register_forward_hook(lambda part, inputs, output: output * 2)
    return module


class Doubled(TrainableNuisances):
    """Another loss than the one whose slopes are known."""

    def record_loss(self, batch):
        return 2 * super().record_loss(batch)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Foreign, "the library's own networks"),
        (hooked, "the library's own networks"),
        (lambda: Doubled(of_domain(8).domain), "the library's own networks"),
        (frozen, "trained linear layers alone"),
    ],
)
def test_other_networks_are_left_to_opacus_hooks(dataset, make, message):
    engine = engine_of(make(), plan())
    assert type(engine) is HooksEngine
    engine.detach()
    with pytest.raises(InputError, match=message):
        fit(make(), dataset, plan(), mode="chain")


@pytest.mark.parametrize("change", ["twice", "without", "peeking"])
def test_a_layer_that_does_not_enter_the_losses_once_is_refused(change):
    engine = ChainEngine(module := of_fit(Network), plan())
    psi, z, _ = batch_of("beside", 5)
    losses = {
        "twice": lambda: module(psi, z) + module(-psi, z),
        "without": lambda: module.wide(psi)[:, 0],
        "peeking": lambda: (module(psi + 1, z), module(psi, z))[1],
    }[change]()
    if change == "peeking":
        assert len(engine.hooks.uses(losses)) == 3
    else:
        with pytest.raises(InputError, match="twice or not at all"):
            engine.hooks.uses(losses)
    engine.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_added_in_pieces_is_that_of_one_piece(monkeypatch, dtype):
    """Of fixed noise; each number is rounded to the grid, none is left out, and the sums stay as they are."""
    total, found = torch.randn(50, dtype=dtype), []
    before = total.clone()
    for piece in (2**16, 7, 50):
        monkeypatch.setattr(engines, "_PIECE", piece)
        optimizer = object.__new__(engines._ChainOptimizer)
        optimizer.noise, optimizer.noise_scale, optimizer.ahead = NoiseSource.fixed(3), 0.7, lambda: 1
        optimizer.grid = NoiseSource.fine_grid(0.7)
        found.append(optimizer.noisy(total))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(total, before)
    drawn = NoiseSource.fixed(3).fine_gaussian(50, 0.7)
    steps = (found[0] - drawn) / NoiseSource.fine_grid(0.7)
    assert torch.equal(steps, (total.double() / NoiseSource.fine_grid(0.7)).round())
