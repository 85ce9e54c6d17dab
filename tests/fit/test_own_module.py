"""DP-SGD on modules of people's own: ways to mix or keep records that are refused, and modules that train."""

import random

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.tuner import Tuner
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from tests.fit.nuisance_cases import Recorder, fit, plan
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.dp_sgd_plan import PoissonSampler, poisson_loader
from torchdpcate.fit.nuisance_kinds import PropensityNetwork
from torchdpcate.fit.trainable import RecordLossModule, TrainableNuisances
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

N, Q, CLASSES = 80, 4, 3
SILENT = 1e-12


@pytest.fixture
def table():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, Q, generator=generator)
    return TensorDataset(x, x[:, 0] + 0.1 * torch.randn(N, generator=generator), torch.arange(N) % CLASSES)


class Own(LightningModule):
    """A module whose loss is given: of predictions [B], outcomes [B], and the module itself."""

    def __init__(self, loss=None, net=None, rate=0.05):
        super().__init__()
        torch.manual_seed(1)
        self.net = net or nn.Sequential(nn.Linear(Q, 6), nn.Tanh(), nn.Linear(6, 1))
        self.loss, self.rate = loss, rate

    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        found = self.net(x)[:, 0]
        return functional.mse_loss(found, y) if self.loss is None else self.loss(found, y, self)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


def tried(module, table, **settings):
    """Fit, and return the steps; the ledger has none where the module is refused."""
    ledger = Ledger({"nuisance": PrivacyBudget(1e9, 1e-5)}, private=False)
    run = plan(sampling_rate=20 / N, steps=3)
    try:
        return fit(module, table, run, ledger=ledger, **settings).steps
    except InputError:
        assert sum(entry.count for entry in ledger.entries) == 0
        raise


class Layer(nn.Module):
    """A network with something between its layers, by what it does to a batch [B, 6] and the module."""

    def __init__(self, between):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(Q, 6), nn.Linear(6, 1), between
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        return self.last(self.between(self.first(x), self))


def normed(h, layer):
    return functional.batch_norm(h, layer.seen.clone(), layer.seen.clone().add_(1), training=layer.training)


def running(h, layer):
    if layer.training:
        layer.seen.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return h - layer.seen


def running_by_data(h, layer):
    layer.seen.data = 0.9 * layer.seen + h.detach().mean(0)
    return h


def through_a_buffer(h, layer):
    layer.seen = layer.seen * 0.5 + h.mean(0)
    return h + layer.seen


def own_parameter(h, layer):
    with torch.no_grad():
        layer.last.bias.copy_(h.mean())
    return h


BETWEEN = {
    **{f.__name__: f for f in (normed, running, running_by_data, through_a_buffer, own_parameter)},
    "centred": lambda h, layer: h - h.mean(0) if layer.training else h,
    "turned": lambda h, layer: h.roll(1, 0),
    "in order": lambda h, layer: h[h[:, 0].argsort()],
}


def squares(found, y):
    return (found - y) ** 2


def mixup_by_numpy(found, y, module):
    share = np.random.beta(2, 2)  # noqa: NPY002
    return squares(found, share * y + (1 - share) * y.flip(0)).mean()


def by_gradients_alone(found, y, module):
    own = squares(found, y).mean()
    shift = found.mean() * y.mean()
    return own + shift - shift.detach()  # the loss is that of each record, its gradient is not


def scaled_by_all(found, y, module):
    own = squares(functional.dropout(found, 0.1), y)
    return (own / own.detach().max()).mean()  # a record's direction is its own, its length is not


CACHE = []


def baseline_of_a_closure(found, y, module):
    before = CACHE[-1] if CACHE else 0.0
    CACHE.append(float(y.mean()))
    return squares(found, y - before).mean()


def class_wide(found, y, module):
    Own.baseline = 0.5 * getattr(Own, "baseline", 0.0) + float(y.mean())
    return squares(found, y - Own.baseline).mean()


LOSSES = {
    **{f.__name__: f for f in (mixup_by_numpy, by_gradients_alone, scaled_by_all, baseline_of_a_closure, class_wide)},
    "standardised": lambda found, y, module: squares(found, (y - y.mean()) / y.std()).mean(),
    "sorted together": lambda found, y, module: functional.mse_loss(found.sort().values, y.sort().values),
    "mixup": lambda found, y, module: squares(found, 0.5 * y + 0.5 * y[torch.randperm(len(y))]).mean(),
    "contrast": lambda found, y, module: (found[:, None] - found[None]).square().mean(),
    "summed": lambda found, y, module: squares(found, y).sum(),
    "broadcast": lambda found, y, module: squares(found[:, None], y).mean(),
}


