"""Fresh noise: nothing that an outsider could set or copy brings the same noise twice; sources that repeat are seen."""

import multiprocessing
import random
import secrets
from collections import defaultdict

import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.utilities.seed import isolate_rng

from tests.tools.replay.check import learner_pipeline
from tests.tools.replay.tape import RecordingNoise, mapped, watched
from torchdpcate import LinearSecondStage, PrivacyBudget, RLearner
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.papers.oprescu import Dataset1
from torchdpcate.privacy.noise import FixedNoise, NoiseSource, SystemNoise

SEED, NUMBERS = 11, 32  # numbers of each kind: at 6 bits a number honest ones meet once in 2^190
TWICE, SEEDS, FORKED, TWINS, GLOBAL = "two calls", "the same seeds", "a forked child", "two forked children", "global"


def draws(noise):
    """Enough of each kind of draw that no two are alike by chance."""
    even = torch.zeros(2**6, dtype=torch.float64)
    return {
        "gaussian": noise.gaussian(NUMBERS, 1.0),
        "fine_gaussian": noise.fine_gaussian(NUMBERS, 1.0),
        "laplace": noise.laplace(NUMBERS, 1.0),
        "k_norm": noise.k_norm(NUMBERS, 2, 1.0),
        "select": torch.tensor([noise.select(even, 1.0) for _ in range(NUMBERS)]).double(),
        "gumbel": torch.tensor([noise.select(even, 1.0, law="gumbel") for _ in range(NUMBERS)]).double(),
        "uniform": noise.uniform(NUMBERS),
        "coins": noise.coins(6 * NUMBERS, 0.5).double(),
        "chosen": noise.chosen(100 * NUMBERS, 0.05).double(),
        "generator": torch.rand(NUMBERS, generator=noise.generator(), dtype=torch.float64),
        "permutation": noise.permutation(NUMBERS).double(),
    }


def seeded(source):
    """Return a source made under the experiment's seeds, its draws, and whether a global generator moved."""
    with isolate_rng():
        seed_everything(SEED, verbose=False)
        noise = source()
        before = states()
        return noise, draws(noise), states() != before


def states():
    numpy_state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 - the global generator is the suspect
    return torch.get_rng_state().tolist(), numpy_state["key"].tolist(), numpy_state["pos"], random.getstate()


def child(noise, start, sender):
    torch.set_num_threads(1)  # the parent's other threads do not live here
    start.wait()
    sender.send({kind: values.tolist() for kind, values in draws(noise).items()})


def children(noise):
    """Return the draws of two processes that inherit the source at the same time."""
    context = multiprocessing.get_context("fork")
    start, found = context.Barrier(2), []
    for _ in range(2):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(noise, start, sender), daemon=True)
        process.start()
        found.append((process, receiver))
    answers = [receiver.recv() for _, receiver in found if receiver.poll(60)]
    for process, _ in found:
        process.join()
    return [{kind: torch.tensor(values, dtype=torch.float64) for kind, values in one.items()} for one in answers]


def repeated(source):
    """Return the kinds of draws that repeat, by the circumstances; and under ``GLOBAL`` whether a generator moved."""
    (noise, first, moved), found = seeded(source), defaultdict(set)
    (one, two), after = children(noise), draws(noise)
    pairs = {TWICE: (first, after), SEEDS: (first, seeded(source)[1]), FORKED: (one, after), TWINS: (one, two)}
    for how, (before, after) in pairs.items():
        for kind in before:
            if torch.equal(before[kind], after[kind]):
                found[kind].add(how)
    return {**found, **({GLOBAL: True} if moved else {})}


def test_system_noise_is_fresh():
    assert repeated(NoiseSource.system) == {}


class OfTheExperiment(FixedNoise):
    private = True


class FromTorch(SystemNoise):
    def gaussian(self, size, scale, step=None):
        return torch.randn(size, dtype=torch.float64) * scale


class OneStream(SystemNoise):
    """A good stream, but always the same one."""

    def __init__(self):
        self.state = super().generator().get_state()

    def generator(self, device="cpu"):
        stream = torch.Generator(device)
        stream.set_state(self.state)
        return stream


class MadeBeforeTheFork(SystemNoise):
    """The system's entropy, requested once: whoever inherits the source continues the same stream."""

    def __init__(self):
        self.numbers = np.random.default_rng(secrets.randbits(256))

    def gaussian(self, size, scale, step=None):
        return torch.from_numpy(self.numbers.normal(0, scale, size))


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (FromTorch, {"gaussian": {SEEDS, FORKED, TWINS}, GLOBAL: True}),
        (OneStream, {"generator": {TWICE, FORKED, TWINS}}),
        (MadeBeforeTheFork, {"gaussian": {FORKED, TWINS}}),
    ],
)
def test_a_source_that_repeats_is_found(source, expected):
    assert repeated(source) == expected


def in_a_fit(source):
    """Return the numbers of each kind and place of a learner's run under the experiment's seeds."""
    study = Dataset1(n=200, queries=4, seed=3).load()
    small = NuisanceConfig(width=3, batch_size=40, epochs=1)
    stage = LinearSecondStage(ridge=0.1)
    learner = RLearner(study.domain, PrivacyBudget(4.0, 1e-4), nuisance=small, second_stage=stage)
    with isolate_rng():
        seed_everything(SEED, verbose=False)
        noise = RecordingNoise(source())
        with watched(noise):
            learner_pipeline(learner)(study.records, noise)
    found = defaultdict(list)
    for call in noise.tape:
        mapped(call.output, found[call.kind, call.place].append)
    return found


@pytest.mark.slow
def test_no_draw_and_no_output_of_a_fit_follows_the_experiment_s_seeds():
    """Of a source of the experiment's seed every one does: each in the place where the code draws."""
    kinds = ("permutation", "fine_gaussian", "gaussian", "released")

    def same(source):
        one, two = in_a_fit(source), in_a_fit(source)
        pairs = {key: list(zip(one[key], two[key], strict=False)) for key in one if key[0] in kinds}
        pairs = {key: [p for p in both if torch.is_tensor(p[0]) and p[0].numel() > 1] for key, both in pairs.items()}
        return {key: any(torch.equal(*p) for p in pair) for key, pair in pairs.items() if pair}

    repeats = same(lambda: OfTheExperiment(SEED))
    assert all(repeats.values())
    assert {kind for kind, _ in repeats} == set(kinds)
    assert not any(same(NoiseSource.system).values())
