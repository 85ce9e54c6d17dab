"""Runs side by side are the runs one by one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.nuisance.cases import N, Q, plan
from torchdpcate.data.records import CausalData
from torchdpcate.errors import BudgetError, InputError
from torchdpcate.nuisance.record_loss import RecordLossModule
from torchdpcate.nuisance.side_by_side import train_side_by_side
from torchdpcate.nuisance.train import train
from torchdpcate.nuisance.trainable import TrainableNuisances
from torchdpcate.nuisance.trainer import default_trainer
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

SILENT = 1e-9


@pytest.fixture
def records(dataset):
    return CausalData(*(part.double() for part in dataset.tensors))


def made(domain, seed, width=8, **settings):
    torch.manual_seed(seed)
    return TrainableNuisances(domain, width=width, **settings)


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("average", [0.0, 0.5])
@pytest.mark.parametrize(("optimizer", "rates"), [("sgd", (0.05, 0.2, 0.1)), ("adam", (0.01, 0.01, 0.01))])
def test_runs_are_those_of_train(domain, records, optimizer, rates, average):
    """At rate 1 and next to no noise nothing is random, so that each run must be what it is alone."""
    plans = [plan(noise_multiplier=SILENT, max_grad_norm=clip, sampling_rate=1.0) for clip in (0.05, 0.5, 50.0)]
    # under adam a unit that is never active moves by the noise, however little there is
    settings = {"optimizer": optimizer, "width": 0 if optimizer == "adam" else 8}
    modules = [made(domain, s, learning_rate=rate, **settings) for s, rate in enumerate(rates)]
    alone = copy.deepcopy(modules)
    found = train_side_by_side(modules, records, plans=plans, noise=NoiseSource.system(), average=average)
    assert found == modules
    for module, run in zip(alone, plans, strict=True):
        settings = {"batch_size": N, "epochs": 1, "seed": 0, "average": average}
        train(module, records, default_trainer, plan=run, noise=NoiseSource.system(), **settings)
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(weights(one), weights(other), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(weights(found[0]), weights(found[1]), atol=1e-2)
    assert not any("forward" in vars(part) for module in modules for part in module.modules())


class Flat(RecordLossModule):
    """No record has a gradient: what moves the weights is noise."""

    def __init__(self):
        super().__init__(optimizer="sgd", learning_rate=1.0)
        self.net = nn.Linear(Q, 40)
        nn.init.zeros_(self.net.weight)
        nn.init.zeros_(self.net.bias)

    def record_loss(self, batch):
        return 0 * self.net(batch[0]).sum(1)


def test_each_run_has_noise_of_its_own_and_of_its_scale(records):
    """After one step weights are noise over the expected ten records."""
    multipliers = [0.5, 1.0, 4.0] * 20
    plans = [plan(noise_multiplier=sigma, max_grad_norm=0.2, steps=1) for sigma in multipliers]
    modules = train_side_by_side([Flat() for _ in plans], records, plans=plans, noise=NoiseSource.system(), average=0)
    drawn = torch.stack([weights(m).double() * 10 / (0.2 * s) for m, s in zip(modules, multipliers, strict=True)])
    # 9,600 standard normal numbers: six deviations alarm falsely 2e-9 of the time
    assert abs(drawn.square().mean() - 1) < 6 * (2 / drawn.numel()) ** 0.5
    for k in range(3):
        part = drawn[k::3]
        assert abs(part.square().mean() - 1) < 6 * (2 / part.numel()) ** 0.5
    between = torch.corrcoef(drawn) - torch.eye(len(drawn))
    assert between.abs().max() < 7 / drawn.shape[1] ** 0.5


class Counts(RecordLossModule):
    """The weight's step is minus the number of records, so that a run shows how many it had."""

    def __init__(self):
        super().__init__(optimizer="sgd", learning_rate=1.0)
        self.net = nn.Linear(Q, 1)
        nn.init.zeros_(self.net.weight)
        nn.init.zeros_(self.net.bias)

    def record_loss(self, batch):
        return self.net(torch.zeros_like(batch[0]))[:, 0]


def test_each_run_has_samples_of_its_own(records):
    runs = [plan(noise_multiplier=SILENT, max_grad_norm=2.0, sampling_rate=q, steps=1) for q in [0.1] * 100 + [1.0]]
    found = train_side_by_side([Counts() for _ in runs], records, plans=runs, noise=NoiseSource.system(), average=0)
    counts = [-module.net.bias.item() * run.sampling_rate * N for module, run in zip(found, runs, strict=True)]
    assert all(abs(count - round(count)) < 1e-3 for count in counts)
    assert round(counts[-1]) == N
    some = torch.tensor(counts[:-1]).round()
    # Binomial(60, 0.1): mean 6, variance 5.4; the mean of a hundred is within six deviations
    assert abs(some.mean() - 6) < 6 * 0.54**0.5
    assert len(set(some.tolist())) > 3