KEPT = {
    "number": lambda module, value, batch: setattr(module, "last", value.item()),
    "list": lambda module, value, batch: module.losses.append(value),
    "in place": lambda module, value, batch: module.held.add_(value),
    "buffer": lambda module, value, batch: module.register_buffer("fresh", value),
    "layer": lambda module, value, batch: setattr(module.net[0], "last_input", batch[0]),
}


class Keeping(Own):
    """Keeps something of its batches in an attribute."""

    def __init__(self, keep):
        super().__init__()
        self.keep, self.last, self.losses, self.held = keep, 0.0, [], torch.zeros(())

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.keep(self, loss.detach(), batch)
        return loss


class Metered(Own):
    """Divides by a metric that has seen other table."""

    def __init__(self):
        super().__init__()
        self.level = MeanMetric()

    def training_step(self, batch, batch_idx):
        self.level.update(batch[1].abs())
        return super().training_step(batch, batch_idx) / self.level.compute()


class Words(Own):
    """Looks up embeddings that write weights."""

    def __init__(self):
        super().__init__(net=nn.Sequential(nn.Embedding(CLASSES, 6, max_norm=0.5), nn.Linear(6, 1)))

    def training_step(self, batch, batch_idx):
        return functional.mse_loss(self.net(batch[2])[:, 0], batch[1])


class Transferred(Own):
    """Mixes records on their way to the device."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y, label = batch
        return x, y - y.mean(), label


CHEATS = {
    **{name: lambda b=between: Own(net=Layer(b)) for name, between in BETWEEN.items()},
    **{name: lambda f=loss: Own(f) for name, loss in LOSSES.items()},
    **{f"keeps a {name}": lambda k=keep: Keeping(k) for name, keep in KEPT.items()},
    "a metric in the loss": Metered,
    "embeddings that write weights": Words,
    "mixed on the way": Transferred,
}


@pytest.mark.first(10)
@pytest.mark.parametrize("name", CHEATS)
def test_what_mixes_or_keeps_records_is_refused_before_a_step_is_paid(table, name):
    CACHE.clear()
    with pytest.raises(InputError, match=r"^training_step"):
        tried(CHEATS[name](), table)
    if hasattr(Own, "baseline"):
        del Own.baseline


@pytest.mark.first(2)
@pytest.mark.parametrize("name", ["standardised", "contrast", "centred", "mixup"])
def test_a_record_that_is_not_finite_hides_no_mixing(table, name):
    x, y, label = (part.clone() for part in table.tensors)
    x[::7], y[::5] = float("nan"), float("inf")
    with pytest.raises(InputError, match="depends on the others"):
        tried(CHEATS[name](), TensorDataset(x, y, label))


@pytest.mark.parametrize("name", ["dropout", "functional", "variational"])
def test_records_that_are_not_finite_do_not_refuse_an_honest_module(table, name):
    x, y, label = (part.clone() for part in table.tensors)
    x[::7] = float("nan")
    assert tried(HONEST[name](), TensorDataset(x, y, label)) == 3


def test_random_numbers_that_cannot_be_drawn_again_are_refused(table):
    class Drawing(Own):
        def __init__(self):
            super().__init__()
            self.source = random.Random(0)

        def training_step(self, batch, batch_idx):
            return (self.net(batch[0] + self.source.random())[:, 0] - batch[1]).square().mean()

    with pytest.raises(InputError, match=r"another gradient the second time; .* draw random numbers by torch"):
        tried(Drawing(), table)


def test_a_method_on_the_module_itself_is_what_is_tried(table):
    module = Own()
    module.training_step = lambda batch, batch_idx=0: (module.net(batch[0])[:, 0] - batch[1].mean()).square().mean()
    with pytest.raises(InputError, match="depends on the others"):
        tried(module, table)
    assert "training_step" in vars(module)


def test_a_buffer_that_changes_late_is_refused_at_that_step(table):
    def late(h, layer):
        layer.calls += 1
        if layer.calls > 60:
            layer.seen = h.detach().mean(0)
        return h

    net = Layer(late)
    net.calls = 0
    with pytest.raises(InputError, match=r"changes net\.seen"):
        fit(Own(net=net), table, plan(sampling_rate=20 / N, steps=100))


class ByHand(Own):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.optimizers().param_groups[0]["lr"] = 0.1 * float(loss)
        return loss


class AfterTheBatch(Own):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] = 0.1 * float(outputs["loss"])


@pytest.mark.parametrize("kind", [ByHand, AfterTheBatch])
def test_a_rate_that_is_set_by_hand_is_refused(table, kind):
    with pytest.raises(InputError, match=r"set by hand.* give a scheduler"):
        fit(kind(), table, plan(sampling_rate=20 / N, steps=3))


def test_a_backward_pass_and_steps_without_a_loss_are_refused(table):
    class Backward(Own):
        def backward(self, loss):
            loss.backward()

    class Skips(Own):
        def training_step(self, batch, batch_idx):
            return None if self.global_step == 1 else super().training_step(batch, batch_idx)

    with pytest.raises(InputError, match=r"^backward: the module has one of its own"):
        tried(Backward(), table)
    with pytest.raises(InputError, match="no per-record gradients"):
        fit(Skips(), table, plan(sampling_rate=20 / N, steps=3))


# ---- what people write, and what must train


class WordsAndNumbers(Own):
    def __init__(self):
        super().__init__(net=nn.Linear(Q + 3, 1))
        self.words = nn.Embedding(CLASSES, 3)

    def training_step(self, batch, batch_idx):
        x, y, label = batch
        return functional.huber_loss(self.net(torch.cat([x, self.words(label)], 1))[:, 0], y)


class Tied(Own):
    def __init__(self):
        super().__init__(net=nn.Linear(Q, Q, bias=False))
        self.back = nn.Linear(Q, Q, bias=False)
        self.back.weight = self.net.weight

    def training_step(self, batch, batch_idx):
        x = batch[0]
        return functional.mse_loss(self.back(torch.tanh(self.net(x))), x)


class Functional(Own):
    """A weight that a layer and a functional use, and a parameter of the module itself."""

    def __init__(self):
        super().__init__(net=nn.Linear(Q, Q, bias=False))
        self.scale = nn.Parameter(torch.tensor(0.7))

    def training_step(self, batch, batch_idx):
        self.log("scale", self.scale.detach())
        x = batch[0]
        return functional.mse_loss(self.scale * functional.linear(torch.tanh(self.net(x)), self.net.weight.T), x)


class Penalised(Own):
    """A penalty on the weights beside the loss."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + 0.01 * sum(p.square().sum() for p in self.net.parameters())


