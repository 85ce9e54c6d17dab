"""The fresh-noise check: system noise passes, and sources that an outsider could repeat are found."""

import os
import random
import secrets

import numpy as np
import pytest
import torch

from tests.tools.replay.check import learner_pipeline
from tests.tools.replay.entropy import check_fresh_noise, check_source
from torchdpcate import LinearSecondStage, PrivacyBudget, RLearner
from torchdpcate.data.records import CausalData
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.papers.oprescu import Dataset1
from torchdpcate.privacy.noise import FixedNoise, NoiseSource, SystemNoise

STUDY = Dataset1(n=200, queries=4, seed=3).load()
SEED = 11
KINDS = {
    "gaussian",
    "fine_gaussian",
    "uniform",
    "coins",
    "chosen",
    "laplace",
    "k_norm",
    "root_polytope",
    "select",
    "gumbel",
    "generator",
    "permutation",
}
SEEDS = "the same under the same seeds"
GLOBAL = "moves a global generator, whose seed is known"
FORKED = "the same in a process and a child forked from it"
TWINS = "the same in two processes forked at the same time"


def learner():
    small = NuisanceConfig(width=3, batch_size=40, epochs=1)
    stage = LinearSecondStage(ridge=0.1)
    return learner_pipeline(RLearner(STUDY.domain, PrivacyBudget(4.0, 1e-4), nuisance=small, second_stage=stage))


def ways(found, kind=None):
    return {repetition.how for repetition in found if kind in (None, repetition.kind)}


# ---- planted sources, each of which says that it is private


class OfTheExperiment(FixedNoise):
    """Everything from the experiment's seed."""

    private = True


class FromTorch(SystemNoise):
    """Gaussian noise from torch's global generator."""

    def gaussian(self, size, scale, step=None):
        return torch.randn(size, dtype=torch.float64) * scale


class FromNumPy(SystemNoise):
    def laplace(self, size, scale):
        return torch.from_numpy(np.random.laplace(0, scale, size))  # noqa: NPY002 - the fault


class GlobalStream(SystemNoise):
    """Hands out torch's own generator."""

    def generator(self, device="cpu"):
        return torch.default_generator


class SeededStream(SystemNoise):
    """Streams whose seeds come from Python's global generator, which a fork seeds anew."""

    def generator(self, device="cpu"):
        return torch.Generator(device).manual_seed(random.getrandbits(63))


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


class OfTheParent(SystemNoise):
    """Seeded by the number of the parent process and of the call: processes started by the same one agree."""

    def __init__(self):
        self.calls = 0

    def gaussian(self, size, scale, step=None):
        self.calls += 1
        numbers = np.random.default_rng((os.getppid(), self.calls))
        return torch.from_numpy(numbers.normal(0, scale, size))


# ---- honest


def test_system_noise_is_fresh_and_leaves_the_environment_alone():
    names = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")
    before = [os.environ.get(name) for name in names]
    states = torch.get_rng_state(), random.getstate()
    assert check_source(NoiseSource.system, SEED) == []
    assert [os.environ.get(name) for name in names] == before
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


@pytest.mark.slow
def test_a_learner_on_system_noise_is_fresh():
    assert check_fresh_noise(learner(), STUDY.records, SEED) == []


# ---- faults


@pytest.mark.slow
def test_a_source_of_the_experiments_seed_is_found_in_every_draw():
    found = check_fresh_noise(learner(), STUDY.records, SEED, lambda: OfTheExperiment(SEED))
    assert {r.kind for r in found if r.how == SEEDS} == KINDS
    in_the_run = {(r.kind, r.place.split(":")[0]) for r in found if "two runs" in r.how}
    assert in_the_run == {
        ("permutation", "torchdpcate/data/checked.py"),
        ("fine_gaussian", "torchdpcate/fit/engines.py"),
        ("released", "torchdpcate/fit/engines.py"),
        ("gaussian", "torchdpcate/fit/private_fit.py"),
        ("gaussian", "torchdpcate/privacy/mechanisms.py"),
        ("released", "torchdpcate/estimators/cate/mechanisms/base.py"),
    }


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("source", "kind", "how"),
    [
        (FromTorch, "gaussian", {SEEDS, FORKED, TWINS}),
        (FromNumPy, "laplace", {SEEDS, FORKED, TWINS}),
        (GlobalStream, "generator", {SEEDS, FORKED, TWINS}),
        (SeededStream, "generator", {SEEDS}),
        (OneStream, "generator", {"the same at two calls", FORKED, TWINS}),
        (MadeBeforeTheFork, "gaussian", {FORKED, TWINS}),
        (OfTheParent, "gaussian", {SEEDS, TWINS}),
    ],
)
def test_a_source_that_repeats_is_found_and_named(source, kind, how):
    found = check_source(source, SEED)
    assert ways(found, kind) == how
    assert {r.kind for r in found} <= {kind, "noise"}


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("source", "generators"),
    [(FromTorch, {"torch"}), (FromNumPy, {"numpy"}), (GlobalStream, {"torch"}), (SeededStream, {"random"})],
)
def test_a_source_that_moves_a_global_generator_is_found(source, generators):
    found = check_source(source, SEED)
    assert {r.place for r in found if r.how == GLOBAL} == generators


@pytest.mark.slow
def test_noise_of_the_global_seed_is_found_in_a_learner():
    found = check_fresh_noise(learner(), STUDY.records, SEED, FromTorch)
    in_the_run = {(r.kind, r.place.split(":")[0]) for r in found if "two runs" in r.how}
    assert ("gaussian", "torchdpcate/fit/private_fit.py") in in_the_run
    assert ("fine_gaussian", "torchdpcate/fit/engines.py") not in in_the_run


def test_a_pipeline_that_ignores_its_source_is_found():
    def pipeline(records: CausalData, noise: NoiseSource) -> float:
        return float(records.y.sum() + NoiseSource.system().gaussian(1, 1.0))

    (found,) = check_fresh_noise(pipeline, STUDY.records, SEED)
    assert "draws nothing" in found.how


def test_single_numbers_and_selections_may_meet_by_chance():
    def pipeline(records, noise):
        return noise.released(float(noise.select(torch.tensor([0.0, 1e6]), 1.0) + noise.gaussian(2, 1.0)[0]))

    assert check_fresh_noise(pipeline, STUDY.records, SEED) == []