def test_each_run_is_charged(domain, records):
    ledgers = [Ledger({"nuisance": PrivacyBudget(1000.0, 1e-5)}, private=False) for _ in range(2)]
    plans = [plan(), plan(noise_multiplier=2.0)]
    modules = [made(domain, s) for s in range(2)]
    train_side_by_side(modules, records, plans=plans, noise=NoiseSource.fixed(0), ledgers=ledgers)
    assert [(ledger.entry(0).count, ledger.entry(0).event) for ledger in ledgers] == [(20, p.event) for p in plans]
    shared = Ledger({"nuisance": PrivacyBudget(1000.0, 1e-5)}, private=False)
    train_side_by_side(modules, records, plans=plans, noise=NoiseSource.fixed(0), ledgers=[shared] * 2)
    assert [entry.count for entry in shared.entries] == [20, 20]
    poor = Ledger({"nuisance": PrivacyBudget(0.01, 1e-5)}, private=False)
    with pytest.raises(BudgetError):
        train_side_by_side(modules, records, plans=plans, noise=NoiseSource.fixed(0), ledgers=[shared, poor])


def test_refuses_runs_that_differ(domain, records):
    noise = NoiseSource.fixed(0)
    two = [made(domain, 0), made(domain, 1)]
    cases = [
        (two, [plan()], "one plan"),
        (two, [plan(), plan(steps=3)], "steps differ"),
        ([two[0], made(domain, 1, outcome_share=0.5)], [plan()] * 2, "differs"),
        (
            [made(domain, 0, optimizer="adam"), made(domain, 0, optimizer="adam", learning_rate=1.0)],
            [plan()] * 2,
            "adam",
        ),
    ]
    for modules, plans, message in cases:
        with pytest.raises(InputError, match=message):
            train_side_by_side(modules, records, plans=plans, noise=noise)
    private = Ledger({"nuisance": PrivacyBudget(1000.0, 1e-5)})
    with pytest.raises(InputError, match="fixed"):
        train_side_by_side(two, records, plans=[plan()] * 2, noise=noise, ledgers=[private] * 2)


def test_no_clipped_gradient_is_longer_than_the_clip_norm_of_its_run():
    """Of one record far above it, by a step of rate one from weights that are known."""

    class Steep(Flat):
        def record_loss(self, batch):
            return 1e3 * (self.net(batch[0]).sum(1) - batch[2])

    one = CausalData(torch.ones(1, Q).double(), torch.ones(1).double(), torch.full((1,), 5.0).double())
    clips = (0.01, 1.0, 30.0)
    plans = [plan(noise_multiplier=SILENT, max_grad_norm=clip, sampling_rate=1.0, steps=1) for clip in clips]
    modules = train_side_by_side([Steep() for _ in plans], one, plans=plans, noise=NoiseSource.system(), average=0)
    for module, run in zip(modules, plans, strict=True):
        norm = weights(module).double().norm().item()
        assert run.clip_norm * (1 - 2.0**-18) < norm <= run.max_grad_norm


def test_a_step_that_fails_leaves_the_ledger_with_what_was_taken(domain, records):
    class Stops(TrainableNuisances):
        seen = 0

        def record_loss(self, batch):
            Stops.seen += 1
            if Stops.seen > 4:
                raise KeyboardInterrupt
            return super().record_loss(batch)

    ledger = Ledger({"nuisance": PrivacyBudget(1000.0, 1e-5)}, private=False)
    module = Stops(domain, width=4)
    with pytest.raises(KeyboardInterrupt):
        train_side_by_side([module], records, plans=[plan()], noise=NoiseSource.fixed(0), ledgers=[ledger])
    assert ledger.entry(0).count == 4


@pytest.mark.parametrize("made_by", [lambda domain: made(domain, 0), lambda domain: Flat()])
def test_a_step_that_sampled_nobody_in_any_run_is_a_step_of_noise(domain, records, made_by):
    modules, run = [made_by(domain) for _ in range(2)], plan(sampling_rate=1e-12, steps=3)
    before = [weights(module) for module in modules]
    found = train_side_by_side(modules, records, plans=[run] * 2, noise=NoiseSource.fixed(0), average=0.0)
    for module, start in zip(found, before, strict=True):
        assert (weights(module) != start).all()
