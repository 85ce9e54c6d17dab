"""The chain engine: its clipped sums are those of Opacus's hooks, and what it cannot hear it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from tests.fit.nuisance_cases import Q, fit, plan
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit import engines
from torchdpcate.fit.engines import ChainEngine, HooksEngine, engine_of
from torchdpcate.fit.linear_taps import linear_layers
from torchdpcate.fit.trainable import RecordLossModule, TrainableNuisances
from torchdpcate.privacy.noise import NoiseSource


class Net(RecordLossModule):
    """Squared error of a network on all covariates."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(optimizer="sgd")
        self.net = net

    def record_loss(self, batch):
        x, _, y = batch
        return (self.net(x).flatten(1).sum(1) - y) ** 2


class TwoHeads(nn.Module):
    """A shared trunk, whose heads see what is in the graph, and one layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(Q, 6), nn.ReLU(), nn.Linear(6, 4).requires_grad_(False), nn.Sigmoid())
        self.first = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        self.second = nn.Linear(4, 2)

    def forward(self, x):
        shared = self.trunk(x)
        return torch.cat([self.first(shared).exp(), torch.sin(self.second(shared))], 1)


class Pieces(nn.Module):
    """Records of several rows each."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(1, 4), nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x[:, :, None].expand(-1, -1, 1)))) * x[:, :, None]


def half_frozen():
    net = nn.Sequential(nn.Linear(Q, 4), nn.Identity(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    net[0].weight.requires_grad_(False)
    net[2].bias.requires_grad_(False)
    net[4].requires_grad_(False)
    return net


NETS = {
    "linear": lambda: nn.Linear(Q, 1),
    "no bias": lambda: nn.Sequential(nn.Linear(Q, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False)),
    "deep": lambda: nn.Sequential(
        nn.Linear(Q, 7),
        nn.Sigmoid(),
        nn.Linear(7, 5),
        nn.ReLU(),
        nn.Linear(5, 4),
        nn.Tanh(),
        nn.Linear(4, 1),
        nn.Tanh(),
    ),
    "two heads": TwoHeads,
    "half frozen": half_frozen,
    "rows": Pieces,
}


def clipped_sums(module, batch, mode, clip):
    """What an engine leaves in `summed_grad` after one batch."""
    engine = engine_of(module, plan(max_grad_norm=clip), mode)
    sgd = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=1.0)
    optimizer = engine.optimizer(sgd, 1.0, NoiseSource.fixed(0), lambda: None)
    loss = module.training_step(batch, 0)
    vars(module).get("backward", lambda loss: loss.backward())(loss)
    optimizer.clip_and_accumulate()
    engine.check_step(len(batch[0]))
    sums = [p.summed_grad.clone() for _, p in engine.trainable]
    engine.detach()
    return sums


@pytest.mark.first(8)
@pytest.mark.parametrize("others", [0, 1, 2, 3, 8, 31, 127, 128, 1_000, 4_095])
@pytest.mark.parametrize("width", [16, 100])
def test_a_record_moves_a_float32_network_s_sum_by_its_own_gradient_whatever_the_batch(others, width):
    """A quarter of the margin 2^-16 of the clip norm is for that; observed is a tenth of it, on sums of any length."""
    torch.manual_seed(others)
    module = Net(nn.Sequential(nn.Linear(Q, width), nn.Tanh(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)))
    x = torch.rand(1, Q) + 0.01 * torch.randn(others + 1, Q)  # gradients of nearly one direction: the longest sum
    batch, clip = (x, torch.zeros(others + 1), torch.full((others + 1,), 50.0)), 0.7

    def total(rows):
        found = clipped_sums(copy.deepcopy(module), [part[rows] for part in batch], "chain", clip)
        return torch.cat([part.flatten().double() for part in found])

    moved = total(slice(None)) - total(slice(1, None))
    alone = copy.deepcopy(module).double()
    own = clipped_sums(alone, [part[:1].double() for part in batch], "chain", clip)
    assert (moved - torch.cat([part.flatten() for part in own])).norm() <= 2.0**-18 * clip
    assert clip * (1 - 2.0**-15) < moved.norm() <= clip * (1 - 2.0**-17)


@pytest.mark.first(9)
@pytest.mark.parametrize("clip", [1e-4, 0.7, 1e6])
@pytest.mark.parametrize("name", NETS)
def test_clipped_sums_are_those_of_hooks(name, clip):
    for seed, size in enumerate((0, 1, 2, 40)):
        torch.manual_seed(seed)
        module = Net(NETS[name]()).double()
        batch = torch.randn(size, Q).double(), torch.zeros(size), 3 * torch.randn(size).double()
        expected = clipped_sums(copy.deepcopy(module), batch, "hooks", clip)
        found = clipped_sums(module, batch, "chain", clip)
        for e, f in zip(expected, found, strict=True):
            torch.testing.assert_close(f, e, rtol=1e-10, atol=1e-10 * min(clip, 1.0))


class Doubled(TrainableNuisances):
    """Another loss than the one whose slopes are known."""

    def record_loss(self, batch):
        return 2 * super().record_loss(batch)


def with_hook(domain):
    module = TrainableNuisances(domain, width=8)
    module.propensity.register_forward_hook(lambda part, inputs, output: 3 * output)
    return module


@pytest.mark.first(12)
@pytest.mark.parametrize("limit", [20, 7])
@pytest.mark.parametrize("clip", [1e-4, 0.7, 1e6])
@pytest.mark.parametrize(
    ("make", "explicit"),
    [
        (lambda domain: TrainableNuisances(domain, width=8, outcome_share=0.3), True),
        (lambda domain: TrainableNuisances(domain, width=0), True),
        (lambda _: TrainableNuisances(Domain([0.0] * Q, [1.0, 2.0, 4.0], -3.0, 5.0, propensity=0.3), width=4), True),
        (lambda domain: Doubled(domain, width=8), False),
        (with_hook, False),
        (lambda domain: frozen(TrainableNuisances(domain, width=8)), False),
    ],
    ids=["both", "linear", "known", "overridden", "hook", "frozen"],
)
def test_slopes_in_closed_form_are_those_of_autograd(domain, make, explicit, clip, limit, monkeypatch):
    monkeypatch.setattr(engines, "AT_ONCE", limit)
    torch.manual_seed(1)
    module = make(domain).double()
    batch = [4 * torch.rand(20, Q).double(), (torch.rand(20) < 0.5).double(), 6 * torch.randn(20).double()]
    expected = clipped_sums(copy.deepcopy(module), batch, "hooks", clip)
    losses = module.record_loss(batch).mean().item()
    engine = ChainEngine(module, plan(max_grad_norm=clip))
    sgd = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=1.0)
    engine.optimizer(sgd, 1.0, NoiseSource.fixed(0), lambda: None)
    for _ in range(2):
        loss = engine.train(batch)
    assert engine._explicit is explicit
    assert loss.item() == pytest.approx(losses, rel=1e-12)
    for e, (_, p) in zip(expected, engine.trainable, strict=True):
        torch.testing.assert_close(p.summed_grad, e, rtol=1e-10, atol=1e-10 * min(clip, 1.0))
    engine.detach()