class Variational(Own):
    """Draws noise for every record, and anneals by its own public count of steps."""

    def __init__(self):
        super().__init__(net=nn.Linear(Q, 4))
        self.decode, self.calls, self.rates = nn.Linear(2, Q), 0, []

    def training_step(self, batch, batch_idx):
        self.calls += 1
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        mean, spread = self.net(batch[0]).chunk(2, 1)
        z = mean + spread.exp() * torch.randn_like(mean)
        divergence = (mean.square() + (2 * spread).exp() - 2 * spread).mean(1)
        return (squares(self.decode(z), batch[0]).mean(1) + min(1.0, self.calls / 100) * divergence).mean()


class Augmented(Own):
    """Augments each record at random, by numbers of three sources."""

    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        if random.random() < 0.5:
            x = x.flip(1)
        x = x + 0.1 * torch.rand_like(x) + 0.01 * np.random.rand()  # noqa: NPY002
        return functional.mse_loss(functional.dropout(self.net(x)[:, 0], 0.2, self.training), y)


class Folded(Own):
    """Rows of a record pass one by one."""

    def __init__(self):
        super().__init__(net=nn.Linear(1, 1))

    def training_step(self, batch, batch_idx):
        return self.net(batch[0].reshape(-1, 1)).square().mean()


class Averaged(Own):
    """Keeps an average of its weights, which are paid for, in buffers; after the step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(()))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.average.mul_(0.9).add_(0.1 * self.net[0].weight.detach().mean())


def convolution():
    return nn.Sequential(
        nn.Unflatten(1, (1, Q)),
        nn.Conv1d(1, 4, 2),
        nn.GroupNorm(2, 4),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(4 * (Q - 1), 1),
    )


class Sequences(Own):
    """A layer over the hours of each record; the last one goes on."""

    def __init__(self, layer, width):
        super().__init__(net=nn.Linear(width, 1))
        self.layer = layer

    def training_step(self, batch, batch_idx):
        hours = batch[0].unsqueeze(2)
        found = self.layer(hours)
        found = found[0] if isinstance(found, tuple) else found
        return functional.mse_loss(self.net(found[:, -1])[:, 0], batch[1])


def encoder(attention=None):
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, batch_first=True)
    if attention is not None:
        layer.self_attn = attention
    return Sequences(nn.Sequential(nn.Linear(1, 4), layer), 4)


def half_frozen():
    net = nn.Sequential(nn.Linear(Q, 6), nn.Tanh(), nn.Linear(6, 1))
    net[0].requires_grad_(False)
    return Own(net=net)


HONEST = {
    "DPLSTM": lambda: Sequences(DPLSTM(1, 3, batch_first=True), 3),
    "private attention": lambda: encoder(DPMultiheadAttention(4, 2, batch_first=True)),
    "dropout": lambda: Own(net=nn.Sequential(nn.Linear(Q, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))),
    "convolution and group norm": lambda: Own(net=convolution()),
    "words": WordsAndNumbers,
    "tied": Tied,
    "functional": Functional,
    "penalty": Penalised,
    "variational": Variational,
    "augmented": Augmented,
    "folded": Folded,
    "averaged": Averaged,
    "weight norm": lambda: Own(
        net=nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(Q, 6)), nn.Linear(6, 1))
    ),
    "frozen layers": half_frozen,
}


@pytest.mark.first(5)
@pytest.mark.parametrize("name", HONEST)
def test_what_people_write_trains(table, name):
    assert tried(HONEST[name](), table) == 3


REFUSED = {
    "LSTM": (lambda: Sequences(nn.LSTM(1, 3, batch_first=True), 3), r"layer layer is nn\.LSTM.*opacus\.layers\.DPLSTM"),
    "attention": (encoder, r"layer\.1\.self_attn is nn\.MultiheadAttention.*opacus\.layers\.DPMultiheadAttention"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_layers_without_a_gradient_of_each_record_are_refused_in_one_line(table, make, message):
    with pytest.raises(InputError, match=message) as refused:
        tried(make(), table)
    assert "\n" not in str(refused.value)


def seeded(make):
    torch.manual_seed(4)
    return make()


@pytest.mark.first(2)
@pytest.mark.parametrize("name", ["functional", "tied", "folded", "penalty", "weight norm", "words"])
def test_the_gradient_without_noise_and_clipping_is_autograd_s(table, name):
    module, plain = seeded(HONEST[name]), seeded(HONEST[name])
    batch = [part[:] for part in table.tensors]
    plain.log = lambda *_: None
    plain.training_step(batch, 0).backward()
    recorder = Recorder()
    run = plan(noise_multiplier=SILENT, max_grad_norm=1e4, sampling_rate=1.0, steps=1)
    fit(module, table, run, callbacks=[recorder])
    for own, p in zip(recorder.grads[0], plain.parameters(), strict=True):
        torch.testing.assert_close(own, p.grad, rtol=1e-4, atol=1e-5)


# ---- gradients that are not finite


class Losses(RecordLossModule):
    def __init__(self, net=None):
        super().__init__(0.05, "sgd")
        torch.manual_seed(3)
        self.net = net or nn.Sequential(nn.Linear(Q, 6), nn.Tanh(), nn.Linear(6, 1))

    def record_loss(self, batch):
        return (self.net(batch[0])[:, 0] - batch[1]) ** 2


class Deep(Losses):
    """Rows of each record, and layers that no chain is of."""

    def __init__(self):
        super().__init__(nn.Sequential(nn.Linear(Q, 6), nn.LayerNorm(6), nn.Linear(6, 1)))


def networks():
    return TrainableNuisances(Domain([-2.0] * Q, [2.0] * Q, -3.0, 3.0), width=6)


CASES = [("opacus", networks), ("chain", networks), *(("opacus", kind) for kind in (Losses, Deep, Functional))]


@pytest.mark.parametrize(("mode", "kind"), CASES)
@pytest.mark.first(4)
@pytest.mark.parametrize("value", [1e30, float("inf"), float("nan")])
def test_a_record_that_is_not_finite_counts_as_zero_in_every_engine(table, mode, kind, value):
    run = plan(noise_multiplier=SILENT, max_grad_norm=1e-3, sampling_rate=1.0, steps=3)
    x, y, label = table.tensors
    if kind is networks:
        y, label = (label > 0).float(), y
    strange = x.clone()
    strange[7, 0] = value
    others = torch.arange(N) != 7

    def gradients(*tensors):
        recorder, module = Recorder(), seeded(kind)
        fit(module, TensorDataset(*tensors), run, mode=mode, callbacks=[recorder])
        assert all(bool(p.isfinite().all()) for p in module.parameters())
        return [torch.cat([g.flatten() for g in used]) for used in recorder.grads]

    found, left_out = gradients(strange, y, label), gradients(x[others], y[others], label[others])
    for own, other in zip(found, left_out, strict=True):
        # the sum is over a public number of records; 1e30 may leave a finite gradient, which is clipped
        most = run.max_grad_norm if value == 1e30 else 1e-5 * run.max_grad_norm  # float32 sums
        assert (own * N - other * (N - 1)).norm() <= most
        break  # weights differ from now on


@pytest.mark.parametrize("mode", ["opacus", "chain"])
def test_a_batch_of_records_that_are_not_finite_takes_a_noisy_step(table, mode):
    x, y, label = table.tensors
    recorder, run = Recorder(), plan(sampling_rate=1.0, steps=2)
    nothing = TensorDataset(x * float("nan"), (label > 0).float(), y)
    fit(networks(), nothing, run, mode=mode, callbacks=[recorder])
    assert all(bool((g != 0).all()) and bool(g.isfinite().all()) for used in recorder.grads for g in used)


# ---- what keeps the word certified


class Looking(Callback):
    """A callback of somebody's."""


def hooked(module):
    module.outcome.register_forward_hook(lambda part, inputs, output: output)


def with_a_loss(module):
    own = module.record_loss
    module.record_loss = lambda batch: 2 * own(batch)


def with_a_network(module):
    class Other(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x).squeeze(-1)

        record_loss = PropensityNetwork.record_loss

    module.propensity = Other(module.propensity.net)


@pytest.mark.first(4)
@pytest.mark.parametrize(
    ("change", "callbacks", "level"),
    [
        (None, [], "certified"),
        ("single", [], "conditional"),
        (None, [Recorder()], "conditional"),
        (None, [Looking()], "conditional"),
        *((change, [], "conditional") for change in (hooked, with_a_loss, with_a_network)),
    ],
)
def test_what_was_put_into_a_module_of_the_library_s_or_beside_it_makes_its_entry_conditional(
    module, dataset, change, callbacks, level
):
    precision = "32-true" if change == "single" else "64-true"
    if callable(change):
        change(module)
    ledger, before = Ledger({"nuisance": PrivacyBudget(1e9, 1e-5)}, private=False), dict(vars(module))
    fit(module, dataset, plan(steps=2), ledger=ledger, callbacks=callbacks, trainer={"precision": precision})
    assert [entry.level for entry in ledger.entries] == [level]
    assert {name for name in vars(module) if vars(module)[name] is not before.get(name)} <= {"_trainer"} | set(before)
    assert all(vars(module).get(name) is before.get(name) for name in ("record_loss", "training_step", "backward"))