def frozen(module):
    module.propensity.requires_grad_(False)
    return module


def test_dropout_between_layers_is_drawn_once():
    torch.manual_seed(0)
    module = Net(nn.Sequential(nn.Linear(Q, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))).double()
    batch = torch.rand(20, Q).double(), torch.zeros(20), torch.rand(20).double()
    sums = []
    for mode in ("hooks", "chain"):
        torch.manual_seed(1)
        sums.append(clipped_sums(copy.deepcopy(module), batch, mode, 0.3))
    torch.testing.assert_close(sums[1], sums[0], rtol=1e-10, atol=1e-12)


class Odd(Net):
    """A loss of its own."""

    def __init__(self, loss) -> None:
        super().__init__(nn.Sequential(nn.Linear(Q, 4), nn.Tanh(), nn.Linear(4, 1)))
        self.loss = loss

    def record_loss(self, batch):
        return self.loss(self.net, batch[0])


def decayed(net, x):
    return net(x)[:, 0] ** 2 + net[0].weight.square().sum()


def twice(net, x):
    return net(x)[:, 0] + net(-x)[:, 0]


def without_first(net, x):
    return net[2](torch.tanh(x[:, :1].expand(-1, 4)))[:, 0]


def folded(net, x):
    return net(x.reshape(-1, 1).expand(-1, Q)).reshape(len(x), -1).sum(1)