def test_hooks_of_the_optimizer_see_no_gradient_without_noise(table):
    seen = []

    def look(optimizer, *_):
        for p in optimizer.param_groups[0]["params"]:
            seen.append([vars(p).get(name) for name in ("grad_sample", "summed_grad", "_norm_sample")])

    class Hooked(Losses):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            optimizer.register_step_pre_hook(look)
            return optimizer

    fit(Hooked(), table, plan(sampling_rate=20 / N, steps=2))
    assert seen == [[None] * 3] * 8


# ---- ways round the callback


@pytest.mark.parametrize("search", ["lr_find", "scale_batch_size"])
def test_a_tuner_is_refused_as_its_callback_is(table, search):
    ledger = Ledger({"nuisance": PrivacyBudget(1e9, 1e-5)}, private=False)
    noise, run = NoiseSource.fixed(0), plan(sampling_rate=20 / N)
    private = DPSGD(run, noise, ledger)
    trainer = default_trainer(callbacks=[private], accelerator="cpu", max_epochs=-1, max_steps=run.steps)
    module = Own()
    module.lr = module.batch_size = 1
    module.train_dataloader = lambda: poisson_loader(table, run.sampling_rate, run.steps, noise)
    with pytest.raises(InputError, match="Finder reads the records in passes that nobody counts"):
        getattr(Tuner(trainer), search)(module)
    assert module.lr == module.batch_size == 1
    assert not ledger.entries


def test_a_loader_of_another_class_is_tried_too(table):
    run = plan(sampling_rate=20 / N, steps=3)
    loader = DataLoader(table, batch_sampler=PoissonSampler(N, run.sampling_rate, 3, NoiseSource.fixed(0)))
    with pytest.raises(InputError, match="depends on the others"):
        fit(Own(LOSSES["standardised"]), table, run, loader=loader)