def penalised(net, x):
    x = x.clone().requires_grad_()
    found = net(x)[:, 0]
    (slopes,) = torch.autograd.grad(found.sum(), x, create_graph=True)
    return found + slopes.square().sum(1)


def in_place(net, x):
    hidden = net[0](x * torch.ones(1, requires_grad=True))
    hidden.mul_(2)
    return net[2](hidden)[:, 0]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (decayed, "other than by its pass"),
        (twice, "twice"),
        (without_first, r"net\.0\.weight"),
        (folded, "first dimension"),
        (in_place, "in place"),
        (penalised, "input requests a gradient"),
    ],
)
def test_refuses_losses_that_go_another_way(dataset, loss, message):
    with pytest.raises(InputError, match=message):
        fit(Odd(loss), dataset, plan(sampling_rate=1.0), mode="chain")


def test_a_pass_outside_the_loss_is_not_heard(dataset):
    def peeking(net, x):
        net(x + 1)
        with torch.no_grad():
            net(x + 2)
        return net(x)[:, 0]

    weights = []
    for mode in ("hooks", "chain"):
        torch.manual_seed(0)
        module = Odd(peeking if mode == "chain" else lambda net, x: net(x)[:, 0])
        fit(module, dataset, plan(steps=3), mode=mode, trainer={"precision": "64-true"})
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-9, atol=1e-12)


class Sub(nn.Linear):
    """Not the plain layer."""


def hooked():
    layer = nn.Linear(Q, 1)
    layer.register_forward_hook(lambda layer, inputs, output: output * 2)
    return layer


def own_pass():
    layer = nn.Linear(Q, 1)
    layer.forward = lambda x: x.sum(1, keepdim=True) * layer.weight.sum()
    return layer


def shared():
    net = nn.Sequential(nn.Linear(Q, Q), nn.Linear(Q, Q))
    net[1].weight = net[0].weight
    return net


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sub(Q, 1),
        hooked,
        own_pass,
        shared,
        lambda: nn.Sequential(nn.Linear(Q, 2), nn.LayerNorm(2)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(Q, 1)),
        lambda: nn.Bilinear(Q, Q, 1),
    ],
)
def test_other_layers_are_left_to_other_engines(dataset, make):
    module = Net(make())
    assert linear_layers(module) is None
    engine = engine_of(module, plan())
    assert isinstance(engine, HooksEngine)
    engine.detach()
    with pytest.raises(InputError, match=r"nn\.Linear"):
        fit(module, dataset, plan(), mode="chain")


@pytest.mark.parametrize("listens", [False, True])
def test_a_step_in_parts_is_the_same_step(dataset, listens, monkeypatch):
    class Sizes(Net):
        def record_loss(self, batch):
            sizes.append(len(batch[0]))
            return super().record_loss(batch)

    class Listens(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            pass

    weights = []
    for limit in (engines.AT_ONCE, 8):
        sizes = []
        monkeypatch.setattr(engines, "AT_ONCE", limit)
        torch.manual_seed(0)
        module = Sizes(nn.Sequential(nn.Linear(Q, 4), nn.Tanh(), nn.Linear(4, 1)))
        callbacks = [Listens()] if listens else []
        fit(module, dataset, plan(), callbacks=callbacks, trainer={"precision": "64-true"})
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
        assert "training_step" not in vars(module)
    assert max(sizes) <= 8 < sum(sizes)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_added_in_pieces_is_that_of_one_piece(monkeypatch, dtype):
    """Of fixed noise; each number is rounded to the grid, none is left out, and the sums stay as they are."""
    total, found = torch.randn(50, dtype=dtype), []
    before = total.clone()
    for piece in (2**16, 7, 50):
        monkeypatch.setattr(engines, "_PIECE", piece)
        optimizer = object.__new__(engines._GuardedChainOptimizer)
        optimizer.noise, optimizer.noise_scale, optimizer.ahead = NoiseSource.fixed(3), 0.7, lambda: 1
        optimizer.grid = NoiseSource.fine_grid(0.7)
        found.append(optimizer.noisy(total))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(total, before)
    drawn = NoiseSource.fixed(3).fine_gaussian(50, 0.7)
    steps = (found[0] - drawn) / NoiseSource.fine_grid(0.7)
    assert torch.equal(steps, (total.double() / NoiseSource.fine_grid(0.7)).round())
